/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Counts what cannot be followed, by process and reason. Called only when something goes wrong. */
#ifndef OBI_TALLY_H
#define OBI_TALLY_H

#include "core/map.h"

SHARED int tally_add(u32 tgid, u32 kind_reason_side, u64 n)
{
	struct tally_key key = {
		.tgid = tgid,
		.reason = kind_reason_side & 0xff,
		.kind = (kind_reason_side >> 8) & 0xff,
		.side = (kind_reason_side >> 16) & 0xff,
	};
	u64 zero = 0;
	u64 *count = bpf_map_lookup_elem(&tally, &key);
	if (!count) {
		bpf_map_update_elem(&tally, &key, &zero, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&tally, &key);
	}
	if (!count) {
		u32 first = 0, number = (u32)key.kind * 16 + key.reason;
		struct tally_rests *rests = bpf_map_lookup_elem(&tally_rest, &first);
		/* The verifier keeps the bound of what is compared, not of what it was computed from. */
		barrier_var(number);
		if (rests && number < TALLY_RESTS)
			count = &rests->n[number];
	}
	if (count)
		__sync_fetch_and_add(count, n);
	return 0;
}

static __always_inline void tally_lost(const struct connection *k, u8 reason, u64 n)
{
	tally_add(k->tgid, (u32)k->side << 16 | TALLY_LOST << 8 | reason, n);
}

/* A connection is reported once. */
static __always_inline void tally_uncovered(struct connection *k, u8 reason)
{
	if (k->flags & CONNECTION_REPORTED)
		return;
	k->flags |= CONNECTION_REPORTED;
	tally_add(k->tgid, (u32)k->side << 16 | TALLY_UNCOVERED << 8 | reason, 1);
}

#endif
