/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Process life: exec, fork and exit, so that a process is known before its first request. */
#ifndef OBI_PROCESS_H
#define OBI_PROCESS_H

#include "tls_transport.h"

static __always_inline int emit_process(struct task_struct *task, u32 parent, u32 action)
{
	struct process_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	/* A lost one is made good: the agent looks the process up when its first exchange comes. */
	if (!event)
		return 0;
	event->header.kind = EVENT_PROCESS;
	event->header.tgid = task->tgid;
	event->header.tid = task->pid;
	event->header.flags = 0;
	event->header.time = bpf_ktime_get_ns();
	event->header.exchange = 0;
	event->parent = parent;
	event->action = action;
	bpf_probe_read_kernel(event->comm, sizeof(event->comm), task->comm);
	/* At once: a short-lived process can only be read while it lives. Forks and exits are taken along. */
	bpf_ringbuf_submit(event, action == PROCESS_EXEC ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task)
{
	forget_tls(task->tgid);
	return emit_process(task, task->real_parent->tgid, PROCESS_EXEC);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	if (child->pid != child->tgid)
		return 0; /* a thread */
	return emit_process(child, parent->tgid, PROCESS_FORK);
}

static __always_inline int process_exits(struct task_struct *task)
{
	u32 tid = task->pid, tgid = task->tgid;
	bpf_map_delete_elem(&thread, &tid);
	bpf_map_delete_elem(&tls_call, &tid);
	if (task->signal->live.counter)
		return 0; /* other threads live on */
	bpf_map_delete_elem(&process, &tgid);
	forget_tls(tgid);
	return emit_process(task, task->real_parent->tgid, PROCESS_EXIT);
}

#ifndef OBI_CALL_SET
SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	return process_exits(task);
}
#endif

#endif
