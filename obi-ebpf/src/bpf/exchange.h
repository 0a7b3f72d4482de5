/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Exchanges of one connection: numbering, notes about pending requests, the
 * current exchange of threads, and how exchanges end.
 */
#ifndef OBI_EXCHANGE_H
#define OBI_EXCHANGE_H

#include "frame_end.h"

/* Exchanges of one connection that end together; deeper pipelines leave notes behind. */
#ifdef OBI_PORTABLE
#define SWEEP_LIMIT 8
#else
#define SWEEP_LIMIT (1 << 20)
#endif

static __always_inline struct cursor *request_cursor(struct connection *k)
{
	return &k->cursor[~k->side & SIDE_SERVER];
}

static __always_inline struct cursor *response_cursor(struct connection *k)
{
	return &k->cursor[k->side & SIDE_SERVER];
}

static __always_inline u32 pending(const struct connection *k)
{
	s32 n = (s32)(k->n_requests - k->n_responses);
	return n > 0 ? n : 0;
}

#ifdef OBI_PORTABLE
/* Atomic additions that return something came with 5.12: each CPU numbers its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} connection_count SEC(".maps");

enum { COUNT_BITS = 28 };

static __always_inline u64 next_connection_number(void)
{
	u32 zero = 0;
	u64 *count = bpf_map_lookup_elem(&connection_count, &zero);
	u64 cpu = bpf_get_smp_processor_id() + 1;
	__sync_fetch_and_add(&global.n_connections, 1);
	if (!count)
		return 0; /* cannot be: an array has its elements */
	*count += 1;
	return cpu << COUNT_BITS | (*count & ((1u << COUNT_BITS) - 1));
}
#else
static __always_inline u64 next_connection_number(void)
{
	return __sync_fetch_and_add(&global.n_connections, 1) + 1;
}
#endif

/* === the thread's current exchange === */

static __always_inline void set_current(struct connection *k, u64 exchange)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	k->owner = tid;
	if (state) {
		/* What a thread serves goes before what it asks of others meanwhile. */
		if (k->side == SIDE_SERVER || !state->exchange)
			state->exchange = exchange;
		return;
	}
	struct thread_state fresh = { .exchange = exchange };
	if (bpf_map_update_elem(&thread, &tid, &fresh, BPF_ANY))
		tally_add(k->tgid, (u32)k->side << 16 | TALLY_THREAD_FULL << 8, 1);
}

/* `exchange` has ended: its thread goes on to `next` (0: nothing). Another exchange is left alone. */
static __always_inline void end_current(const struct connection *k, u64 exchange, u64 next)
{
	u32 tid = k->owner;
	struct thread_state *state = tid ? bpf_map_lookup_elem(&thread, &tid) : NULL;
	if (state && state->exchange == exchange)
		state->exchange = next;
}

/* === notes about pending requests === */

static __always_inline void count_note(struct connection *k, u32 flags, u32 known)
{
	if (!known)
		k->n_noted++;
	if (flags & ~known & NOTE_LOST)
		k->n_noted_lost++;
}

/* Returns false when there was no room. */
static __always_inline bool add_note(struct connection *k, u64 exchange, u32 flags)
{
	u32 *known = NULL;
	if (k->noted_flags && k->noted_exchange == exchange) {
		count_note(k, flags, k->noted_flags);
		k->noted_flags |= flags;
		return true;
	}
	if (k->n_noted)
		known = bpf_map_lookup_elem(&note, &exchange);
	if (known) {
		count_note(k, flags, *known);
		*known |= flags;
		return true;
	}
	if (!k->noted_flags) {
		k->noted_exchange = exchange;
		k->noted_flags = flags;
	} else if (bpf_map_update_elem(&note, &exchange, &flags, BPF_ANY)) {
		return false;
	}
	count_note(k, flags, 0);
	return true;
}

static __always_inline u32 take_note(struct connection *k, u64 exchange)
{
	u32 *known, flags;
	if (!k->n_noted)
		return 0;
	if (k->noted_flags && k->noted_exchange == exchange) {
		flags = k->noted_flags;
		k->noted_flags = 0;
	} else {
		known = bpf_map_lookup_elem(&note, &exchange);
		if (!known)
			return 0;
		flags = *known;
		bpf_map_delete_elem(&note, &exchange);
	}
	k->n_noted--;
	if (flags & NOTE_LOST)
		k->n_noted_lost--;
	return flags;
}

/* The response to `exchange` if it has begun, be it with an interim one: nobody reads the note any more. */
static __always_inline struct cursor *begun_response(struct connection *k, u64 exchange)
{
	struct cursor *response = response_cursor(k);
	bool begun = (response->flags & (CURSOR_NOTED | CURSOR_ORPHAN)) == CURSOR_NOTED;
	return begun && exchange == exchange_number(k, k->n_responses) ? response : NULL;
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

/* Exchanges in a row that have ended together. */
struct sweep {
	struct connection *connection;
	u32 ordinal;
	u32 n;
	u32 forgets;    /* 1: the agent has to be told */
	u32 first_lost; /* 1: the first one has been counted, and its note taken */
};

static long sweep_one(u32 index, struct sweep *sweep)
{
	struct connection *k = sweep->connection;
	u64 exchange = exchange_number(k, sweep->ordinal);
	u32 noted;
	if (index >= sweep->n)
		return 1;
	noted = take_note(k, exchange);
	if (sweep->forgets && !(noted & NOTE_LOST) && !(sweep->first_lost && !index))
		forget(exchange);
	sweep->ordinal++;
	return !sweep->forgets && !k->n_noted;
}

static __always_inline void sweep_all(struct sweep *sweep)
{
#ifdef OBI_PORTABLE
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < SWEEP_LIMIT; i++)
		if (sweep_one(i, sweep))
			break;
#else
	bpf_loop(SWEEP_LIMIT, sweep_one, sweep, 0);
#endif
}

/* === ends === */

/* The end of a unix socket is seen only if it speaks HTTP: others are not counted at all. */
static __always_inline void count_open(struct connection *k)
{
	if (k->flags & (CONNECTION_COUNTED | CONNECTION_FINISHED))
		return;
	k->flags |= CONNECTION_COUNTED;
	__sync_fetch_and_add(&global.n_open, 1);
}

/* The response of exchange number `n_responses` is over. */
static __always_inline void count_response(struct connection *k)
{
	u64 exchange = exchange_number(k, k->n_responses);
	k->n_responses++;
	end_current(k, exchange, pending(k) ? exchange_number(k, k->n_responses) : 0);
}

/* The response on cursor `c` ends: has its request not? */
static __always_inline bool request_incomplete(struct connection *k, const struct cursor *c)
{
	const struct cursor *request = request_cursor(k);
	return c->flags & CURSOR_EARLY ||
	       (k->n_requests == k->n_responses + 1 && request->mode >= MODE_LENGTH && request->mode <= MODE_UNTIL_CLOSE &&
		!(request->flags & CURSOR_END_REPORTED));
}

/* A message ended after its head: tells the agent, goes on to the next. */
SHARED int message_end(struct connection *k, u32 sending, u64 time)
{
	struct cursor *c;
	u16 flags;
	if (!k)
		return 0;
	c = &k->cursor[sending & 1];
	flags = c->flags;
	if (flags & CURSOR_RESPONSE) {
		u64 exchange = exchange_number(k, k->n_responses);
		if (!(flags & (CURSOR_END_REPORTED | CURSOR_ORPHAN))) {
			bool incomplete = request_incomplete(k, c);
			if (!(flags & CURSOR_LOST) &&
			    !emit_end(k, c, exchange, time, incomplete ? FLAG_REQUEST_INCOMPLETE : 0)) {
				tally_lost(k, LOSS_RING_FULL, 1);
				forget(exchange);
			}
			if (!pending(k) && c->body_bytes)
				k->ahead_body = 1;
			count_response(k);
		}
	} else if (!(flags & (CURSOR_END_REPORTED | CURSOR_LOST))) {
		request_end(k, c, time);
	}
	cursor_reset(c, MODE_START);
	return 0;
}

/*
 * The request head under way will not be completed. Returns 1 when the agent
 * holds a piece of it and it is to end with those that are pending.
 */
static __always_inline u32 end_partial(struct connection *k, struct cursor *request, const struct ending *how)
{
	u64 exchange = exchange_number(k, k->n_requests);
	bool begun = request->flags & CURSOR_PIECES && !(request->flags & CURSOR_LOST);
	if (!request->lines) {
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

static __always_inline bool emit_close(const struct connection *k, const struct cursor *request,
				       const struct cursor *response, const struct ending *how, u32 n)
{
	struct close_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	u8 mode = response->mode;
	if (!event)
		return false;
	fill_header(&event->header, EVENT_CLOSE, 0, how->time, exchange_number(k, k->n_responses));
	event->header.tgid = k->tgid;
	event->request_body_bytes = request->body_bytes;
	event->response_body_bytes = response->body_bytes;
	event->response_started = !(response->flags & CURSOR_ORPHAN) && mode >= MODE_LENGTH && mode <= MODE_UNTIL_CLOSE;
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
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return true;
}

/* Every pending exchange of the connection ends here; both counts agree afterwards. */
SHARED int end_pending(struct connection *k, const struct ending *how)
{
	struct cursor *request, *response;
	u32 n, n_partial = 0, n_begun = 0, n_lost;
	bool answering;
	if (!k || !how || !k->side)
		return 0;
	request = request_cursor(k);
	response = response_cursor(k);
	if (request->mode == MODE_HEAD && !how->keeps_request) {
		n_begun = request->flags & CURSOR_PIECES ? 1 : 0;
		n_partial = end_partial(k, request, how);
		request->flags &= ~CURSOR_PIECES;
	}
	n = pending(k);
	/* The response under way, if only with an interim one, is that of the first. */
	answering = response->flags & (CURSOR_RESPONSE | CURSOR_NOTED) && !(response->flags & CURSOR_ORPHAN);
	if (n || n_partial) {
		struct sweep sweep = { .connection = k, .ordinal = k->n_responses, .n = n + n_partial };
		u64 first = exchange_number(k, k->n_responses);
		sweep.first_lost = answering && response->flags & CURSOR_LOST;
		n_lost = k->n_noted_lost + sweep.first_lost;
		if (!emit_close(k, request, response, how, n + n_partial)) {
			/* Half a head at the end of the connection is no loss; see end_partial(). */
			u32 n_counted = n + (how->reason < CLOSE_ABANDONED ? 0 : n_partial);
			sweep.forgets = 1;
			if (n_counted > n_lost)
				tally_lost(k, LOSS_RING_FULL, n_counted - n_lost);
		}
		end_current(k, first, 0);
		if (sweep.forgets || k->n_noted)
			sweep_all(&sweep);
	}
	/* Of these no further event may come; their responses may, and are nobody's. */
	if (answering)
		response->flags |= CURSOR_ORPHAN;
	if (request->mode >= MODE_LENGTH && request->mode <= MODE_UNTIL_CLOSE)
		request->flags |= CURSOR_END_REPORTED;
	if (n)
		k->n_abandoned += n - answering;
	k->n_requests += n_begun; /* a number is never used again, nor are those of answers ahead */
	if (pending(k))
		k->n_responses = k->n_requests;
	return 0;
}

/* An answer under way that was seen ahead of its request. */
static __always_inline bool is_ahead(struct connection *k)
{
	return (response_cursor(k)->flags & (CURSOR_NOTED | CURSOR_ORPHAN)) == CURSOR_NOTED && !pending(k);
}

/*
 * Answers that were seen ahead of their requests, and these are not to be seen any more. Where the one under way ends
 * is a guess from here on.
 */
static __always_inline void lose_ahead(struct connection *k)
{
	u32 n_ahead = k->n_responses - k->n_requests;
	if (is_ahead(k)) {
		response_cursor(k)->flags |= CURSOR_ORPHAN | CURSOR_RESYNCED;
		forget(exchange_number(k, k->n_responses));
		k->n_responses++;
		n_ahead++;
	}
	if ((s32)n_ahead <= 0)
		return;
	tally_lost(k, LOSS_REQUEST_UNSEEN, n_ahead);
	k->n_requests = k->n_responses;
}

/*
 * Bytes have passed unseen where a request begins: at least one, and as many as answers were seen without. Those that
 * a client's answers were ahead of are counted by lose_ahead(), those that cannot be read by their answers.
 */
static __always_inline void lose_unseen(struct connection *k)
{
	if ((k->flags & (CONNECTION_HTTP | CONNECTION_UNREADABLE)) == CONNECTION_HTTP &&
	    (s32)(k->n_responses - k->n_requests) <= 0 && !is_ahead(k))
		tally_lost(k, LOSS_GAP, k->n_unasked ? k->n_unasked : 1);
	k->n_unasked = 0;
}

/* The direction of the answers is given up, see lose_order(). */
static __always_inline bool counts_requests(struct connection *k)
{
	return response_cursor(k)->mode == MODE_IGNORED;
}

/*
 * Requests do not wait for answers here, and an unknown number of either has passed unseen: from here on nobody knows
 * which answer is whose. The direction that is lost is not looked for again. Exchanges are told no more, only counted,
 * by what passes in the other direction: answers without requests, or requests without answers (request_complete()).
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
	if (k->protocol) {
		end_framed(k, how);
		goto out;
	}
	if (!k->side)
		return 0;
	response = response_cursor(k);
	if (response->mode == MODE_UNTIL_CLOSE && (how->reason == CLOSE_LOCAL || how->reason == CLOSE_REMOTE))
		message_end(k, k->side == SIDE_SERVER, k->last_response_byte);
	/* The calls that sent their requests end after this. */
	lose_ahead(k);
	end_pending(k, how);
out:
	cursor_reset(&k->receive, MODE_IGNORED);
	cursor_reset(&k->send, MODE_IGNORED);
	return 0;
}

#endif
