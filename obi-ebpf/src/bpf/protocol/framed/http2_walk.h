/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* The walk along HTTP/2: how its frames are recognised, how it begins, how one is found again, a step. */
#ifndef OBI_HTTP2_WALK_H
#define OBI_HTTP2_WALK_H

#include "protocol/framed/http2.h"
#include "protocol/http1/ending.h"
#include "runtime/goroutine.h"
#include "runtime/last_read.h"
#include "runtime/nginx.h"

/* === recognition === */

enum { LOOK_FRAMES = 4, LOOK_VECTORS = 4 };

/* One iovec entry further. */
static __always_inline bool look_on(struct look *look, struct source *from)
{
	struct user_iovec entry = {};
	from->vector = look->vector; /* it is read again from here */
	if (read_vector(&entry, from))
		return false;
	look->vector += sizeof(entry);
	look->vectors--;
	if (look->skip >= entry.length) {
		look->skip -= entry.length;
		return true;
	}
	look->base = entry.base + look->skip;
	look->length = entry.length - look->skip;
	look->skip = 0;
	return true;
}

/* One frame further. Returns whether to go on. */
static __always_inline bool look_at_frame(struct look *look)
{
	u8 header[16] = {};
	u32 bytes;
	if (look->left < FRAME_HEADER_BYTES || look->length < FRAME_HEADER_BYTES)
		return false;
	if (bpf_probe_read_user(header, FRAME_HEADER_BYTES, (void *)look->base) || !is_likely_frame(header) ||
	    (!look->n && header[3] == FRAME_CONTINUATION)) {
		look->n = 0;
		return false;
	}
	if (!look->n)
		look->first = header[3];
	look->n++;
	if (header[3] == FRAME_DATA)
		look->n_data++;
	bytes = FRAME_HEADER_BYTES + frame_length(header);
	/* Some read the header by itself, and the payload then: believed of whole HEADERS, as nine bytes are soon found. */
	look->fits = look->left == FRAME_HEADER_BYTES ? header[3] == FRAME_HEADERS && header[4] & END_HEADERS :
							bytes == look->left;
	if (bytes >= look->left)
		return false;
	look->left -= bytes;
	if (bytes <= look->length) {
		look->base += bytes;
		look->length -= bytes;
	} else {
		look->skip = bytes - look->length;
		look->length = 0;
	}
	return true;
}

/* Is the beginning of the segment the beginning of a frame? Returns 1 if so. */
SHARED int looks_like_frames(struct connection *k, struct segment *s, u32 from_start)
{
	struct look *look;
	u64 vector;
	if (!k || !s)
		return 0;
	look = &cursor_of(k, s)->frame.look;
	*look = (struct look){
		.base = s->source.base, .length = s->source.length, .skip = s->source.skip, .vector = s->source.vector,
		.vectors = s->source.vectors, .left = s->left,
	};
	vector = s->source.vector;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < LOOK_FRAMES + LOOK_VECTORS; i++) {
		barrier(); /* see settle() */
		if (!look->length && look->vectors) {
			if (!look_on(look, &s->source))
				break;
		} else if (look->n >= LOOK_FRAMES || !look_at_frame(look)) {
			break;
		}
	}
	s->source.vector = vector;
	/* At the very beginning a server's SETTINGS stand; as long as no header is in one piece, they may. */
	if (from_start)
		return look->n ? look->first == FRAME_SETTINGS : look->left < FRAME_HEADER_BYTES || look->length < FRAME_HEADER_BYTES;
	return look->n >= LOOK_FRAMES - 1 || (look->fits && look->n > (look->n_data ? 1 : 0));
}

/* === begin, lose, find again === */

/* HTTP/2 from here on, in this direction: fresh, or (`joined`) from somewhere in the middle. */
static __always_inline void begin_direction(struct cursor *c, u8 mode, bool joined)
{
	cursor_reset(c, mode);
	__builtin_memset(&c->frame, 0, sizeof(c->frame));
	c->frame.joined = joined;
}

/* It is HTTP/2, in this direction and the other: from its beginning, or (`joined`) from somewhere in the middle. */
static __always_inline void begin_http2(struct connection *k, const struct segment *s, bool joined)
{
	struct cursor *other = &k->cursor[~s->sending & 1];
	u8 mode = other->mode;
	begin_direction(&k->cursor[s->sending & 1], MODE_FRAME, joined);
	k->protocol = PROTOCOL_HTTP2;
	k->flags |= CONNECTION_HTTP;
	k->tgid = s->id >> 32;
	count_open(k);
	other->frame.tentative = is_framed(mode) ? 0 : other->frame.tentative;
	if (mode == MODE_START)
		begin_direction(other, MODE_FRAME, false);
	if (mode != MODE_START && (!is_framed(mode) || mode == MODE_FIND)) {
		begin_direction(other, MODE_FRAME_LOST, true);
		other->frame.sequence = 1; /* something has passed, even if nothing will be found any more */
	}
}

/* The second half of the preface is in hand. */
static __always_inline void preface_ends(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	if (is_preface_rest(c->frame.header)) {
		come_to(s, OUTCOME_LEFT, UPGRADE_PREFACE);
		return;
	}
	c->mode = MODE_START;
	come_to(s, OUTCOME_IGNORED, SCAN_HTTP2);
}

/*
 * A response has agreed to go on in HTTP/2, and its server does so at once; the request is stream 1, unless it is lost
 * or still to be seen: then it is counted as what it was. The client begins with the preface, as a head, behind the
 * request's body.
 */
static __always_inline void upgrade_to_http2(struct connection *k, const struct segment *s)
{
	begin_direction(&k->cursor[s->sending & 1], MODE_FRAME, false);
	k->protocol = PROTOCOL_HTTP2;
	k->last_stream = 1;
	k->n_opened = !(s->detail & UPGRADE_UNREPORTED) && !is_answered(k);
}

/* Frames cannot be followed: what passes until one is found again is a gap, which the agent sees in the sequence. */
static __always_inline void lose_http2(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	if (c->mode != MODE_PREFACE && !f->tentative) {
		c->mode = MODE_FRAME_LOST;
		f->sequence++;
		f->joined = 1;
		f->epoch++;
		f->n_spilled = 0;
		f->data.stream = 0;
		return;
	}
	if (c->mode == MODE_PREFACE)
		tally_uncovered(k, UNCOVERED_HTTP2); /* half of it is not believed */
	come_to(s, OUTCOME_LEFT, UPGRADE_OTHER);
}

/* Lost, at the start of a segment: does a frame begin here? */
static __always_inline void find_frame(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	if (!looks_like_frames(k, s, 0)) {
		s->left = 0;
		return;
	}
	c->mode = MODE_FRAME;
	c->frame.got = 0;
	c->frame.data.stream = 0;
}

/* === a step === */

/*
 * The first piece of a request's headers comes next: who opens or reads the stream. Asked here, where few functions
 * call each other: verifiers allow eight frames of stack.
 */
static __always_inline void note_opening(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	if (f->type != FRAME_HEADERS || f->bytes != (u32)c->remaining || !is_request(k, s))
		return;
	if (s->sending) {
		note_stream(s, f->stream);
		return;
	}
	bind_reader(exchange_number(k, 0));
	note_read(exchange_number(k, 0) | READ_STREAMS);
	bind_nginx(s, k, exchange_number(k, 0) | READ_STREAMS);
}

/* `n` bytes of payload have passed unread. */
static __always_inline void http2_passed(struct connection *k, struct segment *s, u32 n)
{
	struct cursor *c = cursor_of(k, s);
	if (c->mode == MODE_FRAME_DATA)
		pass_data(c, n, s->time);
	else
		c->remaining -= n;
	if (!c->remaining)
		frame_ends(k, s);
}

/* A frame's header, or the rest of the preface, as far as it is there. */
static __always_inline void read_header(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	bool is_frame = c->mode == MODE_FRAME;
	if (!collect_header(c, s, is_frame ? FRAME_HEADER_BYTES : PREFACE_REST_BYTES))
		return;
	if (is_frame)
		frame_begins(k, s);
	else
		preface_ends(k, s);
}

static __always_inline void read_http2(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	u8 mode = c->mode;
	if (mode == MODE_FRAME_DATA || mode == MODE_FRAME_PAD) {
		if (mode == MODE_FRAME_DATA)
			data_prefix(k, s);
		else
			data_padding(s, c);
		if (!c->remaining)
			frame_ends(k, s);
	} else if (mode == MODE_FRAME_LOST) {
		find_frame(k, s);
	} else if (mode != MODE_FRAME_COPY) {
		read_header(k, s);
	}
	barrier(); /* see settle() */
	if (cursor_of(k, s)->mode != MODE_FRAME_COPY || !s->left || !s->source.length)
		return;
	note_opening(k, s);
	if (copy_frame(k, s))
		frame_ends(k, s);
}

#endif
