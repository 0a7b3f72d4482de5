/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* How connections end that speak HTTP/2 or WebSocket: one record says so. */
#ifndef OBI_FRAME_END_H
#define OBI_FRAME_END_H

#include "protocol/framed/content.h"
#include "protocol/database/database.h"

/* A connection of HTTP/2 or of a database is over. What is open there, only the agent knows exactly. */
static __always_inline void end_streams(struct connection *k, const struct ending *how, u32 flag)
{
	struct close_event *event;
	u64 exchange = exchange_number(k, 0);
	s32 n_open = (s32)(k->n_opened - k->n_ended);
	if (flag == CLOSE_HTTP2)
		tell_streams(k, how->time);
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		if (n_open > 0)
			tally_lost(k, LOSS_RING_FULL, n_open);
		/* How many turns a database was asked for, in the place of the ordinal: the agent counts those it has not seen. */
		if (flag == CLOSE_DATABASE)
			exchange = exchange_number(k, k->cursor[~k->side & SIDE_SERVER].frame.turn);
		forget(exchange);
		return;
	}
	fill_header(&event->header, EVENT_CLOSE, flag, how->time, exchange);
	event->header.tgid = k->tgid;
	event->request_body_bytes = 0;
	event->response_body_bytes = 0;
	event->last_byte = 0;
	event->pending = 0;
	event->error = how->error;
	event->reason = how->reason;
	event->loss = how->loss;
	event->side = k->side;
	event->response_started = 0;
	__builtin_memset(event->pad, 0, sizeof(event->pad));
	event->last_stream = k->last_stream;
	event->received_pieces = k->receive.frame.sequence;
	event->sent_pieces = k->send.frame.sequence;
	event->n_aside = k->receive.frame.n_spilled + k->send.frame.n_spilled;
	event->epoch[0] = k->receive.frame.epoch;
	event->epoch[1] = k->send.frame.epoch;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* A WebSocket is over, or cannot be followed any further. */
static __always_inline void end_websocket(struct connection *k, u64 time, u8 reason)
{
	const struct frame_cursor *received = &k->receive.frame, *sent = &k->send.frame;
	u64 exchange = exchange_number(k, k->n_responses - 1);
	struct websocket_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		tally_lost(k, LOSS_RING_FULL, 1);
		forget(exchange);
		return;
	}
	fill_header(&event->header, EVENT_WEBSOCKET, 0, time, exchange);
	event->header.tgid = k->tgid;
	event->received_bytes = received->data.bytes;
	event->sent_bytes = sent->data.bytes;
	event->received_messages = received->data.messages;
	event->sent_messages = sent->data.messages;
	event->closed = k->websocket_closed;
	event->close_code = k->websocket_closed == 2 ? sent->close_code : received->close_code;
	event->reason = reason;
	__builtin_memset(event->pad, 0, sizeof(event->pad));
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Returns 1 when the connection speaks something else than HTTP/1, and has been ended here. */
SHARED int end_framed(struct connection *k, const struct ending *how)
{
	if (!k || !how)
		return 0;
	if (k->protocol == PROTOCOL_HTTP2)
		end_streams(k, how, CLOSE_HTTP2);
	else if (k->protocol == PROTOCOL_WEBSOCKET)
		end_websocket(k, how->time, how->reason);
	else if (is_database(k->protocol))
		end_streams(k, how, CLOSE_DATABASE);
	else
		return 0;
	return 1;
}

#endif
