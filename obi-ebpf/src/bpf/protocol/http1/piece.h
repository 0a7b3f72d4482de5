/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Pieces of heads: room for one is reserved in the ring, filled from user memory
 * and scanned. When the ring is full, spare memory keeps the framing alive.
 */
#ifndef OBI_PIECE_H
#define OBI_PIECE_H

#include "protocol/http1/head.h"
#include "tls/tls_state.h"

struct small_record {
	struct head_event head;
	u8 bytes[SMALL_PIECE_BYTES];
};

struct large_record {
	struct head_event head;
	u8 bytes[LARGE_PIECE_BYTES];
};

#ifdef OBI_PORTABLE
#include "protocol/http1/scan_portable.h"
#else
#include "protocol/http1/scan.h"
#endif

/* Bytes of this piece: what is in hand, at most what the record holds. */
static __always_inline u32 piece_size(struct segment *s, const u32 room)
{
	u64 n = s->left < s->source.length ? s->left : s->source.length;
	if (n > room - SLACK_BYTES)
		n = room - SLACK_BYTES;
	return n;
}

/* Reads a piece of a head into `r` and scans it. Returns how many of its bytes are the head's, or -1. */
static __always_inline s32 read_piece(struct connection *k, struct segment *s, struct head_event *r, const u32 room)
{
	struct cursor *c = cursor_of(k, s);
	u32 n = piece_size(s, room);
	if (c->mode != MODE_HEAD) {
		u16 kept = c->flags & CURSOR_KEPT;
		u8 mode = c->mode;
		cursor_reset(c, MODE_HEAD);
		c->flags = kept | (mode == MODE_RESYNC ? CURSOR_RESYNCED : 0);
		c->arrival = s->arrival;
		c->started = s->time;
	}
	if (bpf_probe_read_user((u8 *)(r + 1), n, (void *)s->source.base)) {
		come_to(s, OUTCOME_LOST, LOSS_FAULT);
		return -1;
	}
	if (c->head_bytes)
		__builtin_memcpy(r->carry, c->carry, CARRY_BYTES);
	scan_begin(c, n);
	scan_piece(c, r, room);
	/* The scan may have stopped early, not only at the end of the head. */
	return (c->result == SCAN_HEAD_END ? c->at : c->end) - AREA_START;
}

#ifdef OBI_PORTABLE
#include "protocol/http1/piece_portable.h"
#else

/* Returns 1 when the record is to be submitted. */
static __always_inline int head_piece(struct connection *k, struct segment *s, struct head_event *r, const u32 room)
{
	s32 n = read_piece(k, s, r, room);
	return n < 0 ? 0 : finish_piece(k, s, r, n);
}

static __always_inline void spare_piece(struct connection *k, struct segment *s, struct sock *sk)
{
	/* Without a socket it is a TLS object; where that is so, it is a constant to the compiler. */
	struct spare *memory = sk ? make_spare(k, sk) : make_tls_spare(k);
	s->sendable = 0;
	if (!memory)
		come_to(s, OUTCOME_LOST, LOSS_NO_STATE);
	else if (s->sending)
		head_piece(k, s, &memory->direction[1].head, SMALL_PIECE_BYTES);
	else
		head_piece(k, s, &memory->direction[0].head, SMALL_PIECE_BYTES);
}

static __always_inline void small_piece(struct connection *k, struct segment *s, struct sock *sk)
{
	struct small_record *r = bpf_ringbuf_reserve(&events, sizeof(*r), 0);
	if (!r) {
		spare_piece(k, s, sk);
		return;
	}
	s->sendable = 1;
	if (head_piece(k, s, &r->head, SMALL_PIECE_BYTES))
		bpf_ringbuf_submit(r, r->head.message == MESSAGE_REQUEST ? wakeup_flag() : BPF_RB_NO_WAKEUP);
	else
		bpf_ringbuf_discard(r, wakeup_flag()); /* discarded room is only freed by reading past it */
}

static __always_inline bool is_large(const struct cursor *c, const struct segment *s)
{
	return c->head_bytes >= SMALL_PIECE_BYTES - SLACK_BYTES && s->left > SMALL_PIECE_BYTES - SLACK_BYTES;
}

/* Heads that go on after a first, small piece. Without room, the small way takes over. */
static __always_inline bool large_piece(struct connection *k, struct segment *s)
{
	struct large_record *r = bpf_ringbuf_reserve(&events, sizeof(*r), 0);
	if (!r)
		return false;
	s->sendable = 1;
	if (head_piece(k, s, &r->head, LARGE_PIECE_BYTES))
		bpf_ringbuf_submit(r, wakeup_flag());
	else
		bpf_ringbuf_discard(r, wakeup_flag()); /* discarded room is only freed by reading past it */
	return true;
}
#endif

#endif
