/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * HTTP/2 frame by frame: which payloads the agent gets, which streams are open. What header blocks mean is the agent's to know.
 */
#ifndef OBI_HTTP2_H
#define OBI_HTTP2_H

#include "core/segment.h"

/* Room for payload in the two record sizes; with ring header 256 and 2048 bytes. */
enum { FRAME_SMALL_BYTES = 128, FRAME_LARGE_BYTES = 1920 };
/* A header block that is cut off damages the header table, a head of HTTP/1 only itself: blocks may be longer. */
#define BLOCK_LIMITS 4

struct small_frame {
	struct frame_event frame;
	u8 bytes[FRAME_SMALL_BYTES];
};

struct large_frame {
	struct frame_event frame;
	u8 bytes[FRAME_LARGE_BYTES];
};

/* === open streams === */

static __always_inline bool is_request(const struct connection *k, const struct segment *s)
{
	return k->side == (s->sending ? SIDE_CLIENT : SIDE_SERVER);
}

/* HEADERS of a request that are not its trailers open a stream; identifiers grow (RFC 9113 §5.1.1). */
static __always_inline void stream_opens(struct connection *k, const struct segment *s, u32 stream)
{
	if (!is_request(k, s) || !(stream & 1) || stream <= k->last_stream)
		return;
	k->last_stream = stream;
	k->n_opened++;
}

static __always_inline void stream_ends(struct connection *k, u32 stream)
{
	if (!(stream & 1) || stream == k->last_ended)
		return;
	k->last_ended = stream;
	k->n_ended++;
}

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

/* A connection joined in the middle tells its sides by the first header block that begins with a known field. */
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

/* === frames === */

/* protocol/framed/frames.h, which knows the other protocols. */
SHARED int message_ends(struct connection *k, struct segment *s);

/* The last byte of a frame has passed. */
SHARED int frame_ends(struct connection *k, struct segment *s)
{
	struct frame_cursor *f;
	struct cursor *c;
	bool ends;
	if (!k || !s)
		return 0;
	if (is_database(k->protocol))
		return message_ends(k, s);
	c = cursor_of(k, s);
	f = &c->frame;
	ends = f->flags & END_STREAM && (f->type == FRAME_DATA || f->type == FRAME_HEADERS);
	c->mode = MODE_FRAME;
	f->got = 0;
	if (f->type == FRAME_DATA && ends)
		tell_frame(k, s, FRAME_FIRST_PIECE | FRAME_LAST_PIECE);
	if (f->type == FRAME_HEADERS)
		stream_opens(k, s, f->stream);
	if (ends) {
		drop_data(k, s->sending, f->stream);
		if (!is_request(k, s))
			stream_ends(k, f->stream);
	} else if (f->type == FRAME_RST_STREAM) {
		drop_data(k, 0, f->stream);
		drop_data(k, 1, f->stream);
		stream_ends(k, f->stream);
	}
	return 0;
}

/* How many bytes of the payload the agent gets. */
static __always_inline u32 bytes_to_copy(struct frame_cursor *f)
{
	u32 limit = head_limit * BLOCK_LIMITS, n = f->bytes;
	if (f->type == FRAME_GOAWAY)
		return n > GOAWAY_BYTES ? GOAWAY_BYTES : n;
	if (!IS_TYPE(f->type, OF_BLOCK))
		return n > head_limit ? head_limit : n;
	if (f->type != FRAME_CONTINUATION)
		f->block = 0;
	limit = limit > f->block ? limit - f->block : 0;
	f->block = f->block + n < f->block ? MESSAGES_UNKNOWN : f->block + n;
	return n > limit ? limit : n;
}

/* Nothing of this frame is copied: has something of it, or of its block before it, been left out? */
static __always_inline bool is_cut(const struct frame_cursor *f)
{
	return f->bytes || (f->type == FRAME_CONTINUATION && f->block > head_limit * BLOCK_LIMITS);
}

/* Before the preface has come: may a server's stream of frames go on like that? It begins with SETTINGS. */
static __always_inline bool is_tentative_frame(const struct frame_cursor *f)
{
	if (!f->sequence && (f->header[3] != FRAME_SETTINGS || f->header[4]))
		return false;
	return is_likely_frame(f->header);
}

/* A frame header has passed. */
SHARED int frame_begins(struct connection *k, struct segment *s)
{
	struct frame_cursor *f;
	struct cursor *c;
	if (!k || !s)
		return 0;
	c = cursor_of(k, s);
	f = &c->frame;
	if (!is_valid_frame(f->header) || (f->tentative && !is_tentative_frame(f))) {
		come_to(s, OUTCOME_LOST, LOSS_FRAMING);
		return 0;
	}
	read_frame_header(c);
	if (f->type == FRAME_DATA) {
		take_data(k, s->sending, f->stream, 0);
		c->mode = f->flags & FRAME_PADDED && f->bytes ? MODE_FRAME_PAD : MODE_FRAME_DATA;
	} else if (IS_TYPE(f->type, COPIED)) {
		if (f->type == FRAME_HEADERS && (!(f->flags & END_STREAM) || f->n_spilled))
			take_data(k, s->sending, f->stream, !(f->flags & END_STREAM));
		else if (f->type == FRAME_RST_STREAM)
			tell_stream(k, f->stream, s->time);
		f->copy = bytes_to_copy(f);
		c->mode = f->copy ? MODE_FRAME_COPY : MODE_FRAME_HOP;
		/* Of what is beyond the limit only the end of the block is told: endless ones are to be cheap. */
		if (!f->copy && (f->type != FRAME_CONTINUATION || f->flags & END_HEADERS))
			tell_frame(k, s, FRAME_FIRST_PIECE | FRAME_LAST_PIECE | (is_cut(f) ? FRAME_TRUNCATED : 0));
	} else {
		c->mode = MODE_FRAME_HOP;
	}
	if (!c->remaining)
		frame_ends(k, s);
	return 0;
}

/* Some of a payload that the agent gets. */
static __always_inline void copy_frame(struct connection *k, struct segment *s)
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
	if (!c->remaining)
		frame_ends(k, s);
}

/* The prefix of a message of gRPC's, as far as it is there. */
static __always_inline void data_prefix(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct stream_data *data = &c->frame.data;
	u64 n = s->left < s->source.length ? s->left : s->source.length, bytes = 0;
	u32 want = PREFIX_BYTES - data->prefix_bytes, content = content_left(c);
	if (want > content)
		want = content;
	if (n > want)
		n = want;
	OPAQUE(n);
	if (n > PREFIX_BYTES || bpf_probe_read_user(&bytes, n, (void *)s->source.base)) {
		data->unknown = 1;
		return;
	}
	pass_data(c, n, s->time);
	read_prefix(data, bytes, n);
	advance(s, n);
}

/* The length of a DATA frame's padding, at its beginning. */
static __always_inline void data_padding(struct segment *s, struct cursor *c)
{
	if (bpf_probe_read_user(&c->frame.padding, 1, (void *)s->source.base)) {
		come_to(s, OUTCOME_LOST, LOSS_FAULT);
		return;
	}
	advance(s, 1);
	c->remaining--;
	c->mode = MODE_FRAME_DATA;
}

#endif
