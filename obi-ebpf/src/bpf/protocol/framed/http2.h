/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * HTTP/2 frame by frame: which payloads the agent gets, which streams are open. What header blocks mean is the agent's
 * to know.
 */
#ifndef OBI_HTTP2_H
#define OBI_HTTP2_H

#include "protocol/framed/prefixed.h"

/* A header block that is cut off damages the header table, a head of HTTP/1 only itself: blocks may be longer. */
#define BLOCK_LIMITS 4

/* === open streams === */

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

/* === frames === */

/* The last byte of a frame has passed. */
SHARED int frame_ends(struct connection *k, struct segment *s)
{
	struct frame_cursor *f;
	struct cursor *c;
	bool ends;
	if (!k || !s)
		return 0;
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
		/* Of what is beyond the limit only the end of the block is reported: endless ones are to be cheap. */
		if (!f->copy && (f->type != FRAME_CONTINUATION || f->flags & END_HEADERS))
			tell_frame(k, s, FRAME_FIRST_PIECE | FRAME_LAST_PIECE | (is_cut(f) ? FRAME_TRUNCATED : 0));
	} else {
		c->mode = MODE_FRAME_HOP;
	}
	if (!c->remaining)
		frame_ends(k, s);
	return 0;
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
