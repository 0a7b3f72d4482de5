/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Content of HTTP/2's streams: how much each has had in each direction. One stream of each direction is at hand in the
 * connection, the others wait in the map `content`. What is known of a stream whose end will not be seen is reported in
 * a record of its own.
 */
#ifndef OBI_CONTENT_H
#define OBI_CONTENT_H

#include "core/emit.h"
#include "protocol/framed/frame.h"

static __always_inline struct stream_key key_of(const struct connection *k, u32 direction, u32 stream)
{
	u32 epoch = k->cursor[direction & 1].frame.epoch;
	return (struct stream_key){ .connection = k->number, .stream = stream, .direction = epoch << 1 | (direction & 1) };
}

/* The content of `stream` comes to hand; `opens`: if nothing is known of it, it has had none. */
SHARED int take_data(struct connection *k, u32 direction, u32 stream, u32 opens)
{
	struct stream_data *found, other;
	struct frame_cursor *f;
	struct stream_key key;
	if (!k)
		return 0;
	f = &k->cursor[direction & 1].frame;
	if (f->data.stream == stream)
		return 0;
	if (f->data.stream && f->data.unknown != NEVER_OPENED) {
		key = key_of(k, direction, f->data.stream);
		other = f->data;
		if (!bpf_map_update_elem(&content, &key, &other, BPF_ANY))
			f->n_spilled++;
	}
	if (f->n_spilled) {
		key = key_of(k, direction, stream);
		found = bpf_map_lookup_elem(&content, &key);
		if (found) {
			f->data = *found;
			bpf_map_delete_elem(&content, &key);
			f->n_spilled--;
			return 0;
		}
	}
	f->data = (struct stream_data){ .stream = stream, .unknown = opens ? 0 : NEVER_OPENED };
	return 0;
}

/* No more content will come of `stream` in that direction. */
static __always_inline void drop_data(struct connection *k, u32 direction, u32 stream)
{
	struct frame_cursor *f = &k->cursor[direction & 1].frame;
	if (f->data.stream == stream) {
		f->data.stream = 0;
	} else if (f->n_spilled) {
		struct stream_key key = key_of(k, direction, stream);
		if (!bpf_map_delete_elem(&content, &key))
			f->n_spilled--;
	}
}

/* Of a record: whose bytes it is about, and which way they go. */
static __always_inline void fill_ends(const struct connection *k, struct frame_event *r, u32 direction)
{
	r->sent = direction & 1;
	r->side = k->side;
	r->encrypted = k->encrypted;
	r->protocol = k->protocol;
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	r->family = k->family;
	r->local_port = k->local_port;
	r->remote_port = k->remote_port;
	__builtin_memcpy(r->local_address, k->local_address, 2 * ADDRESS_BYTES);
}

/* === records of their own === */

/* Reports what a stream has had so far. Not in the sequence: without this record nothing but the numbers is missing. */
SHARED int tell_content(struct connection *k, const struct stream_data *data, u32 direction, u64 time)
{
	struct frame_event *r;
	if (!k || !data || !data->stream || data->unknown == NEVER_OPENED)
		return 0;
	r = bpf_ringbuf_reserve(&events, sizeof(*r), 0);
	if (!r)
		return 0;
	fill_header(&r->header, EVENT_FRAME, FRAME_APART, time, exchange_number(k, 0));
	r->header.tgid = k->tgid;
	r->arrival = data->last;
	r->body_bytes = data->bytes;
	r->messages = data->unknown ? MESSAGES_UNKNOWN : data->messages;
	r->offset = 0;
	r->sequence = 0;
	r->stream = data->stream;
	r->frame_bytes = 0;
	r->position = 0;
	r->length = 0;
	r->type = FRAME_DATA;
	r->flags = 0;
	fill_ends(k, r, direction);
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

/* The same of a stream that is not at hand. */
static __always_inline void tell_spilled(struct connection *k, u32 direction, u32 stream, u64 time)
{
	struct stream_key key;
	if (!k->cursor[direction & 1].frame.n_spilled)
		return;
	key = key_of(k, direction, stream);
	tell_content(k, bpf_map_lookup_elem(&content, &key), direction, time);
}

/* `stream` is being reset: what it has had in both directions. */
SHARED int tell_stream(struct connection *k, u32 stream, u64 time)
{
	if (!k)
		return 0;
#pragma unroll
	for (u32 direction = 0; direction < 2; direction++) {
		struct stream_data *data = &k->cursor[direction].frame.data;
		if (data->stream == stream)
			tell_content(k, data, direction, time);
		else
			tell_spilled(k, direction, stream, time);
	}
	return 0;
}

/* The connection ends: what its streams at hand have had. Inlined: calls nest eight deep. */
static __always_inline void tell_streams(struct connection *k, u64 time)
{
	tell_content(k, &k->receive.frame.data, 0, time);
	tell_content(k, &k->send.frame.data, 1, time);
}

#endif
