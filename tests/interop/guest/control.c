/* The line between siwpeer and the program on the host: plain TCP, words and lines. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "guest.h"

static FILE *in, *out;

void control_open(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *to;
	int fd, on = 1;

	if (getaddrinfo(host, port, &hints, &to)) {
		fprintf(stderr, "siwpeer: %s %s is no address\n", host, port);
		exit(1);
	}
	fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, to->ai_addr, to->ai_addrlen)) {
		fprintf(stderr, "siwpeer: no control connection: %s\n", strerror(errno));
		exit(1);
	}
	freeaddrinfo(to);
	/* A peer inherits the agent's, which is none of its business. */
	if (in) {
		fclose(in);
		fclose(out);
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	in = fdopen(fd, "r");
	out = fdopen(fcntl(fd, F_DUPFD_CLOEXEC, 0), "w");
	if (!in || !out)
		exit(1);
}

int control_next(char **words, int max)
{
	static char line[8192];
	char *save, *word;
	int n = 0;

	if (!fgets(line, sizeof(line), in))
		return 0;
	for (word = strtok_r(line, " \n", &save); word && n < max; word = strtok_r(NULL, " \n", &save))
		words[n++] = word;
	if (!n) {
		refuse("an empty line");
		return control_next(words, max);
	}
	return n;
}

static void say(const char *kind, const char *format, va_list args)
{
	fputs(kind, out);
	if (*format)
		fputc(' ', out);
	vfprintf(out, format, args);
	fputc('\n', out);
	fflush(out);
}

void answer(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say("ok", format, args);
	va_end(args);
}

void refuse(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say("error", format, args);
	va_end(args);
}

void tell(const char *line)
{
	fprintf(out, "| %s\n", line);
}

unsigned long long number(const char *word)
{
	return strtoull(word, NULL, 0);
}

size_t from_hex(const char *word, unsigned char *to, size_t max)
{
	size_t n;
	unsigned int octet;

	for (n = 0; n < max && sscanf(word + 2 * n, "%2x", &octet) == 1; n++)
		to[n] = octet;
	return n;
}

const char *to_hex(const unsigned char *octets, size_t len)
{
	static char text[1025];
	size_t i;

	if (!len)
		return "-";
	for (i = 0; i < len && i < sizeof(text) / 2; i++)
		sprintf(text + 2 * i, "%02x", octets[i]);
	return text;
}

long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
