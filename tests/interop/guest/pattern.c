/* Octets and messages that both ends can work out by themselves; the host's twin is tests/src/interop/pattern.rs. */
#include <string.h>
#include "guest.h"

static uint64_t mix(uint64_t z)
{
	z += 0x9e3779b97f4a7c15;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

/* Word i of a pattern, little endian in memory as this machine is. */
static uint64_t word(uint64_t seed, uint64_t i)
{
	return mix(seed + i * 0xd1342543de82ef95);
}

void pattern_fill(unsigned char *at, size_t len, uint64_t seed)
{
	size_t i, rest = len % 8;
	uint64_t w;

	for (i = 0; i < len / 8; i++) {
		w = word(seed, i);
		memcpy(at + 8 * i, &w, 8);
	}
	w = word(seed, i);
	memcpy(at + 8 * i, &w, rest);
}

size_t pattern_check(const unsigned char *at, size_t len, uint64_t seed)
{
	size_t i, j, n;
	uint64_t w;

	for (i = 0; i < len; i += 8) {
		n = len - i < 8 ? len - i : 8;
		w = word(seed, i / 8);
		if (memcmp(at + i, &w, n)) {
			for (j = 0; j < n; j++)
				if (at[i + j] != ((unsigned char *)&w)[j])
					return i + j;
		}
	}
	return len;
}

struct message message(uint64_t seed, unsigned int direction, uint64_t index)
{
	uint64_t r = mix(mix(seed + direction) + index);
	struct message m = { .pattern = mix(r) };

	/* Half of them Sends; lengths of all orders of magnitude alike. */
	m.kind = (r & 3) < 2 ? MESSAGE_SEND : (r & 3) == 2 ? MESSAGE_WRITE : MESSAGE_READ;
	m.len = (r >> 8) & ((1u << ((r >> 40) % 17)) - 1);
	/* A Read of nothing that siw serves between others gets what another request asked for. */
	if (m.kind == MESSAGE_READ && !m.len)
		m.len = 1;
	return m;
}
