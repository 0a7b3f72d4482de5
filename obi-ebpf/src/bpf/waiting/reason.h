/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What a thread waits for, by the system call that it is in: pure functions, also compiled for tests on the host.
 */
#ifndef OBI_REASON_H
#define OBI_REASON_H

#include "core/kernel.h"
#include "event.h"

/* What the number of a call says; the first ones are those of enum wait_reason. */
enum call_reason {
	BY_FUTEX = WAIT_REASONS, /* its operation and the value that it expects */
	BY_DESCRIPTOR,           /* what its first argument is */
	BY_COUNT_1,              /* how many descriptors it waits for: with none, it only sleeps. First argument, */
	BY_COUNT_2,              /* or second */
};

enum { CALL_NUMBERS = 512 };

/* By number; those that are not here do not wait, or nothing is known of what for. */
static const u8 reason_of_number[CALL_NUMBERS] = {
#if defined(__TARGET_ARCH_arm64)
	[98] = BY_FUTEX,
	[22] = WAIT_POLL, [4] = WAIT_POLL, [292] = WAIT_POLL, /* epoll_pwait, io_getevents, io_pgetevents */
	[73] = BY_COUNT_2, [72] = BY_COUNT_1, /* ppoll, pselect6 */
	[203] = WAIT_NETWORK, [202] = WAIT_NETWORK, [242] = WAIT_NETWORK, /* connect, accept, accept4 */
	[206] = WAIT_NETWORK, [207] = WAIT_NETWORK, [211] = WAIT_NETWORK, [212] = WAIT_NETWORK, /* sendto … recvmsg */
	[243] = WAIT_NETWORK, [269] = WAIT_NETWORK, [210] = WAIT_NETWORK, /* recvmmsg, sendmmsg, shutdown */
	[63] = BY_DESCRIPTOR, [64] = BY_DESCRIPTOR, [65] = BY_DESCRIPTOR, [66] = BY_DESCRIPTOR, /* read … writev */
	[67] = BY_DESCRIPTOR, [68] = BY_DESCRIPTOR, [69] = BY_DESCRIPTOR, [70] = BY_DESCRIPTOR, /* pread64 … pwritev */
	[286] = BY_DESCRIPTOR, [287] = BY_DESCRIPTOR, [29] = BY_DESCRIPTOR, /* preadv2, pwritev2, ioctl */
	[71] = BY_DESCRIPTOR, [76] = BY_DESCRIPTOR, [57] = BY_DESCRIPTOR, /* sendfile, splice, close */
	[101] = WAIT_SLEEP, [115] = WAIT_SLEEP, /* nanosleep, clock_nanosleep */
	[260] = WAIT_CHILD, [95] = WAIT_CHILD, [220] = WAIT_CHILD, /* wait4, waitid, clone */
	[82] = WAIT_FILE, [83] = WAIT_FILE, [32] = WAIT_FILE, [25] = WAIT_FILE, /* fsync, fdatasync, flock, fcntl */
	[56] = WAIT_FILE, [81] = WAIT_FILE, [267] = WAIT_FILE, [84] = WAIT_FILE, /* openat, sync, syncfs, sync_file_range */
	[227] = WAIT_FILE, [79] = WAIT_FILE, [80] = WAIT_FILE, [291] = WAIT_FILE, /* msync, newfstatat, fstat, statx */
	[48] = WAIT_FILE, [276] = WAIT_FILE, [38] = WAIT_FILE, [35] = WAIT_FILE, /* faccessat, renameat2, renameat, unlinkat */
	[34] = WAIT_FILE, [45] = WAIT_FILE, [46] = WAIT_FILE, [47] = WAIT_FILE, /* mkdirat, truncate, ftruncate, fallocate */
	[61] = WAIT_FILE, [285] = WAIT_FILE, [221] = WAIT_FILE, [281] = WAIT_FILE, /* getdents64, copy_file_range, execve, execveat */
#else
	[202] = BY_FUTEX,
	[232] = WAIT_POLL, [281] = WAIT_POLL, [208] = WAIT_POLL, [333] = WAIT_POLL, /* epoll_wait, epoll_pwait, io_getevents, io_pgetevents */
	[7] = BY_COUNT_2, [271] = BY_COUNT_2, [23] = BY_COUNT_1, [270] = BY_COUNT_1, /* poll, ppoll, select, pselect6 */
	[42] = WAIT_NETWORK, [43] = WAIT_NETWORK, [288] = WAIT_NETWORK, [48] = WAIT_NETWORK, /* connect, accept, accept4, shutdown */
	[44] = WAIT_NETWORK, [45] = WAIT_NETWORK, [46] = WAIT_NETWORK, [47] = WAIT_NETWORK, /* sendto, recvfrom, sendmsg, recvmsg */
	[299] = WAIT_NETWORK, [307] = WAIT_NETWORK, /* recvmmsg, sendmmsg */
	[0] = BY_DESCRIPTOR, [1] = BY_DESCRIPTOR, [19] = BY_DESCRIPTOR, [20] = BY_DESCRIPTOR, /* read, write, readv, writev */
	[17] = BY_DESCRIPTOR, [18] = BY_DESCRIPTOR, [295] = BY_DESCRIPTOR, [296] = BY_DESCRIPTOR, /* pread64 … pwritev */
	[327] = BY_DESCRIPTOR, [328] = BY_DESCRIPTOR, [16] = BY_DESCRIPTOR, /* preadv2, pwritev2, ioctl */
	[40] = BY_DESCRIPTOR, [275] = BY_DESCRIPTOR, [3] = BY_DESCRIPTOR, /* sendfile, splice, close */
	[35] = WAIT_SLEEP, [230] = WAIT_SLEEP, /* nanosleep, clock_nanosleep */
	[61] = WAIT_CHILD, [247] = WAIT_CHILD, [56] = WAIT_CHILD, [57] = WAIT_CHILD, [58] = WAIT_CHILD, /* wait4, waitid, clone, fork, vfork */
	[74] = WAIT_FILE, [75] = WAIT_FILE, [73] = WAIT_FILE, [72] = WAIT_FILE, /* fsync, fdatasync, flock, fcntl */
	[2] = WAIT_FILE, [257] = WAIT_FILE, [85] = WAIT_FILE, /* open, openat, creat */
	[162] = WAIT_FILE, [306] = WAIT_FILE, [277] = WAIT_FILE, [26] = WAIT_FILE, /* sync, syncfs, sync_file_range, msync */
	[4] = WAIT_FILE, [5] = WAIT_FILE, [6] = WAIT_FILE, [262] = WAIT_FILE, [332] = WAIT_FILE, /* stat, fstat, lstat, newfstatat, statx */
	[21] = WAIT_FILE, [269] = WAIT_FILE, [89] = WAIT_FILE, /* access, faccessat, readlink */
	[82] = WAIT_FILE, [264] = WAIT_FILE, [316] = WAIT_FILE, /* rename, renameat, renameat2 */
	[87] = WAIT_FILE, [263] = WAIT_FILE, [86] = WAIT_FILE, [88] = WAIT_FILE, /* unlink, unlinkat, link, symlink */
	[83] = WAIT_FILE, [258] = WAIT_FILE, [84] = WAIT_FILE, /* mkdir, mkdirat, rmdir */
	[76] = WAIT_FILE, [77] = WAIT_FILE, [285] = WAIT_FILE, /* truncate, ftruncate, fallocate */
	[78] = WAIT_FILE, [217] = WAIT_FILE, [326] = WAIT_FILE, /* getdents, getdents64, copy_file_range */
	[59] = WAIT_FILE, [322] = WAIT_FILE, /* execve, execveat */
#endif
	/* The same everywhere: */
	[449] = BY_FUTEX, [455] = BY_FUTEX, /* futex_waitv, futex_wait */
	[441] = WAIT_POLL, [426] = WAIT_POLL, /* epoll_pwait2, io_uring_enter */
	[435] = WAIT_CHILD, /* clone3, which waits for a child only as vfork does */
	[437] = WAIT_FILE, [439] = WAIT_FILE, /* openat2, faccessat2 */
};

enum {
	FUTEX_OPERATION = 0x7f,
	FUTEX_IS_WAIT = 0,
	FUTEX_IS_LOCK_PI = 6,
	FUTEX_IS_WAIT_BITSET = 9,
	FUTEX_IS_LOCK_PI2 = 13,
	/* A mutex with waiters, as glibc, Rust's library and many others have it. */
	FUTEX_CONTENDED = 2,
};
/* As musl has it: this bit, and the owner's thread or a count below it. All bits are something else: a parked thread. */
#define FUTEX_CONTENDED_BIT 0x80000000u
#define FUTEX_OWNER_BITS 0x003fffffu

/*
 * Of a futex: a lock by the value that the thread saw in it before it went to sleep; all else is a condition that
 * another thread will make true. Semaphores are among these, and so are the locks that Python makes of them.
 */
static __always_inline u32 reason_of_futex(u32 number, u32 operation, u32 expected)
{
	operation &= FUTEX_OPERATION;
	if (reason_of_number[number & (CALL_NUMBERS - 1)] != BY_FUTEX || number >= 449)
		return WAIT_CONDITION;
	if (operation == FUTEX_IS_LOCK_PI || operation == FUTEX_IS_LOCK_PI2)
		return WAIT_LOCK;
	if (operation != FUTEX_IS_WAIT && operation != FUTEX_IS_WAIT_BITSET)
		return WAIT_CONDITION;
	if (expected == FUTEX_CONTENDED || (expected & ~FUTEX_OWNER_BITS) == FUTEX_CONTENDED_BIT)
		return WAIT_LOCK;
	return WAIT_CONDITION;
}

/* Whether it is another thread that ends a wait of this reason, or it ends by itself. */
static __always_inline bool is_for_thread(u32 reason)
{
	return reason == WAIT_LOCK || reason == WAIT_GIL || reason == WAIT_CONDITION;
}

/* Arguments of a call, the first three. */
struct call_arguments {
	u64 first;
	u64 second;
	u64 third;
};

/* An enum wait_reason, or BY_DESCRIPTOR. */
static __always_inline u32 reason_of_call(u32 number, const struct call_arguments *said)
{
	u32 reason;
	if (number >= CALL_NUMBERS)
		return (s32)number < 0 ? WAIT_PAGE_FAULT : WAIT_OTHER; /* in no call: an exception has led into the kernel */
	reason = reason_of_number[number];
	switch (reason) {
	case BY_FUTEX:
		return reason_of_futex(number, said->second, said->third);
	case BY_COUNT_1:
		return said->first ? WAIT_POLL : WAIT_SLEEP;
	case BY_COUNT_2:
		return said->second ? WAIT_POLL : WAIT_SLEEP;
	}
	return reason;
}

#endif
