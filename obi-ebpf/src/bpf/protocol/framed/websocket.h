/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* A WebSocket frame by frame: messages and bytes are counted, the code of the first Close frame is kept. */
#ifndef OBI_WEBSOCKET_H
#define OBI_WEBSOCKET_H

#include "protocol/framed/prefixed.h"
#include "protocol/http1/ending.h"

/* A WebSocket is over, or cannot be followed any further. */
SHARED int end_websocket(struct connection *k, u64 time, u32 reason)
{
	const struct frame_cursor *received, *sent;
	struct websocket_event *event;
	u64 exchange;
	if (!k)
		return 0;
	received = &k->receive.frame;
	sent = &k->send.frame;
	exchange = exchange_number(k, k->n_responses - 1);
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		tally_lost(k, LOSS_RING_FULL, 1);
		forget(exchange);
		return 0;
	}
	fill_header(&event->header, EVENT_WEBSOCKET, 0, time, exchange);
	event->header.tgid = k->tgid;
	event->received_bytes = received->data.bytes;
	event->sent_bytes = sent->data.bytes;
	event->received_messages = received->data.messages;
	event->sent_messages = sent->data.messages;
	event->closed = k->websocket_closed;
	event->close_code = k->websocket_closed == 2 ? sent->close_code : received->close_code;
	event->reason = reason;
	__builtin_memset(event->pad, 0, sizeof(event->pad));
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Asked of the cursor, not of the connection: the other direction may end it at any time. */
static __always_inline bool is_websocket(u8 mode)
{
	return mode >= MODE_WEBSOCKET && mode <= MODE_WEBSOCKET_HOP;
}

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
	end_websocket(k, s->time, k->websocket_closed == 2 ? CLOSE_LOCAL : CLOSE_REMOTE);
	k->protocol = PROTOCOL_HTTP1; /* nothing more is to be reported */
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

/* `n` bytes of payload have passed unread. */
static __always_inline void websocket_passed(struct cursor *c, u32 n)
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

/* It cannot be followed: it is reported as it is now, and nothing more of the connection. */
static __always_inline void lose_websocket(struct connection *k, struct segment *s)
{
	end_websocket(k, s->time, CLOSE_ABANDONED);
	k->protocol = PROTOCOL_HTTP1;
	come_to(s, OUTCOME_LEFT, UPGRADE_OTHER);
}

/* A header, as far as it is there. */
static __always_inline void read_websocket(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	bool is_code = c->mode == MODE_WEBSOCKET_CODE;
	if (!collect_header(c, s, websocket_header_bytes(f) + (is_code ? CLOSE_CODE_BYTES : 0)))
		return;
	if (is_code)
		websocket_code(k, s);
	else if (f->got == websocket_header_bytes(f)) /* now that its first two bytes are known */
		websocket_begins(k, s);
}

#endif
