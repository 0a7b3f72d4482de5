/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What a piece of a head means: whether it belongs to a request or a response,
 * which exchange that is, what follows the head, and whether the agent gets it.
 */
#ifndef OBI_HEAD_H
#define OBI_HEAD_H

#include "core/cause.h"
#include "core/segment.h"
#include "protocol/http1/ending.h"

/* So many bytes that have waited find room beside the cause; the verifiers of the portable objects have none. */
#ifdef OBI_PORTABLE
#define WAITED_BESIDE_CAUSE 0
#else
#define WAITED_BESIDE_CAUSE (CARRY_BYTES - sizeof(struct cause))
#endif

/* Pieces of a head up to this size wait in the carry for more: a head sent byte by byte is few records. */
#define WITHHOLD_BYTES 40
#define HEAD_MOST_BYTES (1U << 30)

/* First sight of a response: which request it answers, and what is known about that one. */
static __always_inline void match_response(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s), *request = request_cursor(k);
	u32 noted;
	if (c->flags & (CURSOR_NOTED | CURSOR_ORPHAN))
		return;
	if (k->n_abandoned) {
		k->n_abandoned--;
		c->flags |= CURSOR_ORPHAN;
		return;
	}
	if (!pending(k)) {
		if (k->side == SIDE_SERVER && request->mode == MODE_HEAD && request->flags & (CURSOR_PIECES | CURSOR_LOST)) {
			/* Answered before the head was complete (408, 431): the exchange counts all the same. */
			c->flags |= CURSOR_NOTED | CURSOR_EARLY | (request->flags & (CURSOR_LOST | CURSOR_METHOD_HEAD));
			if (request->flags & CURSOR_LOST)
				tally_lost(k, LOSS_RING_FULL, 1);
			k->n_requests++;
			cursor_reset(request, MODE_RESYNC);
			return;
		}
		/*
		 * A client may read a response before its other thread's send has returned:
		 * then the request follows. A server cannot; and where something has passed
		 * unseen, it is more likely the response to a request given up.
		 */
		if (k->side == SIDE_SERVER || (k->flags & CONNECTION_JOINED && !k->n_requests) ||
		    k->flags & CONNECTION_DAMAGED || c->flags & CURSOR_RESYNCED || request->mode == MODE_RESYNC) {
			c->flags |= CURSOR_ORPHAN;
			if (k->flags & CONNECTION_UNREADABLE && !(c->flags & CURSOR_RESYNCED))
				tally_lost(k, LOSS_REQUEST_UNSEEN, 1);
			else if (!(k->flags & CONNECTION_DAMAGED) && !(c->flags & CURSOR_RESYNCED))
				k->n_unasked++;
			return;
		}
	}
	/* Ahead of a request that has lost a piece. */
	if (k->n_requests == k->n_responses && request->mode == MODE_HEAD && request->flags & CURSOR_LOST) {
		request->flags ^= CURSOR_LOST | CURSOR_ORPHAN;
		c->flags |= CURSOR_LOST;
		tally_lost(k, LOSS_RING_FULL, 1);
	}
	noted = take_note(k, exchange_number(k, k->n_responses));
	c->flags |= CURSOR_NOTED;
	if (noted & NOTE_HEAD)
		c->flags |= CURSOR_METHOD_HEAD;
	if (noted & NOTE_CONNECT)
		c->flags |= CURSOR_METHOD_CONNECT;
	if (noted & NOTE_LOST)
		c->flags |= CURSOR_LOST;
}

/* A request whose answer was seen ahead of it: if that was lost, nothing of the request is reported. */
static __always_inline void match_request(struct connection *k, struct cursor *c, u64 exchange)
{
	const struct cursor *response = begun_response(k, exchange);
	if (is_answered(k) && (response ? response->flags & CURSOR_LOST : k->lost_ahead & 1))
		c->flags |= CURSOR_ORPHAN;
}

/* A piece could not be sent. A request counts when its head is complete, a response or a request answered ahead at once. */
RARE int lose_piece(struct connection *k, struct segment *s, u64 exchange)
{
	struct cursor *c;
	if (!k || !s)
		return 0;
	c = cursor_of(k, s);
	if (c->flags & (CURSOR_LOST | CURSOR_ORPHAN))
		return 0;
	if (!(c->flags & CURSOR_RESPONSE) && is_answered(k)) {
		c->flags |= CURSOR_ORPHAN;
		lose_request(k, exchange);
		return 0;
	}
	c->flags |= CURSOR_LOST;
	if (c->flags & CURSOR_RESPONSE)
		lose_response(k, c, LOSS_RING_FULL);
	else if (c->flags & CURSOR_PIECES)
		forget(exchange);
	return 0;
}

/*
 * A response may be seen before its request: another thread's send has not returned yet. Then whether it
 * has a body was a guess, and a request without one (HEAD, CONNECT) proves it wrong. Returns false when
 * the guess was used already, and what follows has been misread.
 */
static __always_inline bool confirm_response(struct connection *k, struct segment *s, u64 exchange)
{
	struct cursor *c = cursor_of(k, s), *response = begun_response(k, exchange);
	u32 n_ahead = k->n_responses - k->n_requests;
	if (!(c->flags & (CURSOR_METHOD_HEAD | CURSOR_METHOD_CONNECT)))
		return true;
	if ((s32)n_ahead >= 0) {
		/* It has ended already. */
		if (n_ahead < AHEAD_BITS && !(k->bodies >> n_ahead & 1))
			return true;
		if (!(c->flags & CURSOR_ORPHAN)) {
			tally_lost(k, LOSS_FRAMING, 1);
			forget(exchange);
		}
		return false;
	}
	if (!response)
		return true;
	response->flags |= c->flags & (CURSOR_METHOD_HEAD | CURSOR_METHOD_CONNECT); /* if its head is not complete */
	if (response->mode < MODE_LENGTH || response->mode > MODE_UNTIL_CLOSE)
		return true;
	if (response->mode != MODE_LENGTH || response->body_bytes)
		return false;
	if (message_end(k, !s->sending, k->last_response_byte))
		c->flags |= CURSOR_ORPHAN;
	return true;
}

/* A response to a request that is not known: whether it has a body is a guess. */
static __always_inline bool is_guess(const struct cursor *response)
{
	u32 flags = response->flags & (CURSOR_ORPHAN | CURSOR_NOTED | CURSOR_RESYNCED);
	return flags & CURSOR_ORPHAN && flags != (CURSOR_ORPHAN | CURSOR_NOTED);
}

/* The current thread has read a request. */
APART void bind_request(const struct connection *k, const struct cursor *c, const struct segment *s, u64 exchange)
{
	u64 only = pending(k) == 1 ? exchange : 0;
	bool is_bound;
	bind_goroutine(only);
	is_bound = bind_context(only, k->causes & CAUSE_BASES ? k->received_base : 0);
	if (!is_bound)
		bind_greenlet(only);
	bind_nginx(s, k, only);
	read_for(only, k->encrypted);
	/* What TLS was read inside of a context is that one's, and of none that is entered later. */
	note_read(c->started == s->time && !(is_bound && k->encrypted) ? only : 0);
}

/* The request head is complete; `n` bytes of it lie in this piece. Returns event flags. */
static __always_inline u32 request_complete(struct connection *k, struct segment *s, u32 n, u64 exchange)
{
	struct cursor *c = cursor_of(k, s);
	u32 noted = 0;
	u8 mode = body_mode(c, false);
	u32 flags = FLAG_LAST_PIECE;
	k->n_requests++;
	k->lost_ahead >>= 1;
	k->tgid = bpf_get_current_pid_tgid() >> 32;
	if (s->n_requests++)
		k->pipelined = 1;
	if (k->pipelined && k->flags & CONNECTION_DAMAGED) {
		/* The first time that it shows; or its answer is in a direction that is lost: see lose_order(). */
		come_to(s, OUTCOME_DOUBTFUL, LOSS_GAP);
	}
	if (c->flags & CURSOR_METHOD_HEAD)
		noted |= NOTE_HEAD;
	if (c->flags & CURSOR_METHOD_CONNECT)
		noted |= NOTE_CONNECT;
	if (c->flags & CURSOR_LOST) {
		noted |= NOTE_LOST;
		tally_lost(k, LOSS_RING_FULL, 1);
	}
	/* The note of a request is not read once its response is under way, or over. */
	if (pending(k) && !begun_response(k, exchange) && noted && !add_note(k, exchange, noted) &&
	    !(c->flags & CURSOR_LOST)) {
		/* Its response may be framed wrongly: better lost than wrong. */
		tally_lost(k, LOSS_NOTE_FULL, 1);
		if (c->flags & CURSOR_PIECES)
			forget(exchange);
		c->flags |= CURSOR_LOST;
	}
	if (!confirm_response(k, s, exchange)) {
		c->flags |= CURSOR_LOST;
		come_to(s, OUTCOME_MISFRAMED, 0);
	}
	if (pending(k) == 1) {
		open_account(k, exchange, s->time);
		if (set_current(k, exchange))
			tally_add(k->tgid, (u32)k->side << 16 | TALLY_THREAD_FULL << 8, 1);
	}
	if (k->side == SIDE_SERVER) {
		bind_request(k, c, s, exchange);
	}
	/*
	 * A client that asks anew has had the answer to what was before. Where an answer without a known request ends
	 * is a guess: if it was to a HEAD, it has no body, and what is taken for it is the answer to this request.
	 */
	if (response_cursor(k)->mode == MODE_RESYNC || is_guess(response_cursor(k))) {
		cursor_reset(response_cursor(k), MODE_START);
		k->n_abandoned = 0;
	}
	if (mode == MODE_START || (mode == MODE_LENGTH && c->content_length <= s->left - n)) {
		flags |= FLAG_MESSAGE_END;
		c->flags |= CURSOR_END_REPORTED;
	}
	c->mode = mode;
	return flags;
}

/* A final answer to a request of which the body was asked about, and has not begun to come: now it may not. */
static __always_inline void expect_body(struct connection *k)
{
	struct cursor *request = request_cursor(k);
	bool begun = request->body_bytes | request->line_bytes;
	if (request->expects && !begun && k->n_requests - k->n_responses == 1 &&
	    (request->mode == MODE_LENGTH || request->mode == MODE_CHUNK_SIZE))
		request->mode = MODE_EXPECTED;
}

/* The response head is complete. Returns event flags. */
static __always_inline u32 response_complete(struct connection *k, struct segment *s, u32 n)
{
	struct cursor *c = cursor_of(k, s);
	u32 flags = FLAG_LAST_PIECE;
	bool success = c->status >= 200 && c->status < 300;
	bool connected = c->flags & CURSOR_METHOD_CONNECT && success;
	if (c->status < 200 && c->status != 101) {
		c->mode = MODE_START;
		return flags | FLAG_INTERIM;
	}
	k->last_response_byte = s->time;
	if (!(c->flags & CURSOR_ORPHAN))
		expect_body(k);
	if (c->status == 101 || connected) {
		c->mode = MODE_IGNORED;
		flags |= FLAG_MESSAGE_END | FLAG_TUNNEL;
		flags |= (u32)(c->upgrade & 3) * FLAG_HTTP2; /* or FLAG_WEBSOCKET; a branch would be another way for the verifier */
	} else {
		c->mode = body_mode(c, c->flags & CURSOR_METHOD_HEAD);
		if (c->mode == MODE_UNTIL_CLOSE) {
			flags |= FLAG_CLOSE_DELIMITED;
			mark_account(k, exchange_number(k, k->n_responses), s->time);
		}
		if (c->mode == MODE_START || (c->mode == MODE_LENGTH && c->content_length <= s->left - n))
			flags |= FLAG_MESSAGE_END;
	}
	if (flags & FLAG_MESSAGE_END && !(c->flags & CURSOR_ORPHAN)) {
		if (request_incomplete(k, c))
			flags |= FLAG_REQUEST_INCOMPLETE;
		flags |= tell_times(k, exchange_number(k, k->n_responses), s->time);
		count_response(k, c->flags & CURSOR_LOST, is_some(c->mode ^ MODE_LENGTH) ^ 1);
		c->flags |= CURSOR_END_REPORTED;
	}
	return flags;
}

/* Sets the cursor on what follows the head. */
static __always_inline void leave_head(struct connection *k, struct segment *s, u32 flags)
{
	struct cursor *c = cursor_of(k, s);
	bool reported = !(c->flags & (CURSOR_LOST | CURSOR_ORPHAN));
	u8 mode = c->mode, upgrade = c->upgrade;
	k->flags |= CONNECTION_HTTP;
	count_open(k);
	if (flags & FLAG_TUNNEL) {
		come_to(s, OUTCOME_LEFT, reported ? upgrade : upgrade | UPGRADE_UNREPORTED); /* behind its record */
	} else if (flags & FLAG_INTERIM) {
		u16 kept = c->flags & CURSOR_KEPT;
		cursor_reset(c, MODE_START);
		c->flags = kept;
	} else if (mode == MODE_START) {
		cursor_reset(c, MODE_START);
	} else {
		c->remaining = mode == MODE_LENGTH ? c->content_length : 0;
		c->line_bytes = 0;
		c->body_bytes = 0;
		c->unsent = 0;
	}
}

static __always_inline void fill_head(struct connection *k, struct segment *s, struct head_event *r, u32 flags, u64 exchange)
{
	struct cursor *c = cursor_of(k, s);
	r->header = (struct event_header){
		.kind = EVENT_HEAD, .tgid = s->id >> 32, .tid = (u32)s->id, .flags = flags, .time = s->time, .exchange = exchange,
	};
	r->arrival = c->arrival;
	r->started = c->started;
	r->body_bytes = flags & FLAG_MESSAGE_END && c->mode == MODE_LENGTH ? c->content_length : 0;
	r->side = k->side;
	r->message = c->flags & CURSOR_RESPONSE ? MESSAGE_RESPONSE : MESSAGE_REQUEST;
	r->family = k->family;
	r->local_port = k->local_port;
	r->remote_port = k->remote_port;
	r->encrypted = k->encrypted;
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	__builtin_memcpy(r->local_address, k->local_address, 2 * ADDRESS_BYTES);
}

/* Where in its head a piece begins. */
static __always_inline u32 position_of(const struct cursor *c)
{
	return c->head_bytes - c->unsent;
}

/*
 * The same once more. To remember it takes room that the stack lacks; where it is remembered anyhow, to ask again costs
 * the verifier of 5.10 a third more instructions.
 */
static __always_inline u32 position_again(const struct cursor *c, u32 position)
{
#ifdef OBI_PORTABLE
	return position;
#else
	return position_of(c);
#endif
}

/*
 * The piece in `r` has been scanned and `n` bytes of it are the head's: decides
 * what it means. Returns 1 when the record is to be submitted.
 */
SHARED int finish_piece(struct connection *k, struct segment *s, struct head_event *r, u32 n)
{
	struct cursor *c;
	u32 flags, position, length, allowed;
	u8 result, side;
	bool whole, response, needed;
	u64 exchange;

	if (!k || !s || !r)
		return 0;
	c = cursor_of(k, s);
	/* Far beyond any head; below, no sum of bytes can overflow. */
	result = c->head_bytes > HEAD_MOST_BYTES ? SCAN_MALFORMED : c->result;
	whole = result == SCAN_HEAD_END;
	response = c->flags & CURSOR_RESPONSE;
	side = response == !!s->sending ? SIDE_SERVER : SIDE_CLIENT;
	if (c->flags & CURSOR_RESYNCED && result == SCAN_MORE && !c->lines)
		result = SCAN_NOT_HTTP; /* found by luck: only a whole start line will do */
	if (result > SCAN_HEAD_END) {
		come_to(s, OUTCOME_REJECTED, result);
		return 0;
	}
	length = c->unsent + n;
	position = position_of(c);
	c->mode = MODE_HEAD;
	if (!whole && length <= WITHHOLD_BYTES) {
		c->unsent = length;
		c->head_bytes += n;
		advance(s, n);
		return 0;
	}
	if (!(c->flags & CURSOR_CLASSIFIED) || (k->side && k->side != side)) {
		come_to(s, OUTCOME_REJECTED, SCAN_NOT_HTTP);
		return 0;
	}
	k->side = side;
	if (response)
		match_response(k, s);
	exchange = exchange_number(k, response ? k->n_responses : k->n_requests);
	if (!response)
		match_request(k, c, exchange);
	position = position_again(c, position);
	allowed = head_limit > position ? head_limit - position : 0;
	/* An interim response in one piece is of no use to the agent, nor is what is beyond the limit. */
	needed = whole ? !response || c->status >= 200 || c->status == 101 || c->flags & CURSOR_PIECES : allowed > 0;
	if (!s->sendable && needed)
		lose_piece(k, s, exchange);

	flags = c->flags & CURSOR_PIECES ? 0 : FLAG_FIRST_PIECE;
	if (whole) {
		if (!response && c->flags & CURSOR_ENCODED) {
			come_to(s, OUTCOME_REJECTED, SCAN_MALFORMED);
			return 0;
		}
		flags |= response ? response_complete(k, s, n) : request_complete(k, s, n, exchange);
	}
	if (length > allowed) {
		length = allowed;
		flags |= FLAG_TRUNCATED;
	}
	needed = needed && s->sendable && !(c->flags & (CURSOR_LOST | CURSOR_ORPHAN));
	if (needed) {
		fill_head(k, s, r, flags, exchange);
		r->offset = s->offset - c->unsent;
		r->position = position_again(c, position);
		r->length = length;
		r->lead = c->unsent;
		/* What has waited in the cursor lies behind the cause, or, when it is more, where that would. */
		if (flags & FLAG_FIRST_PIECE && c->unsent <= WAITED_BESIDE_CAUSE) {
			fill_cause(k, s, (struct cause *)r->carry);
			r->header.flags |= FLAG_CAUSE;
		}
		c->flags |= CURSOR_PIECES | CURSOR_REPORTED;
	}
	c->unsent = 0;
	c->head_bytes += n;
	advance(s, n);
	if (whole)
		leave_head(k, s, flags);
	return needed;
}

#endif
