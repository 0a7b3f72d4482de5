/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Which waits are sampled, and what each stands for: a pure function, also compiled for tests on the host.
 *
 * A wait of length d is taken with probability min(1, d / threshold), and counts as max(d, threshold). So what is
 * expected of it is d, whatever the threshold; sums of many are right, and long ones are never missed. It can only be
 * decided when the length is known.
 */
#ifndef OBI_DRAW_H
#define OBI_DRAW_H

#include "core/kernel.h"

/* Thresholds beyond overflow. */
enum { THRESHOLD_BITS = 32 };

/* What a wait of `length` nanoseconds stands for, `chance` being any number; 0: it is not sampled. */
static __always_inline u64 draw(u64 length, u64 threshold, u32 chance)
{
	if (length >= threshold || threshold >> THRESHOLD_BITS)
		return length;
	return (chance * threshold >> 32) < length ? threshold : 0;
}

#endif
