/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Samples of waits: when a thread that serves a request has a CPU again, the stacks of the kernel and of the user that
 * it has waited in; and where another thread has ended the wait, the stacks of that one. Loaded beside a hook set that
 * keeps accounts (waiting/schedule.h), which know how long the wait was and what for, and beside the sampler of what
 * runs (profile.bpf.c), whose text and whose maps it has.
 *
 * The walk must be that of the thread itself, which has its memory at hand only while it runs. So it comes right behind
 * the switch, at the end of schedule(): a tracepoint since 6.15, before a probe at the function that ends a switch.
 */
#define OBI_BESIDE
#include "profile/profile.bpf.c"
#include "waiting/account_map.h"
#include "waiting/draw.h"
#include "waiting/reason.h"

#include <bpf/bpf_tracing.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct wait_setting);
} wait_setting SEC(".maps");

/*
 * 1: the memory of this CPU is in use. Programs here run with preemption disabled, but an interrupt may come in between
 * and wake a thread. Then that thread's releaser is not recorded, but counted.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} in_use SEC(".maps");

#if defined(__TARGET_ARCH_x86)
enum { CALL_FUTEX = 202 };
#define CALL_OF(registers) ((u32)READ(registers, orig_ax))
#define FIRST_OF(registers) READ(registers, di)
#define SECOND_OF(registers) READ(registers, si)
#elif defined(__TARGET_ARCH_arm64)
enum { CALL_FUTEX = 98 };
#define CALL_OF(registers) ((u32)READ(registers, syscallno))
#define FIRST_OF(registers) READ(registers, orig_x0)
#define SECOND_OF(registers) READ(registers, regs[1])
#endif
enum {
	CALL_FUTEX_WAKE = 454,
	CALL_FUTEX_WAIT = 455,
	/* One by number: FUTEX_WAKE, FUTEX_WAKE_OP, FUTEX_UNLOCK_PI, FUTEX_WAKE_BITSET. */
	FUTEX_WAKES = 1 << 1 | 1 << 5 | 1 << 7 | 1 << 10,
};

static __always_inline const struct pt_regs *call_of(struct task_struct *task)
{
	return (const struct pt_regs *)bpf_task_pt_regs(task);
}

/* Address of the futex that a thread waits at or wakes; 0: it does neither. */
static __always_inline u64 futex_of(struct task_struct *task, bool wakes)
{
	const struct pt_regs *registers = call_of(task);
	u32 call = CALL_OF(registers);
	if (call == (wakes ? CALL_FUTEX_WAKE : CALL_FUTEX_WAIT))
		return FIRST_OF(registers);
	if (call != CALL_FUTEX)
		return 0;
	if (wakes && !(FUTEX_WAKES >> (SECOND_OF(registers) & FUTEX_OPERATION & 31) & 1))
		return 0;
	return FIRST_OF(registers);
}

static __always_inline u64 draw_of(const struct account *a)
{
	u32 zero = 0;
	struct wait_setting *setting = bpf_map_lookup_elem(&wait_setting, &zero);
	return setting ? draw(a->last_blocked, setting->threshold, bpf_get_prandom_u32()) : 0;
}

/* A sample of the current thread about the wait of account `a`; left out and counted where another is in the making. */
static __always_inline void sample_wait(void *ctx, const struct account *a, u32 kind, u64 object, u64 exchange)
{
	u32 zero = 0, *busy = bpf_map_lookup_elem(&in_use, &zero);
	struct sample *s = sample_in_hand(zero);
	long bytes;
	if (!busy || !s)
		return;
	if (*busy) {
		count(PROFILE_BUSY);
		return;
	}
	*busy = 1;
	barrier();
	begin_event(s, exchange, kind, a->weight);
	s->event.header.flags = a->reason;
	s->event.object = object;
	bytes = bpf_get_stack(ctx, s->address, STACK_FRAMES_KERNEL * 8, 0);
	s->n_addresses = s->event.n_kernel = bytes > 0 ? bytes / 8 : 0;
	if (begin_stack(s, take_saved_registers(&s->walk)))
		bpf_loop(STACK_FRAMES_USER / FRAMES_PER_CALL, step, NULL, 0);
	tell(s);
	barrier();
	*busy = 0;
}

/* The current thread has a CPU again. */
static __always_inline int end_wait(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct account *a = bpf_task_storage_get(&account, task, NULL, 0);
	struct thread_state *state;
	u32 tid;
	if (!a || !a->exchange || !a->last_blocked)
		return 0;
	if (!a->drawn) {
		a->drawn = 1;
		a->weight = draw_of(a);
	}
	if (!a->weight)
		return 0;
	/* As of samples of what runs: another thread may have answered, and this one be idle. */
	tid = task->pid;
	state = bpf_map_lookup_elem(&thread, &tid);
	if (!state || !state->exchange || !(state->flags & CAUSE_SERVES))
		return 0;
	sample_wait(ctx, a, SAMPLE_OFF_CPU, is_for_thread(a->reason) ? futex_of(task, false) : 0, state->exchange);
	return 0;
}

/* Behind a switch, on the thread that has got the CPU; also where there was none (`is_switch` is false). */
SEC("tp_btf/sched_exit_tp")
int BPF_PROG(wait_ended, bool is_switch)
{
	return is_switch ? end_wait(ctx) : 0;
}

/* The same where there is no such tracepoint, with the run queue still locked. The agent knows the function's name. */
SEC("kprobe/finish_task_switch")
int wait_ended_early(struct pt_regs *ctx)
{
	return end_wait(ctx);
}

/*
 * By tail call of a hook set's `sched_waking`: `task`, which has waited for another thread, is woken. If it is the
 * current thread that does it, by a call on the same futex: its stack. An interrupt that ends a wait by its time limit
 * comes to any thread, which then is in another call.
 */
SEC("tp_btf/sched_waking")
int BPF_PROG(wait_released, struct task_struct *task)
{
	struct account *a = bpf_task_storage_get(&account, task, NULL, 0);
	struct task_struct *releaser = bpf_get_current_task_btf();
	struct thread_state *state;
	u32 tid;
	u64 futex;
	if (!a || a->drawn)
		return 0;
	a->drawn = 1;
	a->weight = draw_of(a);
	if (!a->weight || task->tgid != releaser->tgid)
		return 0;
	futex = futex_of(releaser, true);
	if (!futex || futex != futex_of(task, false))
		return 0;
	tid = releaser->pid;
	state = bpf_map_lookup_elem(&thread, &tid);
	sample_wait(ctx, a, SAMPLE_RELEASE, task->pid, state ? state->exchange : 0);
	return 0;
}
