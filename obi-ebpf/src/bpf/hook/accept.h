/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Which connection a thread is about to make a task for (runtime/context.h): asyncio makes it when it has accepted one,
 * before it accepts another. uvloop accepts them all, and asks each for its address when it goes on with that one.
 * Noted of every program: that it is such a one may show by the very first connection.
 */
#ifndef OBI_ACCEPT_H
#define OBI_ACCEPT_H

#include "core/own_stack.h"
#include "hook/file.h"
#include "hook/wait.h"
#include "runtime/context.h"

#ifdef OBI_GOROUTINES

/* The even part of the first byte's number, of a TCP connection of which nothing has been read; 0: any other socket. */
static __always_inline u32 first_number(struct sock *sk)
{
	u16 family;
	if (!sk)
		return 0;
	family = READ(sk, __sk_common.skc_family);
	if ((family != FAMILY_INET && family != FAMILY_INET6) || READ(sk, sk_protocol) != PROTOCOL_TCP)
		return 0;
	return READ((struct tcp_sock *)sk, copied_seq) & ~THREAD_ENTERS;
}

static __always_inline int serves_next(s64 descriptor, bool is_asked)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id, tgid = id >> 32, first;
	struct thread_state *state, fresh = {};
	if (!is_watched(tgid))
		return 0;
	state = bpf_map_lookup_elem(&thread, &tid);
	if (state ? (state->accepted & THREAD_ENTERS) != is_asked : is_asked)
		return 0;
	first = descriptor < 0 ? 0 : first_number(socket_of(file_of(descriptor)));
	if (state) {
		state->accepted = first | is_asked;
		return 0;
	}
	/* It has waited since before the agent. */
	fresh.accepted = first;
	if (first && bpf_map_update_elem(&thread, &tid, &fresh, BPF_ANY))
		tally_add(tgid, TALLY_THREAD_FULL << 8, 1);
	return 0;
}

/* As /sys/kernel/tracing/events/syscalls/sys_exit_accept4/format has it. */
struct accept_done {
	u64 common;
	u64 number;
	s64 result;
};

#define ACCEPTS(name)					\
	SEC("tracepoint/syscalls/" #name)		\
	int name(struct accept_done *context)		\
	{						\
		OWN_STACK(context);			\
		return serves_next(context->result, false); \
	}

ACCEPTS(sys_exit_accept)
ACCEPTS(sys_exit_accept4)

SEC("tracepoint/syscalls/sys_enter_getpeername")
int sys_enter_getpeername(struct call_begun *context)
{
	OWN_STACK(context);
	return serves_next(context->argument[0], true);
}

#endif

#endif
