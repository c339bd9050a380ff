/*
 * Messages of random kinds and sizes, a batch at a time, in both directions at once. What each message is both ends work
 * out from its number, so nothing but the batches is told over the control connection:
 *
 *   prepare SEED FIRST COUNT IN SOURCE OUT
 *        IN: region of COUNT + 1 slots for incoming Sends and Writes; SOURCE: what the peer's Reads take;
 *        OUT: what goes out, and where own Reads go. Posts the receives.
 *   run IN-ADDRESS IN-STAG SOURCE-ADDRESS SOURCE-STAG
 *        the peer's regions. Posts the messages of this end and an empty Send behind them, waits for everything, and
 *        compares: "done", or what was wrong.
 *
 * Direction 0 is from the host to the guest, direction 1 the other one. Message i has slot i - FIRST.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <infiniband/verbs.h>
#include "guest.h"

#define SLOT 65536
#define OUTGOING 1
#define INCOMING 0
#define LAST 1000000
/* Behind each message that is to come in: it must still be there afterwards. */
#define GUARD 0x5c

static uint64_t seed, first;
static unsigned int count;
static struct region *in, *source, *out;

static unsigned char *slot(const struct region *r, unsigned int i)
{
	return r->at + (size_t)i * SLOT;
}

void bulk_prepare(char **words, int n)
{
	unsigned int i;
	int error = 0;

	(void)n;
	seed = number(words[1]);
	first = number(words[2]);
	count = number(words[3]);
	in = region(words[4]);
	source = region(words[5]);
	out = region(words[6]);
	for (i = 0; i < count && !error; i++) {
		struct message m = message(seed, INCOMING, first + i);

		if (m.kind == MESSAGE_READ)
			pattern_fill(slot(source, i), m.len, m.pattern);
		else
			memset(slot(in, i), GUARD, m.len + 1);
		if (m.kind == MESSAGE_SEND)
			error = post_recv(first + i, in, (size_t)i * SLOT, SLOT);
	}
	if (!error)
		error = post_recv(LAST, in, (size_t)count * SLOT, 0);
	if (error)
		refuse("ibv_post_recv: %s", strerror(error));
	else
		answer("%u", count);
}

static int post(uint64_t in_at, uint32_t in_key, uint64_t source_at, uint32_t source_key)
{
	unsigned int i;
	int error = 0;

	for (i = 0; i < count && !error; i++) {
		struct message m = message(seed, OUTGOING, first + i);
		size_t off = (size_t)i * SLOT;

		if (m.kind != MESSAGE_READ)
			pattern_fill(slot(out, i), m.len, m.pattern);
		if (m.kind == MESSAGE_SEND)
			error = post_send(IBV_WR_SEND, 0, first + i, out, off, m.len, 0, 0);
		else if (m.kind == MESSAGE_WRITE)
			error = post_send(IBV_WR_RDMA_WRITE, 0, first + i, out, off, m.len, in_at + off, in_key);
		else
			error = post_send(IBV_WR_RDMA_READ, 0, first + i, out, off, m.len, source_at + off, source_key);
	}
	return error ? error : post_send(IBV_WR_SEND, 0, LAST, out, 0, 0, 0, 0);
}

/*
 * Waits for everything that goes out; 0 if an answer was given. siw completes a Send before a Read that was posted before it,
 * so the order is none.
 */
static int await_sent(void)
{
	struct ibv_wc wc;
	uint64_t done = 0;
	unsigned int i, n;

	for (i = 0; i <= count; i++) {
		if (!next_wc(send_cq, &wc)) {
			refuse("request %u of %llu on is not complete", i, (unsigned long long)first);
			return 0;
		}
		n = wc.wr_id == LAST ? count : wc.wr_id - first;
		if (wc.status || n > count || done & 1ull << n) {
			refuse("request %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
			return 0;
		}
		done |= 1ull << n;
	}
	return 1;
}

static int await_received(void)
{
	struct ibv_wc wc;
	unsigned int i;

	for (i = 0; i <= count; i++) {
		struct message m = message(seed, INCOMING, first + i);

		if (i < count && m.kind != MESSAGE_SEND)
			continue;
		if (!next_wc(recv_cq, &wc)) {
			refuse("Send %llu has not come", (unsigned long long)first + i);
			return 0;
		}
		if (wc.status || wc.wr_id != (i < count ? first + i : LAST) ||
		    wc.byte_len != (i < count ? m.len : 0)) {
			refuse("receive %llu: %s, %u octets", (unsigned long long)wc.wr_id,
			       ibv_wc_status_str(wc.status), wc.byte_len);
			return 0;
		}
	}
	return 1;
}

static int compare(const struct region *r, unsigned int i, struct message m, const char *what)
{
	size_t at = pattern_check(slot(r, i), m.len, m.pattern);

	if (at == m.len)
		return 1;
	refuse("%s %llu of %u octets differs at %zu", what, (unsigned long long)first + i, m.len, at);
	return 0;
}

void bulk_run(char **words, int n)
{
	unsigned int i;
	int error;

	(void)n;
	error = post(number(words[1]), number(words[2]), number(words[3]), number(words[4]));
	if (error) {
		refuse("ibv_post_send: %s", strerror(error));
		return;
	}
	if (!await_sent() || !await_received())
		return;
	for (i = 0; i < count; i++) {
		struct message came = message(seed, INCOMING, first + i);
		struct message went = message(seed, OUTGOING, first + i);

		if (went.kind == MESSAGE_READ && !compare(out, i, went, "own Read"))
			return;
		if (came.kind == MESSAGE_READ)
			continue;
		if (!compare(in, i, came, came.kind == MESSAGE_SEND ? "Send" : "Write"))
			return;
		if (slot(in, i)[came.len] != GUARD) {
			refuse("message %llu wrote behind its end", (unsigned long long)first + i);
			return;
		}
	}
	answer("done");
}
