/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* From the descriptors and saved registers of the current task to sockets, without their hooks. */
#ifndef OBI_DESCRIPTOR_H
#define OBI_DESCRIPTOR_H

#include "core/closing.h"
#include "hook/call.h"
#include "hook/file.h"

/* Descriptors of a dying process that are looked at. */
#ifdef OBI_PORTABLE
#define DESCRIPTORS_MOST 32 /* what is left over is found out when its address is used again */
#else
#define DESCRIPTORS_MOST 65536
#endif

#ifdef OBI_PORTABLE
/* Size of a kernel stack: the saved registers lie at its end (helper since 5.15). */
SETTING u64 stack_bytes = 16384;

static __always_inline struct pt_regs *saved_registers(struct task_struct *task)
{
	return (struct pt_regs *)((u64)READ(task, stack) + stack_bytes - bpf_core_type_size(struct pt_regs));
}
#else
static __always_inline struct pt_regs *saved_registers(struct task_struct *task)
{
	return (struct pt_regs *)bpf_task_pt_regs(task);
}
#endif

/*
 * The arguments of the call that the current thread is leaving. Registers of another call
 * are not its own: then nothing is known, and what has moved becomes a gap.
 */
static __always_inline bool read_arguments(u32 number, u64 *arguments)
{
	struct pt_regs *registers = saved_registers(current_task());
	arguments[0] = ARGUMENT_1(registers);
	arguments[1] = ARGUMENT_2(registers);
	arguments[2] = ARGUMENT_3(registers);
	arguments[3] = ARGUMENT_4(registers);
	return CALL_NUMBER(registers) == number;
}

static __always_inline bool is_last_reference(struct file *file)
{
	if (bpf_core_field_exists(file->f_count))
		return READ(file, f_count.counter) == 1;
	return READ(file, f_ref.refcnt.counter) == 0;
}

/* `fd` is about to be closed: is it the last descriptor of a unix socket? */
static __always_inline int descriptor_closes(u64 fd)
{
	struct file *file;
	struct sock *sk;
	if (!*(volatile u32 *)&global.active)
		return 0;
	file = file_of(fd);
	sk = socket_of(file);
	if (!sk || READ(sk, __sk_common.skc_family) != FAMILY_UNIX || !is_last_reference(file))
		return 0;
	return unix_closed(sk);
}

static long one_closes(u32 fd, u32 *most)
{
	if (fd >= *most)
		return 1;
	descriptor_closes(fd);
	return 0;
}

static __always_inline int descriptors_close(void)
{
	struct task_struct *task = current_task();
	u32 most = READ(task, files, fdt, max_fds);
#ifdef OBI_PORTABLE
#pragma clang loop unroll(disable)
	for (u32 fd = 0; fd < DESCRIPTORS_MOST; fd++) {
		barrier(); /* see settle() */
		if (one_closes(fd, &most))
			break;
	}
#else
	bpf_loop(DESCRIPTORS_MOST, one_closes, &most, 0);
#endif
	return 0;
}

#endif
