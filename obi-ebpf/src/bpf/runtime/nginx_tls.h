/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The probe in nginx where it sends over TLS: what is plain there is seen apart from the socket, so that the way of
 * runtime/nginx.h does not lead from one to the other.
 */
#ifndef OBI_NGINX_TLS_H
#define OBI_NGINX_TLS_H

#include "core/own_stack.h"
#include "runtime/nginx.h"
#include "tls/tls.h"

#ifdef OBI_GOROUTINES

/* The bytes in the second argument are about to be sent on the connection in the first. */
SEC("uprobe")
int nginx_send(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 id = bpf_get_current_pid_tgid(), exchange = 0;
	struct thread_state *state;
	u32 tid = id;
	state = bpf_map_lookup_elem(&thread, &tid);
	if (!state)
		return 0;
	state->buffer = 0;
	if (!nginx_works_for(id >> 32, TLS_ARGUMENT_1(ctx), &exchange))
		return 0;
	state->bound = exchange;
	state->buffer = TLS_ARGUMENT_2(ctx);
	return 0;
}

#endif

#endif
