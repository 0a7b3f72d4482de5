/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The capture logic, the same for every hook set: a segment (the bytes of one
 * system call, in one direction of one connection) is walked with the cursor;
 * heads are copied to the agent, bodies are hopped over.
 *
 * A hook set finds the socket, the number of bytes and where they are in user
 * memory, and calls capture(). It adds no meaning of its own.
 */
#ifndef OBI_CAPTURE_H
#define OBI_CAPTURE_H

#include "protocol/http1/walk.h"
#include "protocol/protocol.h"

struct walk {
	struct connection *connection;
	struct sock *sk;
	struct segment *segment;
	void *context; /* of the program that runs */
};

/* One step on along frames. */
static __always_inline long frame_step(struct walk *walk)
{
	struct segment *s = walk->segment;
	int over = follow_frames(walk->connection, s);
	if (s->outcome)
		settle(walk->connection, s);
	return over || (!s->gap && !s->left);
}

/* One step on along the messages of a database. */
static __always_inline long database_step(struct walk *walk)
{
	struct segment *s = walk->segment;
	int over = follow_database(walk->connection, s);
	if (s->outcome)
		settle(walk->connection, s);
	return over || (!s->gap && !s->left);
}

/* Inlined: programs that cannot keep anything with a socket say so by `sk`, a constant. */
static __always_inline long one_step(struct walk *walk, struct sock *sk)
{
	struct segment *s = walk->segment;
#ifndef OBI_PORTABLE
	u32 by = walk_of(walk->connection, s);
	if (by != WALK_HEADS)
		return by == WALK_DATABASE ? database_step(walk) : frame_step(walk);
#endif
	if (is_skipping(cursor_of(walk->connection, s)->mode) && (s->gap || s->left)) {
		skip_body(walk->connection, s);
		if (s->outcome)
			settle(walk->connection, s);
		barrier();
	}
	if (follow_http1(walk->connection, s, sk))
		return 1;
	barrier(); /* see settle() */
	if (s->outcome)
		settle(walk->connection, s);
	return !s->gap && !s->left;
}

static __always_inline void begin_walk(struct walk *walk)
{
	struct connection *k = walk->connection;
	struct segment *s = walk->segment;
	s->n_requests = 0;
	if (!s->sending) {
		read_for(pending(k) == 1 ? exchange_number(k, k->n_responses) : 0, k->encrypted);
		note_read(0);
	}
	if (needs_source(s, cursor_of(k, s))) {
		note_thread(s);
		if (s->sending && k->side != SIDE_SERVER && !(s->thread_flags & CAUSE_RUNTIME)) {
			note_context(s);
			note_greenlet(s);
			note_async(s);
			note_nginx(s, walk->sk);
		}
	}
	s->unreadable = s->source.opaque == UNKNOWN_BUFFER && !(k->flags & CONNECTION_HTTP) &&
			!is_skipping(cursor_of(k, s)->mode);
}

static __always_inline void end_walk(struct walk *walk)
{
	struct connection *k = walk->connection;
	struct segment *s = walk->segment;
	u8 mode = cursor_of(k, s)->mode;
	if (s->left && mode != MODE_RESYNC && mode != MODE_IGNORED && mode != MODE_FRAME_LOST) {
		come_to(s, OUTCOME_LOST, LOSS_STEPS);
		settle(k, s);
	}
	if (s->unreadable && mode != MODE_IGNORED)
		tally_uncovered(k, UNCOVERED_UNREADABLE);
}

#ifdef OBI_PORTABLE
#include "core/walk_portable.h"
#else

static long step(u32 index, struct walk *walk)
{
	(void)index;
	return one_step(walk, walk->sk);
}

/* Steps of one segment; each is a hop, a piece or an iovec. Far above what a real one needs. */
#define STEP_LIMIT (1 << 20)

/* Follows a segment. The connection's state and the stream offsets are the caller's. */
static __always_inline int capture(struct walk *walk)
{
	begin_walk(walk);
	/* Most segments take one step. */
	if (!step(0, walk))
		bpf_loop(STEP_LIMIT, step, walk, 0);
	end_walk(walk);
	return 0;
}

#endif

#endif
