/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Probes in nginx: a request is made of what was read, and something is about to be sent. nginx keeps for each request
 * the connection that it came by, and for each connection the request that it is used for now: also for one that goes
 * on behind a timer, is tried again elsewhere, or uses a connection that others have used.
 */
#ifndef OBI_NGINX_H
#define OBI_NGINX_H

#include "core/own_stack.h"
#include "runtime/last_read.h"
#include "tls/tls.h"

#ifdef OBI_GOROUTINES

/* The first fields of these objects, since nginx 0.6. */
enum {
	NGINX_DATA = 0,       /* of a connection: what it is used for */
	NGINX_SIGNATURE = 0,  /* of a request: NGINX_HTTP */
	NGINX_CLIENT = 8,     /* of a request: the connection that it came by */
	NGINX_DESCRIPTOR = 24, /* of a connection: its descriptor; connections that stand for a stream have it, too */
	NGINX_CHAIN_BUFFER = 0, /* of a chain: its first buffer */
	NGINX_BUFFER_BEGIN = 0, /* of a buffer: what is next in it */
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
};

/* Where in a process's requests the stream is; 0: not found yet, after so many tries. */
struct nginx_process {
	u32 stream_at;
	u32 tries;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct nginx_process);
} nginx_process SEC(".maps");

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
	struct nginx_process *process = bpf_map_lookup_elem(&nginx_process, &tgid), fresh = {};
	struct nginx_search search = *of;
	if (process && (process->stream_at || process->tries >= NGINX_STREAM_TRIES))
		return process->stream_at;
	bpf_loop((NGINX_STREAM_LAST - NGINX_STREAM_FIRST) / 8, look_for_stream, &search, 0);
	fresh.stream_at = search.at;
	fresh.tries = process ? process->tries + 1 : 1;
	bpf_map_update_elem(&nginx_process, &tgid, &fresh, BPF_ANY);
	return search.at;
}

/* The exchange of a request's stream, where `streams` are those of its connection; 0: it does not prove itself. */
static __always_inline u64 exchange_of_stream(u32 tgid, u64 request, u64 client, u64 streams)
{
	struct nginx_search of = { .request = request, .descriptor = word_of(client, NGINX_DESCRIPTOR) };
	u32 at = find_stream(tgid, &of), number;
	u64 stream = at ? word_of(request, at) : 0;
	if (!stream || !is_stream_of(stream, of.descriptor))
		return 0;
	number = word_of(word_of(stream, NGINX_STREAM_NODE), NGINX_NODE_NUMBER);
	return number & 1 ? stream_exchange(streams & ~READ_STREAMS, number) : 0;
}

/*
 * What the request works for that came by a client's connection last, by that one's address, is in the map
 * `goroutine`: the exchange, or 0. A stream of HTTP/2 has such a connection of its own, with READ_STREAMS: which stream
 * that is, is known later.
 *
 * A request is made for the connection in the first argument, of what was read last, unless that is known to be
 * something else: what was read together with an earlier request, or in pieces.
 */
SEC("uprobe")
int nginx_request(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct runtime_key key = { .id = TLS_ARGUMENT_1(ctx), .tgid = bpf_get_current_pid_tgid() >> 32 };
	u64 exchange;
	if (!is_watched(key.tgid))
		return 0;
	exchange = take_last_read();
	bpf_map_update_elem(&goroutine, &key, &exchange, BPF_ANY);
	return 0;
}

/*
 * Bytes are about to be sent on the connection in the first argument: from a chain of buffers, or (cookie) plain ones.
 */
SEC("uprobe")
int nginx_send(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 id = bpf_get_current_pid_tgid(), buffer = TLS_ARGUMENT_2(ctx), *bound;
	u64 request = word_of(TLS_ARGUMENT_1(ctx), NGINX_DATA);
	struct runtime_key key = { .tgid = id >> 32 };
	struct thread_state *state;
	u64 exchange;
	u32 tid = id;
	/* A server over HTTP/2 speaks first: what it reads then is known. */
	*(volatile u32 *)&global.follows_reads = 1;
	state = bpf_map_lookup_elem(&thread, &tid);
	if (!state)
		return 0;
	state->buffer = 0;
	if (!request || (u32)word_of(request, NGINX_SIGNATURE) != NGINX_HTTP)
		return 0;
	key.id = word_of(request, NGINX_CLIENT);
	if (key.id == TLS_ARGUMENT_1(ctx))
		return 0; /* an answer */
	if (!(tls_cookie(ctx) >> NGINX_PLAIN_BIT & 1))
		buffer = word_of(word_of(buffer, NGINX_CHAIN_BUFFER), NGINX_BUFFER_BEGIN);
	bound = bpf_map_lookup_elem(&goroutine, &key);
	exchange = bound ? *bound : 0;
	if (exchange & READ_STREAMS)
		exchange = exchange_of_stream(key.tgid, request, key.id, exchange);
	state->bound = exchange;
	state->buffer = buffer;
	return 0;
}

#endif

#endif
