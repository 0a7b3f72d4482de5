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

/* Where the time has gone. */
struct time_sums {
	u64 cpu;
	u64 runqueue;
	u64 blocked[WAIT_REASONS];
	u32 switches; /* times that it left a CPU */
	u32 pad;
};

/* Of one thread. `exchange` is set last and cleared first: a scheduler's hook may come in between, and does nothing then. */
struct account {
	u64 exchange; /* 0: nothing is booked */
	u64 since;    /* when the phase began */
	struct time_sums sums;
	/* The newest phases, should the request turn out to have ended before them: */
	u64 last_cpu;
	u64 last_blocked;
	u64 last_runqueue;
	u32 phase;
	u32 reason; /* enum wait_reason, of the newest wait */
	/* Of the newest wait, set by those who sample it (profile/waits.bpf.c): */
	u32 drawn;  /* 1: whether it is sampled has been decided */
	u64 weight; /* and this is what it stands for; 0: it is not */
	u32 pad;
	u32 is_marked;
	u64 marked_at; /* the sums up to here, see times_mark() */
	struct time_sums marked;
};

static __always_inline void times_begin(struct account *a, u64 exchange, u64 now)
{
	a->exchange = 0;
	barrier();
	a->since = now;
	__builtin_memset(&a->sums, 0, sizeof(a->sums));
	a->last_cpu = 0;
	a->last_blocked = 0;
	a->last_runqueue = 0;
	a->phase = PHASE_RUNS;
	a->reason = WAIT_OTHER;
	a->is_marked = 0;
	barrier();
	a->exchange = exchange;
}

/* It leaves the CPU: still wanting one (PHASE_READY), or to wait for something (PHASE_BLOCKED). */
static __always_inline void times_leave(struct account *a, u64 now, u32 phase, u32 reason)
{
	u64 d = now - a->since;
	a->sums.cpu += d;
	a->last_cpu = d;
	a->last_blocked = 0;
	a->last_runqueue = 0;
	a->since = now;
	a->phase = phase;
	a->reason = reason;
	a->drawn = 0;
	a->sums.switches++;
}

/* What it waited for has come. */
static __always_inline void times_wake(struct account *a, u64 now)
{
	u64 d = now - a->since;
	u32 reason = a->reason;
	if (a->phase != PHASE_BLOCKED)
		return;
	if (reason < WAIT_REASONS)
		a->sums.blocked[reason] += d;
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
		a->sums.runqueue += d;
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
 * Brings the sums to `end`, which the thread sees from a CPU. That may be a while later: the thread can have left the
 * CPU in between. What was booked behind the end is taken back, newest first. Returns false where it lies further back
 * than the newest phases reach.
 */
static __always_inline bool times_settle(const struct account *a, struct time_sums *sums, u64 end)
{
	u64 excess;
	u32 reason = a->reason;
	if (end >= a->since) {
		sums->cpu += end - a->since;
		return true;
	}
	excess = a->since - end;
	take_back(&sums->runqueue, a->last_runqueue, &excess);
	if (reason < WAIT_REASONS)
		take_back(&sums->blocked[reason], a->last_blocked, &excess);
	take_back(&sums->cpu, a->last_cpu, &excess);
	return !excess;
}

/*
 * The request may turn out to have ended at `now`: an answer without a length ends with its last byte, and only the
 * close says which one it was. The thread may do whatever it likes until then. A switch in the middle of this spoils
 * the mark; then the newest phases decide.
 */
static __always_inline void times_mark(struct account *a, u64 now)
{
	u32 switches = *(volatile u32 *)&a->sums.switches;
	a->is_marked = 0;
	barrier();
	a->marked = a->sums;
	a->marked_at = now;
	if (!times_settle(a, &a->marked, now))
		return;
	barrier();
	a->is_marked = *(volatile u32 *)&a->sums.switches == switches;
}

/* The request has ended at `end`. Returns whether the sums are those up to there. */
static __always_inline bool times_end(struct account *a, u64 end)
{
	if (a->is_marked && a->marked_at == end) {
		a->sums = a->marked;
		return true;
	}
	return times_settle(a, &a->sums, end);
}

#endif
