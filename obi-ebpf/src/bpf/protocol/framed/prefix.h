/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Headers of a fixed size that hold the length of the payload behind them: a row says where. Pure functions, as in
 * protocol/http1/framing.h. Rows are constants, so that to the verifier each is as if written by hand.
 */
#ifndef OBI_PREFIX_H
#define OBI_PREFIX_H

#include "core/cursor.h"

/* Where the length stands in a header, and what it counts. */
struct prefix {
	u8 header_bytes;
	u8 at;            /* of the length's first byte */
	u8 width;         /* of the length, bytes: four at most */
	u8 little_endian; /* 1: its first byte is the lowest */
	u8 counted;       /* bytes of the header that it counts */
};

enum { PREFIX_WIDTH_MOST = 4 };

/* Bytes of payload behind a header. A length that is less than what it counts wraps: more than any message has. */
static __always_inline u32 prefixed_payload(const struct prefix *row, const u8 *header)
{
	u32 length = 0;
#pragma unroll
	for (u32 i = 0; i < PREFIX_WIDTH_MOST; i++) {
		if (i < row->width)
			length |= (u32)header[row->at + i] << 8 * (row->little_endian ? i : row->width - 1u - i);
	}
	return length - row->counted;
}

#endif
