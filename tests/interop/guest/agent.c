/*
 * siwpeer - what runs in the guest: does what the program on the host asks for.
 *
 *   siwpeer HOST PORT
 *
 * The first process is the agent. It connects to HOST:PORT, says "agent", and takes commands:
 *
 *   peer                a process for one connection, which opens a control connection of its own and says
 *                       "peer PID"; its commands are at the head of peer.c
 *   kill PID            kill -9, and waits for the end
 *   set NAME VALUE      a setting of siw, for connections made from now on
 *   gro 0|1             whether eth0 joins segments on their way in
 *   log                 the kernel's messages since the last time, each in a line "| TEXT"
 *   start PROGRAM ARG.. starts a program; its number
 *   listens PORT        waits until something listens at the port, siw's sockets included
 *   wait PID MS         waits for its end, at most so long: its exit status, after its output in lines "| TEXT"
 *   off                 the end of the guest
 *
 * Each answer is a line "ok ..." or "error ...".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "guest.h"

static const char *host, *port;
static int kernel_log = -1;

static void new_peer(void)
{
	pid_t pid = fork();

	if (pid < 0) {
		refuse("fork: %s", strerror(errno));
	} else if (pid) {
		answer("%d", pid);
	} else {
		control_open(host, port);
		tell("peer");
		answer("peer %d", getpid());
		_exit(peer());
	}
}

static void set(const char *name, const char *value)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "/sys/module/siw/parameters/%s", name);
	f = fopen(path, "w");
	if (!f || fputs(value, f) < 0 || fclose(f))
		refuse("%s: %s", path, strerror(errno));
	else
		answer("%s", value);
}

static void set_gro(int on)
{
	struct ethtool_value value = { .cmd = ETHTOOL_SGRO, .data = on };
	struct ifreq request = { .ifr_data = (void *)&value };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	strcpy(request.ifr_name, "eth0");
	if (ioctl(fd, SIOCETHTOOL, &request))
		refuse("ETHTOOL_SGRO: %s", strerror(errno));
	else
		answer("%d", on);
	close(fd);
}

/*
 * Records look like "6,339,5140900,-;text"; what comes behind the line is about it. EPIPE says that the kernel has
 * overwritten some which were not read: what is missing is told, and the rest is read.
 */
static void show_log(void)
{
	char record[8192], *text;
	ssize_t len;
	int n = 0;

	while ((len = read(kernel_log, record, sizeof(record) - 1)) > 0 || errno == EPIPE) {
		if (len <= 0) {
			tell("WARNING: messages of the kernel are lost");
			n++;
			errno = 0;
			continue;
		}
		record[len] = 0;
		record[strcspn(record, "\n")] = 0;
		text = strchr(record, ';');
		tell(text ? text + 1 : record);
		n++;
	}
	answer("%d", n);
}

static void output_of(char *path, size_t size, pid_t pid)
{
	snprintf(path, size, "/tmp/output.%d", pid);
}

static void start(char **words)
{
	char path[64];
	pid_t pid = fork();
	int fd;

	if (pid < 0) {
		refuse("fork: %s", strerror(errno));
	} else if (pid) {
		answer("%d", pid);
	} else {
		output_of(path, sizeof(path), getpid());
		fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		dup2(fd, 1);
		dup2(fd, 2);
		execvp(words[0], words);
		fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
		_exit(127);
	}
}

/* The status of a process that has ended within the time; -1 if it has not. */
static int ended(pid_t pid, long ms)
{
	long end = now_ms() + ms;
	int status;
	pid_t got;

	for (;;) {
		got = waitpid(pid, &status, WNOHANG);
		if (got == pid)
			return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		if (got < 0)
			return 0;
		if (now_ms() > end)
			return -1;
		usleep(5000);
	}
}

static void await(pid_t pid, long ms)
{
	char path[64], line[4096];
	int status = ended(pid, ms);
	FILE *f;

	if (status < 0) {
		refuse("it still runs");
		return;
	}
	output_of(path, sizeof(path), pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		tell(line);
	}
	if (f)
		fclose(f);
	unlink(path);
	answer("%d", status);
}

/* State 0A of /proc/net/tcp and /proc/net/tcp6 is LISTEN. */
static int listens(const char *table, const char *wanted)
{
	char line[512];
	int found = 0;
	FILE *f = fopen(table, "r");

	while (f && !found && fgets(line, sizeof(line), f))
		found = strstr(line, wanted) != NULL;
	if (f)
		fclose(f);
	return found;
}

static void await_listener(int at)
{
	char ipv4[64], ipv6[64];
	long end = now_ms() + 30000;

	snprintf(ipv4, sizeof(ipv4), ":%04X %08X:0000 0A", at, 0);
	snprintf(ipv6, sizeof(ipv6), ":%04X %032X:0000 0A", at, 0);
	while (!listens("/proc/net/tcp", ipv4) && !listens("/proc/net/tcp6", ipv6)) {
		if (now_ms() > end) {
			refuse("nothing listens at port %d", at);
			return;
		}
		usleep(20000);
	}
	answer("%d", at);
}

int main(int argc, char **argv)
{
	char *words[32];
	int n;

	if (argc != 3) {
		fprintf(stderr, "usage: siwpeer HOST PORT\n");
		return 2;
	}
	host = argv[1];
	port = argv[2];
	signal(SIGPIPE, SIG_IGN);
	kernel_log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	lseek(kernel_log, 0, SEEK_END);
	control_open(host, port);
	answer("agent");
	while ((n = control_next(words, 31))) {
		words[n] = NULL;
		if (!strcmp(words[0], "peer") && n == 1) {
			new_peer();
		} else if (!strcmp(words[0], "kill") && n == 2) {
			kill(number(words[1]), SIGKILL);
			ended(number(words[1]), 30000);
			answer("%s", "");
		} else if (!strcmp(words[0], "set") && n == 3) {
			set(words[1], words[2]);
		} else if (!strcmp(words[0], "gro") && n == 2) {
			set_gro(number(words[1]));
		} else if (!strcmp(words[0], "log") && n == 1) {
			show_log();
		} else if (!strcmp(words[0], "start") && n > 1) {
			start(words + 1);
		} else if (!strcmp(words[0], "wait") && n == 3) {
			await(number(words[1]), number(words[2]));
		} else if (!strcmp(words[0], "listens") && n == 2) {
			await_listener(number(words[1]));
		} else if (!strcmp(words[0], "off") && n == 1) {
			answer("%s", "");
			return 0;
		} else {
			refuse("unknown command %s", words[0]);
		}
	}
	return 1;
}
