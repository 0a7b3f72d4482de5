/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * A segment: the bytes of one system call, in one direction of one connection.
 * Where they are, how far the walk has come, and what happens when they cannot
 * be followed any further.
 */
#ifndef OBI_SEGMENT_H
#define OBI_SEGMENT_H

#include "exchange.h"

/* Segments without a head after which a connection joined in the middle counts as uncovered. */
#define RESYNC_LIMIT 1024

enum opacity {
	READABLE = 0,
	UNKNOWN_BUFFER = 1, /* the user's buffer could not be found */
	KERNEL_PAGES = 2,   /* sendfile, splice: the bytes never were in user memory */
};

/* Where the bytes of a segment are. All addresses are the user's. */
struct source {
	u64 base;    /* the contiguous range in hand */
	u64 length;
	u64 skip;    /* bytes to pass over before the next one of interest */
	u64 vector;  /* iovec entries to come */
	u32 vectors;
	u32 opaque;  /* enum opacity */
};

/*
 * What is known of the bytes on their way. No pointers: global functions, which
 * the verifier checks once and by themselves, cannot be handed any inside.
 */
struct segment {
	u64 id; /* bpf_get_current_pid_tgid() */
	u64 time;
	u64 arrival;
	struct source source;
	u32 left;   /* bytes to go */
	u32 gap;    /* bytes before them that passed unseen */
	u32 offset; /* stream offset of the next byte */
	u32 sending;
	u32 begun;    /* 1: no longer at the first byte of the segment */
	u32 sendable; /* 1: the piece in hand is a record, 0: spare memory */
};

static __always_inline struct cursor *cursor_of(struct connection *k, const struct segment *s)
{
	return s->sending ? &k->send : &k->receive;
}

/* === losing the thread, and giving up === */

__noinline int desynchronise(struct connection *k, struct segment *s, u32 loss)
{
	struct ending how = { .reason = CLOSE_ABANDONED, .loss = loss };
	struct cursor *c;
	bool requests;
	if (!k || !s)
		return 0;
	how.time = s->time;
	c = cursor_of(k, s);
	requests = !k->side || c == request_cursor(k);
	how.keeps_request = !requests;
	k->flags |= CONNECTION_DAMAGED;
	if (requests && loss != LOSS_FRAMING)
		k->flags |= CONNECTION_UNREADABLE;
	/* Requests that are whole are not touched by what is lost behind them. */
	if (!requests || c->mode != MODE_START)
		end_pending(k, &how);
	/* How many responses passed unseen is not known. */
	if (!requests)
		k->n_abandoned = 0;
	cursor_reset(c, MODE_RESYNC);
	s->left = 0;
	s->gap = 0;
	return 0;
}

/* Not HTTP/1 from here on. What looked like the beginning of a request is none. */
static __always_inline void ignore_connection(struct connection *k)
{
	const struct cursor *request = request_cursor(k);
	if (k->side && request->mode == MODE_HEAD && (request->flags & (CURSOR_PIECES | CURSOR_LOST)) == CURSOR_PIECES)
		forget(exchange_number(k, k->n_requests));
	cursor_reset(&k->receive, MODE_IGNORED);
	cursor_reset(&k->send, MODE_IGNORED);
}

/* The bytes are no head. */
__noinline int reject(struct connection *k, struct segment *s, u32 result)
{
	struct cursor *c;
	if (!k || !s)
		return 0;
	c = cursor_of(k, s);
	if (c->lines && (result == SCAN_MALFORMED || c->flags & CURSOR_PIECES)) {
		/* The start line has shown that it is HTTP, and an exchange. */
		if (!k->side)
			k->side = !!(c->flags & CURSOR_RESPONSE) == !!s->sending ? SIDE_SERVER : SIDE_CLIENT;
		desynchronise(k, s, LOSS_FRAMING);
	} else if (c->flags & CURSOR_RESYNCED) {
		if (result == SCAN_TLS && !(k->flags & CONNECTION_HTTP)) {
			tally_uncovered(k, UNCOVERED_TLS);
			ignore_connection(k);
		} else {
			cursor_reset(c, MODE_RESYNC);
			if (++k->n_resync >= RESYNC_LIMIT && k->flags & CONNECTION_JOINED && !(k->flags & CONNECTION_HTTP))
				tally_uncovered(k, UNCOVERED_JOINED);
		}
		s->left = 0;
	} else if (k->flags & CONNECTION_HTTP) {
		desynchronise(k, s, LOSS_FRAMING);
	} else {
		struct ending how = { .time = s->time, .reason = CLOSE_ABANDONED, .loss = LOSS_FRAMING };
		const struct cursor *request = request_cursor(k);
		/* A request line has been seen on the other cursor: its exchange is one. */
		if (request->lines)
			end_pending(k, &how);
		if (result == SCAN_TLS)
			tally_uncovered(k, UNCOVERED_TLS);
		else if (result == SCAN_HTTP2)
			tally_uncovered(k, UNCOVERED_HTTP2);
		ignore_connection(k);
		s->left = 0;
	}
	return 0;
}

/* === walking the source === */

static __always_inline void advance(struct segment *s, u32 n)
{
	struct source *from = &s->source;
	s->left -= n;
	s->offset += n;
	s->begun = 1;
	if (n <= from->length) {
		from->base += n;
		from->length -= n;
	} else {
		from->skip += n - from->length;
		from->length = 0;
	}
}

static __always_inline void next_vector(struct connection *k, struct segment *s)
{
	struct source *from = &s->source;
	struct user_iovec entry = {};
	if (!from->vectors || bpf_probe_read_user(&entry, sizeof(entry), (void *)from->vector)) {
		desynchronise(k, s, LOSS_FAULT);
		return;
	}
	from->vector += sizeof(entry);
	from->vectors--;
	if (from->skip >= entry.length) {
		from->skip -= entry.length;
		return;
	}
	from->base = entry.base + from->skip;
	from->length = entry.length - from->skip;
	from->skip = 0;
}

#endif
