/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * A segment: the bytes of one system call, in one direction of one connection. Where they are, how far the walk has
 * come, and what its last step has come to.
 */
#ifndef OBI_SEGMENT_H
#define OBI_SEGMENT_H

#include "core/emit.h"

static __always_inline struct cursor *cursor_of(struct connection *k, const struct segment *s)
{
	return &k->cursor[s->sending & 1];
}

/* The other direction. */
static __always_inline struct cursor *opposite_of(struct connection *k, const struct segment *s)
{
	return &k->cursor[~s->sending & 1];
}

/* What passes in this direction is asked, not answered. */
static __always_inline bool is_request(const struct connection *k, const struct segment *s)
{
	return k->side == (s->sending ? SIDE_CLIENT : SIDE_SERVER);
}

/*
 * What a step has come to when that is more than going on. Steps only say so;
 * settle() draws the consequences, in one place: stack is short, and below 5.12
 * the verifier goes through a function at every call of it.
 */
enum outcome {
	OUTCOME_NONE = 0,
	OUTCOME_MESSAGE_END, /* the message has ended with the bytes walked */
	OUTCOME_REJECTED,    /* the bytes are no head; detail: scan_result */
	OUTCOME_LEFT,        /* it is not HTTP/1 from here on; detail: enum upgrade */
	OUTCOME_LOST,        /* the bytes cannot be followed; detail: loss_reason */
	OUTCOME_IGNORED,     /* no HTTP/1, here or ever; detail: scan_result */
	OUTCOME_MISFRAMED,   /* what has been taken for a body was none: nothing behind it can be trusted */
	OUTCOME_DOUBTFUL,    /* of a damaged connection: requests do not wait for answers, whose these are is not known */
};

static __always_inline void come_to(struct segment *s, u32 outcome, u32 detail)
{
	s->outcome = outcome;
	s->detail = detail;
}

/* `n` bytes further. */
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

/* === walking the source === */

#ifdef OBI_CALL_SET
/* The next message of a sendmmsg or recvmmsg: its bytes may be fewer than its vector has room for. */
static __always_inline void next_message(struct segment *s)
{
	struct source *from = &s->source;
	u64 vector[2];
	u32 length;
	if (bpf_probe_read_user(vector, sizeof(vector), (void *)(from->message + MSGHDR_VECTOR)) ||
	    bpf_probe_read_user(&length, sizeof(length), (void *)(from->message + MMSGHDR_LENGTH))) {
		come_to(s, OUTCOME_LOST, LOSS_FAULT);
		return;
	}
	from->message += MMSGHDR_BYTES;
	from->messages--;
	from->vector = vector[0];
	from->vectors = vector[1];
	from->message_left = length;
}
#endif

static __always_inline long read_vector(struct user_iovec *entry, const struct source *from)
{
#ifndef OBI_CALL_SET
	if (from->kernel_vector)
		return bpf_probe_read_kernel(entry, sizeof(*entry), (void *)from->vector);
#endif
	return bpf_probe_read_user(entry, sizeof(*entry), (void *)from->vector);
}

static __always_inline void next_vector(struct segment *s)
{
	struct source *from = &s->source;
	struct user_iovec entry = {};
#ifdef OBI_CALL_SET
	if (from->bounded && !from->message_left) {
		from->vectors = 0;
		if (from->messages) {
			next_message(s);
			return;
		}
	}
#endif
	if (!from->vectors || read_vector(&entry, from)) {
		come_to(s, OUTCOME_LOST, LOSS_FAULT);
		return;
	}
	from->vector += sizeof(entry);
	from->vectors--;
#ifdef OBI_CALL_SET
	if (from->bounded) {
		if (entry.length > from->message_left)
			entry.length = from->message_left;
		from->message_left -= entry.length;
	}
#endif
	if (from->skip >= entry.length) {
		from->skip -= entry.length;
		return;
	}
	from->base = entry.base + from->skip;
	from->length = entry.length - from->skip;
	from->skip = 0;
}

enum { VECTORS_PER_STEP = 8 };

/* Vectors are passed over until one has bytes of interest; not all of many in one step. */
static __always_inline bool has_bytes(struct segment *s)
{
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < VECTORS_PER_STEP && !s->source.length && !s->outcome; i++) {
		barrier(); /* see settle() */
		next_vector(s);
	}
	return s->source.length && !s->outcome;
}

#endif
