/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Probes in Node: a callback begins, by what (a number, a read, a phase of the loop), and microtasks begin to run. The
 * agent finds in the machine code where an environment's numbers are (enum node_layout_bit).
 */
#ifndef OBI_NODE_H
#define OBI_NODE_H

#include "core/own_stack.h"
#include "runtime/async_id.h"
#include "tls/tls.h"

#ifdef OBI_GOROUTINES

/* A number as Node gives them out: an integer above 0, as a double. */
static __always_inline bool is_async_number(u64 bits)
{
	u32 exponent = bits >> 52; /* the sign among it */
	if (exponent < 1023 || exponent > 1023 + 52)
		return false;
	return exponent == 1023 + 52 || !(bits << (exponent - 1023 + 12));
}

/*
 * The three numbers of a thread whose callback begins by `number`: the last one given out is above all others. Later
 * ones are above it, or nothing is believed any more (begin_callback()).
 */
static __always_inline struct async_thread *prove_numbers(u64 numbers, u64 number)
{
	u64 id = bpf_get_current_pid_tgid(), counter = word_of(numbers, ASYNC_COUNTER);
	struct async_thread fresh = { .numbers = numbers, .counter = counter, .tgid = id >> 32 };
	struct async_log *log;
	u32 tid = id;
	if (!numbers || !is_async_number(counter) || number > counter ||
	    word_of(numbers, ASYNC_EXECUTION) > counter || word_of(numbers, ASYNC_TRIGGER) > counter)
		return NULL;
	fresh.log = __sync_fetch_and_add(&global.n_async_logs, 1) & (ASYNC_LOGS - 1);
	log = bpf_map_lookup_elem(&async_log, &fresh.log);
	if (!log)
		return NULL;
	log->tid = tid;
	log->n = 0;
	if (bpf_map_update_elem(&async_thread, &tid, &fresh, BPF_ANY))
		return NULL;
	*(volatile u32 *)&global.follows_ids = 1;
	return bpf_map_lookup_elem(&async_thread, &tid);
}

/*
 * The scope of a callback begins: with its number and that of what has triggered it. Those inside of another are part
 * of it. What was read has one or several, all by the same number: that of a connection or parser, which lives on, so
 * that what it was made for once says nothing.
 */
SEC("uprobe")
int node_scope(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	/* Both are read, whatever the cookie says: the verifier takes no place in the context that was computed. */
	u64 fourth = *(volatile u64 *)&TLS_ARGUMENT_4(ctx), fifth = *(volatile u64 *)&TLS_ARGUMENT_5(ctx);
	u64 layout = tls_cookie(ctx), numbers = 0, own, number, trigger;
	u64 own_at = layout >> NODE_OWN_AT & NODE_OFFSET_MASK;
	struct async_thread *thread = find_async_thread();
	struct async_origin none = {};
	if (!layout || !is_watched(bpf_get_current_pid_tgid() >> 32))
		return 0;
	if (own_at)
		own = TLS_ARGUMENT_2(ctx) + own_at;
	else
		own = layout >> NODE_IN_R8_BIT & 1 ? fifth : fourth;
	number = word_of(own, 0);
	trigger = word_of(own, 8);
	if (!own_at) {
		numbers = word_of(TLS_ARGUMENT_2(ctx), layout >> NODE_NUMBERS_AT & NODE_OFFSET_MASK);
		if (!thread || thread->numbers != numbers || !log_of(thread))
			thread = prove_numbers(numbers, number);
	}
	if (!thread || word_of(thread->numbers, ASYNC_EXECUTION))
		return 0;
	if (thread->is_read && number) {
		/* What was read is given to the program, and by that only. */
		if (!thread->is_received)
			thread->exchange = thread->since = 0;
		if (!thread->scope)
			thread->scope = number;
		if (thread->scope == number)
			return 0;
	}
	begin_callback(thread, number ? origin_by(thread, number, trigger) : none);
	thread->scope = number;
	return 0;
}

/* The program is given what was read from a stream; what was not seen to be read says nothing. */
SEC("uprobe")
int node_read(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct async_thread *thread = find_async_thread();
	struct async_origin none = {};
	if (!thread)
		return 0;
	if (!thread->is_read || thread->is_received)
		begin_callback(thread, none);
	thread->is_read = thread->is_received = 1;
	return 0;
}

/*
 * The loop begins timers, immediates, handles that close, or messages of other threads: none of them works for a
 * request that is known. Their scopes have no number or, as with what is read, that of something which lives on.
 */
SEC("uprobe")
int node_phase(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct async_thread *thread = find_async_thread();
	struct async_origin none = {};
	if (!thread)
		return 0;
	begin_callback(thread, none);
	thread->is_read = thread->is_received = 1;
	return 0;
}

/*
 * The callback proper is over, and what promises have left to do begins: it may be for others. With a cookie, this is
 * the end of a scope, which may be one inside of the callback's.
 */
SEC("uprobe")
int node_microtasks(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct async_thread *thread = find_async_thread();
	struct async_origin behind = {};
	if (!thread || thread->is_behind)
		return 0;
	if (tls_cookie(ctx) && word_of(thread->numbers, ASYNC_EXECUTION) != thread->scope)
		return 0;
	thread->is_behind = 1;
	if (thread->exchange && !thread->since) {
		behind.exchange = thread->exchange;
		behind.since = thread->began;
	}
	log_origin(thread, word_of(thread->numbers, ASYNC_COUNTER), behind);
	return 0;
}

#endif

#endif
