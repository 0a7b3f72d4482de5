/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What nginx sends for. nginx keeps for each connection the request that it is used for now, and for each request the
 * connection that it came by: also for one that goes on behind a timer, is tried again elsewhere, or uses a connection
 * that others have used. With each socket that epoll waits for, the kernel keeps what the program wants to hear:
 * nginx's connection. So the way leads from the socket that is sent on to the client's, through nginx's own memory and
 * without a probe in it: one at each request and one at each send took nginx as much time as all of capture.
 *
 * What proves itself on the way: the connection has the descriptor of the socket, the request has nginx's signature,
 * and its client's descriptor is a socket. What was read from that is noted here, by the number of its first byte.
 *
 * Not in the portable objects, for the reasons that runtime/goroutine.h has.
 */
#ifndef OBI_NGINX_H
#define OBI_NGINX_H

#include "runtime/last_read.h"

#ifdef OBI_GOROUTINES
#include "hook/file.h"

/* The first fields of these objects, since nginx 0.6. */
enum {
	NGINX_DATA = 0,       /* of a connection: what it is used for */
	NGINX_SIGNATURE = 0,  /* of a request: NGINX_HTTP */
	NGINX_CLIENT = 8,     /* of a request: the connection that it came by */
	NGINX_DESCRIPTOR = 24, /* of a connection: its descriptor; connections that stand for a stream have it, too */
	NGINX_HTTP = 0x50545448,
	/* Of HTTP/2, since 1.9.5. */
	NGINX_STREAM_REQUEST = 0,     /* of a stream: its request */
	NGINX_STREAM_CONNECTION = 8,  /* of a stream: what its connection speaks */
	NGINX_STREAM_NODE = 16,       /* of a stream: its place in the tree of priorities */
	NGINX_NODE_NUMBER = 0,        /* of that: the stream's number */
	NGINX_SPOKEN_CONNECTION = 0,  /* of what a connection speaks: the connection */
	/* Of a request: its stream, somewhere between these. The place depends on how nginx was built. */
	NGINX_STREAM_FIRST = 16,
	NGINX_STREAM_LAST = 2048,
	NGINX_STREAM_TRIES = 16,
	/*
	 * Any event loop may be an nginx, whatever its name. Of one that has proven itself everything is noted; of others
	 * so many requests at most, and so many calls are looked at: most that have not called by then never do.
	 */
	NGINX_REQUESTS = 4096,
	NGINX_CALLS = 64,
};

/* What is known of an event loop. */
struct nginx_process {
	u32 stream_at; /* where in its requests the stream is; 0: not found yet, after so many tries */
	u16 tries;
	u16 is_proven; /* 1: it is nginx, and has called for a request */
	u16 n_requests; /* before that */
	u16 n_calls;    /* that proved to be none of nginx, before that */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 512);
	__type(key, u32);
	__type(value, struct nginx_process);
} nginx_process SEC(".maps");

/* A connection to a process, by the number of its first byte, which is random. */
struct client_key {
	u32 first;
	u32 tgid;
};

/* What was read from it last: a request; 0: more than one; of HTTP/2 the connection, with READ_STREAMS. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct client_key);
	__type(value, u64);
} client_request SEC(".maps");

/* The search for it; a loop that the verifier does not walk through. */
struct nginx_search {
	u64 request;
	u32 descriptor;
	u32 at;
};

/* Is this a stream, of the connection with that descriptor? */
static __always_inline bool is_stream_of(u64 stream, u32 descriptor)
{
	u64 spoken = word_of(stream, NGINX_STREAM_CONNECTION);
	u64 connection = spoken ? word_of(spoken, NGINX_SPOKEN_CONNECTION) : 0;
	return connection && (u32)word_of(connection, NGINX_DESCRIPTOR) == descriptor;
}

static long look_for_stream(u32 index, struct nginx_search *search)
{
	u32 at = NGINX_STREAM_FIRST + 8 * index;
	u64 stream = word_of(search->request, at);
	if (!stream || stream & 7 || word_of(stream, NGINX_STREAM_REQUEST) != search->request ||
	    !is_stream_of(stream, search->descriptor))
		return 0;
	search->at = at;
	return 1;
}

/* Where streams are in requests of this process, by one that has one. Subrequests have that of their request. */
static __always_inline u32 find_stream(u32 tgid, const struct nginx_search *of)
{
	struct nginx_process *process = bpf_map_lookup_elem(&nginx_process, &tgid);
	struct nginx_search search = *of;
	if (!process || process->stream_at || process->tries >= NGINX_STREAM_TRIES)
		return process ? process->stream_at : 0;
	bpf_loop((NGINX_STREAM_LAST - NGINX_STREAM_FIRST) / 8, look_for_stream, &search, 0);
	process->stream_at = search.at;
	process->tries++;
	return search.at;
}

/* The exchange of a request's stream, where `streams` are those of its connection; 0: it does not prove itself. */
SHARED u64 exchange_of_stream(u64 request, u64 client, u64 streams)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct nginx_search of = { .request = request, .descriptor = word_of(client, NGINX_DESCRIPTOR) };
	u32 at = find_stream(tgid, &of), number;
	u64 stream = at ? word_of(request, at) : 0;
	if (!stream || !is_stream_of(stream, of.descriptor))
		return 0;
	number = word_of(word_of(stream, NGINX_STREAM_NODE), NGINX_NODE_NUMBER);
	return number & 1 ? stream_exchange(streams & ~READ_STREAMS, number) : 0;
}

/* What a program has asked the first epoll that waits for a socket to say when something happens to it; 0: none. */
static __always_inline u64 awaited_as(struct sock *sk)
{
	struct file *file = READ(sk, sk_socket, file);
	struct hlist_head *items;
	struct hlist_node *first;
	struct epitem *item;
	if (!file || !bpf_core_field_exists(file->f_ep))
		return 0;
	items = READ(file, f_ep);
	first = items ? READ(items, first) : NULL;
	if (!first)
		return 0;
	item = (void *)first - bpf_core_field_offset(struct epitem, fllink);
	return READ(item, event.data);
}

/*
 * The number of the first byte that a socket has received, as connections have it in `received_base`; 0: not known.
 * A packet may come in between two looks; the peer's FIN counts as a byte of one number only.
 */
static __always_inline u32 first_received(struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	u32 next, first;
	if (!sk || READ(sk, __sk_common.skc_family) == FAMILY_UNIX || READ(sk, sk_protocol) != PROTOCOL_TCP)
		return 0;
#pragma unroll
	for (u32 i = 0; i < 3; i++) {
		next = READ(tcp, rcv_nxt);
		first = next - (u32)READ(tcp, bytes_received);
		first -= READ(sk, __sk_common.skc_flags) >> SOCKET_DONE & 1;
		if (READ(tcp, rcv_nxt) == next)
			return first;
	}
	return 0;
}

/* For which exchange (0: not known) nginx uses one of its connections; false: it is no connection to call by. */
static __always_inline bool nginx_works_for(u32 tgid, u64 connection, u64 *exchange)
{
	u64 request = word_of(connection, NGINX_DATA), client, *noted;
	struct client_key key = { .tgid = tgid };
	if (!request || (u32)word_of(request, NGINX_SIGNATURE) != NGINX_HTTP)
		return false;
	client = word_of(request, NGINX_CLIENT);
	if (client == connection)
		return false; /* an answer */
	key.first = first_received(socket_of(file_of((u32)word_of(client, NGINX_DESCRIPTOR))));
	noted = bpf_map_lookup_elem(&client_request, &key);
	*exchange = noted ? *noted : 0;
	if (*exchange & READ_STREAMS)
		*exchange = exchange_of_stream(request, client, *exchange);
	return true;
}

/* For which exchange nginx sends on the socket at this address; false: it is not nginx, or does not prove itself. */
static __always_inline bool nginx_sends_for(u32 tgid, u64 socket, u64 *exchange)
{
	/* In the lowest bit nginx keeps whether it has used the object anew. */
	u64 connection = awaited_as((struct sock *)socket) & ~1ULL;
	if (!connection || (u64)socket_of(file_of((u32)word_of(connection, NGINX_DESCRIPTOR))) != socket)
		return false;
	return nginx_works_for(tgid, connection, exchange);
}

/* A head is about to be sent on the socket at this address. */
SHARED int note_in_nginx(struct segment *s, u64 socket)
{
	struct nginx_process *process;
	u64 exchange = 0;
	u32 tgid;
	if (!s)
		return 0;
	tgid = s->id >> 32;
	process = bpf_map_lookup_elem(&nginx_process, &tgid);
	if (!process || process->n_calls >= NGINX_CALLS)
		return 0;
	if (!nginx_sends_for(tgid, socket, &exchange)) {
		process->n_calls += !process->is_proven;
		return 0;
	}
	process->is_proven = 1;
	s->serving = exchange;
	s->thread_flags |= CAUSE_RUNTIME;
	return 0;
}

/* Something was read from the connection whose first byte has the number `first`: as `client_request` has it. */
SHARED int bind_in_nginx(u64 exchange, u32 first)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct nginx_process *process = bpf_map_lookup_elem(&nginx_process, &tgid), fresh = { .n_requests = 1 };
	struct client_key key = { .first = first, .tgid = tgid };
	if (!process) {
		bpf_map_update_elem(&nginx_process, &tgid, &fresh, BPF_ANY);
	} else if (!process->is_proven) {
		if (process->n_requests >= NGINX_REQUESTS || process->n_calls >= NGINX_CALLS)
			return 0;
		process->n_requests++;
	}
	bpf_map_update_elem(&client_request, &key, &exchange, BPF_ANY);
	return 0;
}

/* First of all: of threads that wait for one thing at a time nothing is asked. */
static __always_inline void bind_nginx(const struct segment *s, const struct connection *k, u64 exchange)
{
	if (s->thread_flags & CAUSE_WAITS_MANY && k->causes & CAUSE_BASES)
		bind_in_nginx(exchange, k->received_base);
}

/* Without a socket it is a TLS object: see runtime/nginx_tls.h. */
static __always_inline void note_nginx(struct segment *s, struct sock *sk)
{
	u64 address = 0;
	if (!sk || (s->thread_flags & (CAUSE_WAITS_MANY | CAUSE_RUNTIME)) != CAUSE_WAITS_MANY)
		return;
	/* Global functions take no pointers to sockets before 6.8, and one is no number to the verifier unless it is read. */
	bpf_probe_read_kernel(&address, sizeof(address), &sk);
	note_in_nginx(s, address);
}

static __always_inline void forget_nginx(u32 tgid)
{
	bpf_map_delete_elem(&nginx_process, &tgid);
}

#else
static __always_inline void bind_nginx(const struct segment *s, const struct connection *k, u64 exchange)
{
	(void)s;
	(void)k;
	(void)exchange;
}

static __always_inline void note_nginx(struct segment *s, struct sock *sk)
{
	(void)s;
	(void)sk;
}

static __always_inline void forget_nginx(u32 tgid)
{
	(void)tgid;
}
#endif

#endif
