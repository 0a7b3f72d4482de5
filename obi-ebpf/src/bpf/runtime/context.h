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

/* Fields of a context and of all objects, since 3.7. */
enum { OBJECT_TYPE = 8, CONTEXT_ENTERED = 40 };

/*
 * The exchange that a context works for, by its address, is in the map `goroutine`: a process has one kind or the
 * other. None: it works for none. Deleted when the context is.
 */

/* How contexts are found in a process. */
struct python_process {
	u64 type;      /* address of `PyContext_Type` */
	u32 slot;      /* from the thread's descriptor to the word with its state's address; 0: that was not to be proven */
	u16 thread_id; /* in the state: the thread's descriptor */
	u16 context;   /* in the state: the context that is entered */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct python_process);
} python_process SEC(".maps");

/* The context that the current thread has entered; 0: none, or it does not prove itself. */
static __always_inline u64 entered_context(const struct python_process *process)
{
	u64 base = thread_pointer(), state, context;
	if (!process->slot)
		return 0;
	state = word_of(base + process->slot, 0);
	if (!state || word_of(state, process->thread_id) != base)
		return 0;
	context = word_of(state, process->context);
	if (!context || word_of(context, OBJECT_TYPE) != process->type)
		return 0;
	return (u32)word_of(context, CONTEXT_ENTERED) == 1 ? context : 0;
}

/* In the context of this thread the request of `exchange` has been read, or (0) more than one. */
SHARED int bind_context(u64 exchange)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct python_process *process = bpf_map_lookup_elem(&python_process, &tgid);
	struct runtime_key key = { .tgid = tgid };
	if (!process)
		return 0;
	key.id = entered_context(process);
	if (!key.id)
		return 0;
	if (exchange)
		bpf_map_update_elem(&goroutine, &key, &exchange, BPF_ANY);
	else
		bpf_map_delete_elem(&goroutine, &key);
	return 0;
}

/*
 * Who is about to send a head: its context says what for, or, in an event loop, that it is for nothing. The context in
 * which a request was read is not that of who calls for it, but of who goes on reading.
 */
SHARED int note_context(struct segment *s)
{
	struct python_process *process;
	struct runtime_key key = {};
	u64 *bound, exchange;
	if (!s)
		return 0;
	key.tgid = s->id >> 32;
	process = bpf_map_lookup_elem(&python_process, &key.tgid);
	if (!process)
		return 0;
	key.id = entered_context(process);
	bound = key.id ? bpf_map_lookup_elem(&goroutine, &key) : NULL;
	exchange = bound ? *bound : 0;
	if (exchange >> CONTEXT_COPIED_BIT) {
		s->serving = exchange & ~(1ULL << CONTEXT_COPIED_BIT);
		s->thread_flags |= CAUSE_RUNTIME | CAUSE_CONTEXT;
	} else if (s->thread_flags & CAUSE_WAITS_MANY) {
		s->serving = 0;
		s->thread_flags |= CAUSE_RUNTIME | CAUSE_CONTEXT;
	}
	return 0;
}

static __always_inline void forget_contexts(u32 tgid)
{
	bpf_map_delete_elem(&python_process, &tgid);
}

#else
static __always_inline void bind_context(u64 exchange)
{
	(void)exchange;
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
