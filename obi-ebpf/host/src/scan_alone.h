// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/* Framing alone, for property tests and fuzzing; src/sys.rs declares the entry points. */
#pragma once
#include "record.h"

/* Marks the newlines of eight bytes and says where the first one ends (0: none). */
u32 host_first_newline(u64 word, u64 *flags)
{
	*flags = newlines(word);
	return *flags ? through_first(*flags) : 0;
}

struct host_head {
	u64 content_length;
	u32 result, used, flags, mode, status;
};

/* Scans one piece as the first of a head. */
void host_scan(const u8 *bytes, u32 length, struct host_head *head)
{
	static u8 *page;
	struct large_record *r = (struct large_record *)guarded(&page, sizeof(*r));
	struct cursor c = {};
	CHECK(length <= LARGE_PIECE_BYTES - SLACK_BYTES);
	stale((u8 *)r, sizeof(*r));
	memcpy(r->bytes, bytes, length);
	cursor_reset(&c, MODE_HEAD);
	scan_begin(&c, length);
	while (c.result == SCAN_MORE && c.at < AREA_START + length) {
		c.end = AREA_START + length;
		scan_piece(&c, &r->head, LARGE_PIECE_BYTES);
	}
	*head = (struct host_head){ c.content_length, c.result, c.at - AREA_START, c.flags,
				    c.result == SCAN_HEAD_END ? body_mode(&c, false) : MODE_HEAD, c.status };
}

struct host_chunk {
	u64 remaining;
	u32 result, used, mode;
};

/* Feeds the bytes of chunk framing until something happens. */
void host_chunk(const u8 *bytes, u32 length, struct host_chunk *chunk)
{
	struct cursor c = {};
	u8 result = CHUNK_MORE;
	u32 used = 0;
	cursor_reset(&c, MODE_CHUNK_SIZE);
	while (used < length && result == CHUNK_MORE)
		result = chunk_byte(&c, bytes[used++]);
	*chunk = (struct host_chunk){ c.remaining, result, used, c.mode };
}

/* Reads the payload's length, bytes, from a header of this shape. */
u32 host_prefixed_payload(const struct prefix *row, const u8 *header)
{
	return prefixed_payload(row, header);
}

/* The shapes that are in use. */
const struct prefix *host_prefix(u32 number)
{
	static const struct prefix *const all[] = { &HTTP2_FRAME, &POSTGRES_MESSAGE, &POSTGRES_START };
	return number < sizeof(all) / sizeof(*all) ? all[number] : NULL;
}
