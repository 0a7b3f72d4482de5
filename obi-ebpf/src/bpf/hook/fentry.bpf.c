// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * The `fentry` hook set: trampolines on the functions that move bytes. Sees every
 * send and receive with its msghdr, io_uring's too. Needs trampolines (x86-64: 5.5,
 * arm64: 6.4) and permission to use them.
 */
#define OBI_FUNCTION_SET
#ifdef OBI_PORTABLE
#define OBI_STATE_IN_HASH
#else
#define OBI_TYPED_SOCKET
#endif
#include "core/kernel.h"
#include <bpf/bpf_tracing.h>
#include "hook/movement.h"
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

/* Which argument of tcp_recvmsg its flags are: the agent looks it up in the kernel's type information. */
SETTING u32 recvmsg_flags_at = 3;

/*
 * A kernel that preempts itself skips a program for any thread on a processor where a run of it was preempted.
 * There the agent attaches all three instances of a program, elsewhere the first. They come in any order and need not
 * know of each other: a beginning may be noted twice, and TCP stream offsets show that nothing has moved since.
 */
#define INSTANCES(SECTION, NAME, CALL, PARAMETERS...) INSTANCES_OF(SECTION, NAME, CALL, CALL, PARAMETERS)
#define INSTANCES_OF(SECTION, NAME, FIRST, AGAIN, PARAMETERS...)                                                       \
	SEC(SECTION) int BPF_PROG(NAME, PARAMETERS) { return FIRST; }                                                  \
	SEC(SECTION) int BPF_PROG(NAME##_2, PARAMETERS) { return AGAIN; }                                              \
	SEC(SECTION) int BPF_PROG(NAME##_3, PARAMETERS) { return AGAIN; }

INSTANCES("fentry/tcp_sendmsg", tcp_sendmsg, transfer_begins(sk, message, true, false),
	  struct sock *sk, struct msghdr *message)

/* A socket in a sockmap sends and receives through functions of its own. */
SEC("fentry/tcp_bpf_sendmsg")
int BPF_PROG(tcp_bpf_sendmsg, struct sock *sk, struct msghdr *message)
{
	return transfer_begins(sk, message, true, false);
}

/* sendfile and splice before 6.5; later they are sends of pages. */
SEC("fentry/tcp_sendpage")
int BPF_PROG(tcp_sendpage, struct sock *sk)
{
	return transfer_begins(sk, NULL, true, false);
}

/* Two loads that the compiler must not make one: the verifier wants constant offsets. */
static __always_inline u32 receive_flags(const unsigned long long *arguments)
{
	u64 flags;
	if (recvmsg_flags_at == 4) {
		flags = arguments[4];
		barrier_var(flags);
	} else {
		flags = arguments[3];
	}
	return flags;
}

INSTANCES("fentry/tcp_recvmsg", tcp_recvmsg, receive_begins(sk, message, receive_flags(ctx)),
	  struct sock *sk, struct msghdr *message)

SEC("fentry/tcp_bpf_recvmsg")
int BPF_PROG(tcp_bpf_recvmsg, struct sock *sk, struct msghdr *message)
{
	return receive_begins(sk, message, receive_flags(ctx));
}

INSTANCES("fentry/release_sock", release_sock, lock_released(sk, ctx), struct sock *sk)

INSTANCES("fentry/unix_stream_sendmsg", unix_stream_sendmsg,
	  transfer_begins(FIELD(socket, sk), message, true, false),
	  struct socket *socket, struct msghdr *message)

INSTANCES("fentry/unix_stream_recvmsg", unix_stream_recvmsg, receive_begins(FIELD(socket, sk), message, flags),
	  struct socket *socket, struct msghdr *message, u64 size, int flags)

static __always_inline int unix_sent(struct sock *sk, int result, void *context, bool again)
{
	struct movement m = { .sk = sk, .context = context, .n = result, .sending = true };
	return result > 0 ? unix_moved(&m, again) : send_failed(sk, result);
}

static __always_inline int unix_received(struct sock *sk, int result, void *context, bool again)
{
	struct movement m = { .sk = sk, .context = context, .n = result };
	return result > 0 ? unix_moved(&m, again) : result ? 0 : receive_end(sk);
}

static __always_inline int unix_received_unless_looked(struct sock *sk, int result, int flags, void *context, bool again)
{
	return flags & (FLAG_PEEK | FLAG_ERRQUEUE | FLAG_OOB) ? 0 : unix_received(sk, result, context, again);
}

INSTANCES_OF("fexit/unix_stream_sendmsg", unix_stream_sendmsg_exit,
	     unix_sent(FIELD(socket, sk), result, ctx, false), unix_sent(FIELD(socket, sk), result, ctx, true),
	     struct socket *socket, struct msghdr *message, u64 size, int result)

INSTANCES_OF("fexit/unix_stream_recvmsg", unix_stream_recvmsg_exit,
	     unix_received_unless_looked(FIELD(socket, sk), result, flags, ctx, false),
	     unix_received_unless_looked(FIELD(socket, sk), result, flags, ctx, true),
	     struct socket *socket, struct msghdr *message, u64 size, int flags, int result)

/* sendfile and splice into a unix socket, before 6.5. */
SEC("fexit/unix_stream_sendpage")
int BPF_PROG(unix_stream_sendpage, struct socket *socket, void *page, int offset, u64 size, int flags, long result)
{
	transfer_begins(FIELD(socket, sk), NULL, true, false);
	return unix_sent(FIELD(socket, sk), result, ctx, false);
}

/* splice out of a unix socket. */
SEC("fexit/unix_stream_splice_read")
int BPF_PROG(unix_stream_splice_read, struct socket *socket, void *position, void *pipe, u64 size, u32 flags, long result)
{
	transfer_begins(FIELD(socket, sk), NULL, false, false);
	return unix_received(FIELD(socket, sk), result, ctx, false);
}

static __always_inline int unix_released(struct sock *sk)
{
	return sk ? unix_closed(sk) : 0;
}

INSTANCES("fentry/unix_release", unix_release, unix_released(FIELD(socket, sk)), struct socket *socket)

#ifdef OBI_PORTABLE
/* Never attached: the targets of tail calls. */
SEC("fentry/release_sock")
int walk(void *ctx)
{
	return walk_on(ctx, WALK_HEADS);
}

SEC("fentry/release_sock")
int walk_frames(void *ctx)
{
	return walk_on(ctx, WALK_FRAMES);
}

SEC("fentry/release_sock")
int walk_database(void *ctx)
{
	return walk_on(ctx, WALK_DATABASE);
}
#endif
