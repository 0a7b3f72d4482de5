/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * When a connection is not followed as HTTP/1 any further, for now or for good: bytes that are no head, bytes that
 * passed unseen, another protocol. What ends then, and what is looked for next.
 */
#ifndef OBI_LEAVE_H
#define OBI_LEAVE_H

#include "core/segment.h"
#include "protocol/http1/ending.h"

/* Segments without a head after which a connection joined in the middle counts as uncovered. */
#define RESYNC_LIMIT 1024
#define PREFACE_LINE_BYTES 16

/* Records of TLS from here on. Whether a probe reads their plain bytes is seen later; those that none reads are counted at the end. */
static __always_inline void begin_tls(struct connection *k, u64 time)
{
	if (k->tls & TLS_OBJECT)
		return; /* TLS inside TLS has an object of its own */
	k->tls |= TLS_TRANSPORT;
	k->n_resync = 0;
	k->last_response_byte = time;
}

/*
 * The bytes are no head: are they frames of HTTP/2? `PRI * HTTP/2.0` at the very beginning is the first half of the
 * preface; and where no HTTP/1 was seen yet, frames may begin, or go on. Returns whether that is to be found out.
 */
static __always_inline bool may_be_frames(struct connection *k, struct segment *s, struct cursor *c)
{
	u32 result = s->detail, passed = c->head_bytes;
	if (result == SCAN_HTTP2 && passed + c->at - AREA_START == PREFACE_LINE_BYTES && !c->lines) {
		u16 kept = c->flags & CURSOR_KEPT;
		cursor_reset(c, MODE_PREFACE);
		c->flags = kept; /* until it is clear */
		__builtin_memset(&c->frame, 0, sizeof(c->frame));
		advance(s, PREFACE_LINE_BYTES - passed);
		return true;
	}
	if (result == SCAN_NOT_HTTP && !passed && !c->lines && !(k->flags & CONNECTION_HTTP)) {
		c->mode = MODE_FIND;
		return true;
	}
	return false;
}

/* The bytes are no head: is that the end of this message, or of all? */
static __always_inline void rejected(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	u32 result = s->detail;
	if (may_be_frames(k, s, c)) {
		come_to(s, OUTCOME_NONE, 0);
		return;
	}
	if (c->lines && (result == SCAN_MALFORMED || c->flags & CURSOR_PIECES)) {
		/* The start line has shown that it is HTTP, and an exchange. */
		if (!k->side)
			k->side = !!(c->flags & CURSOR_RESPONSE) == !!s->sending ? SIDE_SERVER : SIDE_CLIENT;
		come_to(s, OUTCOME_LOST, LOSS_FRAMING);
		return;
	}
	if (!(c->flags & CURSOR_RESYNCED)) {
		if (k->flags & CONNECTION_HTTP)
			come_to(s, OUTCOME_LOST, LOSS_FRAMING);
		else
			come_to(s, OUTCOME_IGNORED, result);
		return;
	}
	s->left = 0;
	if (result == SCAN_TLS && !(k->flags & CONNECTION_HTTP)) {
		begin_tls(k, s->time);
		come_to(s, OUTCOME_LEFT, UPGRADE_OTHER);
		return;
	}
	cursor_reset(c, MODE_RESYNC);
	if (++k->n_resync >= RESYNC_LIMIT && k->flags & CONNECTION_JOINED && !(k->flags & CONNECTION_HTTP))
		tally_uncovered(k, UNCOVERED_JOINED);
	come_to(s, OUTCOME_NONE, 0);
}

/* It is not HTTP/1: before what was taken for it ends. Returns whether anything does. */
static __always_inline bool leave(struct connection *k, struct segment *s)
{
	u32 to = s->detail & ~UPGRADE_UNREPORTED;
	s->ending = (struct ending){ .time = s->time, .reason = CLOSE_ABANDONED, .loss = LOSS_FRAMING, .leaves = 1 };
	/* A WebSocket needs an exchange that was reported, both ways. */
	if (to == UPGRADE_WEBSOCKET && (s->detail != to || is_answered(k)))
		s->detail = UPGRADE_OTHER;
	/* Behind an upgrade to HTTP/2 requests go on until the preface comes. */
	return to != UPGRADE_HTTP2;
}

/* Before the exchanges that cannot be followed end. Returns whether there are any. */
static __always_inline bool lose(struct connection *k, struct segment *s)
{
	struct ending *how = &s->ending;
	const struct cursor *c = cursor_of(k, s);
	bool requests = !k->side || c == request_cursor(k);
	*how = (struct ending){ .time = s->time, .reason = CLOSE_ABANDONED, .loss = LOSS_FRAMING };
	if (s->outcome == OUTCOME_IGNORED || s->outcome == OUTCOME_MISFRAMED) {
		/* If a request line has been seen on the other cursor, its exchange is one. */
		if (s->outcome == OUTCOME_MISFRAMED)
			tally_uncovered(k, UNCOVERED_UNREADABLE);
		else if (s->detail == SCAN_TLS)
			begin_tls(k, s->time);
		else if (s->detail == SCAN_HTTP2)
			tally_uncovered(k, UNCOVERED_HTTP2);
		come_to(s, OUTCOME_LEFT, UPGRADE_OTHER);
		return true;
	}
	how->loss = s->detail;
	how->keeps_request = !requests;
	k->flags |= CONNECTION_DAMAGED;
	if (s->outcome == OUTCOME_DOUBTFUL && counts_requests(k))
		return true;
	if (k->pipelined) {
		lose_order(k, requests);
		return !requests || c->mode != MODE_START || s->outcome == OUTCOME_DOUBTFUL || is_answered(k);
	}
	if (requests && s->detail == LOSS_GAP && c->mode == MODE_START && k->flags & CONNECTION_HTTP)
		lose_unseen(k);
	else if (requests && s->detail != LOSS_FRAMING)
		k->flags |= CONNECTION_UNREADABLE;
	/* Requests that are whole are not touched by what is lost behind them; those of answers seen ahead are among it. */
	return !requests || c->mode != MODE_START || is_answered(k);
}

/* Bytes could not be followed: what is looked for from here on. */
static __always_inline void look_again(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	if (s->outcome == OUTCOME_DOUBTFUL && counts_requests(k))
		return;
	if (!is_framed(c->mode)) {
		if (s->ending.keeps_request)
			k->n_abandoned = 0; /* how many responses passed unseen is not known */
		cursor_reset(c, k->pipelined ? MODE_IGNORED : MODE_RESYNC);
	}
	/* Behind a gap a head may begin. */
	if (s->outcome != OUTCOME_LOST || s->detail != LOSS_GAP)
		s->left = 0;
	s->gap = 0;
}

#endif
