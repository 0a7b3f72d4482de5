/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* The header fields that decide what follows a head: Content-Length, Transfer-Encoding, Upgrade and Expect. */
#ifndef OBI_FIELD_H
#define OBI_FIELD_H

#include "core/cursor.h"

/*
 * Content-Length (RFC 9110 §8.6). Two different values are a framing error
 * (RFC 9112 §6.3). Value and digits are cursor fields, not locals: as locals
 * the verifier would follow each of their histories.
 */
static __always_inline u8 content_length(struct cursor *c, u32 length)
{
	const struct framing_line *line = &c->copy;
	u64 before = c->content_length;
	/* Volatile: in registers the verifier would know them, and distinguish all the ways to get there. */
	volatile u64 *value = &c->content_length;
	volatile u8 *digits = &c->digits;
	*value = 0;
	*digits = 0;
	/* 19 digits hold any length below 2^63; 4 more bytes for white space. */
	for (u32 i = 15; i < 38 && i < length; i++) {
		u8 byte = line->first[i];
		if (byte == '\r' || byte == '\n') {
			*digits |= DIGITS_LINE_END;
			break;
		}
		if (byte >= '0' && byte <= '9' && *digits < 20) {
			*value = *value * 10 + (byte - '0');
			*digits += 1;
		} else if (byte != ' ' && byte != '\t') {
			return SCAN_MALFORMED;
		} else if (*digits) {
			*digits |= DIGITS_CLOSED; /* only white space may follow */
		}
	}
	/* A line that goes on may hold more digits: half a number would be a wrong one. */
	if (!(*digits & DIGITS_LINE_END))
		return SCAN_MALFORMED;
	*digits &= ~(DIGITS_CLOSED | DIGITS_LINE_END);
	if (!*digits || *digits > 19 || (c->flags & CURSOR_HAS_LENGTH && *value != before))
		return SCAN_MALFORMED;
	c->flags |= CURSOR_HAS_LENGTH;
	return SCAN_MORE;
}

/* The last coding decides (RFC 9112 §6.1), whatever white space follows it. */
static __always_inline void transfer_encoding(struct cursor *c)
{
	const struct framing_line *line = &c->copy;
	const u32 size = sizeof(line->last);
	u32 at = line->last[size - 2] == '\r' ? size - 3 : size - 2; /* the last byte of the value */
	u64 word;
	u8 before;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		u8 byte = line->last[at & (size - 1)];
		if (byte == ' ' || byte == '\t')
			at--;
	}
	at = (at - 7) & 7; /* at most four blanks: between 2 and 7, which the mask proves to the verifier */
	word = load8(line->last, at);
	before = word;
	c->flags &= ~(CURSOR_CHUNKED | CURSOR_ENCODED);
	c->flags |= ((word | LOWER_CASE) >> 8) == EIGHT('c', 'h', 'u', 'n', 'k', 'e', 'd', 0) &&
				    (before == ':' || before == ',' || before == ' ' || before == '\t')
			    ? CURSOR_CHUNKED
			    : CURSOR_ENCODED;
}

/* What a response with 101 goes on with (RFC 9110 §7.8): only names that we follow matter, and those stand alone. */
static __always_inline void upgrade_to(struct cursor *c)
{
	const u8 *line = c->copy.first;
	u32 at = line[8] == ' ' || line[8] == '\t' ? 9 : 8;
	u64 word = load8(line, at) | LOWER_CASE;
	u8 behind;
	if (word == EIGHT('w', 'e', 'b', 's', 'o', 'c', 'k', 'e') && (line[at + 8] | 0x20) == 't') {
		behind = line[at + 9];
		c->upgrade = UPGRADE_WEBSOCKET;
	} else if ((word & 0xffffff) == EIGHT('h', '2', 'c', 0, 0, 0, 0, 0)) {
		behind = line[at + 3];
		c->upgrade = UPGRADE_HTTP2;
	} else {
		return;
	}
	if (behind != '\r' && behind != '\n' && behind != ' ')
		c->upgrade = UPGRADE_OTHER;
}

enum framing_field {
	FIELD_OTHER = 0,
	FIELD_CONTENT_LENGTH = 1,
	FIELD_TRANSFER_ENCODING = 2,
	FIELD_UPGRADE = 3,
	FIELD_EXPECT = 6, /* as FIELD_UPGRADE, a multiple of 3: it may be longer than the carry */
};

/*
 * Reads the value. A global function, and a copy of the line instead of the area: the verifier goes
 * through it once, not once for each way and each position in which a line can be found.
 */
SHARED int framing_value(struct cursor *c, u32 length, u32 field)
{
	if (!c)
		return SCAN_MALFORMED;
	if (field == FIELD_CONTENT_LENGTH)
		return content_length(c, length);
	if (field == FIELD_UPGRADE)
		upgrade_to(c);
	else if (field == FIELD_EXPECT)
		c->expects = 1; /* only 100-continue is defined */
	else
		transfer_encoding(c);
	return SCAN_MORE;
}

/* Which of the fields that decide about framing a line is. */
static __always_inline u32 framing_header(const u8 *area, u32 line)
{
	u64 first = load8(area, line) | LOWER_CASE;
	if (first == EIGHT('c', 'o', 'n', 't', 'e', 'n', 't', '-'))
		return ((load8(area, line + 8) | LOWER_CASE) & SEVEN_BYTES) ==
				       EIGHT('l', 'e', 'n', 'g', 't', 'h', ':', 0)
			       ? FIELD_CONTENT_LENGTH
			       : FIELD_OTHER;
	if (first == EIGHT('t', 'r', 'a', 'n', 's', 'f', 'e', 'r'))
		return (load8(area, line + 8) | LOWER_CASE) == EIGHT('-', 'e', 'n', 'c', 'o', 'd', 'i', 'n') &&
				       (area[line + 16] | 0x20) == 'g' && area[line + 17] == ':'
			       ? FIELD_TRANSFER_ENCODING
			       : FIELD_OTHER;
	if ((first & SEVEN_BYTES) == EIGHT('e', 'x', 'p', 'e', 'c', 't', ':', 0))
		return FIELD_EXPECT;
	return first == EIGHT('u', 'p', 'g', 'r', 'a', 'd', 'e', ':') ? FIELD_UPGRADE : FIELD_OTHER;
}

#endif
