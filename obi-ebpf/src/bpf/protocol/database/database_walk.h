/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* The walk along the messages of a database: as that along frames, of which it has the modes. */
#ifndef OBI_DATABASE_WALK_H
#define OBI_DATABASE_WALK_H

#include "protocol/database/redis.h"

/* A message of a database has passed. */
SHARED int message_ends(struct connection *k, struct segment *s)
{
	if (!k || !s)
		return 0;
	if (k->protocol == PROTOCOL_REDIS)
		redis_goes_on(cursor_of(k, s));
	else
		postgres_ends(k, s);
	return 0;
}

/* A message's header, a word or a line, of a database. */
static __always_inline void read_database(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	u8 mode = c->mode, phase = f->phase;
	if (mode == MODE_WORD) {
		if (collect(s, f, c->remaining & 31))
			redis_word(c);
	} else if (k->protocol == PROTOCOL_REDIS) {
		if (!f->got && mode == MODE_FRAME && (!is_request(k, s) || f->flags & REDIS_ARGUED))
			hop_elements(k, s);
		if (s->left && s->source.length)
			read_line(k, s);
	} else {
		if (!phase && !f->got)
			hop_rows(k, s);
		if (!s->left || !s->source.length)
			return;
		if (!f->got)
			c->arrival = s->arrival;
		if (!collect(s, f, postgres_header_bytes(f)))
			return;
		if (phase == PHASE_STARTUP)
			postgres_starts(k, s);
		else if (phase == PHASE_ANSWER)
			postgres_answers(k, s);
		else
			postgres_begins(k, s);
	}
}

/* One step on. Returns 1 when the walk is over. */
SHARED int follow_database(struct connection *k, struct segment *s)
{
	struct cursor *c;
	if (!k || !s)
		return 1;
	c = cursor_of(k, s);
	if (c->mode == MODE_FRAME_HOP) {
		c->remaining -= pass_payload(s, c->remaining);
		if (!c->remaining)
			message_ends(k, s);
	}
	barrier();
	c = cursor_of(k, s);
	if (k->protocol == PROTOCOL_REDIS && c->frame.flags & REDIS_WHOLE)
		redis_ends(k, s);
	if ((!s->gap && !s->left) || c->mode == MODE_IGNORED)
		return 1;
	if (c->mode == MODE_FRAME_HOP)
		return 0; /* a gap may end before the message does */
	if (c->mode == MODE_FRAME_LOST && s->begun && !s->gap) {
		s->left = 0;
		return 1;
	}
	if (s->gap || s->source.opaque) {
		pass_unread(k, s);
		return 0;
	}
	if (!has_bytes(s))
		return 0;
	if (c->mode == MODE_FRAME_LOST)
		find_message(k, s);
	else if (c->mode != MODE_FRAME_COPY)
		read_database(k, s);
	else if (c->frame.flags && k->protocol == PROTOCOL_POSTGRES)
		postgres_cut(k, s);
	else
		copy_frame(k, s);
	barrier();
	if (k->protocol == PROTOCOL_REDIS && c->frame.flags & REDIS_WHOLE)
		redis_ends(k, s);
	return 0;
}

#endif
