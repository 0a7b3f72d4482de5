/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Which request each greenlet works for: the one that it has read last. gevent and eventlet run a greenlet for each
 * connection, and one, the hub, that waits for all of them. Greenlets that others start have read nothing, so nothing
 * is known of them.
 *
 * Not in the portable objects, for the reasons that runtime/goroutine.h has.
 */
#ifndef OBI_GREENLET_H
#define OBI_GREENLET_H

#include "runtime/binding.h"

#ifdef OBI_GOROUTINES

/* The greenlet that runs has read the request of `exchange`, or (0) more than one. */
SHARED int bind_to_greenlet(u64 exchange)
{
	struct runtime_key key = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	key.id = current_greenlet(key.tgid);
	if (!key.id || work_of(key.tgid, key.id) == GREENLET_LOOPS)
		return 0;
	if (exchange)
		bpf_map_update_elem(&goroutine, &key, &exchange, BPF_ANY);
	else
		bpf_map_delete_elem(&goroutine, &key);
	return 0;
}

/* The greenlet that runs is about to wait for many things. */
SHARED int greenlet_loops(void)
{
	struct runtime_key key = { .tgid = bpf_get_current_pid_tgid() >> 32 };
	u64 loops = GREENLET_LOOPS;
	key.id = current_greenlet(key.tgid);
	if (key.id && work_of(key.tgid, key.id) != loops)
		bpf_map_update_elem(&goroutine, &key, &loops, BPF_ANY);
	return 0;
}

/*
 * Who is about to send a head, on a thread that waits for many things: its greenlet says what for. After what contexts
 * say: they belong to what runs in a loop, which binds no request, or to what a greenlet was given and says nothing of.
 */
SHARED int note_in_greenlet(struct segment *s)
{
	u64 greenlet, work;
	u32 tgid;
	if (!s)
		return 0;
	tgid = s->id >> 32;
	greenlet = current_greenlet(tgid);
	if (!greenlet)
		return 0;
	work = work_of(tgid, greenlet);
	if (work == GREENLET_LOOPS)
		return 0;
	if (work)
		s->serving = work;
	else if (!(s->thread_flags & CAUSE_RUNTIME))
		s->serving = 0;
	s->thread_flags |= CAUSE_RUNTIME | CAUSE_CONTEXT;
	return 0;
}

/* As of contexts: on most machines there is nothing to ask. */
static __always_inline void bind_greenlet(u64 exchange)
{
	if (*(volatile u32 *)&global.follows_greenlets)
		bind_to_greenlet(exchange);
}

static __always_inline void note_loop(void)
{
	if (*(volatile u32 *)&global.follows_greenlets)
		greenlet_loops();
}

static __always_inline void note_greenlet(struct segment *s)
{
	if (*(volatile u32 *)&global.follows_greenlets && s->thread_flags & CAUSE_WAITS_MANY)
		note_in_greenlet(s);
}

static __always_inline void forget_greenlets(u32 tgid)
{
	bpf_map_delete_elem(&greenlet_process, &tgid);
}

#else
static __always_inline void bind_greenlet(u64 exchange)
{
	(void)exchange;
}

static __always_inline void note_loop(void)
{
}

static __always_inline void note_greenlet(struct segment *s)
{
	(void)s;
}

static __always_inline void forget_greenlets(u32 tgid)
{
	(void)tgid;
}
#endif

#endif
