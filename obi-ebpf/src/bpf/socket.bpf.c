// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * The `socket` hook set: BTF tracepoints only, so it works where kprobes and
 * trampolines are refused. Needs sock_send_length and sock_recv_length (6.3).
 */
#include "kernel.h"
#include <bpf/bpf_tracing.h>
#include "registers.h"
#include "process.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline bool is_watched(u32 tgid)
{
	u32 zero = 0, *count, *verdict;
	if (tgid == self_tgid || !*(volatile u32 *)&global.active)
		return false;
	count = bpf_map_lookup_elem(&n_ignored, &zero);
	if (count && !*count)
		return true;
	verdict = bpf_map_lookup_elem(&process, &tgid);
	return !verdict || *verdict != VERDICT_IGNORE;
}

/* Stream sockets whose bytes could be HTTP/1. */
static __always_inline bool is_stream(struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;
	return sk->sk_type == TYPE_STREAM && (family == FAMILY_INET || family == FAMILY_INET6 || family == FAMILY_UNIX);
}

static __always_inline void fill_addresses(struct connection *k, struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;
	k->family = family;
	if (family == FAMILY_UNIX)
		return;
	k->local_port = sk->__sk_common.skc_num;
	k->remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	if (family == FAMILY_INET6) {
		u32 *local = (u32 *)k->local_address, *remote = (u32 *)k->remote_address;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			local[i] = sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[i];
			remote[i] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[i];
		}
		return;
	}
	k->local_address[10] = k->local_address[11] = 0xff;
	k->remote_address[10] = k->remote_address[11] = 0xff;
	*(u32 *)&k->local_address[12] = sk->__sk_common.skc_rcv_saddr;
	*(u32 *)&k->remote_address[12] = sk->__sk_common.skc_daddr;
}

/* TCP state with sequence numbers, or NULL: unix and MPTCP sockets have none that we could use. */
static __always_inline struct tcp_sock *tcp_of(struct sock *sk)
{
	if (sk->__sk_common.skc_family == FAMILY_UNIX || sk->sk_protocol != PROTOCOL_TCP)
		return NULL;
	return (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
}

/*
 * The read position. The peer's FIN takes a sequence number of its own, and the
 * call that reads the last data may step over it too: it is no byte.
 */
static __always_inline u32 read_position(struct sock *sk, struct tcp_sock *tcp)
{
	u32 position = tcp->copied_seq;
	return position == tcp->rcv_nxt && sk->__sk_common.skc_flags & 1ul << SOCKET_DONE ? position - 1 : position;
}

/*
 * First sight of a connection. Where the stream offsets do not start at the
 * beginning it was joined in the middle: the next head has to be found.
 */
static __always_inline struct connection *open_connection(struct sock *sk, struct tcp_sock *tcp, u32 n_received,
							  u32 n_sent)
{
	struct connection *k = bpf_sk_storage_get(&connection, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	if (!k) {
		tally_add(tgid, TALLY_LOST << 8 | LOSS_NO_STATE, 1);
		return NULL;
	}
	k->tgid = tgid;
	k->number = __sync_fetch_and_add(&global.n_connections, 1) + 1;
	fill_addresses(k, sk);
	if (tcp) {
		u32 received = read_position(sk, tcp) - n_received, sent = tcp->write_seq - n_sent;
		/* A client's SYN counts as acknowledged, a server's does not: off by one on one side. */
		u32 n_sent_before = sent - (tcp->snd_una - (u32)tcp->bytes_acked);
		k->receive.next = received;
		k->send.next = sent;
		if (received != tcp->rcv_nxt - (u32)tcp->bytes_received)
			k->receive.mode = MODE_RESYNC;
		if (n_sent_before > 1)
			k->send.mode = MODE_RESYNC;
		if (k->receive.mode || k->send.mode)
			k->flags |= CONNECTION_JOINED;
		count_open(k);
	}
	return k;
}

static __always_inline struct connection *connection_of(struct sock *sk, struct tcp_sock *tcp, u32 n_received,
							u32 n_sent)
{
	struct connection *k = bpf_sk_storage_get(&connection, sk, NULL, 0);
	return k ? k : open_connection(sk, tcp, n_received, n_sent);
}

/*
 * When the data just read had arrived. tcp_mstamp is exact (µs) unless the
 * socket has been busy since; lrcvtime (jiffies) tells whether it has. In doubt
 * the wait is understated, never overstated.
 */
static __always_inline u64 arrival_time(struct tcp_sock *tcp, u64 now)
{
	u32 waited_ticks = (u32)bpf_jiffies64() - tcp->inet_conn.icsk_ack.lrcvtime;
	u64 stamp = tcp->tcp_mstamp * 1000, waited, least;
	if (stamp > now || waited_ticks > 1u << 20)
		return now;
	waited = now - stamp;
	least = waited_ticks > 1 ? (u64)(waited_ticks - 1) * tick_ns : 0;
	if (waited <= (u64)(waited_ticks + 1) * tick_ns)
		return waited >= least ? stamp : now - least;
	return now - least;
}

static __always_inline void want(u32 program)
{
	if (!(*(volatile u32 *)&global.wanted & program))
		__sync_fetch_and_or(&global.wanted, program);
}

/* Which stream offset the segment starts at, and how much passed unseen before it. */
static __always_inline void place(struct segment *s, struct cursor *c, struct tcp_sock *tcp, u32 end, u32 n)
{
	if (!tcp) {
		s->offset = c->next;
		c->next += n;
		return;
	}
	s->offset = end - n;
	s->gap = s->offset - c->next;
	/* Behind what was seen: another thread was here in between. The bytes are looked at as they are. */
	if ((s32)s->gap < 0)
		s->gap = 0;
	c->next = end;
}

/*
 * A segment that lies inside a body is hopped over unread. (A walk along the messages of a system
 * call has to be kept up all the same.)
 */
static __always_inline bool needs_source(const struct segment *s, const struct cursor *c)
{
	u32 call;
	if (s->gap || !is_skipping(c->mode) || (c->mode != MODE_UNTIL_CLOSE && c->remaining < s->left))
		return true;
	call = CALL_NUMBER((struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf()));
	return call == CALL_RECVMMSG || call == CALL_SENDMMSG;
}

static __always_inline int receive(struct sock *sk, int ret, int flags)
{
	u64 id = bpf_get_current_pid_tgid();
	struct connection *k;
	struct tcp_sock *tcp;
	if (flags & (FLAG_PEEK | FLAG_ERRQUEUE | FLAG_OOB) || !is_stream(sk) || !is_watched(id >> 32))
		return 0;
	tcp = tcp_of(sk);
	k = connection_of(sk, tcp, ret, 0);
	if (!k)
		return 0;
	if (k->receive.mode == MODE_IGNORED)
		return 0;
	struct walk walk = { .connection = k, .sk = sk, .segment = { .id = id, .time = bpf_ktime_get_ns(), .left = ret, } };
	struct segment *s = &walk.segment;
	s->arrival = tcp && k->side != SIDE_CLIENT ? arrival_time(tcp, s->time) : s->time;
	place(s, &k->receive, tcp, tcp ? read_position(sk, tcp) : 0, ret);
	if (flags & FLAG_TRUNC && tcp)
		s->source.opaque = KERNEL_PAGES; /* thrown away, not copied */
	else if (needs_source(s, &k->receive))
		source_of_call(&s->source, sk, ret);
	capture(&walk);
	return 0;
}

/* The peer has closed: for a client that is the end; a server may still answer. */
static __always_inline int receive_end(struct sock *sk)
{
	struct ending how = { .reason = CLOSE_REMOTE };
	struct connection *k;
	struct unix_sock *own;
	struct sock *peer;
	if (!is_stream(sk) || !(sk->sk_shutdown & SHUTDOWN_RECEIVE))
		return 0;
	k = bpf_sk_storage_get(&connection, sk, NULL, 0);
	if (k && k->side == SIDE_CLIENT) {
		how.time = bpf_ktime_get_ns();
		end_connection(k, &how);
	}
	if (sk->__sk_common.skc_family != FAMILY_UNIX)
		return 0;
	/* Nothing tells of the local close of a unix socket; its peer's end of file does. */
	own = (struct unix_sock *)bpf_skc_to_unix_sock(sk);
	peer = own ? own->peer : NULL;
	if (!peer || !(peer->sk_shutdown & SHUTDOWN_BOTH))
		return 0;
	k = bpf_sk_storage_get(&connection, peer, NULL, 0);
	if (k && k->side == SIDE_SERVER) {
		how.time = bpf_ktime_get_ns();
		how.reason = CLOSE_LOCAL;
		end_connection(k, &how);
	}
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(sock_recv_length, struct sock *sk, int ret, int flags)
{
	if (ret > 0)
		return receive(sk, ret, flags);
	/* No data follows an end of file either: the next recvmmsg starts at its first message. */
	mmsg_failed();
	return ret == 0 ? receive_end(sk) : 0;
}

/* A unix socket whose peer is gone tells so only here. */
static __always_inline int send_failed(struct sock *sk, int ret)
{
	struct ending how = { .reason = CLOSE_RESET, .error = (u16)-ret };
	struct connection *k;
	if ((ret != -ERROR_PIPE && ret != -ERROR_RESET) || !is_stream(sk) || sk->__sk_common.skc_family != FAMILY_UNIX)
		return 0;
	k = bpf_sk_storage_get(&connection, sk, NULL, 0);
	if (!k)
		return 0;
	how.time = bpf_ktime_get_ns();
	return end_connection(k, &how);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(sock_send_length, struct sock *sk, int ret, int flags)
{
	u64 id = bpf_get_current_pid_tgid();
	struct connection *k;
	struct tcp_sock *tcp;
	(void)flags;
	if (ret <= 0) {
		mmsg_failed();
		return send_failed(sk, ret);
	}
	if (!is_stream(sk) || !is_watched(id >> 32))
		return 0;
	tcp = tcp_of(sk);
	k = connection_of(sk, tcp, 0, ret);
	if (!k || k->send.mode == MODE_IGNORED)
		return 0;
	struct walk walk = { .connection = k, .sk = sk, .segment = { .id = id, .time = bpf_ktime_get_ns(), .left = ret, .sending = 1, } };
	struct segment *s = &walk.segment;
	s->arrival = s->time;
	place(s, &k->send, tcp, tcp ? tcp->write_seq : 0, ret);
	if (needs_source(s, &k->send) && !source_of_call(&s->source, sk, ret) && tcp && s->source.opaque == UNKNOWN_BUFFER)
		want(WANT_SEND_MESSAGES);
	if (s->source.opaque && k->source.tid == (u32)id) {
		s->source.base = k->source.base;
		s->source.length = k->source.vectors ? 0 : k->source.length;
		s->source.skip = k->source.skip;
		s->source.vector = k->source.base;
		s->source.vectors = k->source.vectors;
		s->source.opaque = READABLE;
	}
	k->source.tid = 0;
	capture(&walk);
	return 0;
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
	u8 type;
	if (!(task->flags & TASK_IO_WORKER) && fd_is(task, sk, ARGUMENT_1(regs)))
		return 0;
	if (!is_stream(sk) || !is_watched(id >> 32))
		return 0;
	tcp = tcp_of(sk);
	k = connection_of(sk, tcp, 0, 0);
	/* Further turns of the same send come with the buffer half gone: the first one counts. */
	if (!k || k->send.mode == MODE_IGNORED || k->source.tid == (u32)id)
		return 0;
	type = message->msg_iter.iter_type;
	if (type == bpf_core_enum_value(enum iter_type, ITER_UBUF)) {
		k->source.base = (u64)message->msg_iter.ubuf + message->msg_iter.iov_offset;
		k->source.length = message->msg_iter.count;
		k->source.skip = 0;
		k->source.vectors = 0;
	} else if (type == bpf_core_enum_value(enum iter_type, ITER_IOVEC)) {
		k->source.base = (u64)message->msg_iter.__iov;
		k->source.skip = message->msg_iter.iov_offset;
		k->source.vectors = message->msg_iter.nr_segs;
	} else {
		return 0;
	}
	k->source.tid = id;
	return 0;
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
	k = bpf_sk_storage_get(&connection, sk, NULL, 0);
	if (!k || !tcp || k->receive.mode == MODE_IGNORED)
		return 0;
	struct walk walk = { .connection = k, .sk = sk, .segment = { .id = bpf_get_current_pid_tgid(), .time = bpf_ktime_get_ns(), .source.opaque = KERNEL_PAGES, } };
	struct segment *s = &walk.segment;
	place(s, &k->receive, tcp, read_position(sk, tcp), 0);
	capture(&walk);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(inet_sock_set_state, struct sock *sk, int old, int new)
{
	struct ending how = {};
	struct connection *k;
	int error;
	(void)old;
	if (new != STATE_CLOSE && new != STATE_FIN_WAIT1 && new != STATE_LAST_ACK)
		return 0;
	k = bpf_sk_storage_get(&connection, sk, NULL, 0);
	if (!k || k->flags & CONNECTION_FINISHED)
		return 0;
	how.time = bpf_ktime_get_ns();
	if (new != STATE_CLOSE) {
		/* close() shuts both ways; a half-close only ends what we send. */
		if (sk->sk_shutdown != SHUTDOWN_BOTH) {
			if (k->side == SIDE_SERVER && k->send.mode == MODE_UNTIL_CLOSE)
				message_end(k, 1, k->last_response_byte);
			return 0;
		}
		how.reason = new == STATE_LAST_ACK ? CLOSE_REMOTE : CLOSE_LOCAL;
		return end_connection(k, &how), 0;
	}
	error = sk->sk_err;
	how.error = error;
	how.reason = error == ERROR_TIMEOUT		      ? CLOSE_TIMEOUT
		     : error == ERROR_RESET || error == ERROR_PIPE ? CLOSE_RESET
								   : CLOSE_LOCAL;
	end_connection(k, &how);
	return 0;
}
