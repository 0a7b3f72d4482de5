/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Which request each context of CPython (`PyContext`) works for. Whatever an event loop calls runs in a context of its
 * own: a callback, a task, a function in a thread (`asyncio.to_thread`). The one in which a request is read works for
 * it, and so do copies that are made of it from then on, and copies of these: tasks get theirs when they are made.
 *
 * The context is found as the profiler finds frames: the thread's state stands in a slot below the thread's descriptor
 * and names the thread that it belongs to. It names the context, which names its type. What does not prove itself says
 * nothing, and neither does a context that no thread has entered: that of a thread which runs no event loop.
 *
 * Not in the portable objects, for the reasons that runtime/goroutine.h has.
 */
#ifndef OBI_CONTEXT_H
#define OBI_CONTEXT_H

#include "runtime/goroutine.h"

#ifdef OBI_GOROUTINES

/*
 * In the context of this thread the request of `exchange` has been read, or (0) more than one. By a connection whose
 * first byte has the number `first`, as it is accepted; 0: that is not known. Returns whether the thread has entered a
 * context.
 */
SHARED int bind_in_context(u64 exchange, u32 first)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct python_process *process = bpf_map_lookup_elem(&python_process, &tgid);
	struct runtime_key key = { .id = CONNECTION_KEY | first, .tgid = tgid };
	u64 *served;
	if (!process)
		return 0;
	served = first ? bpf_map_lookup_elem(&goroutine, &key) : NULL;
	if (served)
		*served = exchange;
	key.id = entered_context(process);
	if (!key.id)
		return 0;
	if (exchange)
		bpf_map_update_elem(&goroutine, &key, &exchange, BPF_ANY);
	else
		bpf_map_delete_elem(&goroutine, &key);
	return 1;
}

/*
 * Who is about to send a head: its context says what for, or, in an event loop, that it is for nothing. The context in
 * which a request was read is not that of who calls for it, but of who goes on reading.
 */
SHARED int note_in_context(struct segment *s)
{
	struct python_process *process;
	u64 work;
	u32 tgid;
	if (!s)
		return 0;
	tgid = s->id >> 32;
	process = bpf_map_lookup_elem(&python_process, &tgid);
	if (!process)
		return 0;
	work = work_of(tgid, entered_context(process));
	if (work & WORKS_FOR_CONNECTION)
		work = request_of(tgid, work);
	if (work >> CONTEXT_COPIED_BIT) {
		s->serving = work & ~(1ULL << CONTEXT_COPIED_BIT);
		s->thread_flags |= CAUSE_RUNTIME | CAUSE_CONTEXT;
	} else if (s->thread_flags & CAUSE_WAITS_MANY) {
		s->serving = 0;
		s->thread_flags |= CAUSE_RUNTIME | CAUSE_CONTEXT;
	}
	return 0;
}

/* First of all: on most machines nothing has contexts, and this is asked at each head. */
static __always_inline int bind_context(u64 exchange, u32 first)
{
	return *(volatile u32 *)&global.follows_contexts ? bind_in_context(exchange, first & ~THREAD_ENTERS) : 0;
}

static __always_inline void note_context(struct segment *s)
{
	if (*(volatile u32 *)&global.follows_contexts)
		note_in_context(s);
}

static __always_inline void forget_contexts(u32 tgid)
{
	bpf_map_delete_elem(&python_process, &tgid);
}

#else
static __always_inline int bind_context(u64 exchange, u32 first)
{
	(void)exchange;
	(void)first;
	return 0;
}

static __always_inline void note_context(struct segment *s)
{
	(void)s;
}

static __always_inline void forget_contexts(u32 tgid)
{
	(void)tgid;
}
#endif

#endif
