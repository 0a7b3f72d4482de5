/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The walk along frames: a step is what can be hopped, and what is then read. Needs nothing but the connection and
 * the segment, so whoever has plain bytes may go this way. And how frames are recognised.
 */
#ifndef OBI_FRAMES_H
#define OBI_FRAMES_H

#include "protocol/database/database_walk.h"
#include "protocol/framed/websocket.h"

/* === recognition === */

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
	k->n_opened = !(s->detail & UPGRADE_UNTOLD) && !is_answered(k);
}

/* HTTP/1 ends here; `detail` says what follows. */
SHARED int leave_http1(struct connection *k, struct segment *s)
{
	u32 to;
	if (!k || !s)
		return 0;
	to = s->detail & ~UPGRADE_UNTOLD;
	if (to == UPGRADE_HTTP2) {
		upgrade_to_http2(k, s);
		return 0;
	}
	if (to >= UPGRADE_POSTGRES && to <= UPGRADE_REDIS && (s->sending || follows_databases)) {
		begin_database(k, s, to);
		return 0;
	}
	if (to == UPGRADE_PREFACE) /* only a client sends it */
		k->side = s->sending ? SIDE_CLIENT : SIDE_SERVER;
	if (to == UPGRADE_PREFACE || to == UPGRADE_FRAMES) {
		begin_http2(k, s, to == UPGRADE_FRAMES);
		return 0;
	}
	cursor_reset(&k->receive, MODE_IGNORED);
	cursor_reset(&k->send, MODE_IGNORED);
	if (to == UPGRADE_WEBSOCKET)
		begin_websocket(k);
	return 0;
}

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
	/* Some read the header by itself, and the payload then: believed of HEADERS, as nine bytes are soon found. */
	look->fits = look->left == FRAME_HEADER_BYTES ? header[3] == FRAME_HEADERS : bytes == look->left;
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

/* Neither a head nor the preface: frames that were begun before we came, or by the server? */
static __always_inline void find_frames(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	bool lost = c->mode == MODE_FRAME_LOST;
	bool from_start = !lost && !(c->flags & CURSOR_RESYNCED) && k->family != FAMILY_UNIX;
	u32 database;
	database = lost ? 0 : find_database(k, s);
	/* In the middle nothing starts up, and what may be frames is: a small one of a high stream looks like a start-up. */
	if (database == UPGRADE_POSTGRES && c->flags & CURSOR_RESYNCED)
		database = 0;
	if (database && !from_start && looks_like_frames(k, s, 0))
		database = 0;
	if (database) {
		come_to(s, OUTCOME_LEFT, database);
		return;
	}
	if (!looks_like_frames(k, s, from_start)) {
		if (lost) {
			s->left = 0;
		} else {
			c->mode = MODE_HEAD;
			come_to(s, OUTCOME_REJECTED, SCAN_OTHER);
		}
		return;
	}
	if (lost) {
		c->mode = MODE_FRAME;
		c->frame.got = 0;
		c->frame.data.stream = 0;
		return;
	}
	if (!from_start) {
		come_to(s, OUTCOME_LEFT, UPGRADE_FRAMES);
		return;
	}
	begin_direction(c, MODE_FRAME, false);
	c->frame.tentative = 1;
}

/* === the walk === */

/* Bytes that need not be read, as far as they go. */
static __always_inline void hop_frame(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	u8 mode = c->mode;
	u32 n = pass_payload(s, mode == MODE_FRAME_DATA ? unread_data(c) : c->remaining);
	if (mode == MODE_WEBSOCKET_HOP) {
		hop_websocket(c, n);
		return;
	}
	if (mode == MODE_FRAME_DATA)
		pass_data(c, n, s->time);
	else
		c->remaining -= n;
	if (!c->remaining)
		frame_ends(k, s);
}

static __always_inline bool hops(u8 mode)
{
	return mode == MODE_FRAME_DATA || mode == MODE_FRAME_HOP || mode == MODE_WEBSOCKET_HOP;
}

static __always_inline void read_frames(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	u8 mode = c->mode;
	u32 want;
	if (mode == MODE_FRAME_DATA) {
		data_prefix(k, s);
		if (!c->remaining)
			frame_ends(k, s);
		return;
	}
	if (mode == MODE_FRAME_PAD) {
		data_padding(s, c);
		if (!c->remaining)
			frame_ends(k, s);
		return;
	}
	if (mode == MODE_FRAME_LOST || mode == MODE_FIND) {
		find_frames(k, s);
		return;
	}
	if (!f->got)
		c->arrival = s->arrival;
	want = mode == MODE_FRAME ? FRAME_HEADER_BYTES : mode == MODE_PREFACE ? PREFACE_REST_BYTES : websocket_header_bytes(f);
	if (mode == MODE_WEBSOCKET_CODE)
		want += CLOSE_CODE_BYTES;
	if (!collect(s, f, want))
		return;
	if (mode == MODE_FRAME)
		frame_begins(k, s);
	else if (mode == MODE_PREFACE)
		preface_ends(k, s);
	else if (mode == MODE_WEBSOCKET_CODE)
		websocket_code(k, s);
	else if (f->got == websocket_header_bytes(f)) /* now that its first two bytes are known */
		websocket_begins(k, s);
}

/* One step on. Returns 1 when the walk is over. */
SHARED int follow_frames(struct connection *k, struct segment *s)
{
	u8 mode;
	if (!k || !s)
		return 1;
	if (hops(cursor_of(k, s)->mode))
		hop_frame(k, s);
	barrier();
	mode = cursor_of(k, s)->mode;
	if ((!s->gap && !s->left) || mode == MODE_IGNORED)
		return 1;
	/* A gap may end before what can be hopped does. */
	if (hops(mode) && (mode != MODE_FRAME_DATA || unread_data(cursor_of(k, s))))
		return 0;
	if (mode == MODE_FRAME_LOST && s->begun && !s->gap) {
		s->left = 0;
		return 1;
	}
	if (s->gap || s->source.opaque) {
		pass_unread(k, s);
		return 0;
	}
	if (!has_bytes(s))
		return 0;
	if (mode != MODE_FRAME_COPY)
		read_frames(k, s);
	barrier();
	if (cursor_of(k, s)->mode == MODE_FRAME_COPY && s->left && s->source.length)
		copy_frame(k, s);
	return 0;
}

#endif
