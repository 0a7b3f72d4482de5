/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The capture logic, the same for every hook set: a segment (the bytes of one
 * system call, in one direction of one connection) is walked with the cursor;
 * heads are copied to the agent, bodies are hopped over.
 *
 * A hook set finds the socket, the number of bytes and where they are in user
 * memory, and calls capture(). It adds no meaning of its own.
 */
#ifndef OBI_CAPTURE_H
#define OBI_CAPTURE_H

#include "exchange.h"

/* Steps of one segment; each is a hop, a piece or an iovec. Far above what a real one needs. */
#define STEP_LIMIT (1 << 20)
/* Segments without a head after which a connection joined in the middle counts as uncovered. */
#define RESYNC_LIMIT 1024
/* Pieces of a head up to this size wait in the carry for more: a head sent byte by byte is few records. */
#define WITHHOLD_BYTES 40

enum opacity {
	READABLE = 0,
	UNKNOWN_BUFFER = 1, /* the user's buffer could not be found */
	KERNEL_PAGES = 2,   /* sendfile, splice: the bytes never were in user memory */
};

/* Where the bytes of a segment are. All addresses are the user's. */
struct source {
	u64 base;    /* the contiguous range in hand */
	u64 length;
	u64 skip;    /* bytes to pass over before the next one of interest */
	u64 vector;  /* iovec entries to come */
	u32 vectors;
	u32 opaque;  /* enum opacity */
};

/*
 * What is known of the bytes on their way. No pointers: global functions, which
 * the verifier checks once and by themselves, cannot be handed any inside.
 */
struct segment {
	u64 time;
	u64 arrival;
	struct source source;
	u32 left;   /* bytes to go */
	u32 gap;    /* bytes before them that passed unseen */
	u32 offset; /* stream offset of the next byte */
	u32 sending;
	u32 begun;    /* 1: no longer at the first byte of the segment */
	u32 sendable; /* 1: the piece in hand is a record, 0: spare memory */
};

static __always_inline struct cursor *cursor_of(struct connection *k, const struct segment *s)
{
	return s->sending ? &k->send : &k->receive;
}

/* === losing the thread, and giving up === */

__noinline int desynchronise(struct connection *k, struct segment *s, u32 loss)
{
	struct ending how = { .reason = CLOSE_ABANDONED, .loss = loss };
	struct cursor *c;
	if (!k || !s)
		return 0;
	how.time = s->time;
	c = cursor_of(k, s);
	if (loss == LOSS_UNREADABLE && s->source.opaque == UNKNOWN_BUFFER)
		k->flags |= CONNECTION_UNREADABLE;
	if (c->flags & CURSOR_PIECES || pending(k))
		end_pending(k, &how);
	cursor_reset(c, MODE_RESYNC);
	s->left = 0;
	s->gap = 0;
	return 0;
}

static __always_inline void ignore_connection(struct connection *k)
{
	cursor_reset(&k->receive, MODE_IGNORED);
	cursor_reset(&k->send, MODE_IGNORED);
}

/* The bytes are no head. */
__noinline int reject(struct connection *k, struct segment *s, u32 result)
{
	struct cursor *c;
	if (!k || !s)
		return 0;
	c = cursor_of(k, s);
	if (c->flags & CURSOR_RESYNCED) {
		if (result == SCAN_TLS && !(k->flags & CONNECTION_HTTP)) {
			tally_uncovered(k, UNCOVERED_TLS);
			ignore_connection(k);
		} else {
			cursor_reset(c, MODE_RESYNC);
			if (++k->n_resync >= RESYNC_LIMIT && k->flags & CONNECTION_JOINED && !(k->flags & CONNECTION_HTTP))
				tally_uncovered(k, UNCOVERED_JOINED);
		}
		s->left = 0;
	} else if (k->flags & CONNECTION_HTTP || c->flags & CURSOR_PIECES) {
		desynchronise(k, s, LOSS_FRAMING);
	} else {
		if (result == SCAN_TLS)
			tally_uncovered(k, UNCOVERED_TLS);
		else if (result == SCAN_HTTP2)
			tally_uncovered(k, UNCOVERED_HTTP2);
		ignore_connection(k);
		s->left = 0;
	}
	return 0;
}

/* === walking the source === */

static __always_inline void advance(struct segment *s, u32 n)
{
	struct source *from = &s->source;
	s->left -= n;
	s->offset += n;
	s->begun = 1;
	if (n <= from->length) {
		from->base += n;
		from->length -= n;
	} else {
		from->skip += n - from->length;
		from->length = 0;
	}
}

static __always_inline void next_vector(struct connection *k, struct segment *s)
{
	struct source *from = &s->source;
	struct user_iovec entry = {};
	if (!from->vectors || bpf_probe_read_user(&entry, sizeof(entry), (void *)from->vector)) {
		desynchronise(k, s, LOSS_FAULT);
		return;
	}
	from->vector += sizeof(entry);
	from->vectors--;
	if (from->skip >= entry.length) {
		from->skip -= entry.length;
		return;
	}
	from->base = entry.base + from->skip;
	from->length = entry.length - from->skip;
	from->skip = 0;
}

/* === heads === */

/* First sight of a response: which request it answers, and what is known about that one. */
static __always_inline void match_response(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	u32 noted;
	if (c->flags & (CURSOR_NOTED | CURSOR_ORPHAN))
		return;
	if (!pending(k)) {
		struct cursor *request = request_cursor(k);
		if (k->side == SIDE_SERVER && request->mode == MODE_HEAD && request->flags & CURSOR_PIECES) {
			/* Answered before the head was complete (408, 431): the exchange counts all the same. */
			k->n_requests++;
			cursor_reset(request, MODE_RESYNC);
			c->flags |= CURSOR_NOTED;
			return;
		}
		/*
		 * A client may read a response before its other thread's send has returned:
		 * then the request follows. A server cannot; and a connection joined in the
		 * middle may well have a request under way.
		 */
		if (k->side == SIDE_SERVER || (k->flags & CONNECTION_JOINED && !k->n_requests)) {
			c->flags |= CURSOR_ORPHAN;
			if (k->flags & CONNECTION_UNREADABLE)
				tally_lost(k, LOSS_REQUEST_UNSEEN, 1);
			return;
		}
	}
	noted = take_note(k, exchange_number(k, k->n_responses));
	c->flags |= CURSOR_NOTED;
	if (noted & NOTE_HEAD)
		c->flags |= CURSOR_METHOD_HEAD;
	if (noted & NOTE_CONNECT)
		c->flags |= CURSOR_METHOD_CONNECT;
	if (noted & NOTE_LOST)
		c->flags |= CURSOR_LOST;
}

/* A piece could not be sent. A request counts when its head is complete, a response at once. */
static __always_inline void lose_piece(struct connection *k, struct segment *s, u64 exchange)
{
	struct cursor *c = cursor_of(k, s);
	if (c->flags & CURSOR_LOST)
		return;
	c->flags |= CURSOR_LOST;
	if (c->flags & CURSOR_RESPONSE) {
		if (c->flags & CURSOR_ORPHAN)
			return;
		tally_lost(k, LOSS_RING_FULL, 1);
		forget(exchange);
	} else if (c->flags & CURSOR_PIECES) {
		forget(exchange);
	}
}

/* The request head is complete; `n` bytes of it lie in this piece. Returns event flags. */
static __always_inline u32 request_complete(struct connection *k, struct segment *s, u32 n, u64 exchange)
{
	struct cursor *c = cursor_of(k, s);
	u32 noted = 0;
	u8 mode = body_mode(c, false);
	u32 flags = FLAG_LAST_PIECE;
	k->n_requests++;
	k->tgid = bpf_get_current_pid_tgid() >> 32;
	if (c->flags & CURSOR_METHOD_HEAD)
		noted |= NOTE_HEAD;
	if (c->flags & CURSOR_METHOD_CONNECT)
		noted |= NOTE_CONNECT;
	if (c->flags & CURSOR_LOST) {
		noted |= NOTE_LOST;
		tally_lost(k, LOSS_RING_FULL, 1);
	}
	if (noted)
		add_note(k, exchange, noted);
	if (pending(k) == 1)
		set_current(k, exchange);
	/* Whoever asks anew has had the answer to what was before. */
	if (response_cursor(k)->mode == MODE_RESYNC)
		cursor_reset(response_cursor(k), MODE_START);
	if (mode == MODE_START || (mode == MODE_LENGTH && c->content_length <= s->left - n)) {
		flags |= FLAG_MESSAGE_END;
		c->flags |= CURSOR_END_REPORTED;
	}
	c->mode = mode;
	return flags;
}

/* The response head is complete. Returns event flags. */
static __always_inline u32 response_complete(struct connection *k, struct segment *s, u32 n)
{
	struct cursor *c = cursor_of(k, s);
	u32 flags = FLAG_LAST_PIECE;
	bool success = c->status >= 200 && c->status < 300;
	bool connected = c->flags & CURSOR_METHOD_CONNECT && success;
	if (c->status < 200 && c->status != 101) {
		c->mode = MODE_START;
		return flags | FLAG_INTERIM;
	}
	k->last_response_byte = s->time;
	if (c->status == 101 || connected) {
		c->mode = MODE_IGNORED;
		flags |= FLAG_MESSAGE_END | FLAG_TUNNEL;
	} else {
		c->mode = body_mode(c, c->flags & CURSOR_METHOD_HEAD);
		if (c->mode == MODE_UNTIL_CLOSE)
			flags |= FLAG_CLOSE_DELIMITED;
		if (c->mode == MODE_START || (c->mode == MODE_LENGTH && c->content_length <= s->left - n))
			flags |= FLAG_MESSAGE_END;
	}
	if (flags & FLAG_MESSAGE_END && !(c->flags & CURSOR_ORPHAN)) {
		struct cursor *request = request_cursor(k);
		if (k->n_requests == k->n_responses + 1 && request->mode != MODE_START && request->mode != MODE_HEAD &&
		    !(request->flags & CURSOR_END_REPORTED))
			flags |= FLAG_REQUEST_INCOMPLETE;
		count_response(k);
		c->flags |= CURSOR_END_REPORTED;
	}
	return flags;
}

/* Sets the cursor on what follows the head. */
static __always_inline void leave_head(struct connection *k, struct segment *s, u32 flags)
{
	struct cursor *c = cursor_of(k, s);
	u8 mode = c->mode;
	k->flags |= CONNECTION_HTTP;
	count_open(k);
	if (flags & FLAG_TUNNEL) {
		ignore_connection(k);
	} else if (flags & FLAG_INTERIM) {
		u16 kept = c->flags & (CURSOR_NOTED | CURSOR_ORPHAN | CURSOR_LOST | CURSOR_METHOD_HEAD | CURSOR_METHOD_CONNECT);
		cursor_reset(c, MODE_START);
		c->flags = kept;
	} else if (mode == MODE_START) {
		cursor_reset(c, MODE_START);
	} else {
		c->remaining = mode == MODE_LENGTH ? c->content_length : 0;
		c->line_bytes = 0;
		c->body_bytes = 0;
		c->unsent = 0;
	}
}

static __always_inline void fill_head(struct connection *k, struct segment *s, struct head_event *r, u32 flags, u64 exchange)
{
	struct cursor *c = cursor_of(k, s);
	fill_header(&r->header, EVENT_HEAD, flags, s->time, exchange);
	r->arrival = c->arrival;
	r->started = c->started;
	r->body_bytes = flags & FLAG_MESSAGE_END && c->mode == MODE_LENGTH ? c->content_length : 0;
	r->side = k->side;
	r->message = c->flags & CURSOR_RESPONSE ? MESSAGE_RESPONSE : MESSAGE_REQUEST;
	r->family = k->family;
	r->local_port = k->local_port;
	r->remote_port = k->remote_port;
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	__builtin_memcpy(r->local_address, k->local_address, 2 * ADDRESS_BYTES);
}

/*
 * The piece in `r` has been scanned and `n` bytes of it are the head's: decides
 * what it means. Returns 1 when the record is to be submitted.
 */
__noinline int finish_piece(struct connection *k, struct segment *s, struct head_event *r, u32 n)
{
	struct cursor *c;
	u32 flags, position, length, allowed;
	u8 result, side;
	bool whole, response, submit;
	u64 exchange;

	if (!k || !s || !r)
		return 0;
	c = cursor_of(k, s);
	result = c->result;
	whole = result == SCAN_HEAD_END;
	response = c->flags & CURSOR_RESPONSE;
	side = response == !!s->sending ? SIDE_SERVER : SIDE_CLIENT;
	if (c->flags & CURSOR_RESYNCED && result == SCAN_MORE && !c->lines)
		result = SCAN_NOT_HTTP; /* found by luck: only a whole start line will do */
	if (result > SCAN_HEAD_END) {
		reject(k, s, result);
		return 0;
	}
	length = c->unsent + n;
	position = c->head_bytes - c->unsent;
	c->mode = MODE_HEAD;
	if (!whole && length <= WITHHOLD_BYTES) {
		c->unsent = length;
		c->head_bytes += n;
		advance(s, n);
		return 0;
	}
	if (!(c->flags & CURSOR_CLASSIFIED) || (k->side && k->side != side)) {
		reject(k, s, SCAN_NOT_HTTP);
		return 0;
	}
	k->side = side;
	if (response)
		match_response(k, s);
	exchange = exchange_number(k, response ? k->n_responses : k->n_requests);
	if (!s->sendable)
		lose_piece(k, s, exchange);

	flags = c->flags & CURSOR_PIECES ? 0 : FLAG_FIRST_PIECE;
	if (whole) {
		if (!response && c->flags & CURSOR_ENCODED) {
			reject(k, s, SCAN_MALFORMED);
			return 0;
		}
		flags |= response ? response_complete(k, s, n) : request_complete(k, s, n, exchange);
	}
	allowed = head_limit > position ? head_limit - position : 0;
	if (length > allowed) {
		length = allowed;
		flags |= FLAG_TRUNCATED;
	}
	submit = s->sendable && !(c->flags & (CURSOR_LOST | CURSOR_ORPHAN)) && (whole || length) &&
		 (flags & (FLAG_INTERIM | FLAG_FIRST_PIECE)) != (FLAG_INTERIM | FLAG_FIRST_PIECE);
	if (submit) {
		fill_head(k, s, r, flags, exchange);
		r->offset = s->offset - c->unsent;
		r->position = position;
		r->length = length;
		r->lead = c->unsent;
		c->flags |= CURSOR_PIECES;
	}
	c->unsent = 0;
	c->head_bytes += n;
	advance(s, n);
	if (whole)
		leave_head(k, s, flags);
	return submit;
}

struct small_record {
	struct head_event head;
	u8 bytes[SMALL_PIECE_BYTES];
};

struct large_record {
	struct head_event head;
	u8 bytes[LARGE_PIECE_BYTES];
};

struct scan {
	struct cursor *cursor;
	u8 *area;
};

static long small_step(u32 index, struct scan *scan)
{
	(void)index;
	return scan_step(scan->cursor, scan->area, SMALL_PIECE_BYTES);
}

static long large_step(u32 index, struct scan *scan)
{
	(void)index;
	return scan_step(scan->cursor, scan->area, LARGE_PIECE_BYTES);
}

/* Global functions: the verifier checks each once, whatever the callers' state. */
__noinline int scan_small(struct cursor *c, struct small_record *r)
{
	if (!c || !r)
		return 0;
	struct scan scan = { .cursor = c, .area = r->head.carry };
	bpf_loop(SMALL_PIECE_BYTES, small_step, &scan, 0);
	if (c->result == SCAN_MORE)
		keep_line(c, r->head.carry, SMALL_PIECE_BYTES);
	return 0;
}

__noinline int scan_large(struct cursor *c, struct large_record *r)
{
	if (!c || !r)
		return 0;
	struct scan scan = { .cursor = c, .area = r->head.carry };
	bpf_loop(LARGE_PIECE_BYTES, large_step, &scan, 0);
	if (c->result == SCAN_MORE)
		keep_line(c, r->head.carry, LARGE_PIECE_BYTES);
	return 0;
}

/* Bytes of this piece: what is in hand, at most what the record holds. */
static __always_inline u32 piece_size(struct segment *s, const u32 room)
{
	u64 n = s->left < s->source.length ? s->left : s->source.length;
	if (n > room - SLACK_BYTES)
		n = room - SLACK_BYTES;
	return n;
}

/* Reads a piece of a head into `r` and scans it. Returns 1 when the record is to be submitted. */
static __always_inline int head_piece(struct connection *k, struct segment *s, struct head_event *r, const u32 room)
{
	struct cursor *c = cursor_of(k, s);
	u32 n = piece_size(s, room);
	if (c->mode != MODE_HEAD) {
		u16 kept = c->flags & (CURSOR_NOTED | CURSOR_ORPHAN | CURSOR_LOST | CURSOR_METHOD_HEAD |
				       CURSOR_METHOD_CONNECT);
		u8 mode = c->mode;
		cursor_reset(c, MODE_HEAD);
		c->flags = kept | (mode == MODE_RESYNC ? CURSOR_RESYNCED : 0);
		c->arrival = s->arrival;
		c->started = s->time;
	}
	if (bpf_probe_read_user((u8 *)(r + 1), n, (void *)s->source.base)) {
		desynchronise(k, s, LOSS_FAULT);
		return 0;
	}
	if (c->head_bytes)
		__builtin_memcpy(r->carry, c->carry, CARRY_BYTES);
	scan_begin(c, n);
	if (room == SMALL_PIECE_BYTES)
		scan_small(c, (struct small_record *)r);
	else
		scan_large(c, (struct large_record *)r);
	if (c->result == SCAN_HEAD_END)
		n = c->at - AREA_START;
	return finish_piece(k, s, r, n);
}

static __always_inline void spare_piece(struct connection *k, struct segment *s, struct sock *sk)
{
	struct spare *memory = bpf_sk_storage_get(&spare, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	s->sendable = 0;
	if (!memory)
		desynchronise(k, s, LOSS_NO_STATE);
	else if (s->sending)
		head_piece(k, s, &memory->direction[1].head, SMALL_PIECE_BYTES);
	else
		head_piece(k, s, &memory->direction[0].head, SMALL_PIECE_BYTES);
}

static __always_inline void small_piece(struct connection *k, struct segment *s, struct sock *sk)
{
	struct small_record *r = bpf_ringbuf_reserve(&events, sizeof(*r), 0);
	if (!r) {
		spare_piece(k, s, sk);
		return;
	}
	s->sendable = 1;
	if (head_piece(k, s, &r->head, SMALL_PIECE_BYTES))
		bpf_ringbuf_submit(r, wakeup_flag());
	else
		bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);
}

/* Heads that go on after a first, small piece. Without room, the small way takes over. */
static __always_inline bool large_piece(struct connection *k, struct segment *s)
{
	struct large_record *r = bpf_ringbuf_reserve(&events, sizeof(*r), 0);
	if (!r)
		return false;
	s->sendable = 1;
	if (head_piece(k, s, &r->head, LARGE_PIECE_BYTES))
		bpf_ringbuf_submit(r, wakeup_flag());
	else
		bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);
	return true;
}

/* === bodies === */

enum { CHUNK_READ_BYTES = 16 };

struct chunk_bytes {
	u8 byte[CHUNK_READ_BYTES];
};

/* Up to `n` bytes of a chunk-size line or trailer; `used` of them in the low half of the result, chunk_result above. */
__noinline int scan_chunk(struct cursor *c, const struct chunk_bytes *bytes, u32 n)
{
	u32 used = 0;
	u8 result = CHUNK_MORE;
	if (!c || !bytes)
		return 0;
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
		desynchronise(k, s, LOSS_FAULT);
		return;
	}
	scanned = scan_chunk(cursor_of(k, s), &bytes, n);
	result = scanned >> 16;
	advance(s, scanned & 0xffff);
	if (result == CHUNK_END)
		message_end(k, s->sending, s->time);
	else if (result == CHUNK_MALFORMED)
		desynchronise(k, s, LOSS_FRAMING);
}

static __always_inline bool is_skipping(u8 mode)
{
	return mode == MODE_LENGTH || mode == MODE_CHUNK_BODY || mode == MODE_UNTIL_CLOSE;
}

/* Hops over what it can of the gap or of the segment. */
__noinline int skip_body(struct connection *k, struct segment *s)
{
	struct cursor *c;
	u32 n;
	if (!k || !s)
		return 0;
	c = cursor_of(k, s);
	if (c->flags & CURSOR_RESPONSE)
		k->last_response_byte = s->time;
	n = hop(c, s->gap ? s->gap : s->left);
	if (s->gap)
		s->gap -= n;
	else
		advance(s, n);
	if (c->mode == MODE_LENGTH && !c->remaining)
		message_end(k, s->sending, s->time);
	return 0;
}

/* === the walk === */

struct walk {
	struct connection *connection;
	struct sock *sk;
	struct segment segment;
};

static long step(u32 index, struct walk *walk)
{
	struct connection *k = walk->connection;
	struct segment *s = &walk->segment;
	struct cursor *c = cursor_of(k, s);
	u8 mode = c->mode;
	(void)index;
	if ((!s->gap && !s->left) || mode == MODE_IGNORED)
		return 1;
	if (is_skipping(mode)) {
		skip_body(k, s);
		return 0;
	}
	if (s->gap) {
		s->gap = 0;
		/* Between messages nothing is lost but what was in the gap. */
		if (mode != MODE_RESYNC)
			desynchronise(k, s, LOSS_GAP);
		return 0;
	}
	if (mode == MODE_RESYNC && (s->begun || s->source.opaque))
		return 1;
	if (s->source.opaque) {
		desynchronise(k, s, LOSS_UNREADABLE);
		return 1;
	}
	if (!s->source.length)
		next_vector(k, s);
	else if (mode == MODE_CHUNK_SIZE || mode == MODE_TRAILER)
		chunk_piece(k, s);
	else if (c->head_bytes < SMALL_PIECE_BYTES - SLACK_BYTES || s->left <= SMALL_PIECE_BYTES - SLACK_BYTES ||
		 !large_piece(k, s))
		small_piece(k, s, walk->sk);
	return 0;
}

/* Follows a segment. The connection's state and the stream offsets are the caller's. */
static __always_inline void capture(struct walk *walk)
{
	struct connection *k = walk->connection;
	struct segment *s = &walk->segment;
	struct cursor *c = cursor_of(k, s);
	bool unreadable = s->source.opaque == UNKNOWN_BUFFER && !(k->flags & CONNECTION_HTTP) && !is_skipping(c->mode);
	bpf_loop(STEP_LIMIT, step, walk, 0);
	if (s->left && c->mode != MODE_RESYNC && c->mode != MODE_IGNORED)
		desynchronise(k, s, LOSS_STEPS);
	if (unreadable && c->mode != MODE_IGNORED)
		tally_uncovered(k, UNCOVERED_UNREADABLE);
}

#endif
