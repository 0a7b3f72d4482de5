/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The walk along a segment in programs of its own (one for heads, one for frames, one for databases), reached
 * by tail call, which call themselves and each other for more: below 5.17 there is no loop that the verifier goes
 * through once. The hooks' own programs stay small, and the walk is verified once per object. Tail calls go on 33
 * times: longer walks are cut off, and what is left counts as lost.
 */
#ifndef OBI_WALK_PORTABLE_H
#define OBI_WALK_PORTABLE_H

/* As many as the verifier of 5.10 goes through within its million instructions. */
#ifdef OBI_CALL_SET
enum { STEPS_PER_PROGRAM = 3, FRAMES_PER_PROGRAM = 5, MESSAGES_PER_PROGRAM = 3 };
#else
enum { STEPS_PER_PROGRAM = 4, FRAMES_PER_PROGRAM = 5, MESSAGES_PER_PROGRAM = 3 };
#endif

#ifdef OBI_HOST
/* The harness goes on instead. */
#define GO_ON(context, program)			\
	do {					\
		if (host_tail_call(program))	\
			return 0;		\
	} while (0)
#else
#define GO_ON(context, program) bpf_tail_call(context, &walks, program)
#endif

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, WALK_PROGRAMS);
	__type(key, u32);
	__type(value, u32);
} walks SEC(".maps");

/* By thread: it can neither be in two walks, nor meet another's. */
static __always_inline bool remember_walk(const struct walk *walk)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	struct thread_state fresh = { .read = (u64)walk->sk, .sending = walk->segment->sending };
	if (state) {
		state->read = fresh.read;
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
		GO_ON(walk->context, walk_of(walk->connection, walk->segment));
	/* Only a call that failed comes back. */
	come_to(walk->segment, OUTCOME_LOST, LOSS_STEPS);
	settle(walk->connection, walk->segment);
	return 0;
}

/* The walk that this thread is in. */
static __always_inline struct thread_state *recall_walk(struct walk *walk)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	if (!state || !state->read)
		return NULL;
	walk->sk = (struct sock *)state->read;
	walk->connection = find_connection(walk->sk);
	if (!walk->connection)
		return NULL;
	walk->segment = &walk->connection->segment[state->sending & 1];
	return state;
}

/*
 * As many steps as one program takes; `sk` and `program` are constants, as in one_step(). Returns whether the walk is
 * over; if not, it goes on in the program that is next.
 */
static __always_inline bool walk_steps(struct walk *walk, u32 program, struct sock *sk)
{
	const u32 n = program == WALK_HEADS ? STEPS_PER_PROGRAM :
		      program == WALK_FRAMES ? FRAMES_PER_PROGRAM : MESSAGES_PER_PROGRAM;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < n; i++) {
		long over;
		if (walk_of(walk->connection, walk->segment) != program)
			return false;
		over = program == WALK_HEADS ? one_step(walk, sk) :
		       program == WALK_FRAMES ? frame_step(walk) : database_step(walk);
		if (over)
			return true;
	}
	return false;
}

/* The body of the programs `walk`, `walk_frames` and `walk_database`. */
static __always_inline int walk_on(void *context, u32 program)
{
	struct walk walk = { .context = context };
	struct thread_state *state = recall_walk(&walk);
	if (!state)
		return 0;
	if (!walk_steps(&walk, program, walk.sk))
		GO_ON(context, walk_of(walk.connection, walk.segment));
	state->read = 0;
	end_walk(&walk);
	return 0;
}

#endif
