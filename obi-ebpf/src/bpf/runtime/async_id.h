/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Which request each callback of Node's event loop works for. Node numbers whatever will call back later (async ids):
 * queued requests, connections in the making, timers, ticks. The numbers are given out in order, by each thread for
 * itself. So a log of "ids from here on are made for this exchange", written when a callback begins, shows for any
 * number for what it was made, without a probe where numbers are made.
 *
 * A callback that begins by what was read works for the request that was read, or for what the call was made for that
 * was answered (the agent knows; the log has the call). One that begins by an id works for what that was made for.
 * Promises have no numbers: what runs behind the callback proper, as a microtask, may go on with another request that
 * was waiting. That is said with a time, and the agent asks what else waited then.
 *
 * Not in the portable objects, for the reasons that runtime/goroutine.h has.
 */
#ifndef OBI_ASYNC_ID_H
#define OBI_ASYNC_ID_H

#include "runtime/goroutine.h"

#ifdef OBI_GOROUTINES

enum {
	ASYNC_ENTRIES = 512, /* of a thread's log; the oldest go */
	ASYNC_ENTRY_STEPS = 10, /* of a search in it */
	ASYNC_LOGS = 64,        /* threads that have one; more take each other's, and begin anew */
	/* Of a Node thread's three numbers, by their places: doubles. All are integers, so their bits are in order. */
	ASYNC_EXECUTION = 0,
	ASYNC_TRIGGER = 8,
	ASYNC_COUNTER = 16,
};

/* Numbers above `first`, up to that of the next entry, were made for `exchange`. */
struct async_entry {
	u64 first;
	u64 exchange; /* a request, or the call whose answer was read; 0: none */
	u64 since;    /* 0, or when the callback began behind which promises made them: those have no numbers */
};

struct async_log {
	u32 tid; /* whose it is */
	u32 n;   /* entries written so far */
	struct async_entry entry[ASYNC_ENTRIES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ASYNC_LOGS);
	__type(key, u32);
	__type(value, struct async_log);
} async_log SEC(".maps");

/* What a number was made for. */
struct async_origin {
	u64 exchange;
	u64 since;
};

static __always_inline struct async_thread *find_async_thread(void)
{
	struct async_thread *thread;
	u64 id;
	u32 tid;
	/* First of all: on most machines nothing runs Node, and this is asked at each receive. */
	if (!*(volatile u32 *)&global.follows_ids)
		return NULL;
	id = bpf_get_current_pid_tgid();
	tid = id;
	thread = bpf_map_lookup_elem(&async_thread, &tid);
	return thread && thread->tgid == id >> 32 && thread->numbers ? thread : NULL;
}

/* The thread's log; NULL when it has become another's. */
static __always_inline struct async_log *log_of(const struct async_thread *thread)
{
	u32 slot = thread->log;
	struct async_log *log = bpf_map_lookup_elem(&async_log, &slot);
	return log && log->tid == (u32)bpf_get_current_pid_tgid() ? log : NULL;
}

static __always_inline struct async_entry *entry_at(struct async_log *log, u32 index)
{
	return &log->entry[index & (ASYNC_ENTRIES - 1)];
}

/* From now on numbers are made for this. */
static __always_inline void log_origin(const struct async_thread *thread, u64 first, struct async_origin origin)
{
	struct async_log *log = log_of(thread);
	struct async_entry *entry;
	if (!log)
		return;
	entry = entry_at(log, log->n - 1);
	if (log->n && entry->exchange == origin.exchange && entry->since == origin.since)
		return;
	if (!log->n || entry->first != first)
		entry = entry_at(log, log->n++);
	entry->first = first;
	entry->exchange = origin.exchange;
	entry->since = origin.since;
}

/* A search in a log; a loop that the verifier does not walk through. */
struct async_search {
	struct async_log *log;
	u64 number;
	u32 low; /* all entries before it are of lower numbers */
	u32 high; /* and none from there on */
};

static long halve_search(u32 index, struct async_search *search)
{
	u32 middle = search->low + (search->high - search->low) / 2;
	(void)index;
	if (search->low == search->high)
		return 1;
	if (entry_at(search->log, middle)->first < search->number)
		search->low = middle + 1;
	else
		search->high = middle;
	return 0;
}

/* What this number was made for; nothing when that is too long ago. */
static __always_inline struct async_origin origin_of(const struct async_thread *thread, u64 number)
{
	struct async_search search = { .log = log_of(thread), .number = number };
	struct async_origin origin = {};
	struct async_entry *entry;
	u32 first;
	if (!search.log || !number)
		return origin;
	search.high = search.log->n;
	first = search.high > ASYNC_ENTRIES ? search.high - ASYNC_ENTRIES : 0;
	search.low = first;
	bpf_loop(ASYNC_ENTRY_STEPS, halve_search, &search, 0);
	if (search.low == first)
		return origin;
	entry = entry_at(search.log, search.low - 1);
	origin.exchange = entry->exchange;
	origin.since = entry->since;
	return origin;
}

static __always_inline void begin_callback(struct async_thread *thread, struct async_origin origin)
{
	u64 counter = word_of(thread->numbers, ASYNC_COUNTER);
	if (counter < thread->counter || !counter) {
		/* Numbers never go back: these are others, or can't be read. */
		thread->numbers = 0;
		return;
	}
	thread->counter = counter;
	thread->exchange = origin.exchange;
	thread->since = origin.since;
	thread->began = bpf_ktime_get_ns();
	thread->scope = 0;
	thread->is_read = thread->is_received = thread->is_behind = 0;
	log_origin(thread, counter, origin);
}

/*
 * Something has been read: of a request, of the answer to a call, or (0) anything else. Plain bytes of TLS are when the
 * program has been given what was read from the socket.
 */
SHARED int read_for(u64 exchange, u32 encrypted)
{
	struct async_thread *thread = find_async_thread();
	struct async_origin origin = { .exchange = exchange };
	u8 is_received;
	if (!thread)
		return 0;
	is_received = encrypted & thread->is_received;
	begin_callback(thread, origin);
	thread->is_read = 1;
	thread->is_received = is_received;
	return 0;
}

/* What has been made by `number`, or else by what has triggered that. */
static __always_inline struct async_origin origin_by(const struct async_thread *thread, u64 number, u64 trigger)
{
	struct async_origin origin = origin_of(thread, number), above;
	if (!origin.since || !trigger)
		return origin;
	above = origin_of(thread, trigger);
	return above.exchange && !above.since ? above : origin;
}

/* What the running callback sends: by its number if that was made before, or by what has triggered it. */
static __always_inline struct async_origin origin_of_sent(const struct async_thread *thread)
{
	u64 number = word_of(thread->numbers, ASYNC_EXECUTION), trigger = word_of(thread->numbers, ASYNC_TRIGGER);
	struct async_origin current = { .exchange = thread->exchange, .since = thread->since };
	struct async_origin behind = { .exchange = thread->since ? 0 : thread->exchange, .since = thread->began };
	if (!number)
		return behind;
	if (number == thread->scope)
		return current;
	if (number <= thread->counter)
		return origin_by(thread, number, trigger);
	if (!trigger)
		return behind;
	if (trigger == thread->scope)
		return current;
	return origin_of(thread, trigger <= thread->counter ? trigger : number);
}

/* Who is about to send a head. */
SHARED int note_async(struct segment *s)
{
	struct async_thread *thread = find_async_thread();
	struct async_origin origin;
	if (!s || !thread)
		return 0;
	origin = origin_of_sent(thread);
	s->serving = origin.exchange;
	s->thread_flags |= CAUSE_RUNTIME | CAUSE_CONTEXT;
	s->behind_us = origin.since && origin.exchange ? (s->time - origin.since) / 1000 + 1 : 0;
	return 0;
}

static __always_inline void forget_async(u32 tid)
{
	if (*(volatile u32 *)&global.follows_ids)
		bpf_map_delete_elem(&async_thread, &tid);
}

#else
static __always_inline void read_for(u64 exchange, u32 encrypted)
{
	(void)exchange;
	(void)encrypted;
}

static __always_inline void note_async(struct segment *s)
{
	(void)s;
}

static __always_inline void forget_async(u32 tid)
{
	(void)tid;
}
#endif

#endif
