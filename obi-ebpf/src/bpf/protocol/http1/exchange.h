/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Exchanges of one connection: numbering, notes about pending requests, the
 * current exchange of threads.
 */
#ifndef OBI_EXCHANGE_H
#define OBI_EXCHANGE_H

#include "core/emit.h"
#include "protocol/http1/framing.h"
#include "runtime/async_id.h"
#include "runtime/context.h"
#include "runtime/goroutine.h"
#include "runtime/greenlet.h"
#include "runtime/last_read.h"
#include "runtime/nginx.h"
#include "waiting/account.h"

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

/* === the thread's current exchange === */

/*
 * The current thread has read or sent the head of a request. True: there was no room to say so, which is the
 * caller's to count: a call from here would be one too deep for the stack of programs that have a tail call.
 */
APART bool set_current(struct connection *k, u64 exchange)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	u32 serves = k->side == SIDE_SERVER ? CAUSE_SERVES : 0;
	k->owner = tid;
	if (state) {
		/* What a thread serves goes before what it asks of others meanwhile. */
		if (k->side != SIDE_SERVER && state->exchange)
			return false;
		state->exchange = exchange;
		state->flags = (state->flags & ~CAUSE_SERVES) | serves;
		return false;
	}
	struct thread_state fresh = { .exchange = exchange, .flags = serves };
	return bpf_map_update_elem(&thread, &tid, &fresh, BPF_ANY) != 0;
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

/* The response of exchange number `n_responses` has begun, be it with an interim one. */
static __always_inline bool is_answering(const struct cursor *response)
{
	return (response->flags & (CURSOR_NOTED | CURSOR_ORPHAN | CURSOR_END_REPORTED)) == CURSOR_NOTED;
}

/* The response to `exchange` if it has begun: the note is not read any more. */
static __always_inline struct cursor *begun_response(struct connection *k, u64 exchange)
{
	struct cursor *response = response_cursor(k);
	return is_answering(response) && exchange == exchange_number(k, k->n_responses) ? response : NULL;
}

/* === exchanges in a row that have ended together === */

/* So many; deeper pipelines leave notes behind. */
#ifdef OBI_PORTABLE
#define SWEEP_LIMIT 8
#else
#define SWEEP_LIMIT (1 << 20)
#endif

/* What the loop is handed: a copy, as the two directions of a connection may end something at the same time. */
struct sweep_walk {
	struct connection *connection;
	struct sweep sweep;
};

static long sweep_one(u32 index, struct sweep_walk *walk)
{
	struct connection *k = walk->connection;
	struct sweep *sweep = &walk->sweep;
	u64 exchange = exchange_number(k, sweep->ordinal);
	u32 noted, full = 0;
	if (index >= sweep->n)
		return 1;
	noted = take_note(k, exchange);
	if (sweep->forgets && !(noted & NOTE_LOST) && !(sweep->lost & 1))
		full = forget_now(exchange);
	sweep->lost >>= 1;
	sweep->ordinal++;
	return (!sweep->forgets || full) && !k->n_noted;
}

static __always_inline void sweep_all(struct connection *k)
{
	struct sweep_walk walk = { .connection = k, .sweep = k->sweep };
#ifdef OBI_PORTABLE
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < SWEEP_LIMIT; i++)
		if (sweep_one(i, &walk))
			break;
#else
	bpf_loop(SWEEP_LIMIT, sweep_one, &walk, 0);
#endif
}

#endif
