/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Process life: exec, fork and exit, so that a process is known before its first request. */
#ifndef OBI_PROCESS_H
#define OBI_PROCESS_H

#include "runtime/async_id.h"
#include "runtime/context.h"
#include "runtime/goroutine.h"
#include "runtime/greenlet.h"
#include "runtime/nginx.h"
#include "tls/tls_transport.h"

static __always_inline void fill_process(struct process_event *event, struct task_struct *task, u32 parent, u32 action)
{
	event->header.kind = EVENT_PROCESS;
	event->header.tgid = task->tgid;
	event->header.tid = task->pid;
	event->header.flags = 0;
	event->header.time = bpf_ktime_get_ns();
	event->header.exchange = 0;
	event->parent = parent;
	event->action = action;
	bpf_probe_read_kernel(event->comm, sizeof(event->comm), task->comm);
	event->n_arguments = 0;
	event->n_environment = 0;
	event->n_path = 0;
	event->exec_id = task->self_exec_id;
}

static __always_inline int emit_process(struct task_struct *task, u32 parent, u32 action)
{
	struct process_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	/* Of no process's account: it may be the last that is heard of this one, and nothing would take the entry away. */
	if (!event)
		return tally_add(0, TALLY_PROCESS_LOST << 8, 1);
	fill_process(event, task, parent, action);
	/* At once: a short-lived process can only be read while it lives. Forks and exits are taken along. */
	bpf_ringbuf_submit(event, action == PROCESS_EXEC ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
	return 0;
}

/* What a program is given: its arguments and its environment, where the kernel has just written them. */
struct given {
	u64 arguments;
	u64 n_arguments;
	u64 environment;
	u64 n_environment;
};

static __always_inline u64 at_most(u64 n, u64 most)
{
	/* Or the compiler keeps what the caller's comparisons say to itself, and the verifier sees no bound. */
	OPAQUE(n);
	return n < most ? n : most;
}

/*
 * The beginning of a program, with the first `argument_bytes` of its arguments and as much of its environment as
 * `given_bytes` have room for: constants, as the ring buffer wants to know sizes when the program is verified.
 */
static __always_inline bool emit_given(struct task_struct *task, const struct given *given, u32 argument_bytes,
				       u32 given_bytes)
{
	struct process_event *event = bpf_ringbuf_reserve(&events, sizeof(*event) + given_bytes, 0);
	if (!event)
		return false;
	fill_process(event, task, task->real_parent->tgid, PROCESS_EXEC);
	u8 *bytes = (u8 *)(event + 1);
	u64 n_arguments = at_most(given->n_arguments, argument_bytes);
	u64 n_environment = at_most(given->n_environment, given_bytes - argument_bytes - PATH_GIVEN_BYTES);
	long n_path;
	if (!bpf_probe_read_user(bytes, n_arguments, (void *)given->arguments) &&
	    !bpf_probe_read_user(bytes + n_arguments, n_environment, (void *)given->environment)) {
		event->n_arguments = n_arguments;
		event->n_environment = n_environment;
		if (n_environment < given->n_environment)
			event->header.flags = GIVEN_CUT;
		/* execve() writes it right behind the environment, for the auxiliary vector (AT_EXECFN; fs/exec.c). */
		n_path = bpf_probe_read_user_str(bytes + n_arguments + n_environment, PATH_GIVEN_BYTES,
						 (void *)(given->environment + given->n_environment));
		if (n_path > 0)
			event->n_path = n_path;
	}
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
	return true;
}

/*
 * A program that has ended before the agent looks has only the name reported here. That may not cost others their
 * exchanges: it is left out when the agent lags behind.
 */
static __always_inline bool tell_given(struct task_struct *task)
{
	struct mm_struct *mm = task->mm;
	if (!tells_given || !mm || bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= wakeup_bytes)
		return false;
	struct given given = {
		.arguments = mm->arg_start,
		.n_arguments = mm->arg_end - mm->arg_start,
		.environment = mm->env_start,
		.n_environment = mm->env_end - mm->env_start,
	};
	if (given.n_arguments <= SMALL_ARGUMENT_BYTES &&
	    given.n_environment <= SMALL_GIVEN_BYTES - SMALL_ARGUMENT_BYTES - PATH_GIVEN_BYTES)
		return emit_given(task, &given, SMALL_ARGUMENT_BYTES, SMALL_GIVEN_BYTES);
	return emit_given(task, &given, LARGE_ARGUMENT_BYTES, LARGE_GIVEN_BYTES);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task)
{
	u32 tgid = task->tgid;
	/* What was decided was about another program. Until the agent knows this one, it is watched. */
	bpf_map_delete_elem(&process, &tgid);
	forget_tls(tgid);
	forget_goroutines(tgid);
	forget_contexts(tgid);
	forget_greenlets(tgid);
	forget_nginx(tgid);
	forget_async(tgid);
	if (tell_given(task))
		return 0;
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
	forget_async(tid);
	if (task->signal->live.counter)
		return 0; /* other threads live on */
	bpf_map_delete_elem(&process, &tgid);
	forget_tls(tgid);
	forget_goroutines(tgid);
	forget_contexts(tgid);
	forget_greenlets(tgid);
	forget_nginx(tgid);
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
