/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The scan of a piece where loops are unrolled by the verifier: a few rounds of some
 * steps, each round up to a line that matters. What is left over is the next piece.
 */
#ifndef OBI_SCAN_PORTABLE_H
#define OBI_SCAN_PORTABLE_H

#include "protocol/http1/head.h"

enum { ROUNDS = 3, STEPS_PER_ROUND = 16 };

/* In one function, since functions are verified at every call. */
SHARED int scan_piece(struct cursor *c, struct head_event *r, const u32 room)
{
	const u8 *area = r->carry;
	(void)room;
#pragma clang loop unroll(disable)
	for (u32 round = 0; round < ROUNDS; round++) {
		enum step found = STEP_ON;
#pragma clang loop unroll(disable)
		for (u32 i = 0; i < STEPS_PER_ROUND && found == STEP_ON; i++) {
			barrier(); /* nothing of the cursor stays in a register: so the verifier's states meet again */
			found = find_line(c, area, SMALL_PIECE_BYTES);
		}
		if (found != STEP_LINE || judge_line(c, area, SMALL_PIECE_BYTES))
			break;
	}
	if (c->result == SCAN_MORE) {
		if (c->at < c->end)
			c->end = c->at;
		keep_line(c, area, SMALL_PIECE_BYTES);
	}
	return 0;
}

#endif
