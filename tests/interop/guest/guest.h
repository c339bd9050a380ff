/* What the parts of siwpeer share. */
#ifndef GUEST_H
#define GUEST_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* control.c: the line to the host. One command a line, one answer a line. */

/* Connects to the host's program; ends the process where that fails. */
void control_open(const char *host, const char *port);
/* The next command, cut into words; how many, 0 when the host is gone. */
int control_next(char **words, int max);
/* "ok" and what else is to be said. */
void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "error" and why. */
void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line in front of the answer. */
void tell(const char *line);

unsigned long long number(const char *word);
/* Octets written as hexadecimal digits, "-" for none; how many. */
size_t from_hex(const char *word, unsigned char *out, size_t max);
/* The digits of some octets, in a buffer that the next call reuses. */
const char *to_hex(const unsigned char *octets, size_t len);
long now_ms(void);

/* pattern.c: what is sent, known to both ends. */

/* Message `index` of one direction of a stream of random messages. */
struct message {
	enum { MESSAGE_SEND, MESSAGE_WRITE, MESSAGE_READ } kind;
	uint32_t len;
	uint64_t pattern;
};

void pattern_fill(unsigned char *at, size_t len, uint64_t seed);
/* Where the octets first differ from the pattern; len if nowhere. */
size_t pattern_check(const unsigned char *at, size_t len, uint64_t seed);
struct message message(uint64_t seed, unsigned int direction, uint64_t index);

/* peer.c, bulk.c: one end of one connection. */

/* Commands until the host says bye; the exit status of the process. */
int peer(void);

struct ibv_mr;
struct region {
	unsigned char *at;
	size_t len;
	struct ibv_mr *mr;
};

/* What bulk.c takes from peer.c. */
struct region *region(const char *word);
int post_recv(uint64_t id, struct region *r, size_t off, size_t len);
int post_send(int opcode, unsigned int flags, uint64_t id, struct region *r, size_t off, size_t len,
	      uint64_t remote, uint32_t rkey);
struct ibv_cq;
struct ibv_wc;
extern struct ibv_cq *send_cq, *recv_cq;
/* The next completion; 0 if none comes in time. */
int next_wc(struct ibv_cq *cq, struct ibv_wc *wc);

void bulk_prepare(char **words, int n);
void bulk_run(char **words, int n);

#endif
