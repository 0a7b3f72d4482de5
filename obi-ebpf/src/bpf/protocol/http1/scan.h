/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* The scan of a whole piece, as loops are written since 5.17. */
#ifndef OBI_SCAN_H
#define OBI_SCAN_H

#include "protocol/http1/head.h"

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

static __always_inline void scan_piece(struct cursor *c, struct head_event *r, const u32 room)
{
	if (room == SMALL_PIECE_BYTES)
		scan_small(c, (struct small_record *)r);
	else
		scan_large(c, (struct large_record *)r);
}

#endif
