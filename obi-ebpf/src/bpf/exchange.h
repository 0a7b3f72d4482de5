/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Exchanges of one connection: numbering, notes about pending requests, the
 * current exchange of threads, and how exchanges end.
 */
#ifndef OBI_EXCHANGE_H
#define OBI_EXCHANGE_H

#include "emit.h"

static __always_inline struct cursor *request_cursor(struct connection *k)
{
	return k->side == SIDE_SERVER ? &k->receive : &k->send;
}

static __always_inline struct cursor *response_cursor(struct connection *k)
{
	return k->side == SIDE_SERVER ? &k->send : &k->receive;
}

static __always_inline u32 pending(const struct connection *k)
{
	s32 n = (s32)(k->n_requests - k->n_responses);
	return n > 0 ? n : 0;
}

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

static __always_inline void add_note(struct connection *k, u64 exchange, u32 flags)
{
	u32 *known = bpf_map_lookup_elem(&note, &exchange);
	if (known) {
		if (flags & ~*known & NOTE_LOST)
			k->n_noted_lost++;
		*known |= flags;
		return;
	}
	if (bpf_map_update_elem(&note, &exchange, &flags, BPF_ANY)) {
		/* Without the note the response may be framed wrongly or counted twice: say so. */
		if (!(flags & NOTE_LOST))
			tally_lost(k, LOSS_NOTE_FULL, 1);
		return;
	}
	k->n_noted++;
	if (flags & NOTE_LOST)
		k->n_noted_lost++;
}

static __always_inline u32 take_note(struct connection *k, u64 exchange)
{
	u32 *known, flags;
	if (!k->n_noted)
		return 0;
	known = bpf_map_lookup_elem(&note, &exchange);
	if (!known)
		return 0;
	flags = *known;
	bpf_map_delete_elem(&note, &exchange);
	k->n_noted--;
	if (flags & NOTE_LOST)
		k->n_noted_lost--;
	return flags;
}

struct note_sweep {
	struct connection *connection;
	u32 ordinal;
};

static long drop_note(u32 index, struct note_sweep *sweep)
{
	(void)index;
	take_note(sweep->connection, exchange_number(sweep->connection, sweep->ordinal));
	sweep->ordinal++;
	return !sweep->connection->n_noted || !pending(sweep->connection);
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

/* A message ended after its head: tells the agent, goes on to the next. */
__noinline int message_end(struct connection *k, u32 sending, u64 time)
{
	struct cursor *c;
	u16 flags;
	if (!k)
		return 0;
	c = sending ? &k->send : &k->receive;
	flags = c->flags;
	if (flags & CURSOR_RESPONSE) {
		u64 exchange = exchange_number(k, k->n_responses);
		if (!(flags & (CURSOR_END_REPORTED | CURSOR_ORPHAN))) {
			const struct cursor *request = request_cursor(k);
			bool incomplete = k->n_requests == k->n_responses + 1 && request->mode != MODE_START &&
					  request->mode != MODE_HEAD && !(request->flags & CURSOR_END_REPORTED);
			if (!(flags & CURSOR_LOST) &&
			    !emit_end(k, c, exchange, time, incomplete ? FLAG_REQUEST_INCOMPLETE : 0)) {
				tally_lost(k, LOSS_RING_FULL, 1);
				forget(exchange);
			}
			count_response(k);
		}
	} else if (!(flags & (CURSOR_END_REPORTED | CURSOR_LOST))) {
		u64 exchange = exchange_number(k, k->n_requests - 1);
		if (pending(k) && !emit_end(k, c, exchange, time, 0)) {
			tally_lost(k, LOSS_RING_FULL, 1);
			add_note(k, exchange, NOTE_LOST);
			forget(exchange);
		}
	}
	cursor_reset(c, MODE_START);
	return 0;
}

/* How pending exchanges end without a whole response. */
struct ending {
	u64 time;
	u32 error;
	u16 reason; /* close_reason */
	u16 loss;   /* loss_reason */
};

/* Every pending exchange of the connection ends here; both counts agree afterwards. */
__noinline int end_pending(struct connection *k, const struct ending *how)
{
	struct cursor *request, *response;
	struct close_event *event;
	u32 n, n_partial, n_lost;
	u64 first;
	if (!k || !how)
		return 0;
	request = request_cursor(k);
	response = response_cursor(k);
	n = pending(k);
	/* A head in pieces of which the agent has some. */
	n_partial = request->mode == MODE_HEAD && request->flags & CURSOR_PIECES ? 1 : 0;
	first = exchange_number(k, k->n_responses);
	if (!k->side || !(n + n_partial))
		return 0;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (event) {
		u8 mode = response->mode;
		fill_header(&event->header, EVENT_CLOSE, 0, how->time, first);
		event->header.tgid = k->tgid;
		event->request_body_bytes = request->body_bytes;
		event->response_body_bytes = response->body_bytes;
		event->response_started =
			!(response->flags & CURSOR_ORPHAN) && mode >= MODE_LENGTH && mode <= MODE_UNTIL_CLOSE;
		event->last_byte = event->response_started ? k->last_response_byte : 0;
		event->pending = n + n_partial;
		event->error = how->error;
		event->reason = how->reason;
		event->loss = how->loss;
		event->side = k->side;
		__builtin_memset(event->pad, 0, sizeof(event->pad));
		bpf_ringbuf_submit(event, wakeup_flag());
	} else {
		n_lost = k->n_noted_lost + (response->flags & CURSOR_LOST ? 1 : 0);
		if (n > n_lost)
			tally_lost(k, LOSS_RING_FULL, n - n_lost);
		forget(first);
	}
	end_current(k, first, 0);
	if (k->n_noted) {
		struct note_sweep sweep = { .connection = k, .ordinal = k->n_responses };
		bpf_loop(4096, drop_note, &sweep, 0);
	}
	/* Of these no further event may come. */
	if (response->flags & CURSOR_RESPONSE)
		response->flags |= CURSOR_ORPHAN;
	if (request->mode != MODE_START)
		request->flags |= CURSOR_END_REPORTED;
	k->n_responses = k->n_requests;
	return 0;
}

/* The connection is over. A response that ends with it is whole. */
__noinline int end_connection(struct connection *k, const struct ending *how)
{
	struct cursor *response;
	if (!k || !how || k->flags & CONNECTION_FINISHED)
		return 0;
	k->flags |= CONNECTION_FINISHED;
	if (k->flags & CONNECTION_COUNTED)
		__sync_fetch_and_add(&global.n_open, -1);
	if (k->flags & CONNECTION_JOINED && !(k->flags & CONNECTION_HTTP) && k->n_resync)
		tally_uncovered(k, UNCOVERED_JOINED);
	if (!k->side)
		return 0;
	response = response_cursor(k);
	if (response->mode == MODE_UNTIL_CLOSE && (how->reason == CLOSE_LOCAL || how->reason == CLOSE_REMOTE))
		message_end(k, k->side == SIDE_SERVER, k->last_response_byte);
	end_pending(k, how);
	cursor_reset(&k->receive, MODE_IGNORED);
	cursor_reset(&k->send, MODE_IGNORED);
	return 0;
}

#endif
