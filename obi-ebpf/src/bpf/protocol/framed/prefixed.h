/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What the protocols share whose messages are a header with a length, and a payload: the header is collected, the
 * payload copied or hopped over. HTTP/2's frames, and the messages of databases, go to the agent in the same records.
 */
#ifndef OBI_PREFIXED_H
#define OBI_PREFIXED_H

#include "core/cause.h"
#include "core/segment.h"
#include "protocol/framed/content.h"

/* Room for payload in the two record sizes; with ring header 280 and 2048 bytes. */
enum { FRAME_SMALL_BYTES = 128, FRAME_LARGE_BYTES = 1896 };

struct small_frame {
	struct frame_event frame;
	u8 bytes[FRAME_SMALL_BYTES];
};

struct large_frame {
	struct frame_event frame;
	u8 bytes[FRAME_LARGE_BYTES];
};

/* === records === */

/* Fills the record of a piece of `n` bytes. What is known of the stream's content has been taken. */
SHARED int fill_frame(struct connection *k, struct segment *s, struct frame_event *r, u32 n, u32 flags)
{
	struct frame_cursor *f;
	struct cursor *c;
	bool known;
	if (!k || !s || !r)
		return 0;
	c = cursor_of(k, s);
	f = &c->frame;
	known = f->data.stream == f->stream;
	r->header = (struct event_header){
		.kind = EVENT_FRAME, .tgid = s->id >> 32, .tid = (u32)s->id, .time = s->time, .exchange = exchange_number(k, 0),
	};
	r->header.flags = flags | (f->joined ? FRAME_JOINED : 0);
	r->arrival = f->type != FRAME_DATA ? c->arrival : known ? f->data.last : 0;
	/* A stream that had no content is not remembered, but one may have been forgotten. */
	if (known) {
		r->body_bytes = f->data.unknown == NEVER_OPENED ? BODY_UNKNOWN : f->data.bytes;
		r->messages = f->data.unknown ? MESSAGES_UNKNOWN : f->data.messages;
	} else {
		bool forgotten = f->n_spilled || f->joined;
		r->body_bytes = forgotten ? BODY_UNKNOWN : 0;
		r->messages = forgotten ? MESSAGES_UNKNOWN : 0;
	}
	r->offset = s->offset - s->gap; /* what is left of the gap lies behind */
	r->sequence = f->sequence;
	r->stream = f->stream;
	r->frame_bytes = f->bytes;
	r->position = f->bytes - (u32)c->remaining;
	r->length = n;
	r->type = f->type;
	r->flags = f->flags;
	fill_ends(k, r, s->sending);
	if (flags & FRAME_FIRST_PIECE) {
		fill_cause(k, s, &r->cause);
#ifndef OBI_PORTABLE
		/* Who sends a frame may send what others have left to be sent. */
		if (r->cause.flags & CAUSE_CONTEXT)
			r->cause.candidate = 0;
#endif
		r->header.flags |= FRAME_CAUSE;
	}
	return 0;
}

/* The record of a frame without its payload. */
SHARED int tell_frame(struct connection *k, struct segment *s, u32 flags)
{
	struct frame_event *r;
	if (!k || !s)
		return 0;
	r = bpf_ringbuf_reserve(&events, sizeof(*r), 0);
	if (r) {
		fill_frame(k, s, r, 0, flags);
		bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	}
	cursor_of(k, s)->frame.sequence++;
	return 0;
}

/* In a connection joined in the middle the first header block that begins with a known field shows the sides. */
static __always_inline void learn_side(struct connection *k, const struct segment *s, const struct frame_cursor *f,
				       const u8 *payload)
{
	u32 at = (f->flags & FRAME_PADDED ? 1 : 0) + (f->flags & FRAME_PRIORITIZED ? 5 : 0);
	u8 message = f->bytes > at ? message_of_block(payload[at & 7]) : 0;
	if (message)
		k->side = (message == MESSAGE_REQUEST) == !!s->sending ? SIDE_CLIENT : SIDE_SERVER;
}

/* Reads `n` bytes of payload, at most what the record has room for, into `r` and fills it. Returns 1 if it worked. */
static __always_inline int read_frame(struct connection *k, struct segment *s, struct frame_event *r, u32 n, const u32 room)
{
	struct frame_cursor *f = &cursor_of(k, s)->frame;
	u32 flags = f->bytes == (u32)cursor_of(k, s)->remaining ? FRAME_FIRST_PIECE : 0;
	OPAQUE(n);
	if (n > room)
		return 0;
	if (bpf_probe_read_user((u8 *)(r + 1), n, (void *)s->source.base))
		return 0;
	if (!k->side && flags && f->type == FRAME_HEADERS && n > 6)
		learn_side(k, s, f, (u8 *)(r + 1));
	if (n == f->copy)
		flags |= FRAME_LAST_PIECE | (f->copy < (u32)cursor_of(k, s)->remaining ? FRAME_TRUNCATED : 0);
	fill_frame(k, s, r, n, flags);
	return 1;
}

SHARED int small_frame_piece(struct connection *k, struct segment *s, u32 n)
{
	struct small_frame *r;
	if (!k || !s)
		return 0;
	r = bpf_ringbuf_reserve(&events, sizeof(*r), 0);
	if (!r)
		return 0;
	if (read_frame(k, s, &r->frame, n, FRAME_SMALL_BYTES))
		bpf_ringbuf_submit(r, wakeup_flag());
	else
		bpf_ringbuf_discard(r, wakeup_flag());
	return 0;
}

SHARED int large_frame_piece(struct connection *k, struct segment *s, u32 n)
{
	struct large_frame *r;
	if (!k || !s)
		return 0;
	r = bpf_ringbuf_reserve(&events, sizeof(*r), 0);
	if (!r)
		return 0;
	if (read_frame(k, s, &r->frame, n, FRAME_LARGE_BYTES))
		bpf_ringbuf_submit(r, wakeup_flag());
	else
		bpf_ringbuf_discard(r, wakeup_flag());
	return 0;
}

/* A connection of HTTP/2 or of a database is over. What is open there, only the agent knows exactly. */
static __always_inline void end_streams(struct connection *k, const struct ending *how, u32 flag)
{
	struct close_event *event;
	u64 exchange = exchange_number(k, 0);
	s32 n_open = (s32)(k->n_opened - k->n_ended);
	if (flag == CLOSE_HTTP2)
		tell_streams(k, how->time);
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		if (n_open > 0)
			tally_lost(k, LOSS_RING_FULL, n_open);
		/* How many turns a database was asked for, in the place of the ordinal: the agent counts those it has not seen. */
		if (flag == CLOSE_DATABASE)
			exchange = exchange_number(k, k->cursor[~k->side & SIDE_SERVER].frame.turn);
		forget(exchange);
		return;
	}
	fill_header(&event->header, EVENT_CLOSE, flag, how->time, exchange);
	event->header.tgid = k->tgid;
	event->request_body_bytes = 0;
	event->response_body_bytes = 0;
	event->last_byte = 0;
	event->pending = 0;
	event->error = how->error;
	event->reason = how->reason;
	event->loss = how->loss;
	event->side = k->side;
	event->response_started = 0;
	__builtin_memset(event->pad, 0, sizeof(event->pad));
	event->last_stream = k->last_stream;
	event->received_pieces = k->receive.frame.sequence;
	event->sent_pieces = k->send.frame.sequence;
	event->n_aside = k->receive.frame.n_spilled + k->send.frame.n_spilled;
	event->epoch[0] = k->receive.frame.epoch;
	event->epoch[1] = k->send.frame.epoch;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* === a step === */

/* Passes over up to `most` bytes, unseen ones first. Returns how many. */
static __always_inline u32 pass_payload(struct segment *s, u64 most)
{
	u32 n = s->gap ? s->gap : s->left;
	if (n > most)
		n = most;
	if (s->gap)
		s->gap -= n;
	else
		advance(s, n);
	return n;
}

/* Bytes come that the program cannot read: harmless inside a payload, otherwise nothing behind them can be followed. */
static __always_inline void pass_unread(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	u8 mode = c->mode;
	if (mode == MODE_FRAME_DATA) {
		f->data.unknown = 1;
	} else if (mode == MODE_FRAME_COPY) {
		f->sequence++; /* the rest of the payload is a piece that is lost */
		f->copy = 0;
		c->mode = MODE_FRAME_HOP;
	} else if (mode == MODE_FRAME_LOST || mode == MODE_FIND) {
		if (s->gap)
			s->gap = 0;
		else
			s->left = 0;
	} else {
		come_to(s, OUTCOME_LOST, s->gap ? LOSS_GAP : LOSS_UNREADABLE);
	}
}

/* Collects the `want` bytes that the mode is about in `header`. Returns whether they are there. */
static __always_inline bool collect(struct segment *s, struct frame_cursor *f, u32 want)
{
	u32 got = f->got & 31;
	u64 n = s->left < s->source.length ? s->left : s->source.length;
	if (n > want - got)
		n = want - got;
	OPAQUE(n);
	if (n > 32 || bpf_probe_read_user(f->header + got, n, (void *)s->source.base)) {
		come_to(s, OUTCOME_LOST, LOSS_FAULT);
		return false;
	}
	f->got = got + n;
	advance(s, n);
	return f->got >= want;
}

/* The same of a message's header, whose first byte is the message's. */
static __always_inline bool collect_header(struct cursor *c, struct segment *s, u32 want)
{
	if (!c->frame.got)
		c->arrival = s->arrival;
	return collect(s, &c->frame, want);
}

/* Some of a payload that the agent gets. Returns whether its last byte has passed. */
static __always_inline bool copy_frame(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	u64 n = s->left < s->source.length ? s->left : s->source.length;
	if (n > f->copy)
		n = f->copy;
	if (n > FRAME_LARGE_BYTES)
		n = FRAME_LARGE_BYTES;
	if (n > FRAME_SMALL_BYTES)
		large_frame_piece(k, s, n);
	else
		small_frame_piece(k, s, n);
	f->sequence++;
	f->copy -= n;
	c->remaining -= n;
	advance(s, n);
	if (!f->copy)
		c->mode = MODE_FRAME_HOP;
	return !c->remaining;
}

enum follow {
	FOLLOW_ON = 0, /* there is more, but nothing to be read now */
	FOLLOW_OVER = 1, /* the walk is over */
	FOLLOW_READ = 2, /* bytes are in hand, to be read */
};

/* Bytes of payload that come next and need not be read. */
static __always_inline u64 unread(const struct cursor *c)
{
	if (c->mode == MODE_FRAME_DATA)
		return unread_data(c);
	return c->mode == MODE_FRAME_HOP || c->mode == MODE_WEBSOCKET_HOP ? c->remaining : 0;
}

/* Behind what could be passed over: an enum follow. */
static __always_inline u32 before_reading(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	u8 mode = c->mode;
	if ((!s->gap && !s->left) || mode == MODE_IGNORED)
		return FOLLOW_OVER;
	if (unread(c))
		return FOLLOW_ON; /* a gap has ended before the payload does */
	if (mode == MODE_FRAME_LOST && s->begun && !s->gap) {
		s->left = 0;
		return FOLLOW_OVER;
	}
	if (s->gap || s->source.opaque) {
		pass_unread(k, s);
		return FOLLOW_ON;
	}
	return has_bytes(s) ? FOLLOW_READ : FOLLOW_ON;
}

#endif
