/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * How messages, exchanges and connections end: by themselves, with their
 * connection, or because they cannot be followed. A client may see an answer
 * ahead of its request, when another thread's send returns later.
 */
#ifndef OBI_ENDING_H
#define OBI_ENDING_H

#include "protocol/http1/exchange.h"

/* Answers ahead of their requests of which it is known whether they were lost, and had a body; of further ones it is not. */
enum { AHEAD_BITS = 32 };

/* 1, or 0 for nothing. A branch would be another way for the verifier, through all that follows. */
static __always_inline u32 is_some(u64 n)
{
	u64 minus = 0 - n;
	OPAQUE(minus);
	return (n | minus) >> 63;
}

/* The response of exchange number `n_responses` is over. If its request is still to come, what became of it is kept. */
static __always_inline void count_response(struct connection *k, bool lost, u32 has_body)
{
	u64 exchange = exchange_number(k, k->n_responses);
	u32 n_ahead = k->n_responses - k->n_requests;
	if (lost && n_ahead < AHEAD_BITS)
		k->lost_ahead |= 1u << n_ahead;
	k->bodies = k->bodies << 1 | has_body;
	k->n_responses++;
	end_current(k, exchange, pending(k) ? exchange_number(k, k->n_responses) : 0);
}

/* The response under way, or its request, cannot be reported any more. The agent forgets what it knows of either. */
static __always_inline void lose_response(struct connection *k, const struct cursor *response, u8 loss)
{
	const struct cursor *request = request_cursor(k);
	bool begun = k->n_requests == k->n_responses && request->mode == MODE_HEAD && request->flags & CURSOR_PIECES;
	tally_lost(k, loss, 1);
	if (pending(k) || response->flags & CURSOR_REPORTED || begun)
		forget(exchange_number(k, k->n_responses));
}

/* A request whose answer was seen ahead of it cannot be reported, as the first one to come. */
static __always_inline void lose_request(struct connection *k, u64 exchange)
{
	struct cursor *response = begun_response(k, exchange);
	if (response) {
		lose_response(k, response, LOSS_RING_FULL);
		response->flags |= CURSOR_LOST;
		return;
	}
	tally_lost(k, LOSS_RING_FULL, 1);
	forget(exchange);
	k->lost_ahead |= 1;
}

/* A request's body has ended; its answer may have ended before. */
static __always_inline void request_end(struct connection *k, const struct cursor *c, u64 time)
{
	u64 exchange = exchange_number(k, k->n_requests - 1);
	struct cursor *response = begun_response(k, exchange);
	if ((response && response->flags & CURSOR_LOST) || emit_end(k, c, exchange, time, 0))
		return;
	if (!pending(k))
		return; /* answered: only the size of the body is missing, and the agent waits for it no longer than a second */
	tally_lost(k, LOSS_RING_FULL, 1);
	forget(exchange);
	/* What comes of its response is not to be sent. */
	if (response)
		response->flags |= CURSOR_LOST;
	else
		add_note(k, exchange, NOTE_LOST);
}

/* The response on cursor `c` ends: has its request not? */
static __always_inline bool request_incomplete(struct connection *k, const struct cursor *c)
{
	const struct cursor *request = request_cursor(k);
	return c->flags & CURSOR_EARLY ||
	       (k->n_requests == k->n_responses + 1 && request->mode >= MODE_LENGTH && request->mode <= MODE_UNTIL_CLOSE &&
		!(request->flags & CURSOR_END_REPORTED));
}

/* An answer under way that was seen ahead of its request. */
static __always_inline bool is_ahead(struct connection *k)
{
	return is_answering(response_cursor(k)) && !pending(k);
}

/* The answer to the next request, or the beginning of it, was seen ahead of it. */
static __always_inline bool is_answered(struct connection *k)
{
	return (s32)(k->n_responses - k->n_requests) > 0 || is_ahead(k);
}

/* A message ended after its head: reports that, and goes on to the next. Returns 1 for a response that is lost. */
SHARED int message_end(struct connection *k, u32 sending, u64 time)
{
	struct cursor *c;
	int lost = 0;
	u16 flags;
	if (!k)
		return 0;
	c = &k->cursor[sending & 1];
	flags = c->flags;
	if (flags & CURSOR_RESPONSE) {
		u64 exchange = exchange_number(k, k->n_responses);
		if (!(flags & (CURSOR_END_REPORTED | CURSOR_ORPHAN))) {
			bool incomplete = request_incomplete(k, c);
			lost = !!(flags & CURSOR_LOST);
			tell_times(k, exchange, time);
			if (!lost && !emit_end(k, c, exchange, time, incomplete ? FLAG_REQUEST_INCOMPLETE : 0)) {
				tally_lost(k, LOSS_RING_FULL, 1);
				forget(exchange);
				lost = 1;
			}
			count_response(k, lost, is_some(c->body_bytes));
		}
	} else if (!(flags & (CURSOR_END_REPORTED | CURSOR_LOST | CURSOR_ORPHAN))) {
		request_end(k, c, time);
	}
	cursor_reset(c, MODE_START);
	return lost;
}

/*
 * The request head under way will not be completed. Returns 1 when the agent
 * holds a piece of it and it is to end with those that are pending.
 */
static __always_inline u32 end_partial(struct connection *k, struct cursor *request, const struct ending *how)
{
	u64 exchange = exchange_number(k, k->n_requests);
	bool begun = request->flags & CURSOR_PIECES && !(request->flags & CURSOR_LOST);
	if (!request->lines || how->leaves) {
		/* Not even a request line: this need not be HTTP. */
		if (begun)
			forget(exchange);
		return 0;
	}
	/* Half a head at the end of the connection asked nothing; one that we cannot follow is a loss. */
	if (how->reason < CLOSE_ABANDONED)
		return begun;
	k->n_abandoned++;
	if (!begun)
		tally_lost(k, how->loss, 1);
	return begun;
}

/* Its head is complete. */
static __always_inline bool is_started(const struct cursor *response)
{
	u8 mode = response->mode;
	return !(response->flags & CURSOR_ORPHAN) && mode >= MODE_LENGTH && mode <= MODE_UNTIL_CLOSE;
}

static __always_inline bool emit_close(const struct connection *k, const struct cursor *request,
				       const struct cursor *response, const struct ending *how, u32 n)
{
	struct close_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return false;
	fill_header(&event->header, EVENT_CLOSE, 0, how->time, exchange_number(k, k->n_responses));
	event->header.tgid = k->tgid;
	event->request_body_bytes = request->body_bytes;
	event->response_body_bytes = response->body_bytes;
	event->response_started = is_started(response);
	event->last_byte = event->response_started ? k->last_response_byte : 0;
	event->pending = n;
	event->error = how->error;
	event->reason = how->reason;
	event->loss = how->loss;
	event->side = k->side;
	__builtin_memset(event->pad, 0, sizeof(event->pad));
	event->last_stream = 0;
	event->received_pieces = 0;
	event->sent_pieces = 0;
	event->n_aside = 0;
	event->epoch[0] = event->epoch[1] = 0;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return true;
}

/* The answer under way was seen ahead of its request, and cannot be followed. */
static __always_inline void lose_answer(struct connection *k, struct cursor *response, u8 loss)
{
	if (!(response->flags & CURSOR_LOST))
		lose_response(k, response, loss);
	count_response(k, true, 0);
	response->flags |= CURSOR_ORPHAN;
}

/* Every pending exchange of the connection ends. What is left of notes, and of what the agent knows, is for the sweep. */
static __always_inline void end_asked(struct connection *k, const struct ending *how)
{
	struct sweep *sweep = &k->sweep;
	struct cursor *request = request_cursor(k), *response = response_cursor(k);
	u32 n, n_partial = 0, n_begun = 0, n_lost;
	bool answering;
	if (request->mode == MODE_HEAD && !how->keeps_request) {
		n_begun = request->flags & CURSOR_PIECES ? 1 : 0;
		n_partial = end_partial(k, request, how);
		request->flags &= ~CURSOR_PIECES;
	}
	n = pending(k);
	/* The response under way, if only with an interim one, is that of the first. */
	answering = response->flags & (CURSOR_RESPONSE | CURSOR_NOTED) &&
		    !(response->flags & (CURSOR_ORPHAN | CURSOR_END_REPORTED));
	if (n || n_partial) {
		sweep->ordinal = k->n_responses;
		sweep->n = n + n_partial;
		sweep->lost = answering && response->flags & CURSOR_LOST;
		n_lost = k->n_noted_lost + sweep->lost;
		tell_times(k, exchange_number(k, k->n_responses), is_started(response) ? k->last_response_byte : how->time);
		if (!emit_close(k, request, response, how, n + n_partial)) {
			/* Half a head at the end of the connection is no loss; see end_partial(). */
			u32 n_counted = n + (how->reason < CLOSE_ABANDONED ? 0 : n_partial);
			sweep->forgets = 1;
			if (n_counted > n_lost)
				tally_lost(k, LOSS_RING_FULL, n_counted - n_lost);
		}
		end_current(k, exchange_number(k, k->n_responses), 0);
	}
	/* Of these no further event may come; their responses may, and belong to no request. */
	if (answering)
		response->flags |= CURSOR_ORPHAN;
	if (request->mode >= MODE_LENGTH && request->mode <= MODE_UNTIL_CLOSE)
		request->flags |= CURSOR_END_REPORTED;
	if (n)
		k->n_abandoned += n - answering;
	k->n_requests += n_begun; /* a number is never used again */
	if (how->leaves)
		k->n_requests = k->n_responses; /* none is; and a WebSocket has the number of the last that was answered */
	else if (pending(k))
		k->n_responses = k->n_requests;
}

/* Answers that were seen ahead of their requests, and these are not to be seen any more. */
static __always_inline void end_answered(struct connection *k)
{
	struct sweep *sweep = &k->sweep;
	struct cursor *request = request_cursor(k);
	u32 n_lost;
	sweep->ordinal = k->n_requests;
	sweep->n = k->n_responses - k->n_requests;
	sweep->forgets = 1;
	sweep->lost = k->lost_ahead;
	n_lost = __builtin_popcount(k->lost_ahead);
	if (sweep->n > n_lost)
		tally_lost(k, LOSS_REQUEST_UNSEEN, sweep->n - n_lost);
	k->lost_ahead = 0;
	k->n_requests = k->n_responses;
	/* The head under way is that of the first. */
	if (request->mode == MODE_HEAD)
		cursor_reset(request, MODE_RESYNC);
}

/* Every exchange of the connection ends here of which anything was seen; both counts agree afterwards. */
SHARED int end_pending(struct connection *k, const struct ending *how)
{
	struct cursor *response;
	if (!k || !how || !k->side)
		return 0;
	k->sweep = (struct sweep){};
	response = response_cursor(k);
	if (is_ahead(k)) {
		lose_answer(k, response, how->keeps_request ? how->loss : LOSS_REQUEST_UNSEEN);
		response->flags |= CURSOR_RESYNCED; /* where it ends is a guess from here on */
	}
	barrier();
	if (!is_answered(k))
		end_asked(k, how);
	else if (!how->keeps_request)
		end_answered(k);
	barrier();
	if (k->sweep.forgets || (k->sweep.n && k->n_noted))
		sweep_all(k);
	return 0;
}

/*
 * Bytes have passed unseen where a request begins: at least one, and as many as answers were seen without. Those that
 * a client's answers were ahead of are counted by end_answered(), those that cannot be read by their answers.
 */
static __always_inline void lose_unseen(struct connection *k)
{
	if ((k->flags & (CONNECTION_HTTP | CONNECTION_UNREADABLE)) == CONNECTION_HTTP && !is_answered(k))
		tally_lost(k, LOSS_GAP, k->n_unasked ? k->n_unasked : 1);
	k->n_unasked = 0;
}

/* The direction of the answers is given up, see lose_order(). */
static __always_inline bool counts_requests(struct connection *k)
{
	return response_cursor(k)->mode == MODE_IGNORED;
}

/*
 * Requests do not wait for answers here, and an unknown number of either has passed unseen: from here on it is unknown
 * which answer is whose. The direction that is lost is not looked for again. Exchanges are not reported any more, only
 * counted, by what passes in the other direction: answers without requests, or requests without answers
 * (request_complete()).
 */
static __always_inline void lose_order(struct connection *k, bool requests)
{
	const struct cursor *other = requests ? response_cursor(k) : request_cursor(k);
	if (other->mode == MODE_IGNORED)
		tally_uncovered(k, UNCOVERED_UNREADABLE); /* nothing to count by is left */
	if (!requests)
		return;
	k->flags |= CONNECTION_UNREADABLE;
	if (k->n_unasked)
		tally_lost(k, LOSS_GAP, k->n_unasked);
	k->n_unasked = 0;
}

/* At the end of a connection `n` bytes have not been seen in the direction of its requests. */
static __always_inline void lose_last(struct connection *k, u32 n)
{
	const struct cursor *request = request_cursor(k);
	if (request->mode == MODE_START || (request->mode == MODE_LENGTH && n > request->remaining))
		lose_unseen(k);
}

/* protocol/protocol.h, which knows the other protocols. */
SHARED int end_protocol(struct connection *k, const struct ending *how);

/* The connection is over. A response that ends with it is whole. */
SHARED int end_connection(struct connection *k, const struct ending *how)
{
	struct cursor *response;
	if (!k || !how || k->flags & CONNECTION_FINISHED)
		return 0;
	k->flags |= CONNECTION_FINISHED;
	if (k->flags & CONNECTION_COUNTED)
		__sync_fetch_and_add(&global.n_open, -1);
	if (k->tls & TLS_TRANSPORT) {
		if (!(k->tls & TLS_READ))
			tally_uncovered(k, UNCOVERED_TLS);
	} else if (k->flags & CONNECTION_JOINED && !(k->flags & CONNECTION_HTTP) && k->n_resync) {
		tally_uncovered(k, UNCOVERED_JOINED);
	}
	if (k->protocol)
		end_protocol(k, how); /* there may be exchanges, too, if the preface did not come behind an upgrade */
	else if (!k->side)
		return 0;
	response = response_cursor(k);
	if (response->mode == MODE_UNTIL_CLOSE && (how->reason == CLOSE_LOCAL || how->reason == CLOSE_REMOTE))
		message_end(k, k->side == SIDE_SERVER, k->last_response_byte);
	/* The calls that sent their requests end after this. */
	end_pending(k, how);
	cursor_reset(&k->receive, MODE_IGNORED);
	cursor_reset(&k->send, MODE_IGNORED);
	return 0;
}

#endif
