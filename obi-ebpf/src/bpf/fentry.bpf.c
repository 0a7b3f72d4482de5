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
#include "kernel.h"
#include <bpf/bpf_tracing.h>
#include "movement.h"
#include "process.h"
#include "tls.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Which argument of tcp_recvmsg its flags are: the agent looks it up in the kernel's type information. */
SETTING u32 recvmsg_flags_at = 3;

SEC("fentry/tcp_sendmsg")
int BPF_PROG(tcp_sendmsg, struct sock *sk, struct msghdr *message)
{
	return transfer_begins(sk, message, true, false);
}

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

SEC("fentry/tcp_recvmsg")
int BPF_PROG(tcp_recvmsg, struct sock *sk, struct msghdr *message)
{
	return receive_begins(sk, message, receive_flags(ctx));
}

SEC("fentry/tcp_bpf_recvmsg")
int BPF_PROG(tcp_bpf_recvmsg, struct sock *sk, struct msghdr *message)
{
	return receive_begins(sk, message, receive_flags(ctx));
}

SEC("fentry/release_sock")
int BPF_PROG(release_sock, struct sock *sk)
{
	return lock_released(sk, ctx);
}

SEC("fentry/unix_stream_sendmsg")
int BPF_PROG(unix_stream_sendmsg, struct socket *socket, struct msghdr *message)
{
	return transfer_begins(FIELD(socket, sk), message, true, false);
}

static __always_inline int unix_sent(struct sock *sk, int result, void *context)
{
	struct movement m = { .sk = sk, .context = context, .n = result, .sending = true };
	return result > 0 ? unix_moved(&m) : send_failed(sk, result);
}

static __always_inline int unix_received(struct sock *sk, int result, void *context)
{
	struct movement m = { .sk = sk, .context = context, .n = result };
	return result > 0 ? unix_moved(&m) : result ? 0 : receive_end(sk);
}

SEC("fexit/unix_stream_sendmsg")
int BPF_PROG(unix_stream_sendmsg_exit, struct socket *socket, struct msghdr *message, u64 size, int result)
{
	return unix_sent(FIELD(socket, sk), result, ctx);
}

SEC("fentry/unix_stream_recvmsg")
int BPF_PROG(unix_stream_recvmsg, struct socket *socket, struct msghdr *message, u64 size, int flags)
{
	return receive_begins(FIELD(socket, sk), message, flags);
}

SEC("fexit/unix_stream_recvmsg")
int BPF_PROG(unix_stream_recvmsg_exit, struct socket *socket, struct msghdr *message, u64 size, int flags, int result)
{
	if (flags & (FLAG_PEEK | FLAG_ERRQUEUE | FLAG_OOB))
		return 0;
	return unix_received(FIELD(socket, sk), result, ctx);
}

/* sendfile and splice into a unix socket, before 6.5. */
SEC("fexit/unix_stream_sendpage")
int BPF_PROG(unix_stream_sendpage, struct socket *socket, void *page, int offset, u64 size, int flags, long result)
{
	transfer_begins(FIELD(socket, sk), NULL, true, false);
	return unix_sent(FIELD(socket, sk), result, ctx);
}

/* splice out of a unix socket. */
SEC("fexit/unix_stream_splice_read")
int BPF_PROG(unix_stream_splice_read, struct socket *socket, void *position, void *pipe, u64 size, u32 flags, long result)
{
	transfer_begins(FIELD(socket, sk), NULL, false, false);
	return unix_received(FIELD(socket, sk), result, ctx);
}

SEC("fentry/unix_release")
int BPF_PROG(unix_release, struct socket *socket)
{
	struct sock *sk = FIELD(socket, sk);
	return sk ? unix_closed(sk) : 0;
}

#ifdef OBI_PORTABLE
/* Never attached: the targets of tail calls. */
SEC("fentry/release_sock")
int walk(void *ctx)
{
	return walk_on(ctx);
}

SEC("fentry/release_sock")
int walk_frames(void *ctx)
{
	return walk_frames_on(ctx);
}
#endif
