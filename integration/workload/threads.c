/*
 * Workload of many threads over TLS: `threads serve` has one for each connection, `threads call PORT THREADS MS MOST
 * SEED` makes requests of random shapes in as many, over connections that last a few requests, for MS milliseconds or
 * until each thread has made MOST.
 *
 * In: requests of the protocol in integration/src/shape.rs without options; `TLS_CERTIFICATE` and `TLS_KEY`. Out:
 * `ready PORT`, or a JSON line for each exchange. OpenSSL on blocking sockets, by both kinds of calls, or what
 * threads_gnutls.c does. Objects end and begin at the same addresses all the time, in other threads. Knows nothing of
 * the agent.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#ifdef OVER_GNUTLS
#include <gnutls/gnutls.h>
typedef gnutls_session_t object;
#else
#include <openssl/err.h>
#include <openssl/ssl.h>
typedef SSL *object;
#endif

enum {
	BUFFER_BYTES = 96 * 1024, /* the longest message, and what is read of the next */
	HEAD_BYTES = 4096,
	STACK_BYTES = 512 * 1024,
	REQUESTS_MOST = 40, /* of a connection */
};

static void fail(const char *what)
{
	fprintf(stderr, "%s failed: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * UINT64_C(1000000000) + time.tv_nsec;
}

/* One end of a connection. */
struct end {
	object ssl;
	int fd;
	size_t have; /* bytes in `input` */
	char input[BUFFER_BYTES], output[BUFFER_BYTES];
	uint64_t chance;
};

/* xorshift64*: repeatable shapes. */
static uint32_t below(struct end *end, uint32_t limit)
{
	uint64_t x = end->chance;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	end->chance = x;
	return (uint32_t)(x * UINT64_C(0x2545f4914f6cdd1d) >> 32) % limit;
}

/* === what the library is asked for === */

#ifdef OVER_GNUTLS
#include "threads_gnutls.h"
#else
static SSL_CTX *context;

static void prepare(const char *certificate, const char *key)
{
	context = SSL_CTX_new(TLS_method());
	if (!context || (certificate && (SSL_CTX_use_certificate_chain_file(context, certificate) != 1 ||
					 SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)))
		fail("reading the certificate");
}

static int begin_tls(struct end *end, int is_server)
{
	end->ssl = SSL_new(context);
	if (!end->ssl || !SSL_set_fd(end->ssl, end->fd))
		fail("SSL_new");
	return (is_server ? SSL_accept(end->ssl) : SSL_connect(end->ssl)) == 1;
}

static void finish_tls(struct end *end)
{
	SSL_shutdown(end->ssl);
	SSL_free(end->ssl);
}

static size_t receive(struct end *end, char *buffer, size_t room)
{
	size_t n = 0;
	int result;

	if (below(end, 2))
		return SSL_read_ex(end->ssl, buffer, room, &n) ? n : 0;
	result = SSL_read(end->ssl, buffer, room);
	return result > 0 ? result : 0;
}

static int transmit(struct end *end, const char *bytes, size_t n)
{
	size_t written;

	if (!n)
		return 1;
	if (below(end, 2))
		return SSL_write_ex(end->ssl, bytes, n, &written) && written == n;
	return SSL_write(end->ssl, bytes, n) == (int)n;
}
#endif

/* === connections === */

/* Head and body together, or each on its own. */
static int transmit_message(struct end *end, size_t head, size_t body)
{
	if (below(end, 2))
		return transmit(end, end->output, head + body);
	return transmit(end, end->output, head) && transmit(end, end->output + head, body);
}

/* Reads a head; returns its length, 0 at the end of the connection. Its last line break becomes the end of the text. */
static size_t receive_head(struct end *end)
{
	for (;;) {
		char *over = memmem(end->input, end->have, "\r\n\r\n", 4);
		size_t n;

		if (over) {
			over[2] = 0;
			return over + 4 - end->input;
		}
		if (end->have >= HEAD_BYTES)
			return 0;
		n = receive(end, end->input + end->have, HEAD_BYTES - end->have);
		if (!n)
			return 0;
		end->have += n;
	}
}

static size_t content_length(const char *head)
{
	const char *field = strcasestr(head, "\r\ncontent-length:");

	return field ? strtoul(field + 17, NULL, 10) : 0;
}

/* Reads what of `n` bytes behind the head is missing, and takes both away. */
static int receive_body(struct end *end, size_t head, size_t n)
{
	if (head + n > BUFFER_BYTES)
		return 0;
	while (end->have < head + n) {
		size_t more = receive(end, end->input + end->have, BUFFER_BYTES - end->have);

		if (!more)
			return 0;
		end->have += more;
	}
	end->have -= head + n;
	memmove(end->input, end->input + head + n, end->have);
	return 1;
}

static struct end *begin(int fd, uint64_t chance)
{
	struct end *end = malloc(sizeof(*end));
	int one = 1;

	if (!end)
		fail("malloc");
	end->have = 0;
	end->chance = chance | 1;
	end->fd = fd;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return end;
}

static void finish(struct end *end)
{
	finish_tls(end);
	close(end->fd);
	free(end);
}

/* === server === */

static int answer(struct end *end)
{
	char method[16], id[64];
	unsigned status, size;
	size_t head = receive_head(end), length, n;
	int bodiless;

	if (!head || sscanf(end->input, "%15s /e/%63[0-9a-f]/%u/length/%u", method, id, &status, &size) != 4)
		return 0;
	length = content_length(end->input);
	bodiless = !strcmp(method, "HEAD");
	if (!receive_body(end, head, length))
		return 0;
	n = sprintf(end->output, "HTTP/1.1 %u Said\r\ncontent-length: %u\r\nx-id: %s\r\n\r\n", status, size, id);
	if (n + size > BUFFER_BYTES)
		return 0;
	memset(end->output + n, 'b', size);
	return transmit_message(end, n, bodiless ? 0 : size);
}

static void *serve_one(void *argument)
{
	int fd = (int)(intptr_t)argument;
	struct end *end = begin(fd, now_ns());

	if (begin_tls(end, 1))
		while (answer(end))
			;
	finish(end);
	return NULL;
}

static void serve(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	pthread_attr_t attributes;

	prepare(getenv("TLS_CERTIFICATE"), getenv("TLS_KEY"));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 1024) ||
	    getsockname(listener, (struct sockaddr *)&address, &length))
		fail("listening");
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	printf("ready %u\n", ntohs(address.sin_port));
	fflush(stdout);
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		pthread_t thread;

		if (fd < 0 || pthread_create(&thread, &attributes, serve_one, (void *)(intptr_t)fd))
			fail("a thread for a connection");
	}
}

/* === client === */

static struct sockaddr_in server;
static uint64_t deadline, most, seed;

static const char *const methods[] = { "GET", "GET", "GET", "POST", "PUT", "HEAD" };
static const unsigned statuses[] = { 200, 200, 200, 201, 301, 400, 404, 429, 500, 503 };

static void call_once(struct end *end)
{
	const char *method = methods[below(end, 6)];
	unsigned status = statuses[below(end, 10)];
	unsigned size = below(end, 50) ? below(end, 4000) : below(end, 80000);
	unsigned n_sent = method[0] == 'P' ? below(end, 3000) : 0, seen;
	int bodiless = !strcmp(method, "HEAD");
	uint64_t id[2], begun = now_ns();
	size_t head, length, n;
	char text[33];

	if (getrandom(id, sizeof(id), 0) != sizeof(id))
		fail("getrandom");
	sprintf(text, "%016" PRIx64 "%016" PRIx64, id[0], id[1]);
	n = sprintf(end->output, "%s /e/%s/%u/length/%u HTTP/1.1\r\nhost: localhost\r\n", method, text, status, size);
	if (method[0] == 'P')
		n += sprintf(end->output + n, "content-length: %u\r\n", n_sent);
	n += sprintf(end->output + n, "\r\n");
	memset(end->output + n, 'q', n_sent);
	if (!transmit_message(end, n, n_sent))
		fail("sending a request");
	head = receive_head(end);
	if (!head || sscanf(end->input, "HTTP/1.1 %u", &seen) != 1 || seen != status || !strstr(end->input, text))
		fail("reading a response");
	length = content_length(end->input);
	if (length != size || !receive_body(end, head, bodiless ? 0 : length) || end->have)
		fail("reading a body");
	printf("{\"id\":\"%s\",\"method\":\"%s\",\"status\":%u,\"size\":%u,\"has_body\":%s,\"request_bytes\":%u,"
	       "\"response_bytes\":%u,\"handler_ns\":null,\"started_ns\":%" PRIu64 ",\"ended_ns\":%" PRIu64 "}\n",
	       text, method, status, size, method[0] == 'P' ? "true" : "false", n_sent, bodiless ? 0 : size, begun,
	       now_ns());
}

static void *call(void *argument)
{
	uint64_t chance = seed ^ ((uint64_t)(intptr_t)argument + 1) * UINT64_C(0x9e3779b97f4a7c15);

	for (uint64_t made = 0; made < most && now_ns() < deadline;) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		struct end *end;

		if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof(server)))
			fail("connecting");
		end = begin(fd, chance);
		if (!begin_tls(end, 0))
			fail("the handshake");
		for (uint32_t left = 1 + below(end, REQUESTS_MOST); left && made < most && now_ns() < deadline; left--, made++)
			call_once(end);
		chance = end->chance;
		finish(end);
	}
	return NULL;
}

static void call_all(char **arguments)
{
	long n = atol(arguments[1]);
	pthread_t *threads = calloc(n, sizeof(*threads));
	pthread_attr_t attributes;

	server = (struct sockaddr_in){ .sin_family = AF_INET,
				       .sin_port = htons(atoi(arguments[0])),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	deadline = now_ns() + strtoull(arguments[2], NULL, 10) * 1000000;
	most = strtoull(arguments[3], NULL, 10);
	seed = strtoull(arguments[4], NULL, 10);
	prepare(NULL, NULL);
	if (!threads)
		fail("calloc");
	/* Its threads fight for the memory lock: a look at its environment finds it quiet before. */
	usleep(300000);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	for (long i = 0; i < n; i++)
		if (pthread_create(&threads[i], &attributes, call, (void *)i))
			fail("pthread_create");
	for (long i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	if (argc == 2 && !strcmp(argv[1], "serve"))
		serve();
	if (argc != 7 || strcmp(argv[1], "call")) {
		fputs("usage: threads serve | threads call PORT THREADS MS MOST SEED\n", stderr);
		return 2;
	}
	call_all(argv + 2);
	return fflush(stdout) ? 1 : 0;
}
