/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Records to the agent: reserve, fill, submit. Who fails to reserve counts the loss. */
#ifndef OBI_EMIT_H
#define OBI_EMIT_H

#include "core/state.h"

/*
 * Waking the agent for every record would cost more than the record. It polls
 * many times a second; only when a good part of the ring is in use it is woken,
 * on the way up. One record of each exchange asks how full the ring is, so the
 * window is some records wide.
 */
static __always_inline u64 wakeup_flag(void)
{
	u64 waiting = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);
	return waiting >= wakeup_bytes && waiting < wakeup_bytes + 16384 ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

static __always_inline u64 exchange_number(const struct connection *k, u32 ordinal)
{
	return k->number << ORDINAL_BITS | (ordinal & ((1U << ORDINAL_BITS) - 1));
}

static __always_inline void fill_header(struct event_header *header, u32 kind, u32 flags, u64 time, u64 exchange)
{
	u64 id = bpf_get_current_pid_tgid();
	header->kind = kind;
	header->tgid = id >> 32;
	header->tid = (u32)id;
	header->flags = flags;
	header->time = time;
	header->exchange = exchange;
}

/* The agent holds the beginning of this exchange and will never see its end. Returns 0 when that will be reported. */
static __always_inline int forget_now(u64 exchange)
{
	return bpf_map_push_elem(&forgotten, &exchange, 0);
}

/* The same where the stack of the caller is full, and few functions call each other. */
RARE int forget(u64 exchange)
{
	return forget_now(exchange);
}

/* Returns false when the record was lost; the caller counts. */
static __always_inline bool emit_end(const struct connection *k, const struct cursor *c, u64 exchange, u64 time,
				     u32 flags)
{
	struct end_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return false;
	fill_header(&event->header, EVENT_END, flags | FLAG_MESSAGE_END, time, exchange);
	/* The process that did the reading owns the exchange; a child may do the closing. */
	event->header.tgid = k->tgid;
	event->body_bytes = c->body_bytes;
	event->side = k->side;
	event->message = c->flags & CURSOR_RESPONSE ? MESSAGE_RESPONSE : MESSAGE_REQUEST;
	__builtin_memset(event->pad, 0, sizeof(event->pad));
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return true;
}

#endif
