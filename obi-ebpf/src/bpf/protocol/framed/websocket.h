/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* A WebSocket frame by frame: messages and bytes are counted, the code of the first Close frame is kept. */
#ifndef OBI_WEBSOCKET_H
#define OBI_WEBSOCKET_H

#include "core/segment.h"

static __always_inline void next_websocket_frame(struct cursor *c)
{
	c->mode = MODE_WEBSOCKET;
	c->frame.got = 0;
}

/* A Close frame has passed, its code is known. Behind both, nothing follows (RFC 6455 §7.1.1). */
static __always_inline void websocket_closes(struct connection *k, struct segment *s)
{
	struct frame_cursor *f = &cursor_of(k, s)->frame;
	f->closed = 1;
	if (!k->websocket_closed)
		k->websocket_closed = s->sending ? 2 : 1;
	if (!k->receive.frame.closed || !k->send.frame.closed)
		return;
	s->ending = (struct ending){ .time = s->time, .reason = k->websocket_closed == 2 ? CLOSE_LOCAL : CLOSE_REMOTE };
	end_framed(k, &s->ending);
	k->protocol = PROTOCOL_HTTP1; /* nothing more is to be told */
	come_to(s, OUTCOME_LEFT, UPGRADE_OTHER);
}

/* The header in hand is complete. */
SHARED int websocket_begins(struct connection *k, struct segment *s)
{
	struct frame_cursor *f;
	struct cursor *c;
	if (!k || !s)
		return 0;
	c = cursor_of(k, s);
	f = &c->frame;
	if (!read_websocket_header(c)) {
		come_to(s, OUTCOME_LOST, LOSS_FRAMING);
		return 0;
	}
	if (f->type <= WEBSOCKET_BINARY && f->flags & WEBSOCKET_FINAL)
		f->data.messages++;
	if (f->type == WEBSOCKET_CLOSE && c->remaining < CLOSE_CODE_BYTES)
		websocket_closes(k, s);
	else if (f->type == WEBSOCKET_CLOSE)
		c->mode = MODE_WEBSOCKET_CODE;
	else if (c->remaining)
		c->mode = MODE_WEBSOCKET_HOP;
	else
		next_websocket_frame(c);
	return 0;
}

/* The code of a Close frame stands behind its header. */
static __always_inline void websocket_code(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	c->frame.close_code = websocket_close_code(c->frame.header);
	c->remaining -= CLOSE_CODE_BYTES;
	if (c->remaining)
		c->mode = MODE_WEBSOCKET_HOP;
	else
		next_websocket_frame(c);
	websocket_closes(k, s);
}

static __always_inline void hop_websocket(struct cursor *c, u32 n)
{
	c->remaining -= n;
	if (c->frame.type <= WEBSOCKET_BINARY)
		c->frame.data.bytes += n;
	if (!c->remaining)
		next_websocket_frame(c);
}

/* Both directions, which have been reset, go on as WebSocket. */
static __always_inline void begin_websocket(struct connection *k)
{
	k->protocol = PROTOCOL_WEBSOCKET;
	k->receive.mode = MODE_WEBSOCKET;
	k->send.mode = MODE_WEBSOCKET;
	__builtin_memset(&k->receive.frame, 0, sizeof(k->receive.frame));
	__builtin_memset(&k->send.frame, 0, sizeof(k->send.frame));
}

#endif
