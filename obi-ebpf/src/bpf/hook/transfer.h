/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Bytes that a system call has moved, seen when it is done: `result` bytes of one
 * socket, somewhere in user memory. For hook sets that learn of a transfer at its
 * end; the position of its bytes follows from the socket's own offsets.
 */
#ifndef OBI_TRANSFER_H
#define OBI_TRANSFER_H

#include "core/closing.h"

/* The walk that a transfer begins, or false when there is nothing to follow. */
static __always_inline bool begin_transfer(struct walk *walk, struct sock *sk, u32 n, bool sending)
{
	u64 id = bpf_get_current_pid_tgid();
	struct connection *k;
	struct tcp_sock *tcp;
	struct segment *s;
	struct cursor *c;
	if (!is_stream(sk) || !is_watched(id >> 32))
		return false;
	tcp = tcp_of(sk);
	k = connection_of(sk, tcp, sending ? 0 : n, sending ? n : 0);
	if (!k)
		return false;
	walk->connection = k;
	walk->sk = sk;
	c = sending ? &k->send : &k->receive;
	if (c->mode == MODE_IGNORED) {
		if (carries_tls(k))
			pass_tls(k, tcp && !sending ? arrival_time(tcp, bpf_ktime_get_ns()) : 0,
				 sending ? bpf_ktime_get_ns() : 0);
		return false;
	}
	s = walk->segment = begin_segment(k, sending);
	s->id = id;
	s->time = s->arrival = bpf_ktime_get_ns();
	s->left = n;
	s->sending = sending;
	if (tcp && !sending && k->side != SIDE_CLIENT)
		s->arrival = arrival_time(tcp, s->time);
	place(s, c, tcp, !tcp ? 0 : sending ? FIELD(tcp, write_seq) : read_position(sk, tcp), n);
	return true;
}

/*
 * Where several instances of a program see one movement, the first follows it. Those after it find that out from
 * stream offsets, or where there are none from a mark, which the last instance takes away.
 */
static __always_inline int mark_followed(struct sock *sk, bool sending)
{
	struct connection *k;
	if (!is_preempted || !is_stream(sk) || has_offsets(sk))
		return 0;
	k = find_connection(sk);
	if (k)
		k->followed[sending] = bpf_get_current_pid_tgid();
	return 0;
}

static __always_inline bool is_followed(struct sock *sk, bool sending, bool last)
{
	struct tcp_sock *tcp;
	struct connection *k;
	u32 position, next;
	if (!is_stream(sk))
		return true;
	tcp = tcp_of(sk);
	k = find_connection(sk);
	if (!k)
		return false;
	if (!tcp) {
		if (k->followed[sending] != (u32)bpf_get_current_pid_tgid())
			return false;
		if (last)
			k->followed[sending] = 0;
		return true;
	}
	position = sending ? FIELD(tcp, write_seq) : read_position(sk, tcp);
	next = sending ? k->send.next : k->receive.next;
	return (s32)(position - next) <= 0;
}

#endif
