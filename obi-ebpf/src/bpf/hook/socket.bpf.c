// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * The `socket` hook set: BTF tracepoints only, so it works where kprobes and
 * trampolines are refused. Needs sock_send_length and sock_recv_length (6.3).
 */
#define OBI_SOCKET_SET
#define OBI_TYPED_SOCKET
#include "core/kernel.h"
#include <bpf/bpf_tracing.h>
#include "hook/transfer.h"
#include "hook/message.h"
#include "hook/registers.h"
#include "hook/process.h"
#include "hook/wait.h"
#include "hook/accept.h"
#include "waiting/schedule.h"
#include "tls/bytes.h"
#include "runtime/go_stream.h"
#include "runtime/nginx_tls.h"
#include "runtime/node.h"
#include "runtime/python.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline void want(u32 program)
{
	if (!(*(volatile u32 *)&global.wanted & program))
		__sync_fetch_and_or(&global.wanted, program);
}

/* The messages of a system call are walked along: that has to be kept up even where nothing is read. */
static __always_inline bool walks_messages(void)
{
	u32 call = CALL_NUMBER((struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf()));
	return call == CALL_RECVMMSG || call == CALL_SENDMMSG;
}

static __always_inline int receive(struct sock *sk, int n, int flags)
{
	struct walk walk = {};
	struct segment *s;
	if (flags & (FLAG_PEEK | FLAG_ERRQUEUE | FLAG_OOB) || !begin_transfer(&walk, sk, n, false))
		return 0;
	s = walk.segment;
	if (flags & FLAG_TRUNC && sk->__sk_common.skc_family != FAMILY_UNIX)
		s->source.opaque = KERNEL_PAGES; /* thrown away, not copied */
	else if (needs_source(s, &walk.connection->receive) || walks_messages())
		source_of_call(&s->source, sk, n);
	capture(&walk);
	return 0;
}

static __always_inline int received(struct sock *sk, int ret, int flags)
{
	if (ret > 0)
		return receive(sk, ret, flags);
	/* No data follows an end of file either: the next recvmmsg starts at its first message. */
	mmsg_failed();
	return ret == 0 ? receive_end(sk) : 0;
}

static __always_inline int sent_record(struct connection *k, struct sock *sk, u32 n)
{
	struct source from = {};
	if (source_of_call(&from, sk, n))
		match_source(k, &from);
	return 0;
}

static __always_inline int sent(struct sock *sk, int ret)
{
	struct walk walk = {};
	struct segment *s;
	struct connection *k;
	if (ret <= 0) {
		mmsg_failed();
		return send_failed(sk, ret);
	}
	if (!begin_transfer(&walk, sk, ret, true))
		return walk.connection && awaits_tls(walk.connection) ? sent_record(walk.connection, sk, ret) : 0;
	k = walk.connection;
	s = walk.segment;
	if ((needs_source(s, &k->send) || walks_messages()) && !source_of_call(&s->source, sk, ret) &&
	    k->family != FAMILY_UNIX && s->source.opaque == UNKNOWN_BUFFER)
		want(WANT_SEND_MESSAGES);
	if (s->source.opaque && k->sends.tid == (u32)s->id)
		source_of_transfer(&s->source, &k->sends);
	k->sends.tid = 0;
	capture(&walk);
	return 0;
}

/*
 * From 7.0 on these tracepoints are called with preemption on, and the kernel skips a program for any thread
 * on a processor where a run of it was preempted. There each has two more instances, called after it, which do the
 * work when no earlier instance has.
 */
SEC("tp_btf/sock_recv_length")
int BPF_PROG(sock_recv_length, struct sock *sk, int ret, int flags)
{
	received(sk, ret, flags);
	return mark_followed(sk, false);
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(sock_recv_length_2, struct sock *sk, int ret, int flags)
{
	if (is_followed(sk, false, false))
		return 0;
	received(sk, ret, flags);
	return mark_followed(sk, false);
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(sock_recv_length_3, struct sock *sk, int ret, int flags)
{
	return is_followed(sk, false, true) ? 0 : received(sk, ret, flags);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(sock_send_length, struct sock *sk, int ret)
{
	sent(sk, ret);
	return mark_followed(sk, true);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(sock_send_length_2, struct sock *sk, int ret)
{
	if (is_followed(sk, true, false))
		return 0;
	sent(sk, ret);
	return mark_followed(sk, true);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(sock_send_length_3, struct sock *sk, int ret)
{
	return is_followed(sk, true, true) ? 0 : sent(sk, ret);
}

/*
 * Since 6.16 a send shows its message on the way in: the only sight of buffers
 * that io_uring sends. Kept only when the registers will not do.
 */
SEC("tp_btf/tcp_sendmsg_locked")
int BPF_PROG(tcp_sendmsg_locked, struct sock *sk, struct msghdr *message)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	u64 id = bpf_get_current_pid_tgid();
	struct connection *k;
	struct tcp_sock *tcp;
	if (!(task->flags & TASK_IO_WORKER) && fd_is(task, sk, ARGUMENT_1(regs)))
		return 0;
	if (!is_stream(sk) || !is_watched(id >> 32))
		return 0;
	tcp = tcp_of(sk);
	k = connection_of(sk, tcp, 0, 0);
	/* Further turns of the same send come with the buffer half gone: the first one counts. */
	if (!k || k->send.mode == MODE_IGNORED || k->sends.tid == (u32)id)
		return 0;
	message_source(&k->sends, message);
	if (!k->sends.opaque)
		k->sends.tid = id;
	return 0;
}

/*
 * A connection first seen by a splice. How much the splice has moved is not reported: what was received so far, if
 * one call can have moved that much; else the connection is older than the agent.
 */
static __always_inline struct connection *open_spliced(struct sock *sk, struct tcp_sock *tcp, u64 most)
{
	u32 n = received_before(tcp, read_position(sk, tcp));
	if (!is_watched(bpf_get_current_pid_tgid() >> 32))
		return NULL;
	return connection_of(sk, tcp, n <= most ? n : 0, 0);
}

/* splice from a socket: no receive event, only the read position moves. */
SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(tcp_rcv_space_adjust, struct sock *sk)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	struct connection *k;
	struct tcp_sock *tcp;
	if (CALL_NUMBER(regs) != CALL_SPLICE || !is_stream(sk) || !fd_is(task, sk, ARGUMENT_1(regs)))
		return 0;
	tcp = tcp_of(sk);
	if (!tcp)
		return 0;
	k = find_connection(sk);
	if (!k)
		k = open_spliced(sk, tcp, ARGUMENT_5(regs));
	if (!k || k->receive.mode == MODE_IGNORED)
		return 0;
	struct segment *s = begin_segment(k, false);
	struct walk walk = { .connection = k, .sk = sk, .segment = s };
	s->id = bpf_get_current_pid_tgid();
	s->time = bpf_ktime_get_ns();
	s->source.opaque = KERNEL_PAGES;
	place(s, &k->receive, tcp, read_position(sk, tcp), 0);
	capture(&walk);
	return 0;
}
