/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Registers of the user's side of the current thread: those of the interrupt, or where the interrupt came to the
 * kernel, those that were saved on the way there. Part of profile.bpf.c, behind its map `profile_setting` and
 * profile/unwind.h.
 */
#ifndef OBI_USER_REGISTERS_H
#define OBI_USER_REGISTERS_H

/* As the system call interface lays them out, for programs and in the kernel alike. */
#if defined(__TARGET_ARCH_x86)
struct saved_registers {
	u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#define IS_USER(regs) ((regs)->cs & 3)
#define IS_FOREIGN(regs) (((regs)->cs & 0xffff) != 0x33)
/* The instruction leaves the address behind it in rcx. Code that leads the thread elsewhere meanwhile keeps rcx. */
#define IS_BEHIND_SYSCALL(regs) ((s64)(regs)->orig_ax >= 0 && (regs)->cx == (regs)->ip)
#define THREAD_POINTER(task) READ(task, thread.fsbase)
#elif defined(__TARGET_ARCH_arm64)
struct saved_registers {
	u64 regs[31];
	u64 sp, pc, pstate;
};
#define IS_USER(regs) (((regs)->pstate & 15) == 0)
#define IS_FOREIGN(regs) ((regs)->pstate & 16)
/* No register shows it. */
#define IS_BEHIND_SYSCALL(regs) 0
/* It points behind the descriptor there, whose size is in no register. */
#define THREAD_POINTER(task) 0
#endif

/* struct bpf_perf_event_data */
struct context {
	struct saved_registers regs;
	u64 sample_period;
	u64 address;
};

/* In DWARF's order; a macro, since what lies behind a context may only be read by constant offsets. */
#if defined(__TARGET_ARCH_x86)
#define TAKE_REGISTERS(w, from)                                                       \
	do {                                                                          \
		(w)->pc = (from)->ip, (w)->sp = (from)->sp, (w)->fp = (from)->bp;     \
		(w)->other[0] = (from)->ax, (w)->other[1] = (from)->dx;               \
		(w)->other[2] = (from)->cx, (w)->other[3] = (from)->bx;               \
		(w)->other[4] = (from)->si, (w)->other[5] = (from)->di;               \
		(w)->other[6] = (from)->bp, (w)->other[7] = (from)->sp;               \
		(w)->other[8] = (from)->r8, (w)->other[9] = (from)->r9;               \
		(w)->other[10] = (from)->r10, (w)->other[11] = (from)->r11;           \
		(w)->other[12] = (from)->r12, (w)->other[13] = (from)->r13;           \
		(w)->other[14] = (from)->r14, (w)->other[15] = (from)->r15;           \
	} while (0)
#else
#define TAKE_REGISTERS(w, from)                                                           \
	do {                                                                              \
		(w)->pc = (from)->pc, (w)->sp = (from)->sp, (w)->fp = (from)->regs[29];   \
		(w)->link = (from)->regs[30];                                             \
		_Pragma("clang loop unroll(full)") for (u32 i = 0; i < 16; i++)           \
			(w)->other[i] = (from)->regs[i];                                  \
	} while (0)
#endif

#ifdef OBI_PORTABLE
static __always_inline struct task_struct *current_task(void)
{
	return (struct task_struct *)bpf_get_current_task();
}

static __always_inline const void *registers_of(struct task_struct *task)
{
	u32 zero = 0;
	struct profile_setting *setting = bpf_map_lookup_elem(&profile_setting, &zero);
	u64 stack_bytes = setting ? setting->stack_bytes : 0;
	return (void *)((u64)READ(task, stack) + stack_bytes - bpf_core_type_size(struct pt_regs));
}
#else
static __always_inline struct task_struct *current_task(void)
{
	return bpf_get_current_task_btf();
}

static __always_inline const void *registers_of(struct task_struct *task)
{
	return (void *)bpf_task_pt_regs(task);
}
#endif

/* Those that the current thread, which is in the kernel, has saved; returns STACK_COMPLETE, or why there are none. */
static __always_inline u32 take_saved_registers(struct unwind *w)
{
	struct task_struct *task = current_task();
	struct saved_registers saved;
	if (READ(task, flags) & (TASK_KTHREAD | TASK_IO_WORKER | TASK_USER_WORKER) || !READ(task, mm))
		return STACK_NO_USER;
	/* Whatever leads into the kernel saves all of them. */
	if (bpf_probe_read_kernel(&saved, sizeof(saved), registers_of(task)) || !IS_USER(&saved))
		return STACK_NO_USER;
	TAKE_REGISTERS(w, &saved);
	/* It may be the last instruction of its function (that of sigreturn is), like a call. */
	w->exact = !IS_BEHIND_SYSCALL(&saved);
	return IS_FOREIGN(&saved) ? STACK_FOREIGN_MODE : STACK_COMPLETE;
}

/* Registers of the user's side of the current thread; returns STACK_COMPLETE, or why there are none. */
static __always_inline u32 take_registers(struct unwind *w, struct context *ctx)
{
	if (IS_USER(&ctx->regs)) {
		TAKE_REGISTERS(w, &ctx->regs);
		return IS_FOREIGN(&ctx->regs) ? STACK_FOREIGN_MODE : STACK_COMPLETE;
	}
	return take_saved_registers(w);
}

#endif
