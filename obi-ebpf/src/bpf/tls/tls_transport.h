/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * TLS seen from the socket: whose records pass here? The object of the call that
 * the thread is in; or, with memory BIOs, the object that has made the record which
 * now is sent. Nothing else counts as knowing.
 */
#ifndef OBI_TLS_TRANSPORT_H
#define OBI_TLS_TRANSPORT_H

#include "tls/tls_state.h"

/* Segments, and time, after which a connection that no probe reads counts as uncovered before its end. */
enum { UNREAD_SEGMENTS = 64 }; /* a power of two */
#define UNREAD_NS 10000000000ULL

/* Records may pass here: of TLS as such, or inside a tunnel whose bytes are not looked at. */
static __always_inline bool carries_tls(const struct connection *k)
{
	return k->tls & TLS_TRANSPORT || k->flags & CONNECTION_HTTP;
}

static __always_inline bool awaits_tls(const struct connection *k)
{
	return (k->tls & (TLS_TRANSPORT | TLS_READ)) == TLS_TRANSPORT;
}

/* `k` is the socket's side of the object. Not known before, or not as this one. */
SHARED int join_tls(struct connection *k, u64 object)
{
	struct tls_key key = { .object = object, .tgid = bpf_get_current_pid_tgid() >> 32 };
	struct tls_connection *t;
	if (!k)
		return 0;
	t = find_tls(&key);
	if (!t)
		t = make_tls(&key, false);
	if (!t)
		return 0;
	/* Acted upon where its bytes are moved: this program is to stay small. */
	if (t->transport && t->transport != k->number)
		t->moved = 1;
	if (k->tls & TLS_READ) {
		struct tls_connection *before = find_tls(&k->tls_key);
		if (before && before != t && before->transport == k->number)
			before->transport = 0;
	}
	t->transport = k->number;
	t->connection.family = k->family;
	t->connection.local_port = k->local_port;
	t->connection.remote_port = k->remote_port;
	__builtin_memcpy(t->connection.local_address, k->local_address, 2 * ADDRESS_BYTES);
	t->connection.received_base = k->received_base;
	t->connection.sent_base = k->sent_base;
	t->connection.causes = k->causes | (t->connection.flags & CONNECTION_JOINED ? CAUSE_NO_POSITION : 0);
	if (awaits_tls(k) && k->flags & CONNECTION_REPORTED)
		tally_add(k->tgid, (u32)k->side << 16 | TALLY_READ_LATE << 8 | UNCOVERED_TLS, 1);
	k->tls |= TLS_READ;
	k->tls_key = key;
	return 0;
}

/* Bytes of TLS have moved, or are about to: `arrival` of those received, or 0; `sent`: when those sent had left, or 0. */
SHARED int pass_tls(struct connection *k, u64 arrival, u64 sent)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id, depth;
	struct tls_connection *t;
	struct tls_call *call;
	if (!k)
		return 0;
	call = bpf_map_lookup_elem(&tls_call, &tid);
	depth = call ? call->depth : 0;
	if (call && depth && depth <= TLS_FRAMES) {
		u64 object = frame_at(call, depth)->object;
		if (arrival)
			call->arrival = arrival;
		if (sent)
			call->sent = sent;
		if (k->tls & TLS_READ && k->tls_key.object == object && k->tls_key.tgid == id >> 32)
			return 0;
		return join_tls(k, object);
	}
	if (k->tls & TLS_READ) {
		if (arrival && (t = find_tls(&k->tls_key)) && t->transport == k->number)
			t->arrival = arrival;
		return 0;
	}
	if (awaits_tls(k) && !(++k->n_resync & (UNREAD_SEGMENTS - 1)) &&
	    bpf_ktime_get_ns() - k->last_response_byte > UNREAD_NS)
		tally_uncovered(k, UNCOVERED_TLS);
	return 0;
}

/* Records of TLS: type, version 3.x, length; then what identifies this one. */
struct tls_record {
	u8 type;
	u8 version[2];
	u8 length[2];
	u8 body[16];
};

static __always_inline bool read_record(struct tls_flight_key *key, u64 at)
{
	struct tls_record record;
	if (bpf_probe_read_user(&record, sizeof(record), (void *)at))
		return false;
	if (record.type < 0x14 || record.type > 0x17 || record.version[0] != 3)
		return false;
	__builtin_memcpy(key, record.body, sizeof(record.body));
	key->tgid = bpf_get_current_pid_tgid() >> 32;
	key->pad = 0;
	return true;
}

/* `n` bytes at `at` are being sent at a socket whose object is not known: has one of them made this record? */
SHARED int match_tls(struct connection *k, u64 at, u64 n)
{
	struct tls_flight_key key = {};
	u64 *object;
	if (!k || n < sizeof(struct tls_record) || !read_record(&key, at))
		return 0;
	object = bpf_map_lookup_elem(&tls_flight, &key);
	if (!object)
		return 0;
	join_tls(k, *object);
	bpf_map_delete_elem(&tls_flight, &key);
	return 0;
}

/* Records that are tried of those that one call sends: what is sent in the clear goes before the first of an object. */
enum { TLS_TRIED = 3 };

static __always_inline void match_source(struct connection *k, struct source *from)
{
	struct source next = *from;
	struct user_iovec entry = {};
	if (from->opaque)
		return;
	if (from->length) {
		match_tls(k, from->base, from->length);
		return;
	}
#pragma unroll
	for (int i = 0; i < TLS_TRIED; i++) {
		if (k->tls & TLS_READ || !next.vectors || next.skip || read_vector(&entry, &next))
			return;
		match_tls(k, entry.base, entry.length);
		next.vector += sizeof(entry);
		next.vectors--;
	}
}

/*
 * The socket has met its end. When the process has closed it, that is the end of the
 * plain side; when the network has, the library may still hold bytes to be read.
 */
static __always_inline void close_tls(struct connection *k, const struct ending *how, bool closed)
{
	struct tls_connection *t;
	if (!(k->tls & TLS_READ))
		return;
	t = find_tls(&k->tls_key);
	if (!t || t->transport != k->number)
		return;
	if (!t->ending.reason)
		t->ending = *how;
	if (!closed && !t->freed)
		return;
	end_tls(t, how->reason, 0);
	if (t->freed || t->collected)
		drop_tls(t);
}

#ifndef OBI_PORTABLE
static long sweep_tls(void *map, const struct tls_key *key, struct tls_connection *t, const u32 *tgid)
{
	(void)map;
	if (!t || !key || key->tgid != *tgid)
		return 0;
	end_tls(t, CLOSE_LOCAL, 0);
	drop_tls(t);
	return 0;
}
#endif

/* The memory of a process is gone, and its objects with it. */
static __always_inline void forget_tls(u32 tgid)
{
#ifndef OBI_PORTABLE
	if (!bpf_map_lookup_elem(&tls_process, &tgid))
		return;
	bpf_for_each_map_elem(&tls_connection, sweep_tls, &tgid, 0);
	bpf_map_delete_elem(&tls_process, &tgid);
#else
	(void)tgid;
#endif
}

#endif
