/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Pieces of heads where every call is verified anew: read and scanned in scratch
 * memory, in one place, whether or not the ring has room; then copied.
 *
 * The scratch memory is per CPU and has an owner: a program that is preempted, or
 * interrupted, keeps its own, and the program that runs then takes the next.
 */
#ifndef OBI_PIECE_PORTABLE_H
#define OBI_PIECE_PORTABLE_H

#include "protocol/http1/head.h"

enum { SCRATCH_MOST = 4 };

struct scratch {
	u64 users;
	struct small_record record;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SCRATCH_MOST);
	__type(key, u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

/*
 * Additions that return what was there came with 5.12, and are not needed: programs that
 * share a CPU do not run at the same time, so a program that reads 1 after adding 1 is alone.
 */
static __always_inline struct scratch *take_scratch(void)
{
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < SCRATCH_MOST; i++) {
		u32 index = i;
		struct scratch *memory = bpf_map_lookup_elem(&scratch, &index);
		if (!memory)
			return NULL;
		__sync_fetch_and_add(&memory->users, 1);
		if (*(volatile u64 *)&memory->users == 1)
			return memory;
		__sync_fetch_and_add(&memory->users, -1);
	}
	return NULL;
}

static __always_inline void small_piece(struct connection *k, struct segment *s, struct sock *sk)
{
	struct scratch *memory = take_scratch();
	struct small_record *r;
	s32 n;
	(void)sk;
	if (!memory) {
		come_to(s, OUTCOME_LOST, LOSS_NO_STATE);
		return;
	}
	n = read_piece(k, s, &memory->record.head, SMALL_PIECE_BYTES);
	barrier();
	if (n < 0)
		goto out;
	r = bpf_ringbuf_reserve(&events, sizeof(*r), 0);
	/* Asked once: the verifier of 5.10 forgets that a record in hand is not NULL. */
	if (!r) {
		s->sendable = 0;
		finish_piece(k, s, &memory->record.head, n);
		goto out;
	}
	s->sendable = 1;
	if (finish_piece(k, s, &memory->record.head, n)) {
		bpf_probe_read_kernel(r, sizeof(*r), &memory->record);
		bpf_ringbuf_submit(r, r->head.message == MESSAGE_REQUEST ? wakeup_flag() : BPF_RB_NO_WAKEUP);
	} else {
		bpf_ringbuf_discard(r, wakeup_flag()); /* discarded room is only freed by reading past it */
	}
out:
	__sync_fetch_and_add(&memory->users, -1);
}

/* One size only: what is verified at every call is to be short. */
static __always_inline bool is_large(const struct cursor *c, const struct segment *s)
{
	(void)c, (void)s;
	return false;
}

static __always_inline bool large_piece(struct connection *k, struct segment *s)
{
	(void)k, (void)s;
	return false;
}

#endif
