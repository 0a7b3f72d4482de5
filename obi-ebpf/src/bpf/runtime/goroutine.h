/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Which request each goroutine works for. Go has one number for each that is never used again, and the threads that run
 * them change; so the number is asked for where a request is read, and by the probes of runtime/go.h where one begins
 * or calls.
 *
 * Not in the portable objects: the kernels that take those have no cookies to show the probes where in a goroutine
 * its number is (5.15), and their verifiers no room in the walk.
 */
#ifndef OBI_GOROUTINE_H
#define OBI_GOROUTINE_H

#include "core/map.h"
#include "runtime/binding.h"

#ifdef OBI_GOROUTINES

/* The client's connections (`*http.persistConn`): what each is used for, said by who uses it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, struct runtime_key);
	__type(value, u64);
} goroutine_connection SEC(".maps");

/*
 * The goroutine that this thread runs has read the request of `exchange`, or (0) more than one. Only of those that have
 * said before, by a register, that they are about to: so a wrong number would have to be the right one of another.
 */
SHARED int bind_to_goroutine(u64 exchange)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct go_process *process = bpf_map_lookup_elem(&go_process, &tgid);
	struct runtime_key key = { .tgid = tgid };
	u64 *bound;
	if (!process || !process->slot)
		return 0;
	key.id = current_goroutine(process);
	bound = bpf_map_lookup_elem(&goroutine, &key);
	if (bound)
		*bound = exchange;
	return 0;
}

/* Of goroutines that read frames: the connection. By their number with this bit. */
#define GOROUTINE_READS (1ULL << 62)
/* Streams that a goroutine is about to open: for what. By the two numbers side by side with this bit. */
#define GOROUTINE_OPENS (1ULL << 63)
#define STREAM_BITS 31

/* The current goroutine reads the frames of this connection: `exchange` has its number. */
SHARED int bind_reader(u64 exchange)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct go_process *process = bpf_map_lookup_elem(&go_process, &tgid);
	struct runtime_key key = { .tgid = tgid };
	if (!process)
		return 0;
	key.id = current_goroutine(process);
	if (!key.id)
		return 0;
	key.id |= GOROUTINE_READS;
	bpf_map_update_elem(&goroutine, &key, &exchange, BPF_ANY);
	return 0;
}

/*
 * The current goroutine opens a stream. Whether it does so for itself, or for whom else, has been said before; if not,
 * that is not known: most of what is sent is sent by goroutines that do so for all others.
 */
SHARED int note_stream(struct segment *s, u32 stream)
{
	struct go_process *process;
	struct runtime_key key = {};
	u64 number, *bound;
	if (!s)
		return 0;
	key.tgid = s->id >> 32;
	process = bpf_map_lookup_elem(&go_process, &key.tgid);
	if (!process)
		return 0;
	number = current_goroutine(process);
	s->thread_flags |= CAUSE_RUNTIME;
	s->serving = 0;
	if (!number)
		return 0;
	key.id = number;
	bound = bpf_map_lookup_elem(&goroutine, &key);
	if (bound && *bound >> GOROUTINE_SENDS_BIT & 1) {
		s->serving = *bound & ~(1ULL << GOROUTINE_SENDS_BIT);
		return 0;
	}
	key.id = number << STREAM_BITS | stream | GOROUTINE_OPENS;
	bound = bpf_map_lookup_elem(&goroutine, &key);
	if (!bound)
		return 0;
	s->serving = *bound;
	bpf_map_delete_elem(&goroutine, &key);
	return 0;
}

/* As of contexts: on most machines there is nothing to ask. */
static __always_inline void bind_goroutine(u64 exchange)
{
	if (*(volatile u32 *)&global.follows_goroutines)
		bind_to_goroutine(exchange);
}

static __always_inline void forget_goroutines(u32 tgid)
{
	bpf_map_delete_elem(&go_process, &tgid);
}

#else
static __always_inline void bind_reader(u64 exchange)
{
	(void)exchange;
}

static __always_inline void note_stream(struct segment *s, u32 stream)
{
	(void)s;
	(void)stream;
}

static __always_inline void bind_goroutine(u64 exchange)
{
	(void)exchange;
}

static __always_inline void forget_goroutines(u32 tgid)
{
	(void)tgid;
}
#endif

#endif
