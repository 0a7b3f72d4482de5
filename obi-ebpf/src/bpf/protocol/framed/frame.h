/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Framing of HTTP/2 (RFC 9113 §4, §6), of gRPC's messages inside DATA and of WebSocket (RFC 6455 §5.2), as far as
 * it is needed to know where the next frame begins. Pure functions, as in protocol/http1/framing.h.
 */
#ifndef OBI_FRAME_H
#define OBI_FRAME_H

#include "protocol/framed/prefix.h"
#include "protocol/http1/framing.h"

enum frame_type {
	FRAME_DATA = 0,
	FRAME_HEADERS = 1,
	FRAME_PRIORITY = 2,
	FRAME_RST_STREAM = 3,
	FRAME_SETTINGS = 4,
	FRAME_PUSH_PROMISE = 5,
	FRAME_PING = 6,
	FRAME_GOAWAY = 7,
	FRAME_WINDOW_UPDATE = 8,
	FRAME_CONTINUATION = 9,
	FRAME_TYPES = 10,
};

/* A frame's own flags. */
enum {
	END_STREAM = 0x1, /* DATA, HEADERS */
	FRAME_ACK = 0x1,  /* SETTINGS, PING */
	END_HEADERS = 0x4,
	FRAME_PADDED = 0x8,
	FRAME_PRIORITIZED = 0x20,
};

enum {
	/* What no peer exceeds unless asked for more (RFC 9113 §4.2), and what of DATA is still likely. */
	FRAME_LIKELY_BYTES = 16384,
	DATA_LIKELY_BYTES = 1 << 20,
	/* Of GOAWAY: the last stream, the error code. The rest is text for people. */
	GOAWAY_BYTES = 8,
	/* Messages without content in a row: beyond, it is a file full of zeroes. */
	EMPTY_MOST = 1024,
};

/* stream_data.unknown: DATA came of which no beginning was seen. */
#define NEVER_OPENED 2

static __always_inline u32 big_endian_4(const u8 *bytes)
{
	return (u32)bytes[0] << 24 | (u32)bytes[1] << 16 | (u32)bytes[2] << 8 | bytes[3];
}

/* HTTP/2: length, type, flags, stream. */
static const struct prefix HTTP2_FRAME = { .header_bytes = FRAME_HEADER_BYTES, .at = 0, .width = 3 };

static __always_inline u32 frame_length(const u8 *header)
{
	return prefixed_payload(&HTTP2_FRAME, header);
}

/* Types in sets. */
#define IS_TYPE(type, set) ((type) < FRAME_TYPES && 1u << (type) & (set))
#define OF_STREAM                                                                                             \
	(1 << FRAME_DATA | 1 << FRAME_HEADERS | 1 << FRAME_PRIORITY | 1 << FRAME_RST_STREAM | 1 << FRAME_PUSH_PROMISE | \
	 1 << FRAME_CONTINUATION)
#define OF_CONNECTION (1 << FRAME_SETTINGS | 1 << FRAME_PING | 1 << FRAME_GOAWAY)
#define COPIED                                                                                                \
	(1 << FRAME_HEADERS | 1 << FRAME_CONTINUATION | 1 << FRAME_PUSH_PROMISE | 1 << FRAME_SETTINGS |         \
	 1 << FRAME_RST_STREAM | 1 << FRAME_GOAWAY)
#define OF_BLOCK (1 << FRAME_HEADERS | 1 << FRAME_CONTINUATION | 1 << FRAME_PUSH_PROMISE)

/* Whether nine bytes may be the header of a frame: what breaks these rules ends a connection (RFC 9113 §4.2, §6). */
static __always_inline bool is_valid_frame(const u8 *header)
{
	u32 length = frame_length(header), stream = big_endian_4(header + 5) & 0x7fffffff;
	u8 type = header[3];
	if (IS_TYPE(type, OF_STREAM) && !stream)
		return false;
	if (IS_TYPE(type, OF_CONNECTION) && stream)
		return false;
	switch (type) {
	case FRAME_PRIORITY:
		return length == 5;
	case FRAME_RST_STREAM:
	case FRAME_WINDOW_UPDATE:
		return length == 4;
	case FRAME_PING:
		return length == 8;
	case FRAME_GOAWAY:
		return length >= GOAWAY_BYTES;
	case FRAME_SETTINGS:
		return header[4] & FRAME_ACK ? !length : length % 6 == 0;
	}
	return true;
}

/* Whether nine bytes out of the blue are likely to be one: flags as they are defined, lengths as they are common. */
static __always_inline bool is_likely_frame(const u8 *header)
{
	u32 length = frame_length(header);
	u8 type = header[3], flags = header[4], known = 0;
	if (!is_valid_frame(header) || header[5] & 0x80)
		return false;
	if (length > (type == FRAME_DATA ? DATA_LIKELY_BYTES : FRAME_LIKELY_BYTES))
		return false;
	switch (type) {
	case FRAME_DATA:
		known = END_STREAM | FRAME_PADDED;
		/* No server pushes; small messages of gRPC look like a header of an even stream. */
		if (!(header[8] & 1))
			return false;
		break;
	case FRAME_HEADERS:
		known = END_STREAM | END_HEADERS | FRAME_PADDED | FRAME_PRIORITIZED;
		/* Only what does not fit into one frame is continued. */
		if (!length || !(header[8] & 1) || (!(flags & END_HEADERS) && length < FRAME_LIKELY_BYTES / 2))
			return false;
		break;
	case FRAME_PUSH_PROMISE:
		known = END_HEADERS | FRAME_PADDED;
		if (length <= 4 || !(flags & END_HEADERS))
			return false;
		break;
	case FRAME_CONTINUATION:
		known = END_HEADERS;
		break;
	case FRAME_SETTINGS:
	case FRAME_PING:
		known = FRAME_ACK;
		break;
	case FRAME_PRIORITY:
	case FRAME_RST_STREAM:
	case FRAME_GOAWAY:
	case FRAME_WINDOW_UPDATE:
		break;
	default:
		return false;
	}
	return !(flags & ~known);
}

/* The second half of the preface (RFC 9113 §3.4); the first was scanned as a start line. */
static __always_inline bool is_preface_rest(const u8 *bytes)
{
	return load8(bytes, 0) == EIGHT('\r', '\n', 'S', 'M', '\r', '\n', '\r', '\n');
}

/* The header in hand is complete: what it says. Where the payload goes is the caller's to decide. */
static __always_inline void read_frame_header(struct cursor *c)
{
	struct frame_cursor *f = &c->frame;
	f->bytes = frame_length(f->header);
	f->type = f->header[3];
	f->flags = f->header[4];
	f->stream = big_endian_4(f->header + 5) & 0x7fffffff;
	f->padding = 0;
	f->got = 0;
	c->remaining = f->bytes;
}

/*
 * Which side a header block comes from, by its first byte: pseudo-headers come first (RFC 9113 §8.3), and those of
 * requests stand before those of responses in the static table (RFC 7541 appendix A).
 */
static __always_inline u8 message_of_block(u8 first)
{
	u8 index = first & 0x80 ? first & 0x7f : first & 0x40 ? first & 0x3f : first & 0x20 ? 0 : first & 0x0f;
	return index >= 1 && index <= 7 ? MESSAGE_REQUEST : index >= 8 && index <= 14 ? MESSAGE_RESPONSE : 0;
}

/* === messages of gRPC's framing inside DATA: a byte of flags and a length of four === */

/* Content without padding that is still to come in this DATA frame. */
static __always_inline u32 content_left(const struct cursor *c)
{
	u32 remaining = c->remaining;
	return remaining > c->frame.padding ? remaining - c->frame.padding : 0;
}

/* How many bytes of a DATA frame need not be read: all, or up to the next prefix. */
static __always_inline u32 unread_data(const struct cursor *c)
{
	const struct stream_data *data = &c->frame.data;
	u32 content = content_left(c);
	if (!content || data->unknown)
		return c->remaining;
	return content < data->left ? content : data->left;
}

/* `n` bytes of a DATA frame pass, read or not. */
static __always_inline void pass_data(struct cursor *c, u32 n, u64 time)
{
	struct stream_data *data = &c->frame.data;
	u32 content = content_left(c);
	c->remaining -= n;
	if (n > content)
		n = content;
	if (n)
		data->last = time;
	data->bytes += n;
	data->left = n < data->left ? data->left - n : 0;
}

/* `n` bytes of a prefix follow those that are there. What is none shows that this is other content. */
static __always_inline void read_prefix(struct stream_data *data, u64 bytes, u32 n)
{
	u8 flags;
	data->prefix |= bytes << (8 * (data->prefix_bytes & 7));
	data->prefix_bytes += n;
	if (data->prefix_bytes < PREFIX_BYTES)
		return;
	flags = data->prefix;
	data->left = __builtin_bswap32((u32)(data->prefix >> 8));
	data->prefix = 0;
	data->prefix_bytes = 0;
	/* Bit 0: compressed; bit 7: trailers of gRPC-Web, which are no message. */
	if (flags & 0x7e) {
		data->unknown = 1;
		return;
	}
	if (!(flags & 0x80))
		data->messages++;
	if (data->left)
		data->n_empty = 0;
	else if (++data->n_empty > EMPTY_MOST)
		data->unknown = 1;
}

/* === WebSocket === */

enum websocket_opcode {
	WEBSOCKET_BINARY = 2, /* the last one of data; 1: text, 0: what continues them */
	WEBSOCKET_CLOSE = 8,
};

enum { WEBSOCKET_FINAL = 0x80, WEBSOCKET_MASKED = 0x80, CLOSE_CODE_BYTES = 2 };

/* Bytes of the header as far as the `got` ones show. */
static __always_inline u32 websocket_header_bytes(const struct frame_cursor *f)
{
	u32 length = f->header[1] & 0x7f;
	if (f->got < 2)
		return 2;
	return 2 + (length == 126 ? 2 : length == 127 ? 8 : 0) + (f->header[1] & WEBSOCKET_MASKED ? 4 : 0);
}

/* The header in hand is complete. Returns whether it can be one: no reserved opcode, no long control frame. */
static __always_inline bool read_websocket_header(struct cursor *c)
{
	struct frame_cursor *f = &c->frame;
	u8 opcode = f->header[0] & 0xf, short_length = f->header[1] & 0x7f;
	u64 length = short_length;
	f->type = opcode;
	f->flags = f->header[0];
	if (short_length == 126)
		length = (u32)f->header[2] << 8 | f->header[3];
	else if (short_length == 127)
		length = (u64)big_endian_4(f->header + 2) << 32 | big_endian_4(f->header + 6);
	c->remaining = length;
	if (length >> 63 || (opcode & 7) > 2 || (opcode < 8 && opcode > WEBSOCKET_BINARY))
		return false;
	return opcode < 8 || (short_length < 126 && f->flags & WEBSOCKET_FINAL);
}

/* The code of a Close frame, from the two bytes that stand behind its header in `header`. */
static __always_inline u16 websocket_close_code(const u8 *header)
{
	u8 high, low;
	if (!(header[1] & WEBSOCKET_MASKED))
		return (u16)(header[2] << 8 | header[3]);
	high = header[6] ^ header[2];
	low = header[7] ^ header[3];
	return (u16)(high << 8 | low);
}

#endif
