/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * For hook sets that see a send or receive begin: its user memory is kept with the
 * connection; when the socket's lock is given back, what has moved is read off the
 * stream offsets. That moment comes for every way of moving bytes, for each part of
 * a call that waits in between, and never while another thread moves some.
 * What moved with no call known is bytes we did not see: a known loss.
 */
#ifndef OBI_MOVEMENT_H
#define OBI_MOVEMENT_H

#include "core/closing.h"
#include "hook/message.h"

/* A send or receive of TLS begins; when the bytes received had arrived is asked when they have moved. */
static __always_inline int tls_begins(struct connection *k, struct msghdr *message, bool sending)
{
	struct transfer *t = sending ? &k->sends : &k->receives;
	pass_tls(k, 0, 0);
	if (sending && message && awaits_tls(k)) {
		struct source from = {};
		message_source(t, message);
		source_of_transfer(&from, t);
		match_source(k, &from);
	}
	return 0;
}

/*
 * A send or receive begins. `message` is NULL when there is none: the bytes are not in user memory.
 * Not inlined: some programs go on with moved(), and one frame for both is too much stack for 6.1.
 */
static __noinline int transfer_begins(struct sock *sk, struct msghdr *message, bool sending, bool discarding)
{
	u64 id = bpf_get_current_pid_tgid();
	struct connection *k;
	struct transfer *t;
	if (!is_stream(sk) || !is_watched(id >> 32))
		return 0;
	k = connection_of(sk, tcp_of(sk), 0, 0);
	if (!k)
		return 0;
	if ((sending ? k->send.mode : k->receive.mode) == MODE_IGNORED)
		return carries_tls(k) ? tls_begins(k, message, sending) : 0;
	t = sending ? &k->sends : &k->receives;
	t->tid = 0;
	if (message) {
		message_source(t, message);
	} else {
		t->vectors = 0;
		t->message = 0;
	}
	if (!message || discarding)
		t->opaque = KERNEL_PAGES;
	t->tid = id;
	return 0;
}

/* Looking (PEEK) moves nothing: what an earlier call left must not be taken for its own. */
static __always_inline int receive_begins(struct sock *sk, struct msghdr *message, u32 flags)
{
	struct connection *k;
	if (flags & (FLAG_PEEK | FLAG_ERRQUEUE | FLAG_OOB)) {
		k = find_connection(sk);
		if (k)
			k->receives.tid = 0;
		return 0;
	}
	return transfer_begins(sk, message, false, flags & FLAG_TRUNC && FIELD(sk, __sk_common.skc_family) != FAMILY_UNIX);
}

/*
 * Whether the bytes that moved are those of the call that we saw begin: its message
 * has come as far as the stream has, or is about to (`ahead`). What follows begins behind them.
 */
static __always_inline bool is_of_transfer(struct transfer *t, u32 tid, u32 n, bool ahead)
{
	struct msghdr *message = (struct msghdr *)t->message;
	if (t->tid != tid)
		return false;
	return t->opaque || t->count - READ(message, msg_iter.count) == (ahead ? 0 : n);
}

static __always_inline void advance_transfer(struct transfer *t, u32 n)
{
	t->count -= n;
	if (t->vectors) {
		t->skip += n;
	} else {
		t->base += n;
		t->length -= n;
	}
}

/* Bytes that have moved in one direction of a connection. */
struct movement {
	struct sock *sk;
	struct tcp_sock *tcp; /* or NULL */
	void *context;
	u32 n;
	bool sending;
	bool ahead; /* they are about to move: the hook comes before the copy */
};

/* Not inlined: two walks in one frame would be too much stack. */
static __noinline int moved(struct connection *k, const struct movement *m)
{
	struct segment *s = begin_segment(k, m->sending);
	struct walk walk = { .connection = k, .sk = m->sk, .segment = s, .context = m->context };
	struct cursor *c = m->sending ? &k->send : &k->receive;
	struct transfer *t = m->sending ? &k->sends : &k->receives;
	s->id = bpf_get_current_pid_tgid();
	s->time = s->arrival = bpf_ktime_get_ns();
	s->left = m->n;
	s->sending = m->sending;
	if (m->tcp && !m->sending && k->side != SIDE_CLIENT)
		s->arrival = arrival_time(m->tcp, s->time);
	s->offset = c->next;
	c->next += m->n;
	if (is_of_transfer(t, s->id, m->n, m->ahead)) {
		source_of_transfer(&s->source, t);
		advance_transfer(t, m->n);
	} else {
		s->source.opaque = t->tid == (u32)s->id ? UNKNOWN_BUFFER : KERNEL_PAGES;
		t->tid = 0;
	}
	if (c->mode != MODE_IGNORED)
		capture(&walk);
	return 0;
}

/* Of what passes at a TLS object only the times matter here: when it had arrived, and when it left. */
static __always_inline int tls_moved(struct connection *k, struct sock *sk, struct tcp_sock *tcp)
{
	u32 read = read_position(sk, tcp), written = FIELD(tcp, write_seq);
	u64 now = bpf_ktime_get_ns(), arrival = 0, sent = 0;
	if ((s32)(read - k->receive.next) > 0)
		arrival = arrival_time(tcp, now);
	else if ((s32)(written - k->send.next) > 0)
		sent = now;
	else
		return 0;
	k->receive.next = read;
	k->send.next = written;
	return pass_tls(k, arrival, sent);
}

/* The lock of a socket is being given back: what has moved since the last time? */
static __always_inline int lock_released(struct sock *sk, void *context)
{
	struct movement m = { .sk = sk, .context = context };
	struct connection *k;
	struct tcp_sock *tcp;
	u8 state;
	if (!*(volatile u32 *)&global.active)
		return 0;
	k = find_connection(sk);
	if (!k || !is_watched(bpf_get_current_pid_tgid() >> 32))
		return 0;
	tcp = m.tcp = tcp_of(sk);
	if (!tcp)
		return 0;
	if (k->send.mode == MODE_IGNORED && k->receive.mode == MODE_IGNORED)
		return k->tls & TLS_READ ? tls_moved(k, sk, tcp) : 0;
	m.n = read_position(sk, tcp) - k->receive.next;
	/* A call moves bytes one way only: what else has moved is seen at the next release. */
	if (m.n && (s32)m.n > 0)
		return moved(k, &m);
	m.n = FIELD(tcp, write_seq) - k->send.next;
	if (!m.n || (s32)m.n < 0)
		return 0;
	/* Beyond these states our own FIN counts as a byte. */
	state = FIELD(sk, __sk_common.skc_state);
	m.sending = true;
	return state == STATE_ESTABLISHED || state == STATE_CLOSE_WAIT ? moved(k, &m) : 0;
}

/* `tid` of a transfer whose bytes have been followed; threads have numbers below 2^22. */
#define TRANSFER_FOLLOWED 0x80000000

/*
 * Unix sockets have no stream offsets: their hooks say how much has moved.
 *
 * Where several instances of a program come by with one movement, one of them follows it; which comes first is not
 * known, and any may be missing. `again`: an instance that leaves to the first one what it cannot distinguish from an
 * earlier movement.
 */
static __always_inline int unix_moved(struct movement *m, bool again)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id;
	struct connection *k = find_connection(m->sk);
	struct transfer *t;
	if (!k || !is_watched(id >> 32))
		return 0;
	t = m->sending ? &k->sends : &k->receives;
	if (is_preempted && (t->tid == (tid | TRANSFER_FOLLOWED) || (again && !is_of_transfer(t, tid, m->n, m->ahead))))
		return 0;
	moved(k, m);
	if (is_preempted && t->tid == tid)
		t->tid |= TRANSFER_FOLLOWED;
	return 0;
}

#endif
