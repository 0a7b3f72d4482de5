/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The walk along a segment in a program of its own, reached by tail call, which calls
 * itself for more: below 5.17 there is no loop that the verifier goes through once.
 * The hooks' own programs stay small, and the walk is verified once per object.
 * Tail calls go on 33 times: longer walks are cut off, and what is left counts as lost.
 */
#ifndef OBI_WALK_PORTABLE_H
#define OBI_WALK_PORTABLE_H

enum { STEPS_PER_PROGRAM = 3 };

#ifdef OBI_HOST
/* The harness goes on instead. */
#define GO_ON(context)				\
	do {					\
		if (host_tail_call())		\
			return 0;		\
	} while (0)
#else
#define GO_ON(context) bpf_tail_call(context, &walks, 0)
#endif

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} walks SEC(".maps");

/* By thread: it can neither be in two walks, nor meet another's. */
static __always_inline bool remember_walk(const struct walk *walk)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	struct thread_state fresh = { .walk = (u64)walk->sk, .sending = walk->segment->sending };
	if (state) {
		state->walk = fresh.walk;
		state->sending = fresh.sending;
	} else if (bpf_map_update_elem(&thread, &tid, &fresh, BPF_ANY)) {
		return false;
	}
	return true;
}

static __always_inline int capture(struct walk *walk)
{
	begin_walk(walk);
	if (remember_walk(walk))
		GO_ON(walk->context);
	/* Only a call that failed comes back. */
	come_to(walk->segment, OUTCOME_LOST, LOSS_STEPS);
	settle(walk->connection, walk->segment);
	return 0;
}

/* The body of the program `walk`. */
static __always_inline int walk_on(void *context)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	struct walk walk = { .context = context };
	if (!state || !state->walk)
		return 0;
	walk.sk = (struct sock *)state->walk;
	walk.connection = find_connection(walk.sk);
	if (!walk.connection)
		return 0;
	walk.segment = &walk.connection->segment[state->sending & 1];
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < STEPS_PER_PROGRAM; i++)
		if (step(i, &walk))
			goto out;
	GO_ON(context);
out:
	state->walk = 0;
	end_walk(&walk);
	return 0;
}

#endif
