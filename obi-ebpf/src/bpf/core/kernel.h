/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The few kernel types that the programs look into, as CO-RE "flavours": only
 * the fields in use, found by name in the running kernel's BTF when the object
 * is loaded. One build therefore runs on every kernel, and no generated
 * vmlinux.h is needed.
 */
#ifndef OBI_KERNEL_H
#define OBI_KERNEL_H

#define OBI_KERNEL 1

#include <linux/types.h>
#include <stdbool.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

#ifdef OBI_HOST
#include "core/host.h"
#else
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

/*
 * A function that is more than once in a program. Global ones the verifier checks once, and by
 * themselves; handing them pointers came with 5.12.
 */
#ifdef OBI_PORTABLE
#define SHARED static __noinline
#else
#define SHARED __noinline
#endif

/* Seldom called by functions whose stacks are full; inlined where that costs the verifier less. */
#ifdef OBI_PORTABLE
#define RARE static __always_inline
#else
#define RARE __noinline
#endif

/*
 * A part of a function whose stack is full, with a stack of its own. Not global: it is handed what the caller has
 * checked. Inlined where that costs the verifier less.
 */
#ifdef OBI_PORTABLE
#define APART static __always_inline
#else
#define APART static __noinline
#endif

/* Written by the agent before the programs load; constant to the verifier. */
#define SETTING const volatile

/*
 * How fields are read. Typed programs (tp_btf, fentry) may follow the pointers that they are given; all
 * others, and those whose pointers come out of memory, ask a helper.
 */
#define READ(pointer, ...) BPF_CORE_READ(pointer, __VA_ARGS__)
#ifdef OBI_TYPED_SOCKET
#define FIELD(pointer, path) ((pointer)->path)
#else
#define FIELD(pointer, path) READ(pointer, path)
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r14;
	unsigned long bp;
	unsigned long bx;
	unsigned long r11;
	unsigned long r10;
	unsigned long r9;
	unsigned long r8;
	unsigned long ax;
	unsigned long cx;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
	unsigned long cs;
	unsigned long flags;
	unsigned long sp;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	u64 regs[31];
	u64 sp;
	u64 pc;
	u64 pstate;
};
struct pt_regs {
	union {
		struct user_pt_regs user_regs;
		struct {
			u64 regs[31];
			u64 sp;
			u64 pc;
			u64 pstate;
		};
	};
	u64 orig_x0;
	s32 syscallno;
};
#endif

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct epoll_event {
	u32 events;
	u64 data;
};

/* A file that an epoll waits for. */
struct epitem {
	struct hlist_node fllink; /* of all that wait for the file */
	struct epoll_event event;
};

struct inode {
	u16 i_mode;
	unsigned long i_ino;
};

struct file {
	void *private_data;
	struct inode *f_inode;
	struct hlist_head *f_ep; /* since 5.12 */
	struct {
		s64 counter;
	} f_count; /* references, before 6.13 */
	struct {
		struct {
			s64 counter;
		} refcnt;
	} f_ref; /* references but one, since */
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

struct thread_info {
	unsigned long flags;
	u32 status;
};

struct mm_struct {
	unsigned long arg_start;
	unsigned long arg_end;
	unsigned long env_start;
	unsigned long env_end;
};

struct thread_struct {
#if defined(__TARGET_ARCH_x86)
	unsigned long fsbase; /* the thread pointer */
#else
	struct {
		unsigned long tp_value;
	} uw;
#endif
};

struct task_struct {
	struct thread_info thread_info;
	void *stack;
	unsigned int flags;
	unsigned int __state; /* since 5.14 */
	unsigned in_iowait : 1;
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct files_struct *files;
	struct mm_struct *mm;
	struct signal_struct *signal;
	u64 self_exec_id;
	char comm[16];
	struct thread_struct thread;
};

struct socket {
	struct file *file;
	struct sock *sk;
};

struct in6_addr {
	union {
		u8 u6_addr8[16];
		u32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	u16 skc_family;
	u8 skc_state;
	u16 skc_dport; /* network order */
	u16 skc_num;   /* host order */
	u32 skc_portpair; /* both of them */
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	unsigned long skc_flags;
};

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	u16 sk_type;
	u16 sk_protocol;
	u8 sk_shutdown;
	int sk_err;
};

struct unix_sock {
	struct sock *peer;
};

struct inet_connection_sock {
	struct {
		u32 lrcvtime;
	} icsk_ack;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 copied_seq;
	u32 write_seq;
	u32 lsndtime;
	u32 rcv_nxt;
	u32 snd_una;
	u64 bytes_received;
	u64 bytes_acked;
	u64 tcp_mstamp;
	bool is_mptcp;
};

struct iov_iter {
	u8 iter_type;
	u64 iov_offset;
	u64 count;
	union {
		const void *__iov; /* since 6.4 */
		void *ubuf;
	};
	u64 nr_segs;
};

/* Before 5.14 the kind of an iterator was a bit mask with its direction in bit 0. */
struct iov_iter___mask {
	unsigned int type;
};

/* Before 6.4. */
struct iov_iter___iov {
	const void *iov;
};

struct msghdr {
	struct iov_iter msg_iter;
	unsigned int msg_flags;
};

struct sk_buff {
	struct sock *sk;
};

#pragma clang attribute pop

/* Values as in 6.7 and later; the real ones are read from the kernel's BTF. */
enum iter_type {
	ITER_UBUF = 0,
	ITER_IOVEC = 1,
};

#endif /* OBI_HOST */

/* User-space layouts: part of the system call interface, never relocated. */
struct user_iovec {
	u64 base;
	u64 length;
};

enum {
	/* struct user_msghdr: where msg_iov and msg_iovlen stand; struct mmsghdr: where msg_len stands, and its size. */
	MSGHDR_VECTOR = 16,
	MMSGHDR_LENGTH = 56,
	MMSGHDR_BYTES = 64,
};

enum {
	FAMILY_UNIX = 1,
	FAMILY_INET = 2,
	FAMILY_INET6 = 10,
	TYPE_STREAM = 1,
	PROTOCOL_TCP = 6,
	PROTOCOL_MPTCP = 262,

	FLAG_OOB = 0x1,
	FLAG_PEEK = 0x2,
	FLAG_TRUNC = 0x20,
	FLAG_ERRQUEUE = 0x2000,
	FLAG_SPLICE_PAGES = 0x8000000, /* inside the kernel, since 6.5: pages, not user memory */

	SOCKET_DONE = 1, /* bit of skc_flags: the peer's FIN has arrived */
	SHUTDOWN_RECEIVE = 1,
	SHUTDOWN_BOTH = 3,

	STATE_ESTABLISHED = 1,
	STATE_FIN_WAIT1 = 4,
	STATE_CLOSE = 7,
	STATE_CLOSE_WAIT = 8,
	STATE_LAST_ACK = 9,

	ERROR_PIPE = 32,
	ERROR_RESET = 104,
	ERROR_TIMEOUT = 110,

	MODE_KIND = 0xf000,   /* S_IFMT */
	MODE_SOCKET = 0xc000, /* S_IFSOCK */

	TASK_IO_WORKER = 0x10,   /* PF_IO_WORKER */
	TASK_USER_WORKER = 0x4000, /* PF_USER_WORKER, since 6.4 */
	TASK_KTHREAD = 0x200000,   /* PF_KTHREAD */
};

#endif
