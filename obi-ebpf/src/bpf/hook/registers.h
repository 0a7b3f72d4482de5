/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Where the user's buffer is, from the saved registers of the system call that
 * the current thread is in. Registers are wrong when the kernel works for another
 * thread in this thread's time (io_uring completions), so they are trusted only
 * if the descriptor in them is the very socket that moved the bytes.
 */
#ifndef OBI_REGISTERS_H
#define OBI_REGISTERS_H

#include "hook/call.h"

/* Is `fd` of the current process this socket? Duplicates and inherited descriptors share the file. */
static __always_inline bool fd_is(struct task_struct *task, struct sock *sk, u32 fd)
{
	struct fdtable *table = task->files->fdt;
	struct file *found = NULL;
	struct file *own = sk->sk_socket->file;
	if (!own || fd >= table->max_fds)
		return false;
	bpf_probe_read_kernel(&found, sizeof(found), table->fd + fd);
	return found == own;
}

/* The array of a sendmmsg or recvmmsg is walked with unchanged registers: which message is it? */
static __always_inline u64 mmsg_entry(u64 vector, u32 entries, u32 tid)
{
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	u32 index = 0;
	if (!state) {
		struct thread_state fresh = { .call = entries > 1 ? vector : 0, .mmsg_index = 1 };
		bpf_map_update_elem(&thread, &tid, &fresh, BPF_ANY);
		return vector;
	}
	if (state->call == vector && state->mmsg_index < entries)
		index = state->mmsg_index;
	/* After the last message there is no walk: the next one may use the same array, made longer. */
	state->call = index + 1 < entries ? vector : 0;
	state->mmsg_index = index + 1;
	return vector + (u64)index * MMSGHDR_BYTES;
}

/* The walk ends with the array, or with a message that fails: the next call starts at its beginning. */
static __always_inline void mmsg_failed(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 call = CALL_NUMBER((struct pt_regs *)bpf_task_pt_regs(task)), tid = task->pid;
	struct thread_state *state;
	if (call != CALL_RECVMMSG && call != CALL_SENDMMSG)
		return;
	state = bpf_map_lookup_elem(&thread, &tid);
	if (state)
		state->call = 0;
}

/* Fills `from`; returns false when the registers are not about this socket. */
static __always_inline bool source_of_call(struct source *from, struct sock *sk, u32 n_bytes)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	u32 call = CALL_NUMBER(regs);
	u64 second = ARGUMENT_2(regs);
	if (task->flags & (TASK_IO_WORKER | TASK_KTHREAD) || !fd_is(task, sk, ARGUMENT_1(regs))) {
		/* sendfile and splice to a socket name it second or third; nothing of theirs is readable anyway. */
		from->opaque = call == CALL_SENDFILE || call == CALL_SPLICE ? KERNEL_PAGES : UNKNOWN_BUFFER;
		return false;
	}
	if (call == CALL_SENDMMSG || call == CALL_RECVMMSG)
		return from_msghdr(from, mmsg_entry(second, ARGUMENT_3(regs), task->pid));
	if (source_of_arguments(from, call, second, ARGUMENT_3(regs), n_bytes))
		return true;
	from->opaque = call == CALL_SENDFILE || call == CALL_SPLICE ? KERNEL_PAGES : UNKNOWN_BUFFER;
	return false;
}

#endif
