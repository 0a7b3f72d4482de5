/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Probes in CPython: a context is copied, one is freed. Programs without an event loop hardly do either. The cookie
 * says where in a thread's state its descriptor is (enum python_layout_bit); the rest is proven here.
 */
#ifndef OBI_PYTHON_H
#define OBI_PYTHON_H

#include "core/own_stack.h"
#include "runtime/context.h"
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
}

/*
 * A context has been made as a copy of the one that the thread has entered: it works for what that one works for now,
 * whatever that does later. The first copy of the one that has read is the request's own; those that are made in it
 * are of what it has started.
 */
SEC("uprobe")
int python_copy(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = tls_cookie(ctx), *bound, exchange;
	struct runtime_key key = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	u64 copy = ctx->ax;
	struct python_process *process;
	if (!layout || !copy || !is_watched(key.tgid))
		return 0;
	process = bpf_map_lookup_elem(&python_process, &key.tgid);
	if (!process) {
		prove_contexts(key.tgid, copy, layout >> PYTHON_THREAD_AT & PYTHON_OFFSET_MASK);
		return 0;
	}
	key.id = entered_context(process);
	bound = key.id ? bpf_map_lookup_elem(&goroutine, &key) : NULL;
	exchange = bound ? *bound : 0;
	key.id = copy;
	if (!exchange)
		return 0;
	if (exchange >> CONTEXT_COPIED_BIT)
		exchange |= 1ULL << CAUSE_STARTED_BIT;
	exchange |= 1ULL << CONTEXT_COPIED_BIT;
	bpf_map_update_elem(&goroutine, &key, &exchange, BPF_ANY);
	return 0;
}

/* A context is about to be freed, and its memory to be used for another. */
SEC("uprobe")
int python_free(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct runtime_key key = { .id = ctx->di, .tgid = bpf_get_current_pid_tgid() >> 32 };
	bpf_map_delete_elem(&goroutine, &key);
	return 0;
}

#endif

#endif
