/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The places in TLS libraries where plain bytes are seen. Behind each of them is the whole walk along a message, of
 * which the verifier takes a quarter of a second; so they are one program, which learns from its attach cookie where it
 * is. Only the records that rustls makes have another one (rustls_encrypted): it keeps a record on its stack, and 6.1
 * counts the stacks of all calls together. The portable objects have one for each place: kernels before 5.15 have no
 * cookies, and the walk of those objects is elsewhere.
 */
#ifndef OBI_BYTES_H
#define OBI_BYTES_H

#include "tls/moment.h"
#include "tls/rustls.h"
#include "tls/tls.h"

#ifdef OBI_PORTABLE

SEC("uprobe")
int tls_exit(struct pt_regs *ctx)
{
	struct tls_frame frame = {};
	struct tls_times at = {};
	s64 n = call_exits(ctx, &frame, &at);
	return n ? reported(ctx, &frame, n, at) : 0;
}

static __always_inline int tell_move(struct pt_regs *ctx, u64 layout, u32 kind)
{
	struct tls_frame frame = {};
	struct tls_times at = {};
	s64 n = moves_now(ctx, layout, kind, &frame);
	return n ? reported(ctx, &frame, n, at) : 0;
}

SEC("uprobe")
int tls_now_send(struct pt_regs *ctx)
{
	return tell_move(ctx, layout_of(ctx, TLS_GO_SEND), TLS_CALL_SEND);
}

SEC("uprobe")
int tls_now_receive(struct pt_regs *ctx)
{
	return tell_move(ctx, layout_of(ctx, TLS_GO_RECEIVE), TLS_CALL_RECEIVE);
}

#else

SEC("uprobe")
int tls_bytes(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 cookie = tls_cookie(ctx);
	struct tls_frame frame = {};
	struct tls_times at = {};
	s64 n = 0;
	switch (cookie >> TLS_PLACE_AT & 3) {
	case TLS_PLACE_EXIT:
		n = call_exits(ctx, &frame, &at);
		break;
	case TLS_PLACE_SEND:
		n = moves_now(ctx, cookie, TLS_CALL_SEND, &frame);
		break;
	case TLS_PLACE_RECEIVE:
		n = moves_now(ctx, cookie, TLS_CALL_RECEIVE, &frame);
		break;
	case TLS_PLACE_RECORD_RECEIVED:
		n = record_received(ctx, cookie, &frame);
		break;
	}
	return n ? reported(ctx, &frame, n, at) : 0;
}

#endif

#endif
