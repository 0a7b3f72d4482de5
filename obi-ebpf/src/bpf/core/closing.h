/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* How connections end: TCP by its state, unix sockets by what their two ends do. */
#ifndef OBI_CLOSING_H
#define OBI_CLOSING_H

#include "core/stream.h"

/* The peer has closed: for a client that is the end; a server may still answer. */
static __always_inline int receive_end(struct sock *sk)
{
	struct ending how = { .reason = CLOSE_REMOTE };
	struct connection *k;
	struct sock *peer;
	if (!is_stream(sk) || !(FIELD(sk, sk_shutdown) & SHUTDOWN_RECEIVE))
		return 0;
	k = find_connection(sk);
	if (k && k->side == SIDE_CLIENT) {
		how.time = bpf_ktime_get_ns();
		end_connection(k, &how);
	}
	if (FIELD(sk, __sk_common.skc_family) != FAMILY_UNIX)
		return 0;
	/* No event reports the local close of a unix socket; its peer's end of file does. */
#ifdef OBI_TYPED_SOCKET
	struct unix_sock *own = (struct unix_sock *)bpf_skc_to_unix_sock(sk);
	peer = own ? own->peer : NULL;
#else
	peer = READ((struct unix_sock *)sk, peer);
#endif
	if (!peer || !(FIELD(peer, sk_shutdown) & SHUTDOWN_BOTH))
		return 0;
	k = find_connection(peer);
	if (k && k->side == SIDE_SERVER) {
		how.time = bpf_ktime_get_ns();
		how.reason = CLOSE_LOCAL;
		end_connection(k, &how);
	}
	return 0;
}

/* A unix socket whose peer is gone reports it only here. */
static __always_inline int send_failed(struct sock *sk, int result)
{
	struct ending how = { .reason = CLOSE_RESET, .error = (u16)-result };
	struct connection *k;
	if ((result != -ERROR_PIPE && result != -ERROR_RESET) || !is_stream(sk) ||
	    FIELD(sk, __sk_common.skc_family) != FAMILY_UNIX)
		return 0;
	k = find_connection(sk);
	if (!k)
		return 0;
	how.time = bpf_ktime_get_ns();
	return end_connection(k, &how);
}

/* The last descriptor of a unix socket is being closed. */
static __always_inline int unix_closed(struct sock *sk)
{
	struct ending how = { .reason = CLOSE_LOCAL };
	struct connection *k = find_connection(sk);
	struct sock *peer;
	if (!k)
		return 0;
	how.time = bpf_ktime_get_ns();
	peer = READ((struct unix_sock *)sk, peer);
	if (peer && k->side == SIDE_CLIENT && READ(peer, sk_shutdown) == SHUTDOWN_BOTH)
		how.reason = CLOSE_REMOTE; /* the peer was first */
	end_connection(k, &how);
	drop_connection(k, sk);
	return 0;
}

/* A connection closes that has received data and that we know nothing of: its calls pass our hooks by. */
static __always_inline int unseen_connection(struct sock *sk, int new)
{
#ifndef OBI_SOCKET_SET
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct tcp_sock *tcp;
	/* In the other states it is not its own process that is running. */
	if ((new != STATE_FIN_WAIT1 && new != STATE_LAST_ACK) || !is_stream(sk) || !is_watched(tgid))
		return 0;
	tcp = tcp_of(sk);
#ifdef OBI_CALL_SET
	/* One of the paths of a Multipath TCP socket, which itself is seen. */
	if (tcp && bpf_core_field_exists(tcp->is_mptcp) && FIELD(tcp, is_mptcp))
		return 0;
#endif
	if (tcp && FIELD(tcp, bytes_received))
		tally_add(tgid, TALLY_UNCOVERED << 8 | UNCOVERED_UNREADABLE, 1);
#endif
	return 0;
}

/*
 * The process closes the connection itself: bytes that moved and that we have not seen are a known loss, not
 * an answer that never came. Not called when the network ends it: then a call may be under way that reports
 * its bytes when it returns. `n_uncounted`: our own FIN, which has a number as if it were a byte.
 */
static __always_inline void check_unseen(struct connection *k, struct sock *sk, struct ending *how, u32 n_uncounted)
{
	struct tcp_sock *tcp = tcp_of(sk);
	if (!tcp)
		return;
	s32 n_received = read_position(sk, tcp) - k->receive.next;
	s32 n_sent = FIELD(tcp, write_seq) - k->send.next - n_uncounted;
	if (n_received <= 0 && n_sent <= 0)
		return;
	how->reason = CLOSE_ABANDONED;
	how->loss = LOSS_GAP;
	if (k->side == SIDE_SERVER && n_received > 0)
		lose_last(k, n_received);
	else if (k->side == SIDE_CLIENT && n_sent > 0)
		lose_last(k, n_sent);
}

/* The peer's FIN has come, and not all that came before has been read. */
static __always_inline bool is_unread(struct sock *sk)
{
	struct tcp_sock *tcp = tcp_of(sk);
	/* The FIN has a number as if it were a byte. */
	return tcp && FIELD(sk, __sk_common.skc_flags) & 1ul << SOCKET_DONE &&
	       (s32)(FIELD(tcp, rcv_nxt) - FIELD(tcp, copied_seq)) > 1;
}

/*
 * The peer's FIN ends a connection that its process had half closed before, and still holds: it may be reading what had
 * come. Its last read reports the end, or the end of the socket does.
 */
static __always_inline bool is_held(struct connection *k, struct sock *sk, int old)
{
	if (old == STATE_ESTABLISHED || old == STATE_CLOSE_WAIT || k->flags & CONNECTION_FINISHED || !FIELD(sk, sk_socket))
		return false;
	return !FIELD(sk, sk_err) && FIELD(sk, __sk_common.skc_flags) & 1ul << SOCKET_DONE;
}

/*
 * The network has ended it, and a TLS object lives on whose end no probe sees (rustls): what had come may still be
 * decrypted. The process says that it is done when it closes the socket.
 */
static __always_inline bool is_decrypting(const struct connection *k, struct sock *sk)
{
	struct tls_connection *t;
	if (!(k->tls & TLS_READ) || !FIELD(sk, sk_socket))
		return false;
	t = find_tls(&k->tls_key);
	return t && t->sent && t->transport == k->number;
}

/* Nothing can be read or sent any more. */
static __always_inline int end_socket(struct connection *k, struct sock *sk, struct ending *how)
{
	close_tls(k, how, how->reason == CLOSE_LOCAL);
	if (how->reason == CLOSE_LOCAL)
		check_unseen(k, sk, how, 1);
	end_connection(k, how);
	drop_connection(k, sk);
	return 0;
}

static __always_inline int closed(struct connection *k, struct sock *sk, int old)
{
	struct ending how = { .time = bpf_ktime_get_ns() };
	int error = FIELD(sk, sk_err);
	bool held = is_held(k, sk, old);
	how.error = error;
	how.reason = error == ERROR_TIMEOUT ? CLOSE_TIMEOUT : error == ERROR_RESET || error == ERROR_PIPE ? CLOSE_RESET : CLOSE_LOCAL;
	if (!held && how.reason != CLOSE_LOCAL && is_decrypting(k, sk)) {
		close_tls(k, &how, false);
		held = true;
	}
	if (held) {
		k->held = 1;
#ifndef OBI_SOCKET_SET
		k->birth = birth_of(sk); /* its port has been given back */
#endif
		return 0;
	}
	return end_socket(k, sk, &how);
}

/* A program of every set. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(inet_sock_set_state, struct sock *sk, int old, int new)
{
	struct ending how = {};
	struct connection *k;
	if (new != STATE_CLOSE && new != STATE_FIN_WAIT1 && new != STATE_LAST_ACK)
		return 0;
	k = find_connection(sk);
	if (!k)
		return unseen_connection(sk, new);
	if (new == STATE_CLOSE)
		return closed(k, sk, old);
	how.time = bpf_ktime_get_ns();
	/* close() leaves nothing unread: this is the half-close of one whose peer has closed. */
	if (new == STATE_LAST_ACK && is_unread(sk))
		return 0;
	/* A half-close only ends what we send. */
	if (FIELD(sk, sk_shutdown) == SHUTDOWN_BOTH) {
		how.reason = new == STATE_LAST_ACK ? CLOSE_REMOTE : CLOSE_LOCAL;
		close_tls(k, &how, true);
		/* Who shuts down before closing comes by twice, the second time behind the FIN if no answer to it was quicker. */
		check_unseen(k, sk, &how, old == new);
		return end_connection(k, &how);
	}
	if (!(k->flags & CONNECTION_FINISHED) && k->side == SIDE_SERVER && k->send.mode == MODE_UNTIL_CLOSE)
		message_end(k, 1, k->last_response_byte);
	return 0;
}

/* Another: there is nothing to do by now, but for what is_held() has left. */
SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(tcp_destroy_sock, struct sock *sk)
{
	struct ending how = { .reason = CLOSE_LOCAL };
	struct connection *k = find_connection(sk);
	if (!k || (k->flags & CONNECTION_FINISHED && !k->held))
		return 0;
	how.time = bpf_ktime_get_ns();
	return end_socket(k, sk, &how);
}

#endif
