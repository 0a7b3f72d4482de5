/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * A connection of Redis line by line: the command's name and the first word of an error are copied; keys, values and
 * passwords are passed over where they are.
 */
#ifndef OBI_REDIS_H
#define OBI_REDIS_H

#include "protocol/database/turn.h"

enum { REDIS_ELEMENTS_PER_STEP = 16 };

/* frame_cursor.flags */
enum { REDIS_NAMED = 1, REDIS_ARGUED = 2, REDIS_WHOLE = 4 };

/* A command or a reply has passed: its record, from what was kept of it. */
SHARED int redis_ends(struct connection *k, struct segment *s)
{
	struct frame_cursor *f;
	struct small_frame *r;
	if (!k || !s)
		return 0;
	f = &cursor_of(k, s)->frame;
	f->flags = 0;
	f->stream = f->turn;
	f->bytes = 0;
	cursor_of(k, s)->remaining = 0;
	if (is_request(k, s))
		ask(k, s);
	r = bpf_ringbuf_reserve(&events, sizeof(*r), 0);
	if (r) {
		fill_frame(k, s, &r->frame, sizeof(f->redis.command), FRAME_FIRST_PIECE | FRAME_LAST_PIECE);
		__builtin_memcpy(r->bytes, &f->redis.command, sizeof(f->redis.command));
		bpf_ringbuf_submit(r, wakeup_flag());
	}
	f->sequence++;
	if (f->type != '>') /* a push answers nothing */
		f->turn++;
	return 0;
}

/* The last byte of a value, or of a line, has passed. */
static __always_inline void redis_goes_on(struct cursor *c)
{
	c->mode = MODE_FRAME;
	c->frame.got = 0;
	if (!c->frame.redis.want)
		c->frame.flags |= REDIS_WHOLE;
}

/* A word that is kept is in `header`, with its line's end. */
static __always_inline void redis_word(struct cursor *c)
{
	struct frame_cursor *f = &c->frame;
	struct redis_command *command = &f->redis.command;
	if (!(f->flags & REDIS_NAMED)) {
		__builtin_memcpy(command->word, f->header, sizeof(command->word));
		command->word_bytes = f->got - 2;
		f->flags |= REDIS_NAMED;
		if (f->type == '>' || !redis_has_argument(command->word))
			f->flags |= REDIS_ARGUED;
	} else {
		__builtin_memcpy(command->argument, f->header, sizeof(command->argument));
		command->argument_bytes = f->got - 2;
		f->flags |= REDIS_ARGUED;
	}
	redis_goes_on(c);
}

/* The first word of a line: of an error, or of a command that is no array. */
static __always_inline void keep_first_word(struct frame_cursor *f, u32 skip)
{
	u64 n = 0, goes = 1;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < REDIS_LINE_BYTES; i++) {
		u64 byte = i + skip < REDIS_LINE_BYTES ? f->header[i + skip] : 0;
		u64 word = (' ' - byte) >> 63; /* arithmetic: see is_digit() */
		OPAQUE(word);
		goes &= word;
		f->redis.command.word[i] = byte & (0 - goes);
		n += goes;
	}
	f->redis.command.word_bytes = n;
}

/* A command or a reply begins with the line in `header`. Returns whether there is one. */
static __always_inline bool redis_begins(struct connection *k, struct segment *s, s64 number)
{
	struct frame_cursor *f = &cursor_of(k, s)->frame;
	u8 type = f->header[0];
	__builtin_memset(&f->redis, 0, sizeof(f->redis));
	f->flags = 0;
	f->type = type;
	f->redis.want = 1;
	if (is_request(k, s)) {
		if (type == '*' && number < 0) {
			come_to(s, OUTCOME_LOST, LOSS_FRAMING);
			return false;
		}
		f->redis.command.n_words = type == '*' ? number : 1;
		if (type == '*')
			return number > 0; /* an empty one has no reply */
		f->type = REDIS_INLINE;
		keep_first_word(f, 0);
		return f->redis.command.word_bytes;
	}
	if (!is_redis_reply(type)) {
		come_to(s, OUTCOME_LOST, LOSS_FRAMING);
		return false;
	}
	if (type == '-')
		keep_first_word(f, 1);
	return true;
}

/* Where a value of `n` bytes goes: into the record, or past. */
static __always_inline void redis_value(struct connection *k, struct segment *s, u32 n)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	bool is_name = !(f->flags & REDIS_NAMED);
	c->remaining = n + 2;
	c->mode = MODE_FRAME_HOP;
	f->got = 0;
	if (f->type != (is_request(k, s) ? '*' : '>') || f->flags & REDIS_ARGUED)
		return;
	if (n && n <= (is_name ? REDIS_WORD_MOST : REDIS_ARGUMENT_MOST))
		c->mode = MODE_WORD;
	else
		f->flags |= REDIS_NAMED | REDIS_ARGUED;
	__builtin_memset(f->header, 0, sizeof(f->header)); /* what was looked at before may have been a value */
}

/* The line in `header`, or the beginning of a longer one. */
SHARED int redis_takes(struct connection *k, struct segment *s, u32 is_long)
{
	struct frame_cursor *f;
	struct cursor *c;
	s64 number;
	u32 more = 0;
	u8 type;
	if (!k || !s)
		return 0;
	c = cursor_of(k, s);
	f = &c->frame;
	type = f->header[0];
	number = redis_number(f->header);
	if (!f->redis.want && !redis_begins(k, s, number)) {
		f->redis.want = 0;
		f->got = 0;
		return 0;
	}
	if (is_request(k, s) && f->type != REDIS_INLINE && type != '*' && type != '$') {
		come_to(s, OUTCOME_LOST, LOSS_FRAMING);
		return 0;
	}
	if (f->type == '>' && type != '>' && (type != '$' || number < 1))
		f->flags |= REDIS_NAMED | REDIS_ARGUED; /* the first word says what it is; this is none */
	if (f->type == REDIS_INLINE || (type != '*' && type != '$' && type != '%' && type != '~' && type != '>' && type != '|' &&
					type != '=' && type != '!')) {
		f->redis.want--;
		if (is_long)
			c->mode = MODE_LINE_REST;
		else
			redis_goes_on(c);
		f->got = 0;
		return 0;
	}
	if (is_long || number < -1) {
		come_to(s, OUTCOME_LOST, LOSS_FRAMING);
		return 0;
	}
	if (type == '$' || type == '=' || type == '!') {
		f->redis.want--;
		if (number >= 0)
			redis_value(k, s, number);
		else
			redis_goes_on(c);
		return 0;
	}
	if (number > 0)
		more = type == '%' || type == '|' ? 2 * (u32)number : (u32)number;
	if (more > REDIS_VALUES_MOST) {
		come_to(s, OUTCOME_LOST, LOSS_FRAMING);
		return 0;
	}
	f->redis.want += more - (type != '|'); /* attributes are none of the values that were announced */
	redis_goes_on(c);
	return 0;
}

/* Elements of an answer, one after the other in one buffer. */
SHARED int hop_elements(struct connection *k, struct segment *s)
{
	struct frame_cursor *f;
	if (!k || !s)
		return 0;
	f = &cursor_of(k, s)->frame;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < REDIS_ELEMENTS_PER_STEP; i++) {
		u32 line;
		s64 number;
		barrier(); /* see settle() */
		if (f->redis.want < 2 || s->left < REDIS_LINE_BYTES || s->source.length < REDIS_LINE_BYTES)
			break;
		if (bpf_probe_read_user(f->header, REDIS_LINE_BYTES, (void *)s->source.base))
			break;
		line = redis_line(f->header);
		number = redis_number(f->header);
		if (line > REDIS_LINE_BYTES)
			break;
		if (f->header[0] == '$' && number >= 0)
			line += number + 2;
		else if (f->header[0] != ':' && f->header[0] != '+')
			break;
		if (line > s->left || line > s->source.length)
			break;
		advance(s, line);
		f->redis.want--;
	}
	return 0;
}

/* As much of a line as is there, or of what is looked at. */
static __always_inline void read_line(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	u32 got, line;
	u64 n;
	got = c->mode == MODE_LINE_REST ? 0 : f->got & 15;
	if (!got && c->mode == MODE_FRAME && !f->redis.want)
		c->arrival = s->arrival;
	n = s->left < s->source.length ? s->left : s->source.length;
	if (n > REDIS_LINE_BYTES - got)
		n = REDIS_LINE_BYTES - got;
	OPAQUE(n);
	if (n > REDIS_LINE_BYTES || bpf_probe_read_user(f->header + got, n, (void *)s->source.base)) {
		come_to(s, OUTCOME_LOST, LOSS_FAULT);
		return;
	}
	line = redis_line(f->header);
	if (line > got + n || line <= got)
		line = 0; /* a newline in stale memory */
	advance(s, line ? line - got : n);
	if (c->mode == MODE_LINE_REST) {
		if (line)
			redis_goes_on(c);
		return;
	}
	f->got = got + n;
	if (line || got + n == REDIS_LINE_BYTES)
		redis_takes(k, s, !line);
}

/* === a step === */

/* Lost: a client's segment is known by the command that it begins with, a server's by what was asked before. */
static __always_inline void redis_found(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	u8 bytes[REDIS_LINE_BYTES] = {};
	bool found = first_bytes(s, bytes);
	if (is_request(k, s))
		find_again(c, s, found && is_redis_command(bytes));
	else
		find_again(c, s, found && c->frame.phase == PHASE_ANSWERED && is_redis_reply(bytes[0]));
}

/* If the last byte has passed of a command or a reply: its record. */
static __always_inline void tell_whole(struct connection *k, struct segment *s)
{
	barrier(); /* see settle() */
	if (cursor_of(k, s)->frame.flags & REDIS_WHOLE)
		redis_ends(k, s);
}

/* A word or a line, as far as it is there. */
static __always_inline void redis_text(struct connection *k, struct segment *s)
{
	struct cursor *c = cursor_of(k, s);
	struct frame_cursor *f = &c->frame;
	if (c->mode == MODE_WORD) {
		if (collect(s, f, c->remaining & 31))
			redis_word(c);
		return;
	}
	if (!f->got && c->mode == MODE_FRAME && (f->flags & REDIS_ARGUED || (!is_request(k, s) && f->type != '>')))
		hop_elements(k, s);
	if (s->left && s->source.length)
		read_line(k, s);
}

static __always_inline void read_redis(struct connection *k, struct segment *s)
{
	if (cursor_of(k, s)->mode == MODE_FRAME_LOST)
		redis_found(k, s);
	else
		redis_text(k, s);
	tell_whole(k, s);
}

#endif
