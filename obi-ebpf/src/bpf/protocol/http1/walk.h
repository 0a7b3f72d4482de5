/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* The walk along HTTP/1: what is done with the bytes that come next, by the cursor's mode. */
#ifndef OBI_HTTP1_WALK_H
#define OBI_HTTP1_WALK_H

#include "protocol/http1/body.h"
#include "protocol/http1/piece.h"

/* One step on along heads and bodies. Returns 1 when the walk is over. */
static __always_inline int follow_http1(struct connection *k, struct segment *s, struct sock *sk)
{
	struct cursor *c = cursor_of(k, s);
	u8 mode = c->mode;
	if ((!s->gap && !s->left) || mode == MODE_IGNORED)
		return 1;
	if (is_skipping(mode))
		return 0; /* behind a gap; skip_body() hops */
	if (mode == MODE_EXPECTED && (s->gap || s->source.opaque)) {
		take_expected(k, c);
		return 0;
	}
	if (s->gap) {
		s->gap = 0;
		if (mode != MODE_RESYNC)
			come_to(s, OUTCOME_LOST, LOSS_GAP);
	} else if (mode == MODE_RESYNC && (s->begun || s->source.opaque)) {
		return 1;
	} else if (s->source.opaque) {
		come_to(s, OUTCOME_LOST, LOSS_UNREADABLE);
	} else if (!has_bytes(s)) {
		return 0;
	} else if (mode == MODE_EXPECTED || mode == MODE_CHUNK_SIZE || mode == MODE_TRAILER) {
		chunk_piece(k, s);
	} else if (!is_large(c, s) || !large_piece(k, s)) {
		small_piece(k, s, sk);
	}
	return 0;
}


#endif
