/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Probes in Go programs that serve and call with net/http: which goroutine is about to read a request, which one starts
 * another, which one uses a connection for a call, and what is about to be written there. The agent proves from the
 * machine code where these are, and where in a goroutine its number is (enum go_layout_bit).
 */
#ifndef OBI_GO_H
#define OBI_GO_H

#include "core/own_stack.h"
#include "runtime/goroutine.h"
#include "tls/tls.h"

#ifdef OBI_GOROUTINES

/* Words below the thread pointer that are looked through for the goroutine; the first without C in the program. */
#if defined(__TARGET_ARCH_x86)
enum { SLOT_BYTES = 8, SLOTS = 8 };
#else
/* There it is in a register: there is nothing to be looked for. */
enum { SLOT_BYTES = 1, SLOTS = 1 };
#endif

/* `goroutine` is the running one. Is it where this process keeps them, and if that is not known, where is that? */
static __always_inline void prove_slot(u32 tgid, u64 goroutine, u32 number_at)
{
	struct go_process *known = bpf_map_lookup_elem(&go_process, &tgid);
	struct go_process fresh = { .number_at = number_at };
	if (known) {
		/* For good: what was right by chance once may be so again. */
		if (known->slot && running_goroutine(known->slot) != goroutine)
			known->slot = 0;
		return;
	}
#pragma clang loop unroll(full)
	for (u32 slot = SLOT_BYTES; slot <= SLOT_BYTES * SLOTS; slot += SLOT_BYTES)
		if (!fresh.slot && running_goroutine(slot) == goroutine)
			fresh.slot = slot;
	bpf_map_update_elem(&go_process, &tgid, &fresh, BPF_NOEXIST);
	*(volatile u32 *)&global.follows_goroutines = 1;
}

static __always_inline u32 number_at(u64 layout)
{
	return layout >> GO_NUMBER_AT & GO_OFFSET_MASK;
}

static __always_inline u32 creator_at(u64 layout)
{
	return layout >> GO_CREATOR_AT & GO_OFFSET_MASK;
}

/*
 * A goroutine that serves a connection is about to read a request. Go waits for the first bytes of all but the first
 * one before, and may have read all of it then: so what is known stays.
 */
SEC("uprobe")
int go_request(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = tls_cookie(ctx), none = 0;
	struct runtime_key key = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	if (!layout || !is_watched(key.tgid))
		return 0;
	key.id = word_of(GO_RUNNING(ctx), number_at(layout));
	if (!key.id)
		return 0;
	prove_slot(key.tgid, GO_RUNNING(ctx), number_at(layout));
	bpf_map_update_elem(&goroutine, &key, &none, BPF_NOEXIST);
	return 0;
}

/*
 * A goroutine has been made, and is about to be given to a thread. It works for what its creator works for now,
 * whatever that does later. The creator is known by the number that the new one keeps of it.
 */
SEC("uprobe")
int go_create(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = tls_cookie(ctx), creator, *bound, exchange;
	struct runtime_key key = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	if (!layout)
		return 0;
	creator = key.id = word_of(GO_ARGUMENT_2(ctx), creator_at(layout));
	bound = creator ? bpf_map_lookup_elem(&goroutine, &key) : NULL;
	exchange = bound ? *bound : 0;
	if (!exchange)
		return 0;
	if (exchange >> GOROUTINE_HANDS_OVER_BIT & 1)
		exchange &= ~(1ULL << GOROUTINE_HANDS_OVER_BIT);
	else
		exchange = (exchange | 1ULL << CAUSE_STARTED_BIT) & ~(1ULL << GOROUTINE_SENDS_BIT);
	key.id = word_of(GO_ARGUMENT_2(ctx), number_at(layout));
	if (key.id && key.id != creator)
		bpf_map_update_elem(&goroutine, &key, &exchange, BPF_ANY);
	return 0;
}

/* This goroutine's call goes by this connection: until the next one, what is sent there is sent for it. */
SEC("uprobe")
int go_call(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = tls_cookie(ctx), *bound, exchange;
	struct runtime_key key = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	if (!layout || !is_watched(key.tgid))
		return 0;
	key.id = word_of(GO_RUNNING(ctx), number_at(layout));
	bound = bpf_map_lookup_elem(&goroutine, &key);
	exchange = bound ? *bound : 0;
	key.id = GO_ARGUMENT_1(ctx);
	bpf_map_update_elem(&goroutine_connection, &key, &exchange, BPF_ANY);
	return 0;
}

/*
 * A connection is about to be written to, by a goroutine of its own. What this thread sends next is that, if it lies in
 * the same place; the goroutine may have gone to another thread by then, whose next words are its own.
 */
SEC("uprobe")
int go_write(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 id = bpf_get_current_pid_tgid(), *used_for;
	struct runtime_key key = { .id = GO_ARGUMENT_1(ctx), .tgid = id >> 32 };
	struct thread_state *state, fresh = {};
	u32 tid = id;
	used_for = bpf_map_lookup_elem(&goroutine_connection, &key);
	if (!used_for)
		return 0;
	state = bpf_map_lookup_elem(&thread, &tid);
	if (state) {
		state->bound = *used_for;
		state->buffer = GO_ARGUMENT_2(ctx);
		return 0;
	}
	fresh.bound = *used_for;
	fresh.buffer = GO_ARGUMENT_2(ctx);
	if (bpf_map_update_elem(&thread, &tid, &fresh, BPF_ANY))
		tally_add(key.tgid, TALLY_THREAD_FULL << 8, 1);
	return 0;
}

#endif

#endif
