/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Hooks in the scheduler: they keep the accounts of threads that serve requests.
 *
 * They run at every switch and every wake-up of the machine, with a run queue locked: nothing here allocates, waits or
 * sends. A thread that has no account costs one look; one that has, but serves nothing now, two loads more.
 */
#ifndef OBI_SCHEDULE_H
#define OBI_SCHEDULE_H

#ifndef OBI_PORTABLE

#include "hook/call.h"
#include "waiting/account.h"
#include "waiting/reason.h"

enum {
	TASK_IS_RUNNING = 0, /* TASK_RUNNING */
	TASK_IS_WAKING = 0x200, /* TASK_WAKING: another CPU is about to queue it */
};

/*
 * What goes on where a thread is woken that has waited for another one: a program of profile/waits.bpf.c, if waits are
 * sampled. By tail call, so that all other wake-ups cost nothing more.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} release SEC(".maps");

static __always_inline bool is_socket(struct task_struct *task, u32 fd)
{
	struct fdtable *table = READ(task, files, fdt);
	struct file *file = NULL;
	if (fd >= READ(table, max_fds))
		return false;
	bpf_probe_read_kernel(&file, sizeof(file), READ(table, fd) + fd);
	return file && (READ(file, f_inode, i_mode) & MODE_KIND) == MODE_SOCKET;
}

/* What the thread, which is leaving its CPU, is going to wait for. */
static __always_inline u32 reason_of(struct task_struct *task)
{
	struct pt_regs *regs;
	struct call_arguments said;
	u32 reason;
	if (BPF_CORE_READ_BITFIELD(task, in_iowait))
		return WAIT_DISK;
	if (IS_FOREIGN(&task->thread_info))
		return WAIT_OTHER; /* its numbers mean other calls */
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	said = (struct call_arguments){ ARGUMENT_1(regs), ARGUMENT_2(regs), ARGUMENT_3(regs) };
	reason = reason_of_call(CALL_NUMBER(regs), &said);
	if (reason != BY_DESCRIPTOR)
		return reason;
	return is_socket(task, said.first) ? WAIT_NETWORK : WAIT_FILE;
}

/*
 * `__state` rather than the argument that newer kernels hand over: where the waker was faster than the switch, it says
 * so already (TASK_WAKING), and its tracepoint has passed.
 */
static __always_inline void leave_cpu(struct account *a, struct task_struct *task, bool preempted, u64 now)
{
	u32 state = TASK_IS_RUNNING;
	/* Before 5.14 it has another name; there this object is looked at, and not loaded. */
	if (bpf_core_field_exists(task->__state))
		state = task->__state;
	if (preempted || state == TASK_IS_RUNNING || state == TASK_IS_WAKING)
		times_leave(a, now, PHASE_READY, WAIT_OTHER);
	else
		times_leave(a, now, PHASE_BLOCKED, reason_of(task));
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct account *out = bpf_task_storage_get(&account, prev, NULL, 0);
	struct account *in = bpf_task_storage_get(&account, next, NULL, 0);
	u64 now;
	bool leaves = out && out->exchange, enters = in && in->exchange;
	if (!leaves && !enters)
		return 0;
	now = bpf_ktime_get_ns();
	if (out && leaves)
		leave_cpu(out, prev, preempt, now);
	if (in && enters)
		times_enter(in, now);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(sched_waking, struct task_struct *task)
{
	struct account *a = bpf_task_storage_get(&account, task, NULL, 0);
	if (!a || !a->exchange || a->phase != PHASE_BLOCKED)
		return 0;
	times_wake(a, bpf_ktime_get_ns());
	if (is_for_thread(a->reason))
		bpf_tail_call(ctx, &release, 0);
	return 0;
}

#endif

#endif
