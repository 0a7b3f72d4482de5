/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Where the user's buffer is, from the saved registers of the system call that
 * the current thread is in. Registers lie when the kernel works for somebody
 * else in this thread's time (io_uring completions), so they are trusted only
 * if the descriptor in them is the very socket that moved the bytes.
 */
#ifndef OBI_REGISTERS_H
#define OBI_REGISTERS_H

#include "capture.h"

#if defined(__TARGET_ARCH_x86)
enum {
	CALL_READ = 0, CALL_WRITE = 1, CALL_READV = 19, CALL_WRITEV = 20, CALL_SENDTO = 44, CALL_RECVFROM = 45,
	CALL_SENDMSG = 46, CALL_RECVMSG = 47, CALL_SENDFILE = 40, CALL_SPLICE = 275, CALL_RECVMMSG = 299,
	CALL_SENDMMSG = 307, CALL_PREADV2 = 327, CALL_PWRITEV2 = 328,
};
#define CALL_NUMBER(regs) ((u32)(regs)->orig_ax)
#define ARGUMENT_1(regs) ((regs)->di)
#define ARGUMENT_2(regs) ((regs)->si)
#define ARGUMENT_3(regs) ((regs)->dx)
#elif defined(__TARGET_ARCH_arm64)
enum {
	CALL_READ = 63, CALL_WRITE = 64, CALL_READV = 65, CALL_WRITEV = 66, CALL_SENDTO = 206, CALL_RECVFROM = 207,
	CALL_SENDMSG = 211, CALL_RECVMSG = 212, CALL_SENDFILE = 71, CALL_SPLICE = 76, CALL_RECVMMSG = 243,
	CALL_SENDMMSG = 269, CALL_PREADV2 = 286, CALL_PWRITEV2 = 287,
};
#define CALL_NUMBER(regs) ((u32)(regs)->syscallno)
#define ARGUMENT_1(regs) ((regs)->orig_x0)
#define ARGUMENT_2(regs) ((regs)->regs[1])
#define ARGUMENT_3(regs) ((regs)->regs[2])
#endif

enum {
	/* struct user_msghdr: where msg_iov and msg_iovlen stand, and the size of struct mmsghdr. */
	MSGHDR_VECTOR = 16,
	MMSGHDR_BYTES = 64,
};

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
		struct thread_state fresh = { .mmsg_vector = entries > 1 ? vector : 0, .mmsg_index = 1 };
		bpf_map_update_elem(&thread, &tid, &fresh, BPF_ANY);
		return vector;
	}
	if (state->mmsg_vector == vector && state->mmsg_index < entries)
		index = state->mmsg_index;
	/* After the last message there is no walk: the next one may use the same array, made longer. */
	state->mmsg_vector = index + 1 < entries ? vector : 0;
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
		state->mmsg_vector = 0;
}

static __always_inline bool from_msghdr(struct source *from, u64 msghdr)
{
	u64 vector[2];
	if (bpf_probe_read_user(vector, sizeof(vector), (void *)(msghdr + MSGHDR_VECTOR)))
		return false;
	from->vector = vector[0];
	from->vectors = vector[1];
	return true;
}

/* Fills `from`; returns false when the registers do not tell about this socket. */
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
	switch (call) {
	case CALL_READ:
	case CALL_WRITE:
	case CALL_SENDTO:
	case CALL_RECVFROM:
		from->base = second;
		from->length = n_bytes;
		return true;
	case CALL_READV:
	case CALL_WRITEV:
	case CALL_PREADV2:
	case CALL_PWRITEV2:
		from->vector = second;
		from->vectors = ARGUMENT_3(regs);
		return true;
	case CALL_SENDMSG:
	case CALL_RECVMSG:
		return from_msghdr(from, second);
	case CALL_SENDMMSG:
	case CALL_RECVMMSG:
		return from_msghdr(from, mmsg_entry(second, ARGUMENT_3(regs), task->pid));
	}
	from->opaque = call == CALL_SENDFILE || call == CALL_SPLICE ? KERNEL_PAGES : UNKNOWN_BUFFER;
	return false;
}

#endif
