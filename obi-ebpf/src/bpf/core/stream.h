/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What is read from a socket: whether it is of interest, whose it is, how far its two
 * streams have come, and the state that belongs to it.
 */
#ifndef OBI_STREAM_H
#define OBI_STREAM_H

#include "core/capture.h"
#include "tls/tls_transport.h"

static __always_inline bool is_watched(u32 tgid)
{
	if (tgid == self_tgid || !*(volatile u32 *)&global.active)
		return false;
	return !is_ignored(tgid);
}

/* Stream sockets whose bytes could be HTTP/1. */
static __always_inline bool is_stream(struct sock *sk)
{
	u16 family = FIELD(sk, __sk_common.skc_family);
	return (family == FAMILY_INET || family == FAMILY_INET6 || family == FAMILY_UNIX) && FIELD(sk, sk_type) == TYPE_STREAM;
}

static __always_inline void fill_addresses(struct connection *k, struct sock *sk)
{
	u16 family = FIELD(sk, __sk_common.skc_family);
	u16 port;
	k->family = family;
	if (family == FAMILY_UNIX)
		return;
	k->local_port = FIELD(sk, __sk_common.skc_num);
	port = FIELD(sk, __sk_common.skc_dport);
	k->remote_port = bpf_ntohs(port);
	if (family == FAMILY_INET6) {
		bpf_core_read(k->local_address, sizeof(k->local_address), &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(k->remote_address, sizeof(k->remote_address), &sk->__sk_common.skc_v6_daddr);
		return;
	}
	k->local_address[10] = k->local_address[11] = 0xff;
	k->remote_address[10] = k->remote_address[11] = 0xff;
	*(u32 *)&k->local_address[12] = FIELD(sk, __sk_common.skc_rcv_saddr);
	*(u32 *)&k->remote_address[12] = FIELD(sk, __sk_common.skc_daddr);
}

/* Whether a stream socket counts its bytes: unix and MPTCP sockets have no numbers that we could use. */
static __always_inline bool has_offsets(struct sock *sk)
{
	return FIELD(sk, __sk_common.skc_family) != FAMILY_UNIX && FIELD(sk, sk_protocol) == PROTOCOL_TCP;
}

/* TCP state with sequence numbers, or NULL. */
static __always_inline struct tcp_sock *tcp_of(struct sock *sk)
{
	if (!has_offsets(sk))
		return NULL;
#ifdef OBI_TYPED_SOCKET
	return (struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
#else
	return (struct tcp_sock *)sk;
#endif
}

/*
 * The read position. The peer's FIN takes a sequence number of its own, and the
 * call that reads the last data may step over it too: it is no byte. The flag is
 * looked at first, since a FIN that comes in meanwhile sets it last.
 */
static __always_inline u32 read_position(struct sock *sk, struct tcp_sock *tcp)
{
	bool is_done = FIELD(sk, __sk_common.skc_flags) & 1ul << SOCKET_DONE;
	barrier();
	u32 position = FIELD(tcp, copied_seq);
	return is_done && position == FIELD(tcp, rcv_nxt) ? position - 1 : position;
}

#ifndef OBI_SOCKET_SET
/* What distinguishes this socket from the one that had its address before. */
static __always_inline u64 birth_of(struct sock *sk)
{
	if (FIELD(sk, __sk_common.skc_family) == FAMILY_UNIX)
		return READ(sk, sk_socket, file, f_inode, i_ino);
	return FIELD(sk, __sk_common.skc_portpair);
}
#endif

/*
 * Where the bytes from the peer begin. A packet may come in between the two looks: the kernel raises the number of
 * bytes first (tcp_rcv_nxt_update()) and the offset is looked at first here, so what this says is the true beginning
 * or too early.
 */
static __always_inline u32 received_from(struct tcp_sock *tcp)
{
	u32 next = FIELD(tcp, rcv_nxt);
	barrier();
	next -= (u32)FIELD(tcp, bytes_received);
	barrier();
	return next;
}

/* The same of the bytes to the peer, those that it has acknowledged (tcp_snd_una_update()). */
static __always_inline u32 sent_from(struct tcp_sock *tcp)
{
	u32 next = FIELD(tcp, snd_una);
	barrier();
	next -= (u32)FIELD(tcp, bytes_acked);
	barrier();
	return next;
}

static __always_inline u32 fewer(u32 one, u32 other)
{
	return one < other ? one : other;
}

/*
 * Looks at a beginning that seems to be earlier. The two numbers are in different cache lines, so another processor's
 * change of the second may show some hundred nanoseconds after that of the first: looks that follow each other at once
 * all find the same. Reading the clock in between takes their time, one microsecond in all. Connections that were there
 * before the agent pay it once.
 */
enum { LOOKS = 32 };

/* Bytes that the process has received before offset `position`. A look can only find too many: the fewest are taken. */
static __always_inline u32 received_before(struct tcp_sock *tcp, u32 position)
{
	u32 before = position - received_from(tcp);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < LOOKS && before; i++) {
		bpf_ktime_get_ns();
		before = fewer(before, position - received_from(tcp));
	}
	return before;
}

/* Bytes that it has sent before `position`, or one more: a client's SYN counts as acknowledged, a server's does not. */
static __always_inline u32 sent_before(struct tcp_sock *tcp, u32 position)
{
	u32 before = position - sent_from(tcp);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < LOOKS && before > 1; i++) {
		bpf_ktime_get_ns();
		before = fewer(before, position - sent_from(tcp));
	}
	return before;
}

/*
 * Whether what was sent of a connection went out since the agent watches: then another thread's first send is under way,
 * of which these hook sets learn when it is over. In doubt it is from before.
 */
static __always_inline bool is_sending(struct tcp_sock *tcp)
{
#if defined(OBI_SOCKET_SET) || defined(OBI_CALL_SET)
	u32 waited_ticks = (u32)bpf_jiffies64() - FIELD(tcp, lsndtime);
	return bpf_ktime_get_ns() - (u64)(waited_ticks + 1) * tick_ns - global.begun_ns < 1ull << 62;
#else
	return false;
#endif
}

/*
 * First sight of a connection. Where the stream offsets do not start at the
 * beginning it was joined in the middle: the next head has to be found.
 */
static __always_inline struct connection *open_connection(struct sock *sk, struct tcp_sock *tcp, u32 n_received, u32 n_sent)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct connection *k = make_connection(sk);
	if (!k) {
		tally_add(tgid, TALLY_LOST << 8 | LOSS_NO_STATE, 1);
		return NULL;
	}
	k->tgid = tgid;
	k->number = next_connection_number();
#ifndef OBI_SOCKET_SET
	k->birth = birth_of(sk);
#endif
	fill_addresses(k, sk);
	if (tcp) {
		k->receive.next = read_position(sk, tcp) - n_received;
		k->send.next = FIELD(tcp, write_seq) - n_sent;
		u32 n_received_before = received_before(tcp, k->receive.next);
		if (n_received_before)
			k->receive.mode = MODE_RESYNC;
		u32 n_sent_before = sent_before(tcp, k->send.next);
		k->causes = CAUSE_BASES;
		if (n_sent_before > 1 && !n_sent && !k->receive.mode && is_sending(tcp)) {
			k->send.next -= n_sent_before - 1; /* its first byte, of a client */
			n_sent_before = 0;
		} else if (n_sent_before > 1) {
			k->send.mode = MODE_RESYNC;
			k->causes |= CAUSE_COUNTED;
		} else {
			n_sent_before = 0;
		}
		k->received_base = k->receive.next - n_received_before;
		k->sent_base = k->send.next - n_sent_before;
		if (k->receive.mode || k->send.mode)
			k->flags |= CONNECTION_JOINED;
		count_open(k);
	}
	return k;
}

#ifndef OBI_SOCKET_SET
/*
 * The network has ended a connection of which nothing was seen, because its first call has ended after that: its thread
 * was kept from running meanwhile. The caller ends the connection as well.
 */
static __always_inline bool is_late(struct sock *sk, struct tcp_sock *tcp, u32 n_received, u32 n_sent)
{
#if defined(OBI_CALL_SET) && !defined(OBI_PORTABLE)
	return !received_before(tcp, read_position(sk, tcp) - n_received) &&
	       sent_before(tcp, FIELD(tcp, write_seq) - n_sent) <= 1;
#else
	return false; /* it is known from the beginning of the call, or its program goes on in others */
#endif
}
#endif

static __always_inline struct connection *connection_of(struct sock *sk, struct tcp_sock *tcp, u32 n_received, u32 n_sent)
{
	struct connection *k = find_connection(sk);
#ifdef OBI_SOCKET_SET
	return k ? k : open_connection(sk, tcp, n_received, n_sent);
#else
	if (k) {
		if (k->birth == birth_of(sk))
			return k;
		/* Another socket at the same address: the end of the old one passed unseen. */
		struct ending how = { .time = bpf_ktime_get_ns(), .reason = CLOSE_ABANDONED, .loss = LOSS_GAP };
		end_connection(k, &how);
		drop_connection(k, sk);
	}
	/* What is closed stays without state: nothing would take it away again. */
	if (tcp && FIELD(sk, __sk_common.skc_state) == STATE_CLOSE && !is_late(sk, tcp, n_received, n_sent))
		return NULL;
	return open_connection(sk, tcp, n_received, n_sent);
#endif
}

static __always_inline struct segment *begin_segment(struct connection *k, bool sending)
{
	struct segment *s = sending ? &k->segment[1] : &k->segment[0];
	__builtin_memset(s, 0, sizeof(*s));
	return s;
}

/*
 * When the data just read had arrived. tcp_mstamp is exact (µs) unless the
 * socket has been busy since; lrcvtime (jiffies) shows whether it has. In doubt
 * the wait is understated, never overstated.
 */
static __always_inline u64 arrival_time(struct tcp_sock *tcp, u64 now)
{
	u32 waited_ticks = (u32)bpf_jiffies64() - FIELD(tcp, inet_conn.icsk_ack.lrcvtime);
	u64 stamp = FIELD(tcp, tcp_mstamp) * 1000, waited, least;
	if (stamp > now || waited_ticks > 1u << 20)
		return now;
	waited = now - stamp;
	least = waited_ticks > 1 ? (u64)(waited_ticks - 1) * tick_ns : 0;
	if (waited <= (u64)(waited_ticks + 1) * tick_ns)
		return waited >= least ? stamp : now - least;
	return now - least;
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
	if ((s32)s->gap < 0) {
		/* But those from before the connection was joined have been given up, and so have their answers. */
		if (c->mode == MODE_RESYNC && -s->gap >= n)
			s->left = 0;
		s->gap = 0;
	}
	c->next = end;
}

#endif
