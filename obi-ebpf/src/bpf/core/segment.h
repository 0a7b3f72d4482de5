/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * A segment: the bytes of one system call, in one direction of one connection.
 * Where they are, how far the walk has come, and what happens when they cannot
 * be followed any further.
 */
#ifndef OBI_SEGMENT_H
#define OBI_SEGMENT_H

#include "protocol/http1/ending.h"
#include "protocol/database/database.h"

/* Segments without a head after which a connection joined in the middle counts as uncovered. */
#define RESYNC_LIMIT 1024
#define PREFACE_LINE_BYTES 16

static __always_inline struct cursor *cursor_of(struct connection *k, const struct segment *s)
{
	return &k->cursor[s->sending & 1];
}

/*
 * What a step has come to when that is more than going on. Steps only say so;
 * settle() draws the consequences, in one place: stack is short, and below 5.12
 * the verifier goes through a function at every call of it.
 */
enum outcome {
	OUTCOME_NONE = 0,
	OUTCOME_MESSAGE_END, /* the message has ended with the bytes walked */
	OUTCOME_REJECTED,    /* the bytes are no head; detail: scan_result */
	OUTCOME_LEFT,        /* it is not HTTP/1 from here on; detail: enum upgrade */
	OUTCOME_LOST,        /* the bytes cannot be followed; detail: loss_reason */
	OUTCOME_IGNORED,     /* no HTTP/1, here or ever; detail: scan_result */
	OUTCOME_MISFRAMED,   /* what has been taken for a body was none: nothing behind it can be trusted */
	OUTCOME_DOUBTFUL,    /* of a damaged connection: requests do not wait for answers, whose these are is not known */
};

static __always_inline void come_to(struct segment *s, u32 outcome, u32 detail)
{
	s->outcome = outcome;
	s->detail = detail;
}

/* `n` bytes further. */
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

/* Records of TLS from here on. Whether a probe reads their plain bytes is seen later; at the end somebody counts. */
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
	u32 to = s->detail & ~UPGRADE_UNTOLD;
	s->ending = (struct ending){ .time = s->time, .reason = CLOSE_ABANDONED, .loss = LOSS_FRAMING, .leaves = 1 };
	/* A WebSocket needs an exchange that was told, both ways. */
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

/* Messages cannot be followed: in both directions they are looked for anew, and their turns are none that was used. */
static __always_inline void lose_database(struct connection *k)
{
	struct cursor *receive = &k->receive, *send = &k->send;
	u32 turn = receive->frame.turn > send->frame.turn ? receive->frame.turn : send->frame.turn;
	receive->mode = send->mode = MODE_FRAME_LOST;
	receive->frame.turn = send->frame.turn = turn + 1;
	receive->frame.sequence++;
	send->frame.sequence++;
	receive->frame.joined = send->frame.joined = 1;
	receive->frame.phase = send->frame.phase = PHASE_MESSAGES;
	receive->frame.got = send->frame.got = 0;
	receive->frame.redis.want = send->frame.redis.want = 0;
}

/* Frames cannot be followed: what passes until one is found again is a gap, which the sequence tells the agent. */
static __always_inline void lose_frames(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	if (is_database(k->protocol)) {
		lose_database(k);
		return;
	}
	if (k->protocol == PROTOCOL_WEBSOCKET) {
		s->ending = (struct ending){ .time = s->time, .reason = CLOSE_ABANDONED };
		end_framed(k, &s->ending);
		k->protocol = PROTOCOL_HTTP1; /* nothing more is to be told */
	} else if (c->mode == MODE_PREFACE) {
		tally_uncovered(k, UNCOVERED_HTTP2); /* half of it is not believed */
	} else if (!f->tentative) {
		c->mode = MODE_FRAME_LOST;
		f->sequence++;
		f->joined = 1;
		f->epoch++;
		f->n_spilled = 0;
		f->data.stream = 0;
		return;
	}
	come_to(s, OUTCOME_LEFT, UPGRADE_OTHER);
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

/* protocol/framed/frames.h, which knows the other protocols. */
SHARED int leave_http1(struct connection *k, struct segment *s);

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
		lose_frames(k, s); /* so may this */
	else if (s->outcome >= OUTCOME_LOST)
		ends = lose(k, s); /* and this */
	barrier();
	if (s->outcome == OUTCOME_LEFT && !ends)
		ends = leave(k, s);
	if (ends)
		end_pending(k, &s->ending);
	barrier();
	if (s->outcome == OUTCOME_LEFT)
		leave_http1(k, s);
	else if (s->outcome >= OUTCOME_LOST)
		look_again(k, s);
	s->outcome = OUTCOME_NONE;
	return 0;
}

/* === walking the source === */

#ifdef OBI_CALL_SET
/* The next message of a sendmmsg or recvmmsg: its bytes may be fewer than its vector has room for. */
static __always_inline void next_message(struct segment *s)
{
	struct source *from = &s->source;
	u64 vector[2];
	u32 length;
	if (bpf_probe_read_user(vector, sizeof(vector), (void *)(from->message + MSGHDR_VECTOR)) ||
	    bpf_probe_read_user(&length, sizeof(length), (void *)(from->message + MMSGHDR_LENGTH))) {
		come_to(s, OUTCOME_LOST, LOSS_FAULT);
		return;
	}
	from->message += MMSGHDR_BYTES;
	from->messages--;
	from->vector = vector[0];
	from->vectors = vector[1];
	from->message_left = length;
}
#endif

static __always_inline long read_vector(struct user_iovec *entry, const struct source *from)
{
#ifndef OBI_CALL_SET
	if (from->kernel_vector)
		return bpf_probe_read_kernel(entry, sizeof(*entry), (void *)from->vector);
#endif
	return bpf_probe_read_user(entry, sizeof(*entry), (void *)from->vector);
}

static __always_inline void next_vector(struct segment *s)
{
	struct source *from = &s->source;
	struct user_iovec entry = {};
#ifdef OBI_CALL_SET
	if (from->bounded && !from->message_left) {
		from->vectors = 0;
		if (from->messages) {
			next_message(s);
			return;
		}
	}
#endif
	if (!from->vectors || read_vector(&entry, from)) {
		come_to(s, OUTCOME_LOST, LOSS_FAULT);
		return;
	}
	from->vector += sizeof(entry);
	from->vectors--;
#ifdef OBI_CALL_SET
	if (from->bounded) {
		if (entry.length > from->message_left)
			entry.length = from->message_left;
		from->message_left -= entry.length;
	}
#endif
	if (from->skip >= entry.length) {
		from->skip -= entry.length;
		return;
	}
	from->base = entry.base + from->skip;
	from->length = entry.length - from->skip;
	from->skip = 0;
}

enum { VECTORS_PER_STEP = 8 };

/* Vectors are passed over until one has bytes of interest; not all of many in one step. */
static __always_inline bool has_bytes(struct segment *s)
{
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < VECTORS_PER_STEP && !s->source.length && !s->outcome; i++) {
		barrier(); /* see settle() */
		next_vector(s);
	}
	return s->source.length && !s->outcome;
}

/* === what the walks along frames and along messages share === */

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

/* Bytes come that nobody can read: harmless inside a payload, otherwise nothing behind them can be followed. */
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

#endif
