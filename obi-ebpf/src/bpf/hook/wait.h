/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Which threads wait for many things at once. Such a thread may go on with any of them: what it read last says nothing
 * of what it does next. Who polls up to three descriptors blocks in all but name: runtimes do so for time-outs.
 */
#ifndef OBI_WAIT_H
#define OBI_WAIT_H

#include "core/own_stack.h"
#include "core/stream.h"
#include "runtime/greenlet.h"

/* As /sys/kernel/tracing/events/{syscalls,raw_syscalls}/…/format has it. */
struct call_begun {
	u64 common;
	u64 number;
	u64 argument[6];
};

enum { FEW_DESCRIPTORS = 3, SELECT_WORDS = 16 };

static __always_inline int waits_for_many(void)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id;
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	note_loop();
	if (state) {
		state->flags |= CAUSE_WAITS_MANY;
#ifndef OBI_PORTABLE
		state->read = 0;
		state->accepted &= THREAD_ENTERS;
#endif
		return 0;
	}
	if (!is_watched(id >> 32))
		return 0;
	struct thread_state fresh = { .flags = CAUSE_WAITS_MANY };
	if (bpf_map_update_elem(&thread, &tid, &fresh, BPF_ANY))
		tally_add(id >> 32, TALLY_THREAD_FULL << 8, 1);
	return 0;
}

static __always_inline u32 ones(u64 word)
{
	word -= word >> 1 & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) + (word >> 2 & 0x3333333333333333ULL);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return word * 0x0101010101010101ULL >> 56;
}

/* The word of a set that begins `at` bytes into it. */
static __always_inline u64 set_word(u64 set, u32 at)
{
	u64 word = 0;
	if (set)
		bpf_probe_read_user(&word, sizeof(word), (void *)(set + at));
	return word;
}

/* Descriptors in the sets to read from and to write to; those above 1023 count as many. */
static __always_inline bool selects_many(u64 n, u64 readable, u64 writable)
{
	u32 found = 0;
	if (n > SELECT_WORDS * 64)
		return true;
	for (u32 i = 0; i < SELECT_WORDS && i * 64 < n; i++)
		found += ones(set_word(readable, 8 * i) | set_word(writable, 8 * i));
	return found > FEW_DESCRIPTORS;
}

/*
 * How many descriptors are in the set is not said. What takes one event at a time has one descriptor in it, or goes on
 * with that event alone; loops take all that there are.
 */
#define EPOLL_WAITS(name)				\
	SEC("tracepoint/syscalls/" #name)		\
	int name(struct call_begun *context)		\
	{						\
		OWN_STACK(context);			\
		return context->argument[2] > 1 ? waits_for_many() : 0; \
	}

EPOLL_WAITS(sys_enter_epoll_wait)
EPOLL_WAITS(sys_enter_epoll_pwait)
EPOLL_WAITS(sys_enter_epoll_pwait2)

SEC("tracepoint/syscalls/sys_enter_io_uring_enter")
int sys_enter_io_uring_enter(struct call_begun *context)
{
	OWN_STACK(context);
	return context->argument[2] ? waits_for_many() : 0; /* completions to wait for */
}

#define POLLS(name)					\
	SEC("tracepoint/syscalls/" #name)		\
	int name(struct call_begun *context)		\
	{						\
		OWN_STACK(context);			\
		return context->argument[1] > FEW_DESCRIPTORS ? waits_for_many() : 0; \
	}

POLLS(sys_enter_poll)
POLLS(sys_enter_ppoll)

#define SELECTS(name)					\
	SEC("tracepoint/syscalls/" #name)		\
	int name(struct call_begun *context)		\
	{						\
		OWN_STACK(context);			\
		if (selects_many(context->argument[0], context->argument[1], context->argument[2])) \
			return waits_for_many();	\
		return 0;				\
	}

SELECTS(sys_enter_select)
SELECTS(sys_enter_pselect6)

#endif
