/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Bodies: hopped over without reading them, but for chunk sizes and trailers. */
#ifndef OBI_BODY_H
#define OBI_BODY_H

#include "core/segment.h"
#include "protocol/http1/framing.h"
#include "waiting/account.h"

enum {
	CHUNK_READ_BYTES = 16,
	EXPECTED_LEAST_BYTES = 3, /* a method, a space, the beginning of a target */
};

struct chunk_bytes {
	u8 byte[CHUNK_READ_BYTES];
};

/* A body that was answered before it came is taken to come; if it was another request after all, its answer is counted. */
static __always_inline void take_expected(struct connection *k, struct cursor *c)
{
	k->flags |= CONNECTION_UNREADABLE;
	c->mode = expected_mode(c);
}

/* Up to `n` bytes of a chunk-size line or trailer; `used` of them in the low half of the result, chunk_result above. */
SHARED int scan_chunk(struct cursor *c, const struct chunk_bytes *bytes, u32 n)
{
	u32 used = 0;
	u8 result = CHUNK_MORE;
	if (!c || !bytes)
		return 0;
	if (c->mode == MODE_EXPECTED) {
		if (begins_request(bytes->byte))
			return (u32)CHUNK_END << 16; /* of an empty body */
		c->mode = expected_mode(c);
		return 0;
	}
#pragma unroll
	for (u32 i = 0; i < CHUNK_READ_BYTES; i++) {
		if (i < n && result == CHUNK_MORE) {
			result = chunk_byte(c, bytes->byte[i]);
			used = i + 1;
		}
	}
	return (u32)result << 16 | used;
}

static __always_inline void chunk_piece(struct connection *k, struct segment *s)
{
	struct chunk_bytes bytes = {};
	u64 n = s->left < s->source.length ? s->left : s->source.length;
	u32 scanned, result;
	if (n > CHUNK_READ_BYTES)
		n = CHUNK_READ_BYTES;
	if (bpf_probe_read_user(&bytes, n, (void *)s->source.base)) {
		come_to(s, OUTCOME_LOST, LOSS_FAULT);
		return;
	}
	/* As long as the body that was announced it may be either, and a byte or two do not show which. */
	if (cursor_of(k, s)->mode == MODE_EXPECTED && (n < EXPECTED_LEAST_BYTES || cursor_of(k, s)->remaining == s->left)) {
		take_expected(k, cursor_of(k, s));
		return;
	}
	scanned = scan_chunk(cursor_of(k, s), &bytes, n);
	result = scanned >> 16;
	advance(s, scanned & 0xffff);
	if (result == CHUNK_END)
		come_to(s, OUTCOME_MESSAGE_END, 0);
	else if (result == CHUNK_MALFORMED)
		come_to(s, OUTCOME_LOST, LOSS_FRAMING);
}

static __always_inline bool is_skipping(u8 mode)
{
	return mode == MODE_LENGTH || mode == MODE_CHUNK_BODY || mode == MODE_UNTIL_CLOSE;
}

/* A segment that lies inside a body is hopped over unread. */
static __always_inline bool needs_source(const struct segment *s, const struct cursor *c)
{
	return s->gap || !is_skipping(c->mode) || (c->mode != MODE_UNTIL_CLOSE && c->remaining < s->left);
}

/* Hops over what it can of the gap or of the segment. */
SHARED int skip_body(struct connection *k, struct segment *s)
{
	struct cursor *c;
	u32 n;
	if (!k || !s)
		return 0;
	c = cursor_of(k, s);
	if (c->flags & CURSOR_RESPONSE) {
		k->last_response_byte = s->time;
		if (c->mode == MODE_UNTIL_CLOSE)
			mark_account(k, exchange_number(k, k->n_responses), s->time);
	}
	n = hop(c, s->gap ? s->gap : s->left);
	if (s->gap)
		s->gap -= n;
	else
		advance(s, n);
	if (c->mode == MODE_LENGTH && !c->remaining)
		come_to(s, OUTCOME_MESSAGE_END, 0);
	return 0;
}

#endif
