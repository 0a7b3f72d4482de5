/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Where one direction of a connection stands: the cursor, and the memory that it scans. */
#ifndef OBI_CURSOR_H
#define OBI_CURSOR_H

#ifndef OBI_KERNEL
#include <linux/types.h>
#include <stdbool.h>
#include <string.h>
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#endif

#include "event.h"

enum cursor_mode {
	MODE_START = 0,   /* before the first byte of a head */
	MODE_HEAD,        /* inside a head */
	MODE_LENGTH,      /* inside a body of known length: `remaining` bytes */
	MODE_EXPECTED,    /* before a body that was announced, but answered already: it comes, or another request does */
	MODE_CHUNK_SIZE,  /* inside a chunk-size line */
	MODE_CHUNK_BODY,  /* inside chunk bytes and their CRLF: `remaining` bytes */
	MODE_TRAILER,     /* inside the trailer section */
	MODE_UNTIL_CLOSE, /* the body ends with the connection */
	MODE_RESYNC,      /* lost: a head is looked for at the start of each segment */
	MODE_IGNORED,     /* not HTTP/1, or a tunnel */
	/* From here on not HTTP/1, see protocol/framed/frame.h: */
	MODE_FIND,        /* the bytes are no head: are they frames? */
	MODE_PREFACE,     /* inside the second half of HTTP/2's connection preface */
	MODE_FRAME_LOST,  /* HTTP/2, lost: a frame is looked for at the start of each segment */
	MODE_FRAME,       /* inside a frame header */
	MODE_FRAME_PAD,   /* before the length of a DATA frame's padding */
	MODE_FRAME_DATA,  /* inside DATA: `remaining` bytes, padding included */
	MODE_FRAME_COPY,  /* inside a payload that is copied: `remaining` bytes */
	MODE_FRAME_HOP,   /* inside a payload that is not: `remaining` bytes */
	MODE_WEBSOCKET,      /* inside the header of a WebSocket frame */
	MODE_WEBSOCKET_CODE, /* before the code of a Close frame */
	MODE_WEBSOCKET_HOP,  /* inside a payload: `remaining` bytes */
	MODE_LINE_REST,      /* Redis: behind the beginning of a line that is longer than what is looked at */
	MODE_WORD,           /* Redis: inside a word of a command that is kept */
};

enum cursor_flag {
	CURSOR_CHUNKED = 1,        /* transfer-encoding ends with chunked */
	CURSOR_ENCODED = 2,        /* another transfer-encoding */
	CURSOR_HAS_LENGTH = 4,
	CURSOR_RESPONSE = 8,       /* the head is a response's */
	CURSOR_METHOD_HEAD = 16,
	CURSOR_METHOD_CONNECT = 32,
	CURSOR_CLASSIFIED = 64,    /* the first bytes of the start line have been judged */
	CURSOR_EXTENSION = 128,    /* inside a chunk extension */
	CURSOR_LOST = 256,         /* a piece of this message was lost, and counted */
	CURSOR_END_REPORTED = 512, /* the end went out with the head */
	CURSOR_ORPHAN = 1024,      /* a response that belongs to no request we know; a request whose response was lost */
	CURSOR_PIECES = 2048,      /* a piece of this head has been submitted */
	CURSOR_NOTED = 4096,       /* the note of this response's request has been taken */
	CURSOR_RESYNCED = 8192,    /* this head was found while looking for one: it must prove itself */
	CURSOR_EARLY = 16384,      /* this response came before its request's head was complete */
	CURSOR_REPORTED = 32768,       /* something of this message, or of a response interim to it, has been submitted */
};

enum scan_result {
	SCAN_MORE = 0,     /* the piece is used up, the head goes on */
	SCAN_HEAD_END = 1, /* the blank line is at `at` - 1 */
	SCAN_NOT_HTTP = 2,
	SCAN_HTTP2 = 3,
	SCAN_TLS = 4,
	SCAN_MALFORMED = 5, /* HTTP, but its framing cannot be trusted */
	SCAN_OTHER = 6,     /* neither HTTP/1 nor frames of HTTP/2 */
};

/* What a response says that the connection will speak, or what it turns out to speak. */
enum upgrade {
	UPGRADE_OTHER = 0,
	UPGRADE_HTTP2 = 1,
	UPGRADE_WEBSOCKET = 2,
	UPGRADE_PREFACE = 3, /* HTTP/2: the client's preface has come */
	UPGRADE_FRAMES = 4,  /* HTTP/2, from somewhere in the middle */
	UPGRADE_POSTGRES = 5,
	UPGRADE_POSTGRES_JOINED = 6,
	UPGRADE_REDIS = 7,
	UPGRADE_UNREPORTED = 8,  /* with one of them: the exchange that agreed to it was lost */
};

/* What is known of a response before its head, and stays across interim ones. */
#define CURSOR_KEPT \
	(CURSOR_NOTED | CURSOR_ORPHAN | CURSOR_LOST | CURSOR_METHOD_HEAD | CURSOR_METHOD_CONNECT | CURSOR_EARLY | CURSOR_REPORTED)

/* A line that decides about framing: its beginning, and its end, the newline last. */
struct framing_line {
	u8 first[CARRY_BYTES];
	u8 last[16];
};

enum { FRAME_HEADER_BYTES = 9, PREFIX_BYTES = 5, PREFACE_REST_BYTES = 8, WEBSOCKET_HEADER_MOST = 14 };

/* A look ahead for frames: where it has come to, and what was found. Here, because the verifier forgets what is here. */
struct look {
	u64 base;    /* the contiguous range in hand */
	u64 length;
	u64 skip;    /* bytes to pass over before the next one of interest */
	u64 vector;  /* iovec entries to come */
	u32 vectors;
	u32 left;    /* bytes to the end of the segment */
	u32 n;       /* likely frame headers */
	u32 n_data;  /* of them, of DATA */
	u32 first;   /* type of the first */
	u32 fits;    /* 1: the last frame ends with the segment */
};

/* A command or a reply of Redis under way. */
struct redis_cursor {
	struct redis_command command; /* of a reply: `word` is the beginning of its first line */
	u32 want; /* values still to come; 0: between two messages */
};

/* Where one direction of a connection stands in HTTP/2, WebSocket or a database's protocol. */
struct frame_cursor {
	union {
		struct {
			u8 header[32]; /* of the frame under way: `got` bytes, and room behind them for reading */
			union {
				struct stream_data data; /* of the stream at hand; of all messages of a WebSocket */
				struct redis_cursor redis;
			};
		};
		struct look look; /* in MODE_FIND and MODE_FRAME_LOST */
	};
	u32 bytes;       /* payload of the whole frame */
	u32 copy;        /* payload bytes still to be copied */
	u32 stream;
	u32 sequence;    /* of the next record */
	union {
		u32 block;       /* bytes of the header block in hand, over all its frames */
		u32 turn;        /* of the next message of a database's protocol */
	};
	u32 n_spilled;   /* streams of this direction in the map `content` */
	u16 epoch;       /* counts the times that this direction was lost */
	u16 close_code;
	u8 got;          /* bytes of `header`, and of whatever else is collected there */
	u8 type;
	u8 flags;
	u8 padding;      /* at the end of DATA */
	u8 joined;       /* 1: frames may have passed before those that were seen */
	u8 tentative;    /* 1: it began like a server's frames, no preface was seen yet */
	union {
		u8 closed;       /* WebSocket: a Close frame has passed */
		u8 synced;       /* PostgreSQL: a Sync has passed, and since then only rows of a COPY */
	};
	u8 phase;        /* enum database_phase */
};

/* Where a direction of a database's connection stands. */
enum database_phase {
	PHASE_MESSAGES = 0,
	PHASE_STARTUP = 1,   /* PostgreSQL: before the start-up message, which has no type */
	PHASE_ANSWER = 2,    /* PostgreSQL: before the one byte that says whether TLS begins */
	PHASE_ANSWERED = 3,  /* lost: the other direction has asked something, whose answer begins a segment */
};

/* Where one direction of a connection stands. */
struct cursor {
	u64 remaining;  /* bytes to the next boundary, in MODE_LENGTH and MODE_CHUNK_BODY; the size so far in MODE_CHUNK_SIZE */
	u64 body_bytes; /* body bytes of the current message so far */
	u64 content_length;
	u32 next;       /* stream offset expected next */
	u32 head_bytes; /* of the current head, before the current piece */
	u32 line_bytes; /* of the current line, before the current piece */
	u32 at;         /* scan position in the area */
	u32 end;        /* end of the bytes in the area */
	s32 line;       /* where the current line starts; negative: before the area */
	u16 flags;
	u16 status;
	u16 lines; /* of the head so far */
	u8 mode;
	u8 result;
	u8 unsent;      /* bytes at the end of `carry` that no record has carried yet */
	u8 digits;      /* of the content length so far */
	u8 upgrade;     /* enum upgrade */
	u8 expects;     /* 1: the head of a request asks whether its body is wanted (RFC 9110 §10.1.1) */
	u64 arrival;    /* of the first byte of the current head, or frame */
	u64 started;
	union {
		struct {
			struct framing_line copy; /* of the line being judged; here, because the stack is short */
			u8 carry[CARRY_BYTES]; /* the last bytes of the unfinished line, right-aligned */
		};
		struct frame_cursor frame; /* in the modes behind MODE_IGNORED */
	};
};

/*
 * A piece is laid out as [CARRY_BYTES of unfinished line][new bytes][SLACK_BYTES].
 * The slack keeps the wide loads below inside the record.
 */
#define AREA_START CARRY_BYTES
#define SLACK_BYTES 48
/* In `digits`: the number is over. Above any count of digits, so that another digit is refused. */
#define DIGITS_CLOSED 32
/* In `digits`: the end of the line was seen. */
#define DIGITS_LINE_END 64

/* The compiler forgets what it knows of a variable. */
#define OPAQUE(variable) __asm__ volatile("" : "+r"(variable))

#define EIGHT(a, b, c, d, e, f, g, h) \
	((u64)(a) | (u64)(b) << 8 | (u64)(c) << 16 | (u64)(d) << 24 | (u64)(e) << 32 | (u64)(f) << 40 | \
	 (u64)(g) << 48 | (u64)(h) << 56)
#define LOWER_CASE 0x2020202020202020ULL
#define SEVEN_BYTES 0x00ffffffffffffffULL

/* Unaligned on purpose: x86-64 and arm64 allow it, the verifier too; memcpy would become eight byte loads. */
static __always_inline u64 load8(const u8 *area, u32 at)
{
	return *(const u64 *)(area + at);
}

/* It is not HTTP/1 that is followed. */
static __always_inline bool is_framed(u8 mode)
{
	return mode > MODE_IGNORED;
}

/* Forgets the message that ended; flags of the connection's position are kept by the caller. */
static __always_inline void cursor_reset(struct cursor *c, u8 mode)
{
	c->mode = mode;
	c->flags = 0;
	c->status = 0;
	c->lines = 0;
	c->head_bytes = 0;
	c->line_bytes = 0;
	c->unsent = 0;
	c->upgrade = UPGRADE_OTHER;
	c->expects = 0;
	c->remaining = 0;
	c->content_length = 0;
	c->body_bytes = 0;
}

#endif
