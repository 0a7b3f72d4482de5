/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The protocols that a connection may speak besides HTTP/1, and the one place that asks which it is. Another one is a
 * header of its own, its number in event.h (enum protocol), the ways to come to it in core/cursor.h (enum upgrade), and
 * a line in each of these:
 *   recognise()        whether the first bytes of a segment are its
 *   begin_protocol()   its state, when it is known to be spoken from here on
 *   walk_of()          which walk it goes by: a program of its own where walks go on by tail call
 *   follow_frames(), follow_database()   by walk, one step along its bytes: what is passed over, and what is read
 *   lose_place()       its bytes cannot be followed
 *   end_protocol()     its connection is over
 * HTTP/1 has no line: it is what a connection speaks until something else is found, and protocol/http1/walk.h steps
 * along it without coming by here.
 */
#ifndef OBI_PROTOCOL_H
#define OBI_PROTOCOL_H

#include "protocol/http1/leave.h"
#include "protocol/framed/http2_walk.h"
#include "protocol/framed/websocket.h"
#include "protocol/database/postgres.h"
#include "protocol/database/redis.h"

/* === recognise === */

/* What a database's client says, at the start of a segment: an enum upgrade, or 0. */
static __always_inline u32 recognise_database(struct connection *k, struct segment *s, bool from_start)
{
	u8 bytes[REDIS_LINE_BYTES] = {};
	u32 n = first_bytes(s, bytes);
	if (!n)
		return 0;
	if (is_redis_command(bytes))
		return UPGRADE_REDIS;
	/* In the middle nothing starts up: a small frame of a high stream looks like it. */
	if (n >= POSTGRES_STARTUP_BYTES && is_postgres_startup(bytes))
		return from_start ? UPGRADE_POSTGRES : 0;
	return postgres_message(bytes, true) && looks_like_postgres(k, s) ? UPGRADE_POSTGRES_JOINED : 0;
}

/* Neither a head nor the preface of HTTP/2, at the start of a segment: what is it? */
static __always_inline void recognise(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	bool resynced = c->flags & CURSOR_RESYNCED;
	bool from_start = !resynced && k->family != FAMILY_UNIX;
	u32 database = recognise_database(k, s, !resynced);
	/* In the middle, what may be frames is. */
	bool frames = !(database && from_start) && looks_like_frames(k, s, from_start);
	if (database && !frames) {
		come_to(s, OUTCOME_LEFT, database);
	} else if (!frames) {
		c->mode = MODE_HEAD;
		come_to(s, OUTCOME_REJECTED, SCAN_OTHER);
	} else if (!from_start) {
		come_to(s, OUTCOME_LEFT, UPGRADE_FRAMES);
	} else {
		begin_direction(c, MODE_FRAME, false);
		c->frame.tentative = 1;
	}
}

/* === begin === */

/* HTTP/1 ends here; `detail` says what follows. */
SHARED int begin_protocol(struct connection *k, struct segment *s)
{
	u32 to;
	if (!k || !s)
		return 0;
	to = s->detail & ~UPGRADE_UNREPORTED;
	switch (to) {
	case UPGRADE_HTTP2:
		upgrade_to_http2(k, s);
		return 0;
	case UPGRADE_PREFACE:
	case UPGRADE_FRAMES:
		if (to == UPGRADE_PREFACE) /* only a client sends it */
			k->side = s->sending ? SIDE_CLIENT : SIDE_SERVER;
		begin_http2(k, s, to == UPGRADE_FRAMES);
		return 0;
	case UPGRADE_POSTGRES:
	case UPGRADE_POSTGRES_JOINED:
	case UPGRADE_REDIS:
		if (!s->sending && !follows_databases)
			break;
		begin_database(k, s, to);
		return 0;
	}
	cursor_reset(&k->receive, MODE_IGNORED);
	cursor_reset(&k->send, MODE_IGNORED);
	if (to == UPGRADE_WEBSOCKET)
		begin_websocket(k);
	return 0;
}

/* === step === */

/* An enum walk_program. */
static __always_inline u32 walk_of(struct connection *k, const struct segment *s)
{
	if (!is_framed(cursor_of(k, s)->mode))
		return WALK_HEADS;
	switch (k->protocol) {
	case PROTOCOL_POSTGRES:
	case PROTOCOL_REDIS:
		return WALK_DATABASE;
	}
	return WALK_FRAMES;
}

/* One step on along frames, or what may be; HTTP/2's may come before it is known to be that. Returns 1 at the end. */
SHARED int follow_frames(struct connection *k, struct segment *s)
{
	struct cursor *c;
	u32 next, n;
	u8 mode;
	if (!k || !s)
		return 1;
	c = cursor_of(k, s);
	if (unread(c)) {
		n = pass_payload(s, unread(c));
		if (is_websocket(c->mode))
			websocket_passed(c, n);
		else
			http2_passed(k, s, n);
	}
	barrier(); /* see settle() */
	next = before_reading(k, s);
	if (next != FOLLOW_READ)
		return next == FOLLOW_OVER;
	mode = cursor_of(k, s)->mode;
	if (mode == MODE_FIND)
		recognise(k, s);
	else if (is_websocket(mode))
		read_websocket(k, s);
	else
		read_http2(k, s);
	return 0;
}

/* One step on along the messages of a database. Returns 1 at the end. */
SHARED int follow_database(struct connection *k, struct segment *s)
{
	struct cursor *c;
	u32 next;
	if (!k || !s)
		return 1;
	c = cursor_of(k, s);
	if (unread(c)) {
		c->remaining -= pass_payload(s, unread(c));
		if (!c->remaining && k->protocol == PROTOCOL_REDIS)
			redis_goes_on(c);
		else if (!c->remaining)
			postgres_ends(k, s);
	}
	if (k->protocol == PROTOCOL_REDIS)
		tell_whole(k, s);
	barrier();
	next = before_reading(k, s);
	if (next != FOLLOW_READ)
		return next == FOLLOW_OVER;
	if (k->protocol == PROTOCOL_REDIS)
		read_redis(k, s);
	else
		read_postgres(k, s);
	return 0;
}

/* === lose, end === */

/* The bytes in hand cannot be followed. */
static __always_inline void lose_place(struct connection *k, struct segment *s)
{
	switch (k->protocol) {
	case PROTOCOL_POSTGRES:
	case PROTOCOL_REDIS:
		lose_database(k);
		return;
	case PROTOCOL_WEBSOCKET:
		lose_websocket(k, s);
		return;
	}
	lose_http2(k, s);
}

/* The connection is over. */
SHARED int end_protocol(struct connection *k, const struct ending *how)
{
	if (!k || !how)
		return 0;
	switch (k->protocol) {
	case PROTOCOL_HTTP2:
		end_streams(k, how, CLOSE_HTTP2);
		return 0;
	case PROTOCOL_WEBSOCKET:
		end_websocket(k, how->time, how->reason);
		return 0;
	case PROTOCOL_POSTGRES:
	case PROTOCOL_REDIS:
		end_streams(k, how, CLOSE_DATABASE);
		return 0;
	}
	return 0;
}

/* === what a step has come to === */

/* Draws the consequences of a step, in one place; those of HTTP/1 are in protocol/http1/leave.h and ending.h. */
SHARED int settle(struct connection *k, struct segment *s)
{
	bool ends = false;
	if (!k || !s)
		return 0;
	if (s->outcome == OUTCOME_REJECTED)
		rejected(k, s); /* makes something else of it */
	barrier(); /* here and below: what the paths have left in registers is forgotten, and they meet */
	if (s->outcome == OUTCOME_MESSAGE_END)
		message_end(k, s->sending, s->time);
	barrier();
	if (s->outcome >= OUTCOME_LOST && is_framed(cursor_of(k, s)->mode))
		lose_place(k, s); /* so may this */
	else if (s->outcome >= OUTCOME_LOST)
		ends = lose(k, s); /* and this */
	barrier();
	if (s->outcome == OUTCOME_LEFT && !ends)
		ends = leave(k, s);
	if (ends)
		end_pending(k, &s->ending);
	barrier();
	if (s->outcome == OUTCOME_LEFT)
		begin_protocol(k, s);
	else if (s->outcome >= OUTCOME_LOST)
		look_again(k, s);
	s->outcome = OUTCOME_NONE;
	return 0;
}

#endif
