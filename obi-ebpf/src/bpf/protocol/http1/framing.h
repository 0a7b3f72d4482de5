/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * HTTP/1 framing, as far as it is needed to know where the next head begins
 * (RFC 9112 §2, §6, §7). Pure functions over a cursor and a piece of memory: no
 * helper is called, so the same text is compiled for the host and tested there.
 *
 * All state that loops change lives in the cursor. In the kernel the cursor is
 * map memory, whose contents the verifier does not track: every value read from
 * it is "unknown" and bounds-checked on the spot, so loops verify in one pass.
 */
#ifndef OBI_FRAMING_H
#define OBI_FRAMING_H

#include "protocol/http1/field.h"

/* One bit for each character of ASCII: comparisons would be as many ways for the verifier. */
static __always_inline bool is_among(u8 byte, u64 low, u64 high)
{
	u64 set = byte & 64 ? high : low;
	return byte < 128 && set >> (byte & 63) & 1;
}

/* A method is a token (RFC 9110 §5.6.2, §9.1): also `get` and `CUSTOM2`, which servers answer with 400 or 501. */
static __always_inline bool is_method_byte(u8 byte)
{
	return is_among(byte, 0x03ff6cfa00000000ULL, 0x57ffffffc7fffffeULL);
}

/* Its first byte is a letter, a digit, `-` or `_`: what begins with `*`, `$` or `+` is more likely RESP. */
static __always_inline bool begins_method(u8 byte)
{
	return is_among(byte, 0x03ff200000000000ULL, 0x07fffffe87fffffeULL);
}

/*
 * Judges the first bytes of a start line: `length` of them are there.
 * Fewer than eight bytes of a line still unfinished are given the benefit of the doubt.
 */
static __always_inline u8 classify_start(struct cursor *c, const u8 *area, u32 start, u32 length, bool whole_line)
{
	u64 first = load8(area, start);
	if (length < 8 && !whole_line) {
		u8 byte = (u8)first;
		return begins_method(byte) ? SCAN_MORE : byte == 0x16 || byte == 0x17 ? SCAN_TLS : SCAN_NOT_HTTP;
	}
	if ((first & SEVEN_BYTES) == EIGHT('H', 'T', 'T', 'P', '/', '1', '.', 0)) {
		u64 second = load8(area, start + 8);
		u32 hundreds, tens, units;
		if (length < 12)
			return whole_line ? SCAN_NOT_HTTP : SCAN_MORE;
		hundreds = ((second >> 8) & 0xff) - '0';
		tens = ((second >> 16) & 0xff) - '0';
		units = ((second >> 24) & 0xff) - '0';
		if (hundreds > 9 || tens > 9 || units > 9 || !hundreds)
			return SCAN_NOT_HTTP;
		c->status = hundreds * 100 + tens * 10 + units;
		c->flags |= CURSOR_RESPONSE | CURSOR_CLASSIFIED;
		return SCAN_MORE;
	}
	if ((first & 0xffff) == 0x0316 || (first & 0xffff) == 0x0317)
		return SCAN_TLS;
	if (!begins_method((u8)first))
		return SCAN_NOT_HTTP;
	/* The bytes of the method up to its space; a longer method is judged by these eight. */
#pragma unroll
	for (int i = 1; i < 8; i++) {
		u8 byte = first >> (8 * i);
		if (byte == ' ')
			break;
		if (!is_method_byte(byte))
			return SCAN_NOT_HTTP;
	}
	if ((first & 0xffffffffffULL) == EIGHT('H', 'E', 'A', 'D', ' ', 0, 0, 0))
		c->flags |= CURSOR_METHOD_HEAD;
	else if (first == EIGHT('C', 'O', 'N', 'N', 'E', 'C', 'T', ' '))
		c->flags |= CURSOR_METHOD_CONNECT;
	c->flags |= CURSOR_CLASSIFIED;
	return SCAN_MORE;
}

/* The whole start line has been seen; its last bytes lie before `end`. */
static __always_inline u8 finish_start(struct cursor *c, const u8 *area, u32 end, u32 length)
{
	u64 version;
	u32 terminator;
	if (c->flags & CURSOR_RESPONSE)
		return SCAN_MORE;
	terminator = area[end - 2] == '\r' ? 2 : 1;
	if (length < 12)
		return SCAN_NOT_HTTP;
	version = load8(area, end - terminator - 8);
	if ((version & SEVEN_BYTES) == EIGHT('H', 'T', 'T', 'P', '/', '1', '.', 0))
		return SCAN_MORE;
	return version == EIGHT('H', 'T', 'T', 'P', '/', '2', '.', '0') ? SCAN_HTTP2 : SCAN_NOT_HTTP;
}

/* One whole line of a head: from `line` (negative: its start is gone) to `end`, the newline included. */
static __always_inline u8 head_line(struct cursor *c, const u8 *area, s32 line, u32 end, u32 room)
{
	u32 length = end - (u32)line;
	bool blank = length == 1 || (length == 2 && area[end - 2] == '\r');
	u32 start = (u32)line, field;
	if (c->lines == 0) {
		u8 verdict = SCAN_MORE;
		/* Empty lines before a request line are skipped (RFC 9112 §2.2). */
		if (blank)
			return SCAN_MORE;
		if (!(c->flags & CURSOR_CLASSIFIED)) {
			if (start > room + AREA_START - SLACK_BYTES)
				return SCAN_NOT_HTTP;
			verdict = classify_start(c, area, start, length, true);
		}
		if (verdict == SCAN_MORE)
			verdict = finish_start(c, area, end, length);
		if (verdict == SCAN_MORE)
			c->lines = 1; /* from here on it is HTTP */
		return verdict;
	}
	if (blank)
		return SCAN_HEAD_END;
	if (c->lines < 0xffff)
		c->lines++;
	if (line < 0 || start > room + AREA_START - SLACK_BYTES)
		return SCAN_MORE; /* too long for a framing header; see keep_line() */
	field = framing_header(area, start);
	if (field == FIELD_OTHER)
		return SCAN_MORE;
	__builtin_memcpy(c->copy.first, area + start, sizeof(c->copy.first));
	__builtin_memcpy(c->copy.last, area + (end - sizeof(c->copy.last)), sizeof(c->copy.last));
	return framing_value(c, length, field);
}

/* Byte flags (0x80) of the newlines in a word; exact for every byte. */
static __always_inline u64 newlines(u64 word)
{
	const u64 low = 0x7f7f7f7f7f7f7f7fULL;
	u64 different = word ^ 0x0a0a0a0a0a0a0a0aULL;
	return ~(((different & low) + low) | different | low);
}

/* Bytes up to and including the lowest flagged one. */
static __always_inline u32 through_first(u64 flags)
{
	u64 below = (flags & -flags) - 1;
	return ((below & 0x0101010101010101ULL) * 0x0101010101010101ULL) >> 56;
}

/* A line inside a head that says nothing about framing. */
static __always_inline bool is_plain(const struct cursor *c, const u8 *area, s32 line, u32 end, const u32 room)
{
	u32 length = end - (u32)line, start = (u32)line;
	if (!c->lines || length == 1 || (length == 2 && area[end - 2] == '\r'))
		return false;
	return line < 0 || start > room + AREA_START - SLACK_BYTES || framing_header(area, start) == FIELD_OTHER;
}

/* Words of one step: most lines end within four. The portable objects' verifiers go through every way that there is. */
#ifdef OBI_PORTABLE
#define STEP_WORDS 2
#else
#define STEP_WORDS 4
#endif

enum step {
	STEP_ON = 0,
	STEP_OVER = 1, /* the bytes are used up */
	STEP_LINE = 2, /* a line ends at `at` that has to be judged */
};

/*
 * One step of the scan of a piece: some words further, or to the end of a line.
 * `area` has AREA_START + room bytes. Stops at lines that matter.
 */
static __always_inline enum step find_line(struct cursor *c, const u8 *area, const u32 room)
{
	u32 at = c->at, end = c->end;
	u64 found;
	u32 step;
	if (end > AREA_START + room - SLACK_BYTES || at >= end || at < AREA_START)
		return STEP_OVER;
	/* Verifiers before 6.3 learn no bound from a comparison with a variable; the compiler is not to know better. */
	OPAQUE(at);
	if (at > AREA_START + room - SLACK_BYTES)
		return STEP_OVER;
#pragma unroll
	for (step = 0; step < 8 * STEP_WORDS; step += 8) {
		found = newlines(load8(area, at + step));
		if (found)
			break;
	}
	if (!found) {
		c->at = at + step < end ? at + step : end;
		return STEP_ON;
	}
	at += step + through_first(found);
	if (at > end) { /* a newline in stale memory behind the bytes */
		c->at = end;
		return STEP_OVER;
	}
	OPAQUE(at);
	if (at > AREA_START + room - SLACK_BYTES || at <= AREA_START)
		return STEP_OVER;
	c->at = at;
	if (!is_plain(c, area, c->line, at, room))
		return STEP_LINE;
	if (c->lines < 0xffff)
		c->lines++;
	c->line = at;
	return STEP_ON;
}

/* Judges the line that find_line() stopped at. Returns 1 when the scan is over. */
static __always_inline int judge_line(struct cursor *c, const u8 *area, const u32 room)
{
	u32 at = c->at;
	if (at > AREA_START + room - SLACK_BYTES || at <= AREA_START)
		return 1;
	c->result = head_line(c, area, c->line, at, room);
	c->line = at;
	return c->result != SCAN_MORE;
}

/* Both. Returns 1 when the scan is over. */
static __always_inline int scan_step(struct cursor *c, const u8 *area, const u32 room)
{
	enum step step = find_line(c, area, room);
	return step == STEP_LINE ? judge_line(c, area, room) : step == STEP_OVER;
}

/* Begins the scan of `n` new bytes. */
static __always_inline void scan_begin(struct cursor *c, u32 n)
{
	c->at = AREA_START;
	c->end = AREA_START + n;
	c->line = AREA_START - (s32)c->line_bytes;
	c->result = SCAN_MORE;
}

/*
 * The piece is used up inside a line: judges what is there of a start line, and
 * keeps the end of the line for the next piece.
 */
static __always_inline void keep_line(struct cursor *c, const u8 *area, const u32 room)
{
	u32 end = c->end;
	s32 line = c->line;
	u32 length = end - (u32)line;
	u32 start = (u32)line;
	c->line_bytes = length;
	if (end > AREA_START + room - SLACK_BYTES || end < AREA_START)
		return;
	if (length && line >= 0 && start <= AREA_START + room - SLACK_BYTES) {
		if (c->lines == 0) {
			if (!(c->flags & CURSOR_CLASSIFIED) && area[start] != '\r')
				c->result = classify_start(c, area, start, length, false);
		} else if (length > CARRY_BYTES && framing_header(area, start) % FIELD_UPGRADE) {
			c->result = SCAN_MALFORMED; /* a framing header that does not fit the carry */
		}
	}
	__builtin_memcpy(c->carry, area + (end - CARRY_BYTES), CARRY_BYTES);
}

/* What follows a complete head. */
static __always_inline u8 body_mode(const struct cursor *c, bool bodiless)
{
	if (c->flags & CURSOR_RESPONSE) {
		if (bodiless || c->status < 200 || c->status == 204 || c->status == 304)
			return MODE_START;
		if (!(c->flags & (CURSOR_CHUNKED | CURSOR_HAS_LENGTH)) || (c->flags & CURSOR_ENCODED))
			return MODE_UNTIL_CLOSE;
	}
	if (c->flags & CURSOR_CHUNKED)
		return MODE_CHUNK_SIZE;
	return (c->flags & CURSOR_HAS_LENGTH) && c->content_length ? MODE_LENGTH : MODE_START;
}

/* Hops over up to `n` bytes that need not be read. Returns how many were hopped. */
static __always_inline u32 hop(struct cursor *c, u32 n)
{
	u64 body;
	if (c->mode != MODE_LENGTH && c->mode != MODE_CHUNK_BODY) {
		c->body_bytes += n;
		return n;
	}
	if (n > c->remaining)
		n = (u32)c->remaining;
	body = n;
	if (c->mode == MODE_CHUNK_BODY) {
		/* The last two of the remaining bytes are the CRLF after the chunk. */
		u64 of_chunk = c->remaining > 2 ? c->remaining - 2 : 0;
		body = n < of_chunk ? n : of_chunk;
	}
	c->body_bytes += body;
	c->remaining -= n;
	if (!c->remaining && c->mode == MODE_CHUNK_BODY)
		c->mode = MODE_CHUNK_SIZE;
	return n;
}

enum chunk_result {
	CHUNK_MORE = 0,
	CHUNK_BODY = 1, /* a chunk begins after this byte */
	CHUNK_END = 2,  /* the message ends with this byte */
	CHUNK_MALFORMED = 3,
};

/* How the body comes that was answered before it did. */
static __always_inline u8 expected_mode(const struct cursor *c)
{
	return c->flags & CURSOR_CHUNKED ? MODE_CHUNK_SIZE : MODE_LENGTH;
}

/* The first 16 bytes where a body was answered before it came: is it another request that comes instead? */
static __always_inline bool begins_request(const u8 *bytes)
{
#pragma unroll
	for (u32 i = 0; i < 15; i++) {
		u8 next = bytes[i + 1];
		if (i && bytes[i] == ' ')
			return next == '/' || next == '*' || next == 'h' || (i == 7 && bytes[0] == 'C'); /* CONNECT */
		if (bytes[i] < 'A' || bytes[i] > 'Z')
			return false; /* lower case is more likely text */
	}
	return false;
}

/* One byte of a chunk-size line or of the trailer section (RFC 9112 §7.1). */
static __always_inline u8 chunk_byte(struct cursor *c, u8 byte)
{
	if (c->mode == MODE_TRAILER) {
		if (byte == '\n') {
			bool blank = c->line_bytes == 0;
			c->line_bytes = 0;
			return blank ? CHUNK_END : CHUNK_MORE;
		}
		if (byte != '\r')
			c->line_bytes++;
		return CHUNK_MORE;
	}
	if (byte == '\n') {
		u64 size = c->remaining;
		if (!c->line_bytes)
			return CHUNK_MALFORMED;
		c->line_bytes = 0;
		c->flags &= ~CURSOR_EXTENSION;
		if (!size) {
			c->mode = MODE_TRAILER;
			return CHUNK_MORE;
		}
		c->remaining = size + 2;
		c->mode = MODE_CHUNK_BODY;
		return CHUNK_BODY;
	}
	if (c->flags & CURSOR_EXTENSION || byte == '\r')
		return CHUNK_MORE;
	if (byte == ';' || byte == ' ' || byte == '\t') {
		c->flags |= CURSOR_EXTENSION;
		return CHUNK_MORE;
	}
	u8 letter = byte | 0x20;
	u8 digit = byte >= '0' && byte <= '9' ? byte - '0' : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : 16;
	if (digit > 15 || c->line_bytes >= 15)
		return CHUNK_MALFORMED;
	c->remaining = c->remaining << 4 | digit;
	c->line_bytes++;
	return CHUNK_MORE;
}

#endif
