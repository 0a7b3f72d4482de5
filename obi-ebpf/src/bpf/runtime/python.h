/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Probes in CPython: a context is copied, one is freed. Programs without an event loop hardly do either. The cookie
 * says where in a thread's state its descriptor is (enum python_layout_bit); the rest is proven here. One in uvloop,
 * another loop for CPython: a context is entered. And one in greenlet: a greenlet is made, so there are some.
 */
#ifndef OBI_PYTHON_H
#define OBI_PYTHON_H

#include "core/own_stack.h"
#include "runtime/context.h"
#include "runtime/greenlet.h"
#include "runtime/last_read.h"
#include "tls/tls.h"

#ifdef OBI_GOROUTINES

enum {
	/* Of a thread's descriptor in the GNU C library: the values of the first 32 keys, each the second word of a pair. */
	FIRST_KEY = 0x310,
	KEYS = 32,
	/* Words of a thread's state in which the context has been, from 3.8 to 3.14, and some more. */
	CONTEXT_FIRST = 0xa0,
	CONTEXT_LAST = 0x118,
};

/* The search for contexts; loops that the verifier does not walk through. */
struct python_search {
	struct python_process found;
	u64 base;
	u64 state; /* that is looked through */
	u32 n_found;
};

static long look_at_word(u32 index, struct python_search *search)
{
	u32 at = CONTEXT_FIRST + 8 * index;
	u64 object = word_of(search->state, at);
	if (!object || object & 7 || word_of(object, OBJECT_TYPE) != search->found.type)
		return 0;
	search->found.context = at;
	search->n_found++;
	return 0;
}

/* In a state there is one word only that leads to an object of the type of contexts. */
static long look_at_key(u32 key, struct python_search *search)
{
	u32 slot = FIRST_KEY + 16 * key + 8;
	search->state = word_of(search->base + slot, 0);
	if (!search->state || search->state & 7 || word_of(search->state, search->found.thread_id) != search->base)
		return 0;
	search->n_found = 0;
	bpf_loop((CONTEXT_LAST - CONTEXT_FIRST) / 8 + 1, look_at_word, search, 0);
	if (search->n_found != 1)
		return 0;
	search->found.slot = slot;
	return 1;
}

/* `copy` is a context that the current thread has just made of the one that it has entered. How is that one found? */
static __always_inline void prove_contexts(u32 tgid, u64 copy, u16 thread_id)
{
	struct python_search search = {
		.found = { .thread_id = thread_id, .type = word_of(copy, OBJECT_TYPE) },
		.base = thread_pointer(),
	};
	if (search.found.type)
		bpf_loop(KEYS, look_at_key, &search, 0);
	/* For good: what was not to be proven once would be asked for with every copy. */
	bpf_map_update_elem(&python_process, &tgid, &search.found, BPF_NOEXIST);
	*(volatile u32 *)&global.follows_contexts = 1;
}

/*
 * What a context works for that is made when a connection is to be served: that connection. Of asyncio only the first
 * one; under uvloop all of them, until another context is entered.
 */
static __always_inline u64 take_accepted(u32 tgid)
{
	u32 tid = bpf_get_current_pid_tgid(), first;
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	struct runtime_key key = { .tgid = tgid };
	u64 nothing = 0;
	if (!state || state->accepted <= THREAD_ENTERS)
		return 0;
	first = state->accepted & ~THREAD_ENTERS;
	if (!(state->accepted & THREAD_ENTERS))
		state->accepted = 0;
	key.id = CONNECTION_KEY | first;
	bpf_map_update_elem(&goroutine, &key, &nothing, BPF_NOEXIST);
	return WORKS_FOR_CONNECTION | first;
}

/*
 * A context has been made as a copy of the one that the thread has entered: it works for what that one works for now,
 * whatever that does later. The first copy of the one that has read is the request's own; those that are made in it
 * are of what it has started. A copy of one that works for a connection does so too while no request is known, or is
 * started for that request.
 */
SEC("uprobe")
int python_copy(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = tls_cookie(ctx), work, request;
	struct runtime_key key = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	struct python_process *process;
	key.id = TLS_RESULT(ctx);
	if (!layout || !key.id || !is_watched(key.tgid))
		return 0;
	process = bpf_map_lookup_elem(&python_process, &key.tgid);
	if (!process) {
		prove_contexts(key.tgid, key.id, layout >> PYTHON_THREAD_AT & PYTHON_OFFSET_MASK);
		process = bpf_map_lookup_elem(&python_process, &key.tgid);
		if (!process)
			return 0;
	}
	work = work_of(key.tgid, entered_context(process));
	if (work & WORKS_FOR_CONNECTION) {
		request = request_of(key.tgid, work);
		work = request ? request : work;
	} else if (work) {
		if (work >> CONTEXT_COPIED_BIT)
			work |= 1ULL << CAUSE_STARTED_BIT;
		work |= 1ULL << CONTEXT_COPIED_BIT;
	} else {
		work = take_accepted(key.tgid);
	}
	if (work)
		bpf_map_update_elem(&goroutine, &key, &work, BPF_ANY);
	return 0;
}

/*
 * uvloop is about to enter the context in the first argument. It reads outside of all contexts, and enters that of the
 * connection with what it has read: so that one works for the request that was read, until it is entered with something
 * else. Contexts of tasks keep what they work for.
 */
SEC("uprobe")
int python_enter(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 id = bpf_get_current_pid_tgid(), exchange, work;
	struct runtime_key key = { .tgid = id >> 32 };
	struct thread_state *state;
	u32 tid = id;
	key.id = TLS_ARGUMENT_1(ctx);
	if (!key.id || !is_watched(key.tgid))
		return 0;
	exchange = take_last_read();
	if (exchange & READ_STREAMS)
		exchange = 0;
	state = bpf_map_lookup_elem(&thread, &tid);
	if (state)
		state->accepted = THREAD_ENTERS;
	work = work_of(key.tgid, key.id);
	if (work & WORKS_FOR_CONNECTION || work >> CONTEXT_COPIED_BIT)
		return 0;
	if (exchange)
		bpf_map_update_elem(&goroutine, &key, &exchange, BPF_ANY);
	else if (work)
		bpf_map_delete_elem(&goroutine, &key);
	return 0;
}

/* A context is about to be freed, and its memory to be used for another. */
SEC("uprobe")
int python_free(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct runtime_key key = { .id = TLS_ARGUMENT_1(ctx), .tgid = bpf_get_current_pid_tgid() >> 32 };
	bpf_map_delete_elem(&goroutine, &key);
	return 0;
}

enum {
	/* Words of a thread's state in which its descriptor has been, from 3.11 to 3.14, and its chunk of frames. */
	THREAD_FIRST = 0x60,
	THREAD_LAST = 0x100,
	CHUNK_FIRST = 0xa0,
	CHUNK_LAST = 0x200,
};

/* The search for greenlets. */
struct greenlet_search {
	struct greenlet_process found;
	u64 base;
	u64 state; /* that is looked through */
	u32 n_found;
};

static long look_for_thread(u32 index, struct greenlet_search *search)
{
	u32 at = THREAD_FIRST + 8 * index;
	if (word_of(search->state, at) != search->base)
		return 0;
	search->found.thread_id = at;
	return 1;
}

/* Where frames are put: a chunk, what of it is in use, and its end, which the chunk's own length must lead to. */
static long look_for_chunk(u32 index, struct greenlet_search *search)
{
	u32 at = CHUNK_FIRST + 8 * index;
	u64 room[3];
	struct frame_chunk chunk;
	if (bpf_probe_read_user(room, sizeof(room), (void *)(search->state + at)))
		return 1;
	if (!room[0] || room[0] % CHUNK_UNIT || room[1] <= room[0] || room[1] > room[2])
		return 0;
	if (bpf_probe_read_user(&chunk, sizeof(chunk), (void *)room[0]))
		return 0;
	if (!chunk.bytes || chunk.bytes % CHUNK_UNIT || room[0] + chunk.bytes != room[2])
		return 0;
	search->found.chunk = at;
	search->n_found++;
	return 0;
}

static long look_at_slot(u32 key, struct greenlet_search *search)
{
	u32 slot = FIRST_KEY + 16 * key + 8;
	search->state = word_of(search->base + slot, 0);
	if (!search->state || search->state & 7)
		return 0;
	search->found.thread_id = 0;
	bpf_loop((THREAD_LAST - THREAD_FIRST) / 8 + 1, look_for_thread, search, 0);
	if (!search->found.thread_id)
		return 0;
	search->n_found = 0;
	bpf_loop((CHUNK_LAST - CHUNK_FIRST) / 8 + 1, look_for_chunk, search, 0);
	if (search->n_found != 1)
		return 0;
	search->found.slot = slot;
	return 1;
}

/* A greenlet is made, by Python's code: so the thread has a state with frames. How is it found? */
SEC("uprobe")
int python_greenlet(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct greenlet_search search = {};
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	if (!is_watched(tgid) || bpf_map_lookup_elem(&greenlet_process, &tgid))
		return 0;
	search.base = thread_pointer();
	bpf_loop(KEYS, look_at_slot, &search, 0);
	/* For good: what was not to be proven once would be asked for with every greenlet. */
	bpf_map_update_elem(&greenlet_process, &tgid, &search.found, BPF_NOEXIST);
	*(volatile u32 *)&global.follows_greenlets = 1;
	return 0;
}

#endif

#endif
