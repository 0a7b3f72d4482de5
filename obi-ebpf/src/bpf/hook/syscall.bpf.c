// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * The `syscall` hook set: the ends of the system calls that move bytes. Needs no
 * more than tracefs; sees nothing of io_uring, whose bytes show up as gaps. The
 * socket is found from the descriptor, the user's memory from the arguments.
 */
#define OBI_CALL_SET
#define OBI_STATE_IN_HASH
#include "core/kernel.h"
#include <bpf/bpf_tracing.h>
#include "hook/transfer.h"
#include "hook/call.h"
#include "hook/descriptor.h"
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

/* Entries of a sendmmsg or recvmmsg that are followed; what lies behind them is a gap. */
#ifdef OBI_PORTABLE
#define MESSAGES_MOST 16
#else
#define MESSAGES_MOST 64
#endif

/* As `call_begun`. */
struct call_done {
	u64 common;
	u64 number;
	s64 result;
};

/* Which of the programs that come by at the end of one call. */
enum turn { ONLY, FIRST, LAST };

/* Arguments and result of a call that has ended. */
struct call {
	u32 number;
	bool sending;
	enum turn turn;
	s64 result;
	u64 argument[4];
	void *context;
};

static __always_inline void messages_source(struct source *from, const struct call *call)
{
	from->message = call->argument[1];
	from->messages = call->result;
	from->bounded = 1;
}

/* Bytes moved: a result, or the sum over the messages. */
static __always_inline u32 bytes_moved(const struct call *call)
{
	u32 total = 0, length;
	if (call->number != CALL_SENDMMSG && call->number != CALL_RECVMMSG)
		return call->result;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MESSAGES_MOST && i < call->result; i++) {
		u64 at = call->argument[1] + i * MMSGHDR_BYTES + MMSGHDR_LENGTH;
		if (bpf_probe_read_user(&length, sizeof(length), (void *)at))
			break;
		total += length;
	}
	return total;
}

static __always_inline u32 flags_of(const struct call *call)
{
	switch (call->number) {
	case CALL_RECVFROM:
	case CALL_RECVMMSG:
		return call->argument[3];
	case CALL_RECVMSG:
		return call->argument[2];
	}
	return 0;
}

/* `n` bytes have moved between the socket and where the call's arguments say. */
static __always_inline int moved(struct sock *sk, const struct call *call, u32 n)
{
	struct walk walk = { .context = call->context };
	struct source *from;
	u32 flags = flags_of(call);
	if (!n || flags & (FLAG_PEEK | FLAG_ERRQUEUE | FLAG_OOB))
		return 0;
	if (!begin_transfer(&walk, sk, n, call->sending)) {
		struct source record = {};
		if (call->sending && walk.connection && awaits_tls(walk.connection) &&
		    source_of_arguments(&record, call->number, call->argument[1], call->argument[2], n))
			match_source(walk.connection, &record);
		return 0;
	}
	from = &walk.segment->source;
	if (flags & FLAG_TRUNC && walk.connection->family != FAMILY_UNIX)
		from->opaque = KERNEL_PAGES; /* thrown away, not copied */
	else if (call->number == CALL_SENDMMSG || call->number == CALL_RECVMMSG)
		messages_source(from, call);
	else if (needs_source(walk.segment, call->sending ? &walk.connection->send : &walk.connection->receive) &&
		 !source_of_arguments(from, call->number, call->argument[1], call->argument[2], n))
		from->opaque = KERNEL_PAGES; /* sendfile, splice */
	capture(&walk);
	return 0;
}

#ifndef OBI_PORTABLE
/* Nothing else reports the end of a connection that is_late(). Not inlined: its stack would add to that of the walk. */
static __noinline int end_late(struct sock *sk)
{
	struct connection *k;
	if (READ(sk, __sk_common.skc_state) != STATE_CLOSE || !has_offsets(sk))
		return 0;
	k = find_connection(sk);
	return k && !k->held ? closed(k, sk, STATE_ESTABLISHED) : 0;
}
#endif

static __always_inline int call_done(struct call *call)
{
	u32 number = call->number;
	bool sending = call->sending;
	s64 result = call->result;
	struct sock *sk;
	/* Of failures only those of a send mean something; empty sends mean nothing. */
	if (sending ? !result || (result < 0 && result != -ERROR_PIPE && result != -ERROR_RESET) : result < 0)
		return 0;
	if (!is_watched(bpf_get_current_pid_tgid() >> 32) || !read_arguments(number, call->argument))
		return 0;
	sk = socket_of(file_of(number == CALL_SPLICE && sending ? call->argument[2] : call->argument[0]));
	if (!sk)
		return 0;
	if (result < 0)
		return send_failed(sk, result);
	if (!result)
		return receive_end(sk);
	if (call->turn != LAST || !is_followed(sk, sending, true))
		moved(sk, call, bytes_moved(call));
	if (call->turn == FIRST)
		return mark_followed(sk, sending);
#ifndef OBI_PORTABLE
	end_late(sk);
#endif
	return 0;
}

static __always_inline int call_ends(struct call_done *context, u32 number, bool sending)
{
	struct call call = { .number = number, .sending = sending, .result = context->result, .context = context };
	return call_done(&call);
}

#define CALL_ENDS(name, number, sending)			\
	SEC("tracepoint/syscalls/sys_exit_" #name)		\
	int sys_exit_##name(struct call_done *context)		\
	{							\
		OWN_STACK(context);				\
		return call_ends(context, number, sending);	\
	}

CALL_ENDS(read, CALL_READ, false)
CALL_ENDS(readv, CALL_READV, false)
CALL_ENDS(preadv2, CALL_PREADV2, false)
CALL_ENDS(recvfrom, CALL_RECVFROM, false)
CALL_ENDS(recvmsg, CALL_RECVMSG, false)
CALL_ENDS(recvmmsg, CALL_RECVMMSG, false)
CALL_ENDS(write, CALL_WRITE, true)
CALL_ENDS(writev, CALL_WRITEV, true)
CALL_ENDS(pwritev2, CALL_PWRITEV2, true)
CALL_ENDS(sendto, CALL_SENDTO, true)
CALL_ENDS(sendmsg, CALL_SENDMSG, true)
CALL_ENDS(sendmmsg, CALL_SENDMMSG, true)
CALL_ENDS(sendfile64, CALL_SENDFILE, true)

/* Either end may be a socket. */
SEC("tracepoint/syscalls/sys_exit_splice")
int sys_exit_splice(struct call_done *context)
{
	OWN_STACK(context);
	call_ends(context, CALL_SPLICE, false);
	return call_ends(context, CALL_SPLICE, true);
}

/*
 * Many messages take a while: another thread may have read the answer to the first before the call
 * ends. So the connection is known from its beginning.
 */
static __always_inline int messages_begin(u64 fd)
{
	struct sock *sk;
	if (!is_watched(bpf_get_current_pid_tgid() >> 32))
		return 0;
	sk = socket_of(file_of(fd));
	if (sk && is_stream(sk))
		connection_of(sk, tcp_of(sk), 0, 0);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_sendmmsg")
int sys_enter_sendmmsg(struct call_begun *context)
{
	OWN_STACK(context);
	return messages_begin(context->argument[0]);
}

/* Nothing else reports the end of a unix socket. */
SEC("tracepoint/syscalls/sys_enter_close")
int sys_enter_close(struct call_begun *context)
{
	OWN_STACK(context);
	return descriptor_closes(context->argument[0]);
}

#ifndef OBI_PORTABLE
/*
 * In the place of all the above where the kernel preempts itself. Those it skips on a processor where any thread was
 * preempted in the middle of bpf(2) on a map (`bpf_prog_active`), and from 7.2 on where one of them was preempted.
 * What a tracepoint calls by itself is not asked for the former; it is not preempted before 7.2 either. From then on
 * there are both kinds at every call of the machine, called in this order: as performance events, which the kernel
 * still calls with preemption off, and these. Two of each at the end of calls, because both ways in one program take
 * more stack than it has before 6.3.
 */

/* Programs of the category `syscalls` are spared the calls of 32-bit programs. */
static __always_inline bool is_foreign(void)
{
	struct thread_info *thread = &current_task()->thread_info;
	return IS_FOREIGN(thread);
}

static __always_inline int receive_ends(u64 number, s64 result, enum turn turn)
{
	struct call call = { .number = number, .result = result, .turn = turn };
	switch (number) {
	case CALL_READ:
	case CALL_READV:
	case CALL_PREADV2:
	case CALL_RECVFROM:
	case CALL_RECVMSG:
	case CALL_RECVMMSG:
	case CALL_SPLICE:
		return is_foreign() ? 0 : call_done(&call);
	}
	return 0;
}

static __always_inline int send_ends(u64 number, s64 result, enum turn turn)
{
	struct call call = { .number = number, .sending = true, .result = result, .turn = turn };
	switch (number) {
	case CALL_WRITE:
	case CALL_WRITEV:
	case CALL_PWRITEV2:
	case CALL_SENDTO:
	case CALL_SENDMSG:
	case CALL_SENDMMSG:
	case CALL_SENDFILE:
	case CALL_SPLICE:
		return is_foreign() ? 0 : call_done(&call);
	}
	return 0;
}

static __always_inline int call_begins(u64 number, u64 fd)
{
	if ((number != CALL_CLOSE && number != CALL_SENDMMSG) || is_foreign())
		return 0;
	return number == CALL_CLOSE ? descriptor_closes(fd) : messages_begin(fd);
}

SEC("tracepoint/raw_syscalls/sys_exit")
int sys_exit_receive_event(struct call_done *context)
{
	OWN_STACK(context);
	return receive_ends(context->number, context->result, FIRST);
}

SEC("tracepoint/raw_syscalls/sys_exit")
int sys_exit_send_event(struct call_done *context)
{
	OWN_STACK(context);
	return send_ends(context->number, context->result, FIRST);
}

SEC("tracepoint/raw_syscalls/sys_enter")
int sys_enter_event(struct call_begun *context)
{
	OWN_STACK(context);
	return call_begins(context->number, context->argument[0]);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(sys_exit_receive, struct pt_regs *registers, long result)
{
	return receive_ends(CALL_NUMBER(registers), result, is_preempted ? LAST : ONLY);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(sys_exit_send, struct pt_regs *registers, long result)
{
	return send_ends(CALL_NUMBER(registers), result, is_preempted ? LAST : ONLY);
}

SEC("tp_btf/sys_enter")
int BPF_PROG(sys_enter, struct pt_regs *registers, long number)
{
	return call_begins(number, ARGUMENT_1(registers));
}
#endif

/* What a dying process has open is closed without a call. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	if (!task->signal->live.counter)
		descriptors_close();
	return process_exits(task);
}

#ifdef OBI_PORTABLE
/* Never attached: the targets of tail calls. */
SEC("tracepoint/syscalls/sys_exit_read")
int walk(void *ctx)
{
	return walk_on(ctx, WALK_HEADS);
}

SEC("tracepoint/syscalls/sys_exit_read")
int walk_frames(void *ctx)
{
	return walk_on(ctx, WALK_FRAMES);
}

SEC("tracepoint/syscalls/sys_exit_read")
int walk_database(void *ctx)
{
	return walk_on(ctx, WALK_DATABASE);
}
#endif
