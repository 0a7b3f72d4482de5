/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Pieces of heads: room for one is reserved in the ring, filled from user memory
 * and scanned. When the ring is full, spare memory keeps the framing alive.
 */
#ifndef OBI_PIECE_H
#define OBI_PIECE_H

#include "head.h"

struct small_record {
	struct head_event head;
	u8 bytes[SMALL_PIECE_BYTES];
};

struct large_record {
	struct head_event head;
	u8 bytes[LARGE_PIECE_BYTES];
};

struct scan {
	struct cursor *cursor;
	u8 *area;
};

/*
 * With the mitigations of today's processors a call costs more than a step: several to a call.
 * The verifier joins their states, since all that changes is in map memory.
 */
#define STEPS_PER_CALL 4

static long small_steps(u32 index, struct scan *scan)
{
	(void)index;
#pragma clang loop unroll(disable)
	for (int i = 0; i < STEPS_PER_CALL; i++)
		if (scan_step(scan->cursor, scan->area, SMALL_PIECE_BYTES))
			return 1;
	return 0;
}

static long large_steps(u32 index, struct scan *scan)
{
	(void)index;
#pragma clang loop unroll(disable)
	for (int i = 0; i < STEPS_PER_CALL; i++)
		if (scan_step(scan->cursor, scan->area, LARGE_PIECE_BYTES))
			return 1;
	return 0;
}

/* Global functions: the verifier checks each once, whatever the callers' state. */
SHARED int scan_small(struct cursor *c, struct small_record *r)
{
	if (!c || !r)
		return 0;
	struct scan scan = { .cursor = c, .area = r->head.carry };
	bpf_loop(SMALL_PIECE_BYTES, small_steps, &scan, 0);
	if (c->result == SCAN_MORE)
		keep_line(c, r->head.carry, SMALL_PIECE_BYTES);
	return 0;
}

SHARED int scan_large(struct cursor *c, struct large_record *r)
{
	if (!c || !r)
		return 0;
	struct scan scan = { .cursor = c, .area = r->head.carry };
	bpf_loop(LARGE_PIECE_BYTES, large_steps, &scan, 0);
	if (c->result == SCAN_MORE)
		keep_line(c, r->head.carry, LARGE_PIECE_BYTES);
	return 0;
}

/* Bytes of this piece: what is in hand, at most what the record holds. */
static __always_inline u32 piece_size(struct segment *s, const u32 room)
{
	u64 n = s->left < s->source.length ? s->left : s->source.length;
	if (n > room - SLACK_BYTES)
		n = room - SLACK_BYTES;
	return n;
}

/* Reads a piece of a head into `r` and scans it. Returns 1 when the record is to be submitted. */
static __always_inline int head_piece(struct connection *k, struct segment *s, struct head_event *r, const u32 room)
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
		return 0;
	}
	if (c->head_bytes)
		__builtin_memcpy(r->carry, c->carry, CARRY_BYTES);
	scan_begin(c, n);
	if (room == SMALL_PIECE_BYTES)
		scan_small(c, (struct small_record *)r);
	else
		scan_large(c, (struct large_record *)r);
	if (c->result == SCAN_HEAD_END)
		n = c->at - AREA_START;
	return finish_piece(k, s, r, n);
}

static __always_inline void spare_piece(struct connection *k, struct segment *s, struct sock *sk)
{
	struct spare *memory = make_spare(k, sk);
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
