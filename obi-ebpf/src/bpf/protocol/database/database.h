/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * How the protocols of databases are recognised and framed: PostgreSQL's frontend/backend protocol 3 (its
 * documentation, chapter "Frontend/Backend Protocol") and RESP 2 and 3 (Redis' protocol specification). Pure functions,
 * as in protocol/http1/framing.h.
 */
#ifndef OBI_DATABASE_H
#define OBI_DATABASE_H

#include "protocol/framed/frame.h"

#define LETTER(c) (1ULL << ((c) & 63))

/* === PostgreSQL === */

enum {
	POSTGRES_HEADER_BYTES = 5, /* a type and a length that counts itself */
	POSTGRES_STARTUP_BYTES = 8, /* a length and a version */
	/* Of payload. */
	POSTGRES_STARTUP_MOST = 10000 - POSTGRES_STARTUP_BYTES, /* as the server has it */
	POSTGRES_CANCEL_MOST = 512 - POSTGRES_STARTUP_BYTES,
	POSTGRES_MESSAGE_MOST = 0x3ffffffb,
	/* Codes in the place of the version. */
	POSTGRES_CANCEL = 80877102,
	POSTGRES_TLS = 80877103,
	POSTGRES_GSS = 80877104,
};

/* A type and a length that counts itself; before the first message a length that counts itself, and a version. */
static const struct prefix POSTGRES_MESSAGE = {
	.header_bytes = POSTGRES_HEADER_BYTES, .at = 1, .width = 4, .counted = 4,
};
static const struct prefix POSTGRES_START = {
	.header_bytes = POSTGRES_STARTUP_BYTES, .at = 0, .width = 4, .counted = POSTGRES_STARTUP_BYTES,
};

/* What is done with a message. */
enum postgres_action {
	POSTGRES_REFUSED = 0, /* there is no such message */
	POSTGRES_HOPPED,
	POSTGRES_REPORTED,        /* without its payload */
	POSTGRES_TEXT,        /* a statement's text */
	POSTGRES_SHORT,       /* a name, a tag or a status */
	POSTGRES_NAMES,       /* two names, and behind them values, which stay */
	POSTGRES_ERROR,       /* severity and code, and behind them a text that may hold values, which stays */
	POSTGRES_REPLICATION, /* no calls from here on */
};

static __always_inline u8 postgres_action(u8 type, bool from_client)
{
	const u64 client_hopped = LETTER('D') | LETTER('H') | LETTER('X') | LETTER('d') | LETTER('p');
	const u64 server_hopped = LETTER('R') | LETTER('K') | LETTER('S') | LETTER('T') | LETTER('D') | LETTER('N') |
				  LETTER('A') | LETTER('n') | LETTER('t') | LETTER('G') | LETTER('H') | LETTER('d') |
				  LETTER('c') | LETTER('V') | LETTER('v');
	u64 letter = type & 64 && type < 128 ? LETTER(type) : 0;
	if (from_client) {
		if (letter & (LETTER('Q') | LETTER('P')))
			return POSTGRES_TEXT;
		if (letter & LETTER('B'))
			return POSTGRES_NAMES;
		if (letter & (LETTER('E') | LETTER('C')))
			return POSTGRES_SHORT;
		if (letter & (LETTER('S') | LETTER('F') | LETTER('c') | LETTER('f')))
			return POSTGRES_REPORTED;
		return letter & client_hopped ? POSTGRES_HOPPED : POSTGRES_REFUSED;
	}
	if (letter & server_hopped || (type >= '1' && type <= '3'))
		return POSTGRES_HOPPED;
	if (letter & (LETTER('C') | LETTER('Z')))
		return POSTGRES_SHORT;
	if (letter & LETTER('E'))
		return POSTGRES_ERROR;
	if (letter & (LETTER('s') | LETTER('I')))
		return POSTGRES_REPORTED;
	return letter & LETTER('W') ? POSTGRES_REPLICATION : POSTGRES_REFUSED;
}

/* Whether a message ends its turn. */
static __always_inline bool postgres_turns(u8 type, bool from_client)
{
	if (!from_client)
		return type == 'Z';
	return type == POSTGRES_STARTUP || type == 'Q' || type == 'S' || type == 'F';
}

/* Whether these eight bytes begin a connection. */
static __always_inline bool is_postgres_startup(const u8 *bytes)
{
	u32 payload = prefixed_payload(&POSTGRES_START, bytes), code = big_endian_4(bytes + 4);
	if (code == POSTGRES_TLS || code == POSTGRES_GSS)
		return !payload;
	if (code == POSTGRES_CANCEL)
		return payload >= 8 && payload <= POSTGRES_CANCEL_MOST;
	return code >> 16 == 3 && code << 16 >> 16 < 16 && payload && payload <= POSTGRES_STARTUP_MOST;
}

/* Bytes of a message by its header; 0: it is none. */
static __always_inline u32 postgres_message(const u8 *header, bool from_client)
{
	u32 payload = prefixed_payload(&POSTGRES_MESSAGE, header);
	if (payload > POSTGRES_MESSAGE_MOST || postgres_action(header[0], from_client) == POSTGRES_REFUSED)
		return 0;
	return POSTGRES_HEADER_BYTES + payload;
}

/* Byte flags (0x80) of the zeroes in a word; exact for every byte. */
static __always_inline u64 zeroes(u64 word)
{
	const u64 low = 0x7f7f7f7f7f7f7f7fULL;
	return ~(((word & low) + low) | word | low);
}

enum { LOOKED_BYTES = 64 };

/* Bytes up to and including the second zero of sixty-four; 0: it is not among them. */
static __always_inline u32 through_second_zero(const u8 *bytes)
{
	u32 end = 0, n = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < LOOKED_BYTES / 8; i++) {
		u64 flags = zeroes(load8(bytes, 8 * i));
		if (!n && flags) {
			flags &= flags - 1;
			n = 1;
		}
		if (n == 1 && flags) {
			end = 8 * i + through_first(flags);
			n = 2;
		}
		/* The first zero was not in this word, or the second one was not behind it. */
	}
	return end;
}

/* Bytes before the field `M`, the text of an error, of sixty-four; 0: it is not among them. */
static __always_inline u32 before_error_text(const u8 *bytes)
{
	u64 carry = 0;
	u32 end = 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < LOOKED_BYTES / 8; i++) {
		u64 word = load8(bytes, 8 * i), ends = zeroes(word);
		u64 begins = (ends << 8 | carry) & zeroes(word ^ ('M' * 0x0101010101010101ULL));
		carry = ends >> 56;
		if (!end && begins)
			end = 8 * i + through_first(begins) - 1;
	}
	return end;
}

/* === Redis === */

enum {
	REDIS_LINE_BYTES = 16,  /* of a line that are looked at */
	REDIS_WORD_MOST = 24,   /* the longest command that is kept */
	REDIS_ARGUMENT_MOST = 8,
	REDIS_VALUES_MOST = 1 << 24,
	REDIS_BULK_MOST = 1 << 30,
};

/* All bits if `byte` is a digit. Arithmetic: a comparison would be two ways for the verifier at each digit. */
static __always_inline u64 is_digit(u64 byte)
{
	u64 digit = byte - '0';
	u64 within = digit - 10;
	OPAQUE(within);
	OPAQUE(digit);
	return 0 - ((within & ~digit) >> 63);
}

/* The number that stands behind a line's first byte: negative for `-1`; -2: none, or too large. */
static __always_inline s64 redis_number(const u8 *line)
{
	u64 n = 0, goes = ~0ULL, none;
#pragma clang loop unroll(disable)
	for (u32 i = 1; i < 12; i++) {
		u64 byte = line[i];
		goes &= is_digit(byte);
		n = ((n * 10 + byte - '0') & goes) | (n & ~goes);
	}
	none = ~is_digit(line[1]);
	OPAQUE(none);
	if (line[1] == '-')
		return -1;
	return none || n > REDIS_BULK_MOST ? -2 : (s64)n;
}

/* Bytes of sixteen up to and including the first newline; more than sixteen: there is none. */
static __always_inline u32 redis_line(const u8 *bytes)
{
	u64 first = newlines(load8(bytes, 0)), second = newlines(load8(bytes, 8));
	return first ? through_first(first) : second ? 8 + through_first(second) : REDIS_LINE_BYTES + 1;
}

/* Whether sixteen bytes, zeroes behind what is there, begin a command: `*2\r\n$3\r\nGET`. */
static __always_inline bool is_redis_command(const u8 *bytes)
{
	u32 line = redis_line(bytes);
	u64 rest;
	if (bytes[0] != '*' || line < 4 || line > 7 || redis_number(bytes) < 1)
		return false;
	rest = load8(bytes, 0) >> (8 * line) | load8(bytes, 8) << (64 - 8 * line);
	if ((u8)rest != '$' || !is_digit((u8)(rest >> 8)))
		return false;
	rest >>= 16;
	if (is_digit((u8)rest))
		rest >>= 8;
	if ((u16)rest != ('\r' | '\n' << 8))
		return false;
	rest = (u8)(rest >> 16) | 0x20;
	return rest >= 'a' && rest <= 'z';
}

static __always_inline bool is_redis_reply(u8 type)
{
	/* + - : $ * # ! ( , _ = % ~ > | */
	return is_among(type, LETTER('+') | LETTER('-') | LETTER(':') | LETTER('$') | LETTER('*') | LETTER('#') | LETTER('!') |
				      LETTER('(') | LETTER(',') | LETTER('=') | LETTER('%') | LETTER('>'),
			LETTER('_') | LETTER('~') | LETTER('|'));
}

/* Whether the word behind this command says what becomes of the connection. In any case, with its line's end. */
static __always_inline bool redis_has_argument(const u8 *word)
{
	u64 lower = load8(word, 0) | LOWER_CASE;
	return lower == EIGHT('s', 'e', 'l', 'e', 'c', 't', '\r' | 0x20, '\n' | 0x20) ||
	       lower == EIGHT('c', 'l', 'i', 'e', 'n', 't', '\r' | 0x20, '\n' | 0x20) ||
	       (lower & SEVEN_BYTES) == EIGHT('h', 'e', 'l', 'l', 'o', '\r' | 0x20, '\n' | 0x20, 0);
}

#endif
