/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Where a thread's time goes while it serves a request: pure functions, also compiled for tests on the host.
 *
 * At each moment the thread is in one phase. Whatever ends a phase books the time since the phase began, by one clock.
 * So the sums are the difference of both ends, to the nanosecond, whatever happens in between.
 */
#ifndef OBI_TIMES_H
#define OBI_TIMES_H

#include "core/kernel.h"
#include "event.h"

enum phase {
	PHASE_RUNS = 0,   /* on a CPU */
	PHASE_READY = 1,  /* waits for one */
	PHASE_BLOCKED = 2, /* waits for something else: `reason` */
};

/* Of one thread. `exchange` is set last and cleared first: a scheduler's hook may come in between, and does nothing then. */
struct account {
	u64 exchange; /* 0: nothing is booked */
	u64 since;    /* when the phase began */
	u64 cpu;
	u64 runqueue;
	u64 blocked[WAIT_REASONS];
	/* The newest phases, should the request turn out to have ended before them: */
	u64 last_cpu;
	u64 last_blocked;
	u64 last_runqueue;
	u32 phase;
	u32 reason; /* enum wait_reason, of the newest wait */
	u32 switches; /* times that it left a CPU */
	/* Of the newest wait, set by those who sample it (profile/waits.bpf.c): */
	u32 drawn;  /* 1: whether it is sampled has been decided */
	u64 weight; /* and this is what it stands for; 0: it is not */
};

static __always_inline void times_begin(struct account *a, u64 exchange, u64 now)
{
	a->exchange = 0;
	barrier();
	a->since = now;
	a->cpu = 0;
	a->runqueue = 0;
	__builtin_memset(a->blocked, 0, sizeof(a->blocked));
	a->last_cpu = 0;
	a->last_blocked = 0;
	a->last_runqueue = 0;
	a->phase = PHASE_RUNS;
	a->reason = WAIT_OTHER;
	a->switches = 0;
	barrier();
	a->exchange = exchange;
}

/* It leaves the CPU: still wanting one (PHASE_READY), or to wait for something (PHASE_BLOCKED). */
static __always_inline void times_leave(struct account *a, u64 now, u32 phase, u32 reason)
{
	u64 d = now - a->since;
	a->cpu += d;
	a->last_cpu = d;
	a->last_blocked = 0;
	a->last_runqueue = 0;
	a->since = now;
	a->phase = phase;
	a->reason = reason;
	a->drawn = 0;
	a->switches++;
}

/* What it waited for has come. */
static __always_inline void times_wake(struct account *a, u64 now)
{
	u64 d = now - a->since;
	u32 reason = a->reason;
	if (a->phase != PHASE_BLOCKED)
		return;
	if (reason < WAIT_REASONS)
		a->blocked[reason] += d;
	a->last_blocked = d;
	a->since = now;
	a->phase = PHASE_READY;
}

/* It gets a CPU. Where its waking went unseen, all of the time counts as waiting for what it had asked for. */
static __always_inline void times_enter(struct account *a, u64 now)
{
	u64 d = now - a->since;
	if (a->phase == PHASE_BLOCKED)
		times_wake(a, now);
	else if (a->phase == PHASE_READY) {
		a->runqueue += d;
		a->last_runqueue = d;
	}
	a->since = now;
	a->phase = PHASE_RUNS;
}

/* Takes up to `*excess` away from both. */
static __always_inline void take_back(u64 *sum, u64 last, u64 *excess)
{
	u64 n = *excess < last ? *excess : last;
	*sum -= n;
	*excess -= n;
}

/*
 * The request has ended at `end`, seen by its own thread on a CPU. That may be a while later: the thread can have left
 * the CPU in between. What was booked behind the end is taken back, newest first. Returns false where it lies further
 * back than the newest phases reach.
 */
static __always_inline bool times_end(struct account *a, u64 end)
{
	u64 excess;
	u32 reason = a->reason;
	if (end >= a->since) {
		a->cpu += end - a->since;
		return true;
	}
	excess = a->since - end;
	take_back(&a->runqueue, a->last_runqueue, &excess);
	if (reason < WAIT_REASONS)
		take_back(&a->blocked[reason], a->last_blocked, &excess);
	take_back(&a->cpu, a->last_cpu, &excess);
	return !excess;
}

#endif
