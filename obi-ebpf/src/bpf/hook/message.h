/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Where the user's memory is, from the msghdr of a send or receive in progress. */
#ifndef OBI_MESSAGE_H
#define OBI_MESSAGE_H

#include "core/stream.h"

enum iterator { ITERATOR_BUFFER, ITERATOR_VECTOR, ITERATOR_PAGES };

/* Kinds have had different numbers in almost every series: the running kernel's are asked for. */
static __always_inline enum iterator iterator_of(struct iov_iter *iter)
{
	u32 type;
	if (bpf_core_field_exists(iter->iter_type)) {
		type = FIELD(iter, iter_type);
		if (bpf_core_enum_value_exists(enum iter_type, ITER_UBUF) &&
		    type == bpf_core_enum_value(enum iter_type, ITER_UBUF))
			return ITERATOR_BUFFER;
	} else {
		type = READ((struct iov_iter___mask *)iter, type) & ~1u;
	}
	return type == bpf_core_enum_value(enum iter_type, ITER_IOVEC) ? ITERATOR_VECTOR : ITERATOR_PAGES;
}

static __always_inline void message_source(struct transfer *t, struct msghdr *message)
{
	struct iov_iter *iter = &message->msg_iter;
	u64 offset = FIELD(message, msg_iter.iov_offset);
	t->count = FIELD(message, msg_iter.count);
	t->message = (u64)message;
	t->opaque = READABLE;
	t->vectors = 0;
	switch (iterator_of(iter)) {
	case ITERATOR_BUFFER:
		/* Read, not followed: to verifiers it is a pointer to the union's first type, which nothing may be added to. */
		t->base = (u64)READ(message, msg_iter.ubuf) + offset;
		t->length = t->count;
		t->skip = 0;
		return;
	case ITERATOR_VECTOR:
		if (bpf_core_field_exists(iter->__iov))
			t->base = (u64)READ(message, msg_iter.__iov);
		else
			t->base = (u64)READ((struct iov_iter___iov *)iter, iov);
		t->vectors = FIELD(message, msg_iter.nr_segs);
		t->length = 0;
		t->skip = offset;
		return;
	default:
		t->opaque = FIELD(message, msg_flags) & FLAG_SPLICE_PAGES ? KERNEL_PAGES : UNKNOWN_BUFFER;
	}
}

static __always_inline void source_of_transfer(struct source *from, const struct transfer *t)
{
	from->base = t->base;
	from->length = t->vectors ? 0 : t->length;
	from->skip = t->skip;
	from->vector = t->base;
	from->vectors = t->vectors;
	from->kernel_vector = 1;
	from->opaque = t->opaque;
}

#endif
