/*
 * One end of one connection, command by command:
 *
 *   region N LEN RIGHTS PD     memory region N of LEN octets; RIGHTS are letters of "rwl" (remote read, remote write,
 *                              local write) or "-"; PD 0 is that of the queue pair, 1 another: its address and STag
 *   fill N OFF LEN SEED        writes a pattern
 *   check N OFF LEN SEED       compares with a pattern: "same", or "differs AT"
 *   blank N OFF LEN            fills with 0xa5
 *   octet N OFF                one octet
 *   listen PORT                one listener, for any number of requests
 *   request                    the next request: peer's IRD, ORD, private data; makes the queue pair for it
 *   resolve ADDRESS PORT       the other role: makes the queue pair for a connection there
 *   accept IRD ORD DATA        DATA in hexadecimal digits, "-" for none: "established IRD ORD DATA"
 *   reject DATA
 *   connect IRD ORD DATA       "established IRD ORD DATA" or "EVENT STATUS DATA"
 *   recv ID N OFF LEN          posts a receive
 *   post KIND ID N OFF LEN [ADDRESS] [STAG]
 *                              KIND: write or read with ADDRESS and STAG; send, send-se; send-inv, send-se-inv with STAG
 *   sent, received             the next completion of either queue: ID STATUS OPCODE OCTETS FLAGS INVALIDATED
 *   quiet MS                   whether no completion comes for so long: "quiet", or the completion
 *   disconnect                 "disconnected" when the event has come
 *   ended                      waits for the peer's end: "disconnected"
 *   state                      of the queue pair, by number
 *   prepare, run               see bulk.c
 *   bye                        the end of the process
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include "guest.h"

#define REGIONS 64
#define LIMIT_MS 60000

struct ibv_cq *send_cq, *recv_cq;

static struct ibv_context *device;
static struct ibv_pd *pds[2];
static struct rdma_event_channel *events;
static struct rdma_cm_id *listener, *id;
static struct region regions[REGIONS];
static int disconnected;

static int set_up(void)
{
	int i, n = 0;
	struct ibv_context **all = rdma_get_devices(&n);

	for (i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(all[i]->device), "siw0"))
			device = all[i];
	if (!device) {
		refuse("no siw0");
		return -1;
	}
	for (i = 0; i < 2; i++)
		pds[i] = ibv_alloc_pd(device);
	send_cq = ibv_create_cq(device, 512, NULL, NULL, 0);
	recv_cq = ibv_create_cq(device, 512, NULL, NULL, 0);
	events = rdma_create_event_channel();
	if (!pds[0] || !pds[1] || !send_cq || !recv_cq || !events) {
		refuse("setting up: %s", strerror(errno));
		return -1;
	}
	return 0;
}

/* --- memory --- */

struct region *region(const char *word)
{
	return &regions[number(word) % REGIONS];
}

static void make_region(char **words)
{
	struct region *r = region(words[1]);
	int access = 0;

	r->len = number(words[2]);
	access |= strchr(words[3], 'l') ? IBV_ACCESS_LOCAL_WRITE : 0;
	access |= strchr(words[3], 'r') ? IBV_ACCESS_REMOTE_READ : 0;
	access |= strchr(words[3], 'w') ? IBV_ACCESS_REMOTE_WRITE : 0;
	if (r->mr && ibv_dereg_mr(r->mr)) {
		refuse("ibv_dereg_mr: %s", strerror(errno));
		return;
	}
	free(r->at);
	r->mr = NULL;
	r->at = NULL;
	if (posix_memalign((void **)&r->at, 4096, r->len ? r->len : 1)) {
		refuse("no memory");
		return;
	}
	memset(r->at, 0, r->len);
	r->mr = ibv_reg_mr(pds[number(words[4]) % 2], r->at, r->len, access);
	if (!r->mr)
		refuse("ibv_reg_mr: %s", strerror(errno));
	else
		answer("%llu %u", (unsigned long long)(uintptr_t)r->at, r->mr->rkey);
}

static int inside(const struct region *r, size_t off, size_t len)
{
	if (r->at && off <= r->len && len <= r->len - off)
		return 1;
	refuse("not inside of the region");
	return 0;
}

/* --- connections --- */

/* The next event that is no end of the connection, unless that is wanted; the caller acknowledges it. */
static struct rdma_cm_event *next_event(int end_wanted)
{
	struct pollfd p = { .fd = events->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	for (;;) {
		if (poll(&p, 1, LIMIT_MS) <= 0 || rdma_get_cm_event(events, &event))
			return NULL;
		if (event->event != RDMA_CM_EVENT_DISCONNECTED)
			return event;
		disconnected = 1;
		if (end_wanted)
			return event;
		rdma_ack_cm_event(event);
	}
}

static void show_event(const char *what, const struct rdma_cm_event *event)
{
	const struct rdma_conn_param *conn = &event->param.conn;

	answer("%s %u %u %s", what, conn->responder_resources, conn->initiator_depth,
	       to_hex(conn->private_data, conn->private_data ? conn->private_data_len : 0));
}

static int make_qp(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.cap = { .max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	if (!rdma_create_qp(id, pds[0], &attr))
		return 0;
	refuse("rdma_create_qp: %s", strerror(errno));
	return -1;
}

static void do_listen(const char *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(number(port)) };

	if (rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)&at) || rdma_listen(listener, 16))
		refuse("listening: %s", strerror(errno));
	else
		answer("%s", port);
}

static void do_request(void)
{
	struct rdma_cm_event *event = next_event(0);

	if (!event) {
		refuse("no request");
	} else if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		refuse("%s", rdma_event_str(event->event));
		rdma_ack_cm_event(event);
	} else {
		id = event->id;
		if (!make_qp())
			show_event("request", event);
		rdma_ack_cm_event(event);
	}
}

static int expect(enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event = next_event(0);
	enum rdma_cm_event_type type;

	if (!event) {
		refuse("no %s", rdma_event_str(wanted));
		return -1;
	}
	type = event->event;
	rdma_ack_cm_event(event);
	if (type == wanted)
		return 0;
	refuse("%s", rdma_event_str(type));
	return -1;
}

static void do_resolve(const char *address, const char *port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(number(port)) };

	inet_pton(AF_INET, address, &to.sin_addr);
	if (rdma_create_id(events, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 5000)) {
		refuse("resolving: %s", strerror(errno));
		return;
	}
	if (expect(RDMA_CM_EVENT_ADDR_RESOLVED))
		return;
	if (rdma_resolve_route(id, 5000)) {
		refuse("rdma_resolve_route: %s", strerror(errno));
		return;
	}
	if (!expect(RDMA_CM_EVENT_ROUTE_RESOLVED) && !make_qp())
		answer("%s", address);
}

static void do_establish(char **words, int connecting)
{
	unsigned char data[512];
	struct rdma_conn_param param = {
		.private_data = data,
		.private_data_len = from_hex(words[3], data, sizeof(data)),
		.responder_resources = number(words[1]),
		.initiator_depth = number(words[2]),
		.retry_count = 7,
	};
	struct rdma_cm_event *event;

	if (connecting ? rdma_connect(id, &param) : rdma_accept(id, &param)) {
		refuse("%s: %s", connecting ? "rdma_connect" : "rdma_accept", strerror(errno));
		return;
	}
	event = next_event(0);
	if (!event) {
		refuse("no event");
		return;
	}
	if (event->event == RDMA_CM_EVENT_ESTABLISHED)
		show_event("established", event);
	else
		answer("%s %d %s", rdma_event_str(event->event), event->status,
		       to_hex(event->param.conn.private_data, event->param.conn.private_data_len));
	rdma_ack_cm_event(event);
}

static void do_reject(const char *word)
{
	unsigned char data[512];
	size_t len = from_hex(word, data, sizeof(data));

	if (rdma_reject(id, data, len))
		refuse("rdma_reject: %s", strerror(errno));
	else
		answer("%s", "");
}

static void do_end(int begin)
{
	struct rdma_cm_event *event;

	if (begin && rdma_disconnect(id)) {
		refuse("rdma_disconnect: %s", strerror(errno));
		return;
	}
	while (!disconnected) {
		event = next_event(1);
		if (!event) {
			refuse("no end of the connection");
			return;
		}
		rdma_ack_cm_event(event);
	}
	answer("disconnected");
}

static void show_state(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init))
		refuse("ibv_query_qp: %s", strerror(errno));
	else
		answer("%d", attr.qp_state);
}

/* --- work --- */

int post_recv(uint64_t wr_id, struct region *r, size_t off, size_t len)
{
	struct ibv_sge sge = { (uintptr_t)r->at + off, len, r->mr->lkey };
	/* siw refuses a receive without any element; one of no octets will do. */
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(id->qp, &wr, &bad);
}

int post_send(int opcode, unsigned int flags, uint64_t wr_id, struct region *r, size_t off, size_t len,
	      uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)r->at + off, len, r->mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = len ? 1 : 0,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED | flags,
	};

	if (opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = rkey;
	/* siw's library takes the key to invalidate from here as well. */
	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = rkey;
	return ibv_post_send(id->qp, &wr, &bad);
}

static void do_post(char **words, int n)
{
	static const struct {
		const char *name;
		int opcode, arguments;
		unsigned int flags;
	} kinds[] = {
		{ "send", IBV_WR_SEND, 6, 0 },
		{ "send-se", IBV_WR_SEND, 6, IBV_SEND_SOLICITED },
		{ "send-inv", IBV_WR_SEND_WITH_INV, 7, 0 },
		{ "send-se-inv", IBV_WR_SEND_WITH_INV, 7, IBV_SEND_SOLICITED },
		{ "write", IBV_WR_RDMA_WRITE, 8, 0 },
		{ "read", IBV_WR_RDMA_READ, 8, 0 },
	};
	struct region *r = region(words[3]);
	size_t i, off = number(words[4]), len = number(words[5]);
	int error;

	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (strcmp(words[1], kinds[i].name) || n != kinds[i].arguments)
			continue;
		if (!inside(r, off, len))
			return;
		error = post_send(kinds[i].opcode, kinds[i].flags, number(words[2]), r, off, len,
				  n == 8 ? number(words[6]) : 0, n > 6 ? number(words[n - 1]) : 0);
		if (error)
			refuse("ibv_post_send: %s", strerror(error));
		else
			answer("%s", words[2]);
		return;
	}
	refuse("no such operation: %s", words[1]);
}

int next_wc(struct ibv_cq *cq, struct ibv_wc *wc)
{
	long end = now_ms() + LIMIT_MS;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, wc))) {
		if (now_ms() > end)
			return 0;
		usleep(200);
	}
	return n > 0;
}

static void show_wc(const struct ibv_wc *wc)
{
	answer("%llu %d %d %u %u %u", (unsigned long long)wc->wr_id, wc->status, wc->opcode,
	       wc->byte_len, wc->wc_flags, wc->wc_flags & IBV_WC_WITH_INV ? wc->invalidated_rkey : 0);
}

static void do_wait(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	if (next_wc(cq, &wc))
		show_wc(&wc);
	else
		refuse("no completion");
}

static void do_quiet(long ms)
{
	long end = now_ms() + ms;
	struct ibv_wc wc;

	do {
		if (ibv_poll_cq(send_cq, 1, &wc) > 0 || ibv_poll_cq(recv_cq, 1, &wc) > 0) {
			show_wc(&wc);
			return;
		}
		usleep(1000);
	} while (now_ms() < end);
	answer("quiet");
}

static void memory_command(char **words, int n)
{
	struct region *r = region(words[1]);
	size_t at, off = number(words[2]), len = number(words[3]);

	if (!inside(r, off, len))
		return;
	if (!strcmp(words[0], "blank")) {
		memset(r->at + off, 0xa5, len);
		answer("%zu", len);
	} else if (n == 5 && !strcmp(words[0], "fill")) {
		pattern_fill(r->at + off, len, number(words[4]));
		answer("%zu", len);
	} else if (n == 5) {
		at = pattern_check(r->at + off, len, number(words[4]));
		if (at == len)
			answer("same");
		else
			answer("differs %zu", at);
	}
}

int peer(void)
{
	char *words[32];
	int n;

	if (set_up())
		return 1;
	while ((n = control_next(words, 32))) {
		const char *name = words[0];
		int needs_qp = strcmp(name, "region") && strcmp(name, "fill") && strcmp(name, "check") &&
			       strcmp(name, "blank") && strcmp(name, "octet") && strcmp(name, "listen") && strcmp(name, "request") &&
			       strcmp(name, "resolve") && strcmp(name, "bye");

		if (needs_qp && !id)
			refuse("%s: no queue pair", name);
		else if (!strcmp(name, "region") && n == 5)
			make_region(words);
		else if ((!strcmp(name, "fill") || !strcmp(name, "check")) && n == 5)
			memory_command(words, n);
		else if (!strcmp(name, "blank") && n == 4)
			memory_command(words, n);
		else if (!strcmp(name, "octet") && n == 3) {
			if (inside(region(words[1]), number(words[2]), 1))
				answer("%u", region(words[1])->at[number(words[2])]);
		} else if (!strcmp(name, "listen") && n == 2)
			do_listen(words[1]);
		else if (!strcmp(name, "request") && n == 1)
			do_request();
		else if (!strcmp(name, "resolve") && n == 3)
			do_resolve(words[1], words[2]);
		else if ((!strcmp(name, "accept") || !strcmp(name, "connect")) && n == 4)
			do_establish(words, *name == 'c');
		else if (!strcmp(name, "reject") && n == 2)
			do_reject(words[1]);
		else if (!strcmp(name, "recv") && n == 5) {
			struct region *r = region(words[2]);
			size_t off = number(words[3]), len = number(words[4]);

			if (inside(r, off, len)) {
				errno = post_recv(number(words[1]), r, off, len);
				if (errno)
					refuse("ibv_post_recv: %s", strerror(errno));
				else
					answer("%s", words[1]);
			}
		} else if (!strcmp(name, "post") && n >= 6)
			do_post(words, n);
		else if (!strcmp(name, "sent") && n == 1)
			do_wait(send_cq);
		else if (!strcmp(name, "received") && n == 1)
			do_wait(recv_cq);
		else if (!strcmp(name, "quiet") && n == 2)
			do_quiet(number(words[1]));
		else if (!strcmp(name, "disconnect") && n == 1)
			do_end(1);
		else if (!strcmp(name, "ended") && n == 1)
			do_end(0);
		else if (!strcmp(name, "state") && n == 1)
			show_state();
		else if (!strcmp(name, "prepare") && n == 7)
			bulk_prepare(words, n);
		else if (!strcmp(name, "run") && n == 5)
			bulk_run(words, n);
		else if (!strcmp(name, "bye") && n == 1) {
			answer("%s", "");
			return 0;
		} else
			refuse("unknown command %s of %d words", name, n);
	}
	return 1;
}
