// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * The `kprobe` hook set: breakpoints on the functions that move bytes. Sees what
 * `fentry` sees; reaches furthest back. No return probe on a function that waits:
 * the kernel has few of their instances, and runs out of them silently.
 */
#define OBI_FUNCTION_SET
#define OBI_STATE_IN_HASH
#include "core/kernel.h"
/* Registers by the names that the kernel gives them. */
#define __VMLINUX_H__
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

#define RECEIVE_FLAGS(registers) \
	(recvmsg_flags_at == 4 ? PT_REGS_PARM5_CORE(registers) : PT_REGS_PARM4_CORE(registers))

SEC("kprobe/tcp_sendmsg")
int BPF_KPROBE(tcp_sendmsg, struct sock *sk, struct msghdr *message)
{
	return transfer_begins(sk, message, true, false);
}

/* A socket in a sockmap sends and receives through functions of its own. */
SEC("kprobe/tcp_bpf_sendmsg")
int BPF_KPROBE(tcp_bpf_sendmsg, struct sock *sk, struct msghdr *message)
{
	return transfer_begins(sk, message, true, false);
}

/* sendfile and splice before 6.5; later they are sends of pages. */
SEC("kprobe/tcp_sendpage")
int BPF_KPROBE(tcp_sendpage, struct sock *sk)
{
	return transfer_begins(sk, NULL, true, false);
}

SEC("kprobe/tcp_recvmsg")
int BPF_KPROBE(tcp_recvmsg, struct sock *sk, struct msghdr *message)
{
	return receive_begins(sk, message, RECEIVE_FLAGS(ctx));
}

SEC("kprobe/tcp_bpf_recvmsg")
int BPF_KPROBE(tcp_bpf_recvmsg, struct sock *sk, struct msghdr *message)
{
	return receive_begins(sk, message, RECEIVE_FLAGS(ctx));
}

SEC("kprobe/release_sock")
int BPF_KPROBE(release_sock, struct sock *sk)
{
	return lock_released(sk, ctx);
}

/* Stack is short where every call is verified anew; where loops are calls, so is the depth of calls. */
#ifdef OBI_PORTABLE
#define SENDS static __noinline
#else
#define SENDS static __always_inline
#endif

SENDS int unix_sends(struct sock *sk, u32 n, void *context)
{
	struct movement m = { .sk = sk, .context = context, .n = n, .sending = true, .ahead = true };
	return unix_moved(&m, false);
}

SEC("kprobe/unix_stream_sendmsg")
int BPF_KPROBE(unix_stream_sendmsg, struct socket *socket, struct msghdr *message, u64 size)
{
	struct sock *sk = READ(socket, sk);
	transfer_begins(sk, message, true, false);
	/* Pages are not copied: no call below reports them. */
	return READ(message, msg_flags) & FLAG_SPLICE_PAGES ? unix_sends(sk, size, ctx) : 0;
}

/* The copy of a send into a buffer that its socket owns. */
SEC("kprobe/skb_copy_datagram_from_iter")
int BPF_KPROBE(skb_copy_datagram_from_iter, struct sk_buff *skb, int offset, struct iov_iter *from, int size)
{
	struct sock *sk = READ(skb, sk);
	if (!sk || size <= 0 || READ(sk, __sk_common.skc_family) != FAMILY_UNIX || READ(sk, sk_type) != TYPE_STREAM)
		return 0;
	return unix_sends(sk, size, ctx);
}

/* sendfile and splice into a unix socket, before 6.5. */
SEC("kprobe/unix_stream_sendpage")
int BPF_KPROBE(unix_stream_sendpage, struct socket *socket, void *page, int offset, u64 size)
{
	struct sock *sk = READ(socket, sk);
	transfer_begins(sk, NULL, true, false);
	return unix_sends(sk, size, ctx);
}

/* Return probes know no arguments: the thread remembers its socket. */
static __always_inline int remember_socket(struct sock *sk)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	struct thread_state fresh = { .call = (u64)sk };
	if (state)
		state->call = (u64)sk;
	else if (bpf_map_update_elem(&thread, &tid, &fresh, BPF_ANY))
		tally_add(bpf_get_current_pid_tgid() >> 32, TALLY_THREAD_FULL << 8, 1);
	return 0;
}

SEC("kprobe/unix_stream_recvmsg")
int BPF_KPROBE(unix_stream_recvmsg, struct socket *socket, struct msghdr *message, u64 size, int flags)
{
	struct sock *sk = READ(socket, sk);
	receive_begins(sk, message, flags);
	return remember_socket(flags & (FLAG_PEEK | FLAG_OOB) ? NULL : sk);
}

SEC("kprobe/unix_stream_splice_read")
int BPF_KPROBE(unix_stream_splice_read, struct socket *socket)
{
	struct sock *sk = READ(socket, sk);
	transfer_begins(sk, NULL, false, false);
	return remember_socket(sk);
}

static __always_inline int unix_taken(int n, void *context)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	struct movement m = { .context = context, .n = n };
	if (n <= 0 || !state || !state->call)
		return 0;
	m.sk = (struct sock *)state->call;
	return unix_moved(&m, false);
}

/* The copy of a receive out of a buffer: does not wait, so its instances suffice. */
SEC("kretprobe/unix_stream_read_actor")
int BPF_KRETPROBE(unix_stream_read_actor, int result)
{
	return unix_taken(result, ctx);
}

SEC("kretprobe/unix_stream_splice_actor")
int BPF_KRETPROBE(unix_stream_splice_actor, int result)
{
	return unix_taken(result, ctx);
}

SEC("kprobe/unix_release")
int BPF_KPROBE(unix_release, struct socket *socket)
{
	struct sock *sk = READ(socket, sk);
	return sk ? unix_closed(sk) : 0;
}

#ifdef OBI_PORTABLE
/* Never attached: the targets of tail calls. */
SEC("kprobe/release_sock")
int walk(void *ctx)
{
	return walk_on(ctx, WALK_HEADS);
}

SEC("kprobe/release_sock")
int walk_frames(void *ctx)
{
	return walk_on(ctx, WALK_FRAMES);
}

SEC("kprobe/release_sock")
int walk_database(void *ctx)
{
	return walk_on(ctx, WALK_DATABASE);
}
#endif
