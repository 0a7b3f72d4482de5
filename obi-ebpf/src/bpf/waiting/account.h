/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The account of the current thread: opened with the request that it serves, reported at that request's end.
 *
 * It lies with the thread (task storage), since the scheduler's hooks look for one at every switch of the machine, and
 * a look that finds none must cost next to nothing; a hash would take twice as long. That storage came with 5.11, and
 * the portable objects, which older kernels take, go without: their verifier has no room for more either.
 */
#ifndef OBI_ACCOUNT_H
#define OBI_ACCOUNT_H

#include "core/emit.h"
#include "waiting/times.h"

#if defined(OBI_PORTABLE) || defined(OBI_HOST)

static __always_inline void open_account(const struct connection *k, u64 exchange, u64 time)
{
}

static __always_inline void mark_account(const struct connection *k, u64 exchange, u64 time)
{
}

static __always_inline u32 tell_times(const struct connection *k, u64 exchange, u64 time)
{
	return 0;
}

#else

#include "waiting/account_map.h"

static __always_inline bool keeps_accounts(const struct connection *k)
{
	return *(volatile u32 *)&global.keeps_accounts && k->side == SIDE_SERVER;
}

/* The current thread has read the head of a request at `time`. */
APART void open_account(const struct connection *k, u64 exchange, u64 time)
{
	struct account *a;
	if (!keeps_accounts(k))
		return;
	a = bpf_task_storage_get(&account, bpf_get_current_task_btf(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (a)
		times_begin(a, exchange, time);
	else
		tally_add(k->tgid, TALLY_TIMES_LOST << 8 | TIMES_NO_ACCOUNT, 1);
}

/* A byte of the answer to `exchange` has passed at `time`: the last one, if the connection closes behind it. */
APART void mark_account(const struct connection *k, u64 exchange, u64 time)
{
	struct account *a;
	if (!keeps_accounts(k) || k->owner != (u32)bpf_get_current_pid_tgid())
		return;
	a = bpf_task_storage_get(&account, bpf_get_current_task_btf(), NULL, 0);
	if (a && a->exchange == exchange)
		times_mark(a, time);
}

/*
 * The last byte of the answer to `exchange` has passed at `time`. Returns FLAG_TIMES when the agent gets a times_event:
 * where the thread that has read the request has also ended it. Of others nothing is known: 0. Below 0: why it was
 * lost.
 */
APART int end_account(const struct connection *k, u64 exchange, u64 time)
{
	struct times_event *event;
	struct account *a;
	if (!keeps_accounts(k) || k->owner != (u32)bpf_get_current_pid_tgid())
		return 0;
	a = bpf_task_storage_get(&account, bpf_get_current_task_btf(), NULL, 0);
	if (!a || a->exchange != exchange)
		return 0;
	a->exchange = 0;
	barrier();
	if (!times_end(a, time))
		return -TIMES_LATE;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return -TIMES_RING_FULL;
	fill_header(&event->header, EVENT_TIMES, 0, time, exchange);
	event->header.tgid = k->tgid;
	event->cpu = a->sums.cpu;
	event->runqueue = a->sums.runqueue;
	__builtin_memcpy(event->blocked, a->sums.blocked, sizeof(event->blocked));
	event->switches = a->sums.switches;
	event->pad = 0;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return FLAG_TIMES;
}

/* The same; what is lost is counted here, where fewer functions call each other. Returns FLAG_TIMES or 0. */
static __always_inline u32 tell_times(const struct connection *k, u64 exchange, u64 time)
{
	int reported = end_account(k, exchange, time);
	if (reported >= 0)
		return reported;
	tally_add(k->tgid, TALLY_TIMES_LOST << 8 | (u32)-reported, 1);
	return 0;
}

#endif

#endif
