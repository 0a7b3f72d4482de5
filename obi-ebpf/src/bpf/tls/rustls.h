/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * rustls: what is sent is seen where a record is made of it, what is received where it is handed to the connection.
 *
 * A connection is moved about in memory, also between its handshake and its first request, but what encrypts its
 * records is on the heap and stays: that is the object here. Records are made by a function that is only called
 * through a table, so no compiler puts it into its callers. Layouts are the compiler's, and a message proves its own:
 * by what it says of itself, and by the length of the record that was made of it, which the protocol fixes. What
 * proves nothing is not reported. On kernels before 5.17 these are not there.
 */
#ifndef OBI_RUSTLS_H
#define OBI_RUSTLS_H

#ifndef OBI_PORTABLE
#include "tls/tls.h"

enum {
	RUSTLS_HANDSHAKE = 2, /* numbers of variants, in the order of the source */
	RUSTLS_DATA = 3,
	RUSTLS_VERSION_1_2 = 4, /* what the record says of itself: of data always, also in TLS 1.3 */
	RUSTLS_VERSION_1_3 = 5, /* of messages of its handshake */
	TLS_NEW_SESSION_TICKET = 4, /* types of handshake messages */
	TLS_FINISHED = 20,
	TLS_FINISHED_1_2_BYTES = 16, /* of TLS 1.3 it is longer, and made with another key than data is */
	TLS_PLAIN_MOST = 16384,
	TLS_HEADER_BYTES = 5,
	LOWEST_ADDRESS = 65536,
	LOWEST_BOX = 4096, /* what encrypts nothing has no memory */
	RECORD_WORDS = 6,
};

#define RUSTLS_BORROWED (1ULL << 63)

/* What is to be encrypted: one range of bytes, or a part of several, one behind the other. */
struct rustls_message {
	u64 chunks; /* 0: one range */
	union {
		struct {
			u64 base;
			u64 length;
		};
		struct {
			u64 n_chunks;
			u64 start;
			u64 end;
		};
	};
	u8 type;
	u8 other_type;
	u16 version;
	u16 other_version;
	u16 pad;
};

/* What is kept between the beginning of an encryption and its end: a struct tls_frame's `count`. */
enum {
	RECORD_CHUNKED_BIT = 32,
	RECORD_HANDSHAKE_BIT = 33,
	RECORD_FIRST_BIT = 34, /* made with a key that has made none before */
};

/* How many bytes a message has; 0 when it is none that we know. */
static __always_inline u32 length_of(const struct rustls_message *m)
{
	u64 n = m->length;
	if (m->chunks) {
		if (m->chunks < LOWEST_ADDRESS || !m->n_chunks || m->n_chunks > TLS_PLAIN_MOST || m->start > m->end)
			return 0;
		n = m->end - m->start;
	} else if (m->base < LOWEST_ADDRESS) {
		return 0;
	}
	if (m->version != RUSTLS_VERSION_1_2 && (m->version != RUSTLS_VERSION_1_3 || m->type != RUSTLS_HANDSHAKE))
		return 0;
	return n <= TLS_PLAIN_MOST ? n : 0;
}

/* Whether this handshake message is encrypted as data is: then what encrypts it lives as long as the connection. */
static __always_inline bool is_of_data_keys(const struct rustls_message *m, u32 n)
{
	u8 kind = 0;
	if (m->chunks || bpf_probe_read_user(&kind, sizeof(kind), (void *)m->base))
		return false;
	return kind == TLS_NEW_SESSION_TICKET || (kind == TLS_FINISHED && n == TLS_FINISHED_1_2_BYTES);
}

/* A place of the thread that no call is in. */
static __always_inline struct tls_frame *spare_frame(struct tls_call *call)
{
	return call->depth < TLS_FRAMES ? frame_at(call, call->depth + 1) : NULL;
}

/* `encrypt(self, message, sequence)` begins; the first argument says where the result goes. */
SEC("uprobe")
int rustls_encrypt(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id, n;
	struct rustls_message message = {};
	struct tls_frame frame = { .object = TLS_ARGUMENT_2(ctx), .kind = TLS_CALL_RECORD };
	struct tls_frame *kept;
	struct tls_call *call;
	if (!is_watched(id >> 32) || frame.object < LOWEST_BOX ||
	    bpf_probe_read_user(&message, sizeof(message), (void *)TLS_ARGUMENT_3(ctx)))
		return 0;
	n = length_of(&message);
	if (!n || (message.type != RUSTLS_DATA && message.type != RUSTLS_HANDSHAKE))
		return 0;
	if (message.type == RUSTLS_HANDSHAKE && !is_of_data_keys(&message, n))
		return 0;
	frame.buffer = message.chunks ? message.chunks : message.base;
	frame.begun = message.chunks ? message.start : 0;
	frame.stack = TLS_STACK(ctx);
	frame.count = n | (u64)!!message.chunks << RECORD_CHUNKED_BIT |
		      (u64)(message.type == RUSTLS_HANDSHAKE) << RECORD_HANDSHAKE_BIT |
		      (u64)!TLS_ARGUMENT_4(ctx) << RECORD_FIRST_BIT;
	call = bpf_map_lookup_elem(&tls_call, &tid);
	if (!call) {
		struct tls_call fresh = {};
		fresh.frame[0] = frame;
		bpf_map_update_elem(&tls_call, &tid, &fresh, BPF_ANY);
		return 0;
	}
	kept = spare_frame(call);
	if (kept)
		*kept = frame;
	return 0;
}

/* The memory is that of a record whose header is still to be written: zeroes, and ciphertext behind. */
static __always_inline bool is_record(u64 at)
{
	struct tls_record record;
	u64 body[2];
	if (bpf_probe_read_user(&record, sizeof(record), (void *)at))
		return false;
	__builtin_memcpy(body, record.body, sizeof(body));
	if (record.type || record.version[0] || record.version[1] || record.length[0] || record.length[1])
		return false;
	return body[0] || body[1];
}

/*
 * Where the record is that was made of `n` bytes; 0: none was. Header, nonce (TLS 1.2), type (1.3) and tag are added.
 * Its length goes behind its address. The room of its memory is mostly as long, so what lies before either word is
 * looked at; the last words are tried first.
 */
static __always_inline u64 record_of(u64 result, u32 n)
{
	u64 words[RECORD_WORDS];
	if (bpf_probe_read_user(words, sizeof(words), (void *)result))
		return 0;
#pragma unroll
	for (int i = RECORD_WORDS - 1; i > 0; i--) {
		u64 added = words[i] - n - TLS_HEADER_BYTES;
		if ((added == 16 || added == 17 || added == 24) && words[i - 1] >= LOWEST_ADDRESS && is_record(words[i - 1]))
			return words[i - 1];
	}
	return 0;
}

static __always_inline void note_body(u64 object, u64 record)
{
	struct tls_flight_key flight = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	if (!bpf_probe_read_user(&flight, 16, (void *)(record + TLS_HEADER_BYTES)))
		bpf_map_update_elem(&tls_flight, &flight, &object, BPF_ANY);
}

/*
 * The object, at a record that has been made with it (`sends`), or that was received where it has made no others
 * (`first`). What has made a record and now makes its first is another one at the same address: its memory was freed
 * and used again. So is one whose socket is known, since only records that it made have shown that.
 */
static __always_inline struct tls_connection *object_of_record(const struct tls_key *key, bool first, bool sends)
{
	struct tls_connection *t = find_tls(key);
	if (t && first && (t->sent || t->transport))
		begin_anew(t);
	if (!t && (t = make_tls(key, first)))
		t->collected = 1;
	if (t && sends)
		t->sent = 1;
	return t;
}

/* As move_plain(), of bytes that may lie in several places. */
static __always_inline int move_record(void *ctx, struct tls_connection *t, const struct tls_frame *frame)
{
	struct connection *k = &t->connection;
	struct walk walk = { .connection = k, .context = ctx };
	struct segment *s;
	if (k->cursor[1].mode == MODE_IGNORED)
		return 0;
	s = walk.segment = begin_segment(k, 1);
	s->id = bpf_get_current_pid_tgid();
	s->time = s->arrival = bpf_ktime_get_ns();
	s->left = (u32)frame->count;
	s->sending = 1;
	if (frame->count >> RECORD_CHUNKED_BIT & 1) {
		s->source.vector = frame->buffer;
		s->source.vectors = TLS_PLAIN_MOST;
		s->source.skip = frame->begun;
	} else {
		s->source.base = frame->buffer;
		s->source.length = s->left;
	}
	place(s, &k->cursor[1], NULL, 0, s->left);
	capture_tls(&walk);
	return 0;
}

/* The encryption has ended; its result is where the ABI's register says. */
SEC("uprobe")
int rustls_encrypted(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 id = bpf_get_current_pid_tgid(), record;
	u32 tid = id;
	struct tls_call *call = bpf_map_lookup_elem(&tls_call, &tid);
	struct tls_frame *kept = call ? spare_frame(call) : NULL;
	struct tls_key key = { .tgid = id >> 32 };
	struct tls_connection *t;
	struct tls_frame frame;
	/* The return address has been taken from the stack. */
	if (!kept || kept->kind != TLS_CALL_RECORD || kept->stack + 8 != TLS_STACK(ctx))
		return 0;
	frame = *kept;
	kept->kind = 0;
	kept->stack = 0;
	record = record_of(TLS_RESULT(ctx), (u32)frame.count);
	if (!record)
		return 0;
	key.object = frame.object;
	t = object_of_record(&key, frame.count >> RECORD_FIRST_BIT & 1, true);
	if (t && !t->transport)
		note_body(frame.object, record);
	if (frame.count >> RECORD_HANDSHAKE_BIT & 1)
		return 0;
	if (!t) {
		/* Each exchange has a record that is sent, on either side. */
		tally_add(key.tgid, TALLY_LOST << 8 | LOSS_NO_STATE, 1);
		return 0;
	}
	if (t->moved) {
		renew_tls(t, false);
		t->sent = 1;
	}
	return move_record(ctx, t, &frame);
}

/* `take_received_plaintext(self, payload)` begins: of one record of data. */
APART s64 record_received(struct pt_regs *ctx, u64 layout, struct tls_frame *frame)
{
	u64 id = bpf_get_current_pid_tgid(), state = TLS_ARGUMENT_1(ctx), sequence = 1;
	struct tls_key key = { .tgid = id >> 32 };
	u64 payload[3]; /* what is borrowed, or room for so many bytes; where they are; how many */
	if (!is_watched(id >> 32))
		return 0;
	if (bpf_probe_read_user(&key.object, sizeof(key.object), (void *)(state + (u16)(layout >> RUSTLS_ENCRYPTER_AT))) ||
	    key.object < LOWEST_BOX || bpf_probe_read_user(payload, sizeof(payload), (void *)TLS_ARGUMENT_2(ctx)))
		return 0;
	if (payload[1] < LOWEST_ADDRESS || !payload[2] || payload[2] > TLS_PLAIN_MOST)
		return 0;
	if (payload[0] != RUSTLS_BORROWED && (payload[0] < payload[2] || payload[0] >> 32))
		return 0;
	bpf_probe_read_user(&sequence, sizeof(sequence), (void *)(state + (u16)(layout >> RUSTLS_SEQUENCE_AT)));
	object_of_record(&key, !sequence, false);
	frame->kind = TLS_CALL_RECEIVE;
	frame->object = key.object;
	frame->buffer = payload[1];
	return payload[2];
}

#endif
#endif
