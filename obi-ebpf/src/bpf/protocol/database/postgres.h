/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * A connection of PostgreSQL message by message: statements, names, tags and codes are copied, rows and values are
 * passed over where they are.
 */
#ifndef OBI_POSTGRES_H
#define OBI_POSTGRES_H

#include "protocol/database/turn.h"

enum { POSTGRES_PARAMETERS_MOST = 512, POSTGRES_CHAIN = 8, ROWS_PER_STEP = 32 };

/* === recognition === */

/*
 * Is this segment a client's, from the first message on to the last, or for eight of them? Only what begins or ends a
 * turn may come last, and a query's text ends with a zero.
 */
SHARED int looks_like_postgres(struct connection *k, struct segment *s)
{
	u32 at = 0, n_found = 0;
	u8 last = 0, end = 1;
	if (!k || !s)
		return 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < POSTGRES_CHAIN; i++) {
		u8 header[8] = {};
		u32 n;
		barrier(); /* see settle() */
		if (at >= s->left || s->left > s->source.length || s->left - at < POSTGRES_HEADER_BYTES)
			break;
		if (bpf_probe_read_user(header, POSTGRES_HEADER_BYTES, (void *)(s->source.base + at)))
			return 0;
		n = postgres_message(header, true);
		if (!n || n > s->left - at)
			return 0;
		at += n;
		last = header[0];
		n_found++;
	}
	if (n_found == POSTGRES_CHAIN)
		return 1;
	if (at != s->left || !at || s->left > s->source.length)
		return 0;
	if (last == 'Q' && !bpf_probe_read_user(&end, 1, (void *)(s->source.base + at - 1)))
		return !end;
	return last == 'S' || last == 'H';
}

/* TLS from here on, in both directions: what it carries is read at its library. */
static __always_inline void leave_to_tls(struct connection *k)
{
	k->protocol = PROTOCOL_HTTP1;
	k->flags &= ~CONNECTION_HTTP;
	k->side = SIDE_UNKNOWN;
	cursor_reset(&k->receive, MODE_START);
	cursor_reset(&k->send, MODE_START);
}

/* === messages === */

static __always_inline u32 postgres_header_bytes(const struct frame_cursor *f)
{
	return f->phase == PHASE_STARTUP ? POSTGRES_STARTUP_BYTES : f->phase == PHASE_ANSWER ? 1 : POSTGRES_HEADER_BYTES;
}

static __always_inline void postgres_ends(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	c->mode = MODE_FRAME;
	c->frame.got = 0;
	if (postgres_turns(c->frame.type, is_request(k, s)))
		c->frame.turn++;
}

/* What a client says before its first message. */
static __always_inline void postgres_starts(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	u32 code = big_endian_4(f->header + 4);
	f->got = 0;
	if (!is_postgres_startup(f->header)) {
		come_to(s, OUTCOME_LOST, LOSS_FRAMING);
	} else if (code == POSTGRES_CANCEL) {
		come_to(s, OUTCOME_LEFT, UPGRADE_OTHER);
	} else if (code == POSTGRES_TLS || code == POSTGRES_GSS) {
		opposite_of(k, s)->frame.phase = PHASE_ANSWER;
	} else {
		f->phase = PHASE_MESSAGES;
		f->type = POSTGRES_STARTUP;
		f->stream = f->turn;
		f->bytes = prefixed_payload(&POSTGRES_START, f->header);
		c->remaining = f->bytes;
		f->copy = f->bytes < POSTGRES_PARAMETERS_MOST ? f->bytes : POSTGRES_PARAMETERS_MOST;
		c->mode = MODE_FRAME_COPY;
	}
}

/* The byte that says whether TLS, or encryption by GSSAPI, begins. */
static __always_inline void postgres_answers(struct connection *k, struct segment *s)
{
	struct frame_cursor *f = &cursor_of(k, s)->frame;
	f->phase = PHASE_MESSAGES;
	if (f->header[0] == 'S')
		leave_to_tls(k);
	else if (f->header[0] == 'G')
		come_to(s, OUTCOME_LEFT, UPGRADE_OTHER);
	else if (f->header[0] != 'E') /* an error is a message, of which this is the first byte */
		f->got = 0;
}

/* How much of a payload the agent gets: names without the values behind them, codes without their texts. */
SHARED int postgres_copy(struct connection *k, struct segment *s, u32 action)
{
	struct frame_cursor *f;
	u64 n;
	u32 end;
	if (!k || !s)
		return 0;
	f = &cursor_of(k, s)->frame;
	if (action == POSTGRES_TEXT)
		return f->bytes < FRAME_LARGE_BYTES ? f->bytes : FRAME_LARGE_BYTES;
	n = s->left < s->source.length ? s->left : s->source.length;
	if (n > f->bytes)
		n = f->bytes;
	if (n > LOOKED_BYTES)
		n = LOOKED_BYTES;
	if (action == POSTGRES_SHORT)
		return f->bytes < LOOKED_BYTES ? f->bytes : LOOKED_BYTES;
	__builtin_memset(f->header, 0xff, LOOKED_BYTES);
	OPAQUE(n);
	if (n > LOOKED_BYTES || bpf_probe_read_user(f->header, n, (void *)s->source.base))
		return 0;
	end = action == POSTGRES_NAMES ? through_second_zero(f->header) : before_error_text(f->header);
	return end <= n ? end : 0;
}

/* The server passes over a Sync that comes while it waits for the rows of a COPY: behind their end the turn goes on. */
static __always_inline void postgres_copies(struct frame_cursor *f)
{
	if (f->synced && (f->type == 'c' || f->type == 'f'))
		f->turn--;
	if (f->type != 'd' && f->type != 'H')
		f->synced = f->type == 'S';
}

/* A message's header is in hand. */
SHARED int postgres_begins(struct connection *k, struct segment *s)
{
	struct frame_cursor *f;
	struct cursor *c;
	u32 bytes, action;
	if (!k || !s)
		return 0;
	c = cursor_of(k, s);
	f = &c->frame;
	bytes = postgres_message(f->header, is_request(k, s));
	if (!bytes) {
		come_to(s, OUTCOME_LOST, LOSS_FRAMING);
		return 0;
	}
	f->got = 0;
	f->type = f->header[0];
	f->flags = 0;
	if (is_request(k, s))
		postgres_copies(f);
	f->stream = f->turn;
	f->bytes = bytes - POSTGRES_HEADER_BYTES;
	c->remaining = f->bytes;
	c->mode = MODE_FRAME_HOP;
	action = postgres_action(f->type, is_request(k, s));
	if (is_request(k, s))
		ask(k, s);
	if (action == POSTGRES_REPLICATION) {
		come_to(s, OUTCOME_LEFT, UPGRADE_OTHER);
		return 0;
	}
	f->copy = 0;
	if (action == POSTGRES_NAMES || action == POSTGRES_ERROR)
		f->flags = action; /* what is copied is decided where the payload begins */
	else if (action == POSTGRES_TEXT || action == POSTGRES_SHORT)
		f->copy = postgres_copy(k, s, action);
	if (action > POSTGRES_REPORTED && (f->flags || f->copy))
		c->mode = MODE_FRAME_COPY;
	else if (action > POSTGRES_HOPPED)
		tell_frame(k, s, FRAME_FIRST_PIECE | FRAME_LAST_PIECE);
	if (!c->remaining)
		postgres_ends(k, s);
	return 0;
}

/* At the beginning of a payload that holds more than the agent may have: up to where it gets it. */
static __always_inline void postgres_cut(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	u32 action = f->flags;
	f->flags = 0;
	f->copy = postgres_copy(k, s, action);
	if (f->copy)
		return;
	tell_frame(k, s, FRAME_FIRST_PIECE | FRAME_LAST_PIECE | FRAME_TRUNCATED);
	c->mode = MODE_FRAME_HOP;
}

/* Rows and the like, one after the other in one buffer. */
SHARED int hop_rows(struct connection *k, struct segment *s)
{
	bool from_client;
	if (!k || !s)
		return 0;
	from_client = is_request(k, s);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < ROWS_PER_STEP; i++) {
		u8 header[8] = {};
		u32 n;
		barrier(); /* see settle() */
		if (s->left < POSTGRES_HEADER_BYTES || s->source.length < POSTGRES_HEADER_BYTES)
			break;
		if (bpf_probe_read_user(header, POSTGRES_HEADER_BYTES, (void *)s->source.base))
			break;
		n = postgres_message(header, from_client);
		if (!n || n > s->left || n > s->source.length || postgres_action(header[0], from_client) != POSTGRES_HOPPED)
			break;
		advance(s, n);
	}
	return 0;
}

/* === a step === */

/* Lost: a client's segment is known by its messages, a server's by what was asked before. */
static __always_inline void postgres_found(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	u8 bytes[REDIS_LINE_BYTES] = {};
	if (is_request(k, s))
		find_again(c, s, looks_like_postgres(k, s));
	else
		find_again(c, s, c->frame.phase == PHASE_ANSWERED && first_bytes(s, bytes) && postgres_message(bytes, false));
}

/* A message's header, as far as it is there. */
static __always_inline void postgres_header(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	u8 phase = f->phase;
	if (!phase && !f->got)
		hop_rows(k, s);
	if (!s->left || !s->source.length)
		return;
	if (!collect_header(c, s, postgres_header_bytes(f)))
		return;
	if (phase == PHASE_STARTUP)
		postgres_starts(k, s);
	else if (phase == PHASE_ANSWER)
		postgres_answers(k, s);
	else
		postgres_begins(k, s);
}

static __always_inline void read_postgres(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	if (c->mode == MODE_FRAME_LOST)
		postgres_found(k, s);
	else if (c->mode != MODE_FRAME_COPY)
		postgres_header(k, s);
	else if (c->frame.flags)
		postgres_cut(k, s);
	else if (copy_frame(k, s))
		postgres_ends(k, s);
}

#endif
