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

#if defined(__TARGET_ARCH_x86) && !defined(OBI_HOST) && !defined(OBI_PORTABLE)
#define OBI_GOROUTINES
#endif

#ifdef OBI_GOROUTINES

/* A goroutine by its number, or an object of the program by its address: a context of CPython, too. */
struct runtime_key {
	u64 id;
	u32 tgid;
	u32 pad;
};

/*
 * What a goroutine works for: the exchange, or 0. Those that serve a connection are here while they wait for a request;
 * those that they start, and those in turn, once they have one. LRU: one that has gone says nothing more.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 6144);
	__type(key, struct runtime_key);
	__type(value, u64);
} goroutine SEC(".maps");

/* The client's connections (`*http.persistConn`): what each is used for, said by who uses it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, struct runtime_key);
	__type(value, u64);
} goroutine_connection SEC(".maps");

/* How goroutines are found in a process. */
struct go_process {
	u32 slot;      /* bytes below the thread pointer at which the thread's goroutine is; 0: that was not to be proven */
	u32 number_at; /* where in a goroutine its number is */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct go_process);
} go_process SEC(".maps");

/* The word `at` bytes into an object of the program, 0 when it cannot be read. */
static __always_inline u64 word_of(u64 object, u32 at)
{
	u64 word = 0;
	if (bpf_probe_read_user(&word, sizeof(word), (void *)(object + at)))
		return 0;
	return word;
}

static __always_inline u64 thread_pointer(void)
{
	return READ((struct task_struct *)bpf_get_current_task(), thread.fsbase);
}

/*
 * The goroutine that this thread runs has read the request of `exchange`, or (0) more than one. Only of those that have
 * said before, by a register, that they are about to: so a wrong number would have to be the right one of another.
 */
SHARED int bind_goroutine(u64 exchange)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct go_process *process = bpf_map_lookup_elem(&go_process, &tgid);
	struct runtime_key key = { .tgid = tgid };
	u64 *bound;
	if (!process || !process->slot)
		return 0;
	key.id = word_of(word_of(thread_pointer() - process->slot, 0), process->number_at);
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

/* The number of the goroutine that this thread runs; 0: that is not known. */
static __always_inline u64 current_goroutine(const struct go_process *process)
{
	if (!process->slot)
		return 0;
	return word_of(word_of(thread_pointer() - process->slot, 0), process->number_at);
}

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
