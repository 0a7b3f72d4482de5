// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/* The accounts of threads, the reasons of waits and which of them are sampled, for tests: no kernel is needed. */
#include "waiting/draw.h"
#include "waiting/reason.h"
#include "waiting/times.h"

u32 host_account_bytes(void)
{
	return sizeof(struct account);
}

void host_times_begin(struct account *a, u64 exchange, u64 now)
{
	times_begin(a, exchange, now);
}

void host_times_leave(struct account *a, u64 now, u32 phase, u32 reason)
{
	times_leave(a, now, phase, reason);
}

void host_times_wake(struct account *a, u64 now)
{
	times_wake(a, now);
}

void host_times_enter(struct account *a, u64 now)
{
	times_enter(a, now);
}

void host_times_mark(struct account *a, u64 now)
{
	times_mark(a, now);
}

/* 1: the sums are those up to `end`. Then `out` is CPU, run queue, and blocked by reason. */
u32 host_times_end(struct account *a, u64 end, u64 *out)
{
	bool known = times_end(a, end);
	*out++ = a->sums.cpu;
	*out++ = a->sums.runqueue;
	for (u32 reason = 0; reason < WAIT_REASONS; reason++)
		*out++ = a->sums.blocked[reason];
	return known;
}

u32 host_reason_of_call(u32 number, u64 first, u64 second, u64 third)
{
	struct call_arguments said = { first, second, third };
	return reason_of_call(number, &said);
}

u64 host_draw(u64 length, u64 threshold, u32 chance)
{
	return draw(length, threshold, chance);
}
