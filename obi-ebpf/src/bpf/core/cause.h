/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* What the kernel knows of what caused a message: facts of the thread and of the connection, at its first byte. */
#ifndef OBI_CAUSE_H
#define OBI_CAUSE_H

#include "core/segment.h"

#ifndef OBI_PORTABLE
/* Where the bytes of a segment begin. */
static __always_inline u64 first_byte(const struct source *from)
{
	struct user_iovec entry = {};
	if (from->base || !from->vectors)
		return from->base;
	return read_vector(&entry, from) ? 0 : entry.base;
}
#endif

/*
 * A segment that may hold a head begins: what its thread is about. Asked here and not at each head: verifiers before
 * 5.12 walk every way to a head anew, and there are too many for one more look-up.
 */
static __always_inline void note_thread(struct segment *s)
{
	u32 tid = (u32)s->id;
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	if (!state)
		return;
	s->serving = state->flags & CAUSE_SERVES ? state->exchange : 0;
	s->thread_flags = state->flags;
#ifndef OBI_PORTABLE
	if (!s->sending || !state->buffer)
		return;
	if (state->buffer == first_byte(&s->source)) {
		s->serving = state->bound;
		s->thread_flags |= CAUSE_RUNTIME;
	}
	state->buffer = 0;
#endif
}

static __always_inline void fill_cause(const struct connection *k, const struct segment *s, struct cause *cause)
{
	cause->candidate = s->serving;
	cause->flags = k->causes | s->thread_flags;
	cause->received_base = k->received_base;
	cause->sent_base = k->sent_base;
	cause->behind_us = s->behind_us;
}

#endif
