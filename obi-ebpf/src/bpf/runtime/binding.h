/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What the running code works for, by its runtime's own objects: the maps that say it, and how a thread's goroutine,
 * context or greenlet is found, or the callback that it is in. Shared with the samplers of stacks. Who writes the maps:
 * goroutine.h, context.h, greenlet.h, async_id.h and the probes.
 *
 * Not in the portable objects, for the reasons that runtime/goroutine.h has.
 */
#ifndef OBI_BINDING_H
#define OBI_BINDING_H

#include "core/watch.h"

#if !defined(OBI_HOST) && !defined(OBI_PORTABLE)
#define OBI_GOROUTINES
#endif

#ifdef OBI_GOROUTINES

/* A goroutine by its number, or an object of the program by its address: a context of CPython, too. */
struct runtime_key {
	u64 id;
	u32 tgid;
	u32 pad;
};

/*
 * What a goroutine works for: the exchange, or 0. Those that serve a connection are here while they wait for a request;
 * those that they start, and those in turn, once they have one. LRU: one that has gone says nothing more.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 6144);
	__type(key, struct runtime_key);
	__type(value, u64);
} goroutine SEC(".maps");

/* The exchange of a stream of HTTP/2, by the connection's with ordinal 0, as user space numbers them. */
static __always_inline u64 stream_exchange(u64 connection, u32 stream)
{
	return connection | ((stream + 1) >> 1 & ((1U << ORDINAL_BITS) - 1));
}

/* How goroutines are found in a process. */
struct go_process {
	u32 slot;      /* bytes from the thread's goroutine up to its pointer (arm64: 1); 0: that was not to be proven */
	u32 number_at; /* where in a goroutine its number is */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct go_process);
} go_process SEC(".maps");

/* The word `at` bytes into an object of the program, 0 when it cannot be read. */
static __always_inline u64 word_of(u64 object, u32 at)
{
	u64 word = 0;
	if (bpf_probe_read_user(&word, sizeof(word), (void *)(object + at)))
		return 0;
	return word;
}

#if defined(__TARGET_ARCH_x86)
static __always_inline u64 thread_pointer(void)
{
	return READ((struct task_struct *)bpf_get_current_task(), thread.fsbase);
}

/* What Go keeps at the thread's `slot`: the goroutine that it runs. */
static __always_inline u64 running_goroutine(u32 slot)
{
	return word_of(thread_pointer() - slot, 0);
}
#elif defined(__TARGET_ARCH_arm64)
/* As the thread left it when it last left its CPU, which is as good: it is set once. */
static __always_inline u64 thread_pointer(void)
{
	return READ((struct task_struct *)bpf_get_current_task(), thread.uw.tp_value);
}

/* Go has it in a register for as long as its code runs; the kernel saves all of them on its way in. */
static __always_inline u64 running_goroutine(u32 slot)
{
	const struct pt_regs *saved = (const void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	(void)slot;
	return READ(saved, regs[28]);
}
#endif

/* The number of the goroutine that this thread runs; 0: that is not known. */
static __always_inline u64 current_goroutine(const struct go_process *process)
{
	if (!process->slot)
		return 0;
	return word_of(running_goroutine(process->slot), process->number_at);
}

/* Fields of a context and of all objects, since 3.7. */
enum { OBJECT_TYPE = 8, CONTEXT_ENTERED = 40 };

/*
 * The exchange that a context works for, by its address, is in the map `goroutine`: a process has one kind or the
 * other. None: it works for none. Deleted when the context is.
 *
 * A server that makes one task for each connection (aiohttp's, `asyncio.start_server`) makes it when it has accepted
 * the connection. Its context, and copies of it, work for the connection: for the request that was read from it last,
 * if that is the only one open. Connections are distinguished by the sequence number of the first byte that comes by
 * them, which is random. What each works for is in the same map, by that number with this bit.
 */
#define CONNECTION_KEY (1ULL << 62)
#define WORKS_FOR_CONNECTION (1ULL << CONTEXT_CONNECTION_BIT)

/* How contexts are found in a process. */
struct python_process {
	u64 type;      /* address of `PyContext_Type` */
	u32 slot;      /* from the thread's descriptor to the word with its state's address; 0: not to be proven */
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

/* What a context works for, with its bits; 0: for nothing that is known. */
static __always_inline u64 work_of(u32 tgid, u64 context)
{
	struct runtime_key key = { .id = context, .tgid = tgid };
	u64 *work = context ? bpf_map_lookup_elem(&goroutine, &key) : NULL;
	return work ? *work : 0;
}

/* The request of the connection that `work` names. What works for connections may outlive its request. */
static __always_inline u64 request_of(u32 tgid, u64 work)
{
	struct runtime_key key = { .id = CONNECTION_KEY | (u32)work, .tgid = tgid };
	u64 *exchange = bpf_map_lookup_elem(&goroutine, &key);
	return exchange && *exchange ? *exchange | 1ULL << CAUSE_STARTED_BIT | 1ULL << CONTEXT_COPIED_BIT : 0;
}

/*
 * Greenlets: a thread changes between them, each with a stack of C and one of Python's frames, and CPython does not
 * know (gevent, eventlet). Frames lie in chunks, since CPython 3.11. The first chunk of a greenlet is its own while it
 * lives, and by that chunk's address it is known. What it works for is in the map `goroutine` by that address with this
 * bit: for the request that it has read last. The memory may be another greenlet's when it has ended; by then its
 * request is over, so that nothing more is for it.
 */
#define GREENLET_KEY (1ULL << 61)
/* In place of an exchange: it waits for many things, and what it reads is for others. */
#define GREENLET_LOOPS (1ULL << 63)

/* How greenlets are found in a process. */
struct greenlet_process {
	u32 slot;      /* as of python_process */
	u16 thread_id; /* likewise */
	u16 chunk;     /* in the state: the chunk in which the innermost frame is */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct greenlet_process);
} greenlet_process SEC(".maps");

/* As CPython has it, `_PyStackChunk`. */
struct frame_chunk {
	u64 previous; /* 0: it is the first one */
	u64 bytes;    /* all of it */
};

/* Chunks are of whole pages. So many are looked at; eight hold some 600 calls. */
enum { CHUNK_UNIT = 4096, CHUNKS = 8 };

/* The key of the greenlet that this thread runs; 0: it has none, or does not prove itself. */
static __always_inline u64 current_greenlet(u32 tgid)
{
	const struct greenlet_process *process = bpf_map_lookup_elem(&greenlet_process, &tgid);
	struct frame_chunk chunk;
	u64 base, state, at;
	if (!process || !process->slot)
		return 0;
	base = thread_pointer();
	state = word_of(base + process->slot, 0);
	if (!state || word_of(state, process->thread_id) != base)
		return 0;
	at = word_of(state, process->chunk);
	for (u32 i = 0; i < CHUNKS; i++) {
		if (!at || bpf_probe_read_user(&chunk, sizeof(chunk), (void *)at))
			return 0;
		if (!chunk.bytes || chunk.bytes % CHUNK_UNIT)
			return 0;
		if (!chunk.previous)
			return at | GREENLET_KEY;
		at = chunk.previous;
	}
	return 0;
}

/* A thread that runs Node's loop, and the callback that it is in. */
struct async_thread {
	u64 numbers;  /* address of the three; 0: not proven (any more) */
	u64 exchange; /* as in the log */
	u64 since;
	u64 began;    /* the callback, ns */
	u64 counter;  /* the last number given out by then */
	u64 scope;    /* the number by which it began; 0: none (yet) */
	u32 tgid;
	u32 log;
	u8 is_read;     /* it began when something was read, or by a phase: the number of its scopes says nothing */
	u8 is_received; /* with that: the program has been given what was read */
	u8 is_behind;   /* microtasks have begun to run */
	u8 pad[5];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct async_thread);
} async_thread SEC(".maps");

/* An exchange beside the bits that maps keep with it. */
#define EXCHANGE_OF(work) ((work) & ((1ULL << CONTEXT_CONNECTION_BIT) - 1))

/*
 * For which exchange the current thread's code runs, as its runtime says; 0: for none. `state` is the thread's, or
 * NULL. Returns false where the runtime says nothing: then the thread itself may.
 */
static __always_inline bool is_working_for(u64 id, const struct thread_state *state, u64 *exchange)
{
	u32 tgid = id >> 32, tid = id;
	bool waits_many = state && state->flags & CAUSE_WAITS_MANY;
	struct python_process *python = bpf_map_lookup_elem(&python_process, &tgid);
	struct async_thread *node;
	struct go_process *go;
	u64 number = python ? entered_context(python) : 0, work;
	if (number) {
		work = work_of(tgid, number);
		if (work & WORKS_FOR_CONNECTION)
			work = request_of(tgid, work);
		*exchange = EXCHANGE_OF(work);
		/* A thread that is no loop may be given a context as well, which says nothing of what it reads. */
		return work || waits_many;
	}
	number = waits_many ? current_greenlet(tgid) : 0;
	if (number) {
		*exchange = EXCHANGE_OF(work_of(tgid, number));
		return true;
	}
	if (python)
		return false;
	/* Behind a callback promises may go on that have waited for another request. */
	node = bpf_map_lookup_elem(&async_thread, &tid);
	if (node && node->tgid == tgid && node->numbers && !node->is_behind) {
		*exchange = node->since ? 0 : node->exchange;
		return true;
	}
	go = bpf_map_lookup_elem(&go_process, &tgid);
	if (!go || !go->slot)
		return false;
	number = current_goroutine(go);
	*exchange = EXCHANGE_OF(work_of(tgid, number));
	return true;
}

#else
static __always_inline bool is_working_for(u64 id, const struct thread_state *state, u64 *exchange)
{
	(void)id;
	(void)state;
	(void)exchange;
	return false;
}
#endif

#endif
