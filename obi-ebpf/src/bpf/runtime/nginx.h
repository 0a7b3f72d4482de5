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
	NGINX_CHAIN_BUFFER = 0, /* of a chain: its first buffer */
	NGINX_BUFFER_BEGIN = 0, /* of a buffer: what is next in it */
	NGINX_HTTP = 0x50545448,
};

/*
 * What the request works for that came by a client's connection last, by that one's address, is in the map
 * `goroutine`: the exchange, or 0.
 *
 * A request is made for the connection in the first argument, of what was read last, unless that is known to be
 * something else: what was read together with an earlier request, or in pieces.
 */
SEC("uprobe")
int nginx_request(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct runtime_key key = { .id = ctx->di, .tgid = bpf_get_current_pid_tgid() >> 32 };
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
	u64 id = bpf_get_current_pid_tgid(), buffer = ctx->si, *bound;
	u64 request = word_of(ctx->di, NGINX_DATA);
	struct runtime_key key = { .tgid = id >> 32 };
	struct thread_state *state;
	u32 tid = id;
	state = bpf_map_lookup_elem(&thread, &tid);
	if (!state)
		return 0;
	state->buffer = 0;
	if (!request || (u32)word_of(request, NGINX_SIGNATURE) != NGINX_HTTP)
		return 0;
	key.id = word_of(request, NGINX_CLIENT);
	if (key.id == ctx->di)
		return 0; /* an answer */
	if (!(tls_cookie(ctx) >> NGINX_PLAIN_BIT & 1))
		buffer = word_of(word_of(buffer, NGINX_CHAIN_BUFFER), NGINX_BUFFER_BEGIN);
	bound = bpf_map_lookup_elem(&goroutine, &key);
	state->bound = bound ? *bound : 0;
	state->buffer = buffer;
	return 0;
}

#endif

#endif
