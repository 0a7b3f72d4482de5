/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* System calls that move bytes: their numbers, and where in user memory their arguments say the bytes are. */
#ifndef OBI_CALL_H
#define OBI_CALL_H

#include "core/stream.h"

#ifdef OBI_PORTABLE
#define REGISTER(registers, name) READ(registers, name)
#else
#define REGISTER(registers, name) ((registers)->name)
#endif

#if defined(__TARGET_ARCH_x86)
enum {
	CALL_READ = 0, CALL_WRITE = 1, CALL_READV = 19, CALL_WRITEV = 20, CALL_SENDTO = 44, CALL_RECVFROM = 45,
	CALL_SENDMSG = 46, CALL_RECVMSG = 47, CALL_SENDFILE = 40, CALL_SPLICE = 275, CALL_RECVMMSG = 299,
	CALL_SENDMMSG = 307, CALL_PREADV2 = 327, CALL_PWRITEV2 = 328, CALL_CLOSE = 3,
};
/* Of a task in a call of a 32-bit program (`TS_COMPAT`), whose numbers mean other calls. */
#define IS_FOREIGN(thread) (READ(thread, status) & 2)
#define CALL_NUMBER(registers) ((u32)REGISTER(registers, orig_ax))
#define ARGUMENT_1(registers) REGISTER(registers, di)
#define ARGUMENT_2(registers) REGISTER(registers, si)
#define ARGUMENT_3(registers) REGISTER(registers, dx)
#define ARGUMENT_4(registers) REGISTER(registers, r10)
#define ARGUMENT_5(registers) REGISTER(registers, r8)
#elif defined(__TARGET_ARCH_arm64)
enum {
	CALL_READ = 63, CALL_WRITE = 64, CALL_READV = 65, CALL_WRITEV = 66, CALL_SENDTO = 206, CALL_RECVFROM = 207,
	CALL_SENDMSG = 211, CALL_RECVMSG = 212, CALL_SENDFILE = 71, CALL_SPLICE = 76, CALL_RECVMMSG = 243,
	CALL_SENDMMSG = 269, CALL_PREADV2 = 286, CALL_PWRITEV2 = 287, CALL_CLOSE = 57,
};
/* Of a 32-bit program (`TIF_32BIT`). */
#define IS_FOREIGN(thread) (READ(thread, flags) & 1 << 22)
#define CALL_NUMBER(registers) ((u32)REGISTER(registers, syscallno))
#define ARGUMENT_1(registers) REGISTER(registers, orig_x0)
#define ARGUMENT_2(registers) REGISTER(registers, regs[1])
#define ARGUMENT_3(registers) REGISTER(registers, regs[2])
#define ARGUMENT_4(registers) REGISTER(registers, regs[3])
#define ARGUMENT_5(registers) REGISTER(registers, regs[4])
#endif

static __always_inline bool from_msghdr(struct source *from, u64 msghdr)
{
	u64 vector[2];
	if (bpf_probe_read_user(vector, sizeof(vector), (void *)(msghdr + MSGHDR_VECTOR)))
		return false;
	from->vector = vector[0];
	from->vectors = vector[1];
	return true;
}

/* Where a call with one buffer, one vector or one message has its bytes; false for any other call. */
static __always_inline bool source_of_arguments(struct source *from, u32 call, u64 second, u32 third, u32 n_bytes)
{
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
		from->vectors = third;
		return true;
	case CALL_SENDMSG:
	case CALL_RECVMSG:
		return from_msghdr(from, second);
	}
	return false;
}

#endif
