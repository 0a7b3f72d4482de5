/*
 * Workload server on io_uring: one thread, accept/recv/send through one ring.
 *
 * In: requests without a body of the protocol in integration/src/shape.rs. Out: answers with a content length.
 * Prints `ready PORT`. Knows nothing of the agent. Between completions it reads from a pipe with plain read(2),
 * so that receives complete inside an unrelated system call: the case in which saved registers lie.
 */
#include <arpa/inet.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ENTRIES = 256, BUFFER_BYTES = 64 * 1024, ANSWER_BYTES = 300 * 1024 };
enum operation { ACCEPT, RECEIVE, SEND };

struct connection {
	int fd;
	enum operation operation;
	size_t have, consumed;  /* bytes in `input`; bytes of the request being answered */
	size_t length, written; /* of `answer` */
	char input[BUFFER_BYTES];
	char answer[ANSWER_BYTES];
};

static struct io_uring ring;

static struct io_uring_sqe *entry(void)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

	if (!sqe) {
		io_uring_submit(&ring);
		sqe = io_uring_get_sqe(&ring);
	}
	if (!sqe) {
		fputs("submission queue is full\n", stderr);
		exit(1);
	}
	return sqe;
}

static void receive(struct connection *c)
{
	struct io_uring_sqe *sqe = entry();

	c->operation = RECEIVE;
	io_uring_prep_recv(sqe, c->fd, c->input + c->have, sizeof(c->input) - c->have, 0);
	io_uring_sqe_set_data(sqe, c);
}

static void transmit(struct connection *c)
{
	struct io_uring_sqe *sqe = entry();

	c->operation = SEND;
	io_uring_prep_send(sqe, c->fd, c->answer + c->written, c->length - c->written, MSG_NOSIGNAL);
	io_uring_sqe_set_data(sqe, c);
}

static void finish(struct connection *c)
{
	close(c->fd);
	free(c);
}

/* Answers the first whole request in `input`, or receives more. */
static void next(struct connection *c)
{
	char id[65], framing[9], method[9];
	int status, size;
	char *end = memmem(c->input, c->have, "\r\n\r\n", 4);

	if (!end) {
		receive(c);
		return;
	}
	c->consumed = (size_t)(end + 4 - c->input);
	*end = 0;
	if (sscanf(c->input, "%8s /e/%64[0-9a-f]/%d/%8[a-z]/%d", method, id, &status, framing, &size) != 5 ||
	    size < 0 || size > ANSWER_BYTES - 256) {
		finish(c);
		return;
	}
	c->length = (size_t)sprintf(c->answer, "HTTP/1.1 %d Status\r\ncontent-length: %d\r\n\r\n", status, size);
	if (strcmp(method, "HEAD") != 0) {
		memset(c->answer + c->length, 'b', (size_t)size);
		c->length += (size_t)size;
	}
	c->written = 0;
	transmit(c);
}

static void completed(struct connection *c, int result)
{
	if (result <= 0) {
		finish(c);
		return;
	}
	if (c->operation == RECEIVE) {
		c->have += (size_t)result;
		next(c);
		return;
	}
	c->written += (size_t)result;
	if (c->written < c->length) {
		transmit(c);
		return;
	}
	c->have -= c->consumed;
	memmove(c->input, c->input + c->consumed, c->have);
	next(c);
}

static int listening(unsigned short *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) || listen(fd, 1024) ||
	    getsockname(fd, (struct sockaddr *)&address, &length)) {
		perror("listen");
		exit(1);
	}
	*port = ntohs(address.sin_port);
	return fd;
}

/* One at a time: accepting many with one request needs Linux 5.19. */
static void await(int listener)
{
	static struct connection acceptor = { .operation = ACCEPT };
	struct io_uring_sqe *sqe = entry();

	io_uring_prep_accept(sqe, listener, NULL, NULL, 0);
	io_uring_sqe_set_data(sqe, &acceptor);
}

int main(void)
{
	static char decoy[] = "GET /decoy HTTP/1.1\r\nhost: decoy\r\n\r\n";
	char unrelated[sizeof(decoy)];
	unsigned short port;
	int listener = listening(&port), pipes[2];

	if (pipe(pipes) || io_uring_queue_init(ENTRIES, &ring, 0) < 0) {
		perror("setup");
		return 1;
	}
	printf("ready %d\n", port);
	fflush(stdout);
	await(listener);
	for (;;) {
		struct io_uring_cqe *cqe;

		if (io_uring_submit_and_wait(&ring, 1) < 0)
			return 1;
		while (io_uring_peek_cqe(&ring, &cqe) == 0) {
			struct connection *c = io_uring_cqe_get_data(cqe);
			int result = cqe->res;

			io_uring_cqe_seen(&ring, cqe);
			if (c->operation == ACCEPT) {
				if (result < 0)
					return 1;
				c = calloc(1, sizeof(*c));
				if (!c)
					return 1;
				c->fd = result;
				receive(c);
				await(listener);
			} else {
				completed(c, result);
			}
			io_uring_submit(&ring);
			if (write(pipes[1], decoy, sizeof(decoy)) < 0 || read(pipes[0], unrelated, sizeof(unrelated)) < 0)
				return 1;
		}
	}
}
