/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The request that a thread has read last, for programs whose own objects say what it becomes: who takes it, does so
 * before the thread reads or waits again. Only whole ones: what came in pieces has been taken already. Of HTTP/2 one
 * read may have brought several requests: then it is the connection, and who takes it knows which stream it is about.
 *
 * Not in the portable objects, for the reasons that runtime/goroutine.h has.
 */
#ifndef OBI_LAST_READ_H
#define OBI_LAST_READ_H

#include "runtime/goroutine.h"

#ifdef OBI_GOROUTINES

/* Of exchange 0 of a connection: streams of it have been read. */
#define READ_STREAMS (1ULL << 63)

/* The current thread has read this request and nothing behind it, or (0) something else. */
static __always_inline void note_read(u64 exchange)
{
	struct thread_state *state;
	u32 tid;
	/* First of all: on most machines no program asks, and this is asked at each receive. */
	if (!*(volatile u32 *)&global.follows_reads)
		return;
	tid = bpf_get_current_pid_tgid();
	state = bpf_map_lookup_elem(&thread, &tid);
	if (state)
		state->read = exchange;
}

/* What it is, for one that takes it; 0: not known. Streams stay for those that take others of them. */
static __always_inline u64 take_last_read(void)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	u64 exchange = state ? state->read : 0;
	if (state && !(exchange & READ_STREAMS))
		state->read = 0;
	*(volatile u32 *)&global.follows_reads = 1;
	return exchange;
}

#else
#define READ_STREAMS 0

static __always_inline void note_read(u64 exchange)
{
	(void)exchange;
}
#endif

#endif
