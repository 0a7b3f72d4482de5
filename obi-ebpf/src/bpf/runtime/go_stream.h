/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Probes in Go programs that serve and call over HTTP/2, with net/http, golang.org/x/net/http2 or grpc-go. Who reads
 * frames, who handles a stream and who sends are different goroutines; what they hand to each other says for which
 * stream. The agent proves from the machine code where these are.
 *
 * An exchange's number is that of its connection and its stream.
 */
#ifndef OBI_GO_STREAM_H
#define OBI_GO_STREAM_H

#include "runtime/go.h"

#ifdef OBI_GOROUTINES

enum {
	GO_STREAM_NUMBER = 8, /* of a stream of net/http's server: its number, behind the address of its connection */
	GO_FRAME_NUMBER = 8,  /* of a frame: the number of its stream, behind valid (1 byte), type (1), flags, length */
	GO_FRAME_HEADERS = 0x0100, /* the first two of a frame of that type: not valid any more once it is taken apart */
	GO_FRAME_KIND = 0xfffe,    /* all but whether it is valid */
};

static __always_inline bool is_headers(u64 frame)
{
	return frame && (word_of(frame, 0) & GO_FRAME_KIND) == GO_FRAME_HEADERS;
}

/* The connection whose frames this goroutine reads, as an exchange with ordinal 0; 0: not known. */
static __always_inline u64 read_by(struct runtime_key key, u64 reader)
{
	u64 *bound;
	key.id = reader | GOROUTINE_READS;
	bound = bpf_map_lookup_elem(&goroutine, &key);
	return bound ? *bound : 0;
}

static __always_inline void bind(struct runtime_key key, u64 exchange)
{
	if (exchange)
		bpf_map_update_elem(&goroutine, &key, &exchange, BPF_ANY);
	else
		bpf_map_delete_elem(&goroutine, &key);
}

/* This goroutine is about to read the frames of the server's connection in the first argument, all of them. */
SEC("uprobe")
int go_reader(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = tls_cookie(ctx), number;
	struct runtime_key key = { .id = GO_ARGUMENT_1(ctx), .tgid = bpf_get_current_pid_tgid() >> 32 };
	if (!layout || !is_watched(key.tgid))
		return 0;
	prove_slot(key.tgid, GO_RUNNING(ctx), number_at(layout));
	number = word_of(GO_RUNNING(ctx), number_at(layout));
	bpf_map_update_elem(&goroutine_connection, &key, &number, BPF_ANY);
	return 0;
}

/*
 * This goroutine runs the handler of a stream: of the connection in the first argument, whose writer is in the second.
 */
SEC("uprobe")
int go_handler(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = tls_cookie(ctx), stream, *reader, connection = 0;
	struct runtime_key key = { .id = GO_ARGUMENT_1(ctx), .tgid = bpf_get_current_pid_tgid() >> 32 };
	if (!layout || !is_watched(key.tgid))
		return 0;
	prove_slot(key.tgid, GO_RUNNING(ctx), number_at(layout));
	stream = word_of(word_of(GO_ARGUMENT_2(ctx), 0), 0);
	reader = bpf_map_lookup_elem(&goroutine_connection, &key);
	if (reader && stream && word_of(stream, 0) == GO_ARGUMENT_1(ctx))
		connection = read_by(key, *reader);
	key.id = word_of(GO_RUNNING(ctx), number_at(layout));
	if (key.id)
		bind(key, connection ? stream_exchange(connection, word_of(stream, GO_STREAM_NUMBER)) : 0);
	return 0;
}

/*
 * The goroutine that reads frames for grpc-go has one that opens a stream, in the fourth argument, or, in older ones,
 * the second. It is about to start the goroutine of its handler.
 */
SEC("uprobe")
int go_headers(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = tls_cookie(ctx), frame, connection;
	struct runtime_key key = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	if (!layout || !is_watched(key.tgid))
		return 0;
	prove_slot(key.tgid, GO_RUNNING(ctx), number_at(layout));
	frame = word_of(GO_ARGUMENT_4(ctx), 0);
	if (!is_headers(frame))
		frame = word_of(GO_ARGUMENT_2(ctx), 0);
	key.id = word_of(GO_RUNNING(ctx), number_at(layout));
	if (!key.id)
		return 0;
	connection = read_by(key, key.id);
	if (!connection || !is_headers(frame))
		bind(key, 0);
	else
		bind(key, stream_exchange(connection, word_of(frame, GO_FRAME_NUMBER)) | 1ULL << GOROUTINE_HANDS_OVER_BIT);
	return 0;
}

/* This goroutine was started for one call, and sends its head. */
SEC("uprobe")
int go_sender(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = tls_cookie(ctx), *bound;
	struct runtime_key key = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	if (!layout)
		return 0;
	key.id = word_of(GO_RUNNING(ctx), number_at(layout));
	bound = bpf_map_lookup_elem(&goroutine, &key);
	if (bound)
		*bound |= 1ULL << GOROUTINE_SENDS_BIT;
	return 0;
}

/*
 * This goroutine hands something, in the fourth argument, to the one that sends for grpc-go, if a function in the
 * second allows it: so do calls that begin.
 */
SEC("uprobe")
int go_item(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = tls_cookie(ctx), *bound, exchange;
	struct runtime_key key = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	if (!layout || !GO_ARGUMENT_2(ctx) || !is_watched(key.tgid))
		return 0;
	key.id = word_of(GO_RUNNING(ctx), number_at(layout));
	bound = bpf_map_lookup_elem(&goroutine, &key);
	/* Who reads frames works for none of them. */
	exchange = bound && !(*bound >> GOROUTINE_HANDS_OVER_BIT & 1) ? *bound : 0;
	key.id = GO_ARGUMENT_4(ctx);
	if (exchange)
		bpf_map_update_elem(&goroutine_connection, &key, &exchange, BPF_ANY);
	else
		bpf_map_delete_elem(&goroutine_connection, &key);
	return 0;
}

/* It is about to be sent, in the second argument: the head of a stream. */
SEC("uprobe")
int go_header(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = tls_cookie(ctx), *bound, exchange, number;
	struct runtime_key key = { .id = GO_ARGUMENT_2(ctx), .tgid = bpf_get_current_pid_tgid() >> 32 };
	u32 stream;
	if (!layout)
		return 0;
	bound = bpf_map_lookup_elem(&goroutine_connection, &key);
	if (!bound)
		return 0;
	exchange = *bound & ~(1ULL << GOROUTINE_SENDS_BIT);
	bpf_map_delete_elem(&goroutine_connection, &key);
	number = word_of(GO_RUNNING(ctx), number_at(layout));
	stream = (u32)word_of(GO_ARGUMENT_2(ctx), 0) & 0x7fffffff;
	if (!number)
		return 0;
	key.id = number << STREAM_BITS | stream | GOROUTINE_OPENS;
	bind(key, exchange);
	return 0;
}

#endif

#endif
