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

#include "body.h"
#include "piece.h"

/* Steps of one segment; each is a hop, a piece or an iovec. Far above what a real one needs. */
#define STEP_LIMIT (1 << 20)

struct walk {
	struct connection *connection;
	struct sock *sk;
	struct segment *segment;
};

/* One step on. Returns 1 when the walk is over. */
static __always_inline int go(struct connection *k, struct segment *s, struct sock *sk)
{
	struct cursor *c = cursor_of(k, s);
	u8 mode = c->mode;
	if ((!s->gap && !s->left) || mode == MODE_IGNORED)
		return 1;
	if (is_skipping(mode)) {
		skip_body(k, s);
	} else if (s->gap) {
		s->gap = 0;
		if (mode != MODE_RESYNC)
			come_to(s, OUTCOME_LOST, LOSS_GAP);
	} else if (mode == MODE_RESYNC && (s->begun || s->source.opaque)) {
		return 1;
	} else if (s->source.opaque) {
		come_to(s, OUTCOME_LOST, LOSS_UNREADABLE);
	} else if (!s->source.length) {
		next_vector(s);
	} else if (mode == MODE_CHUNK_SIZE || mode == MODE_TRAILER) {
		chunk_piece(k, s);
	} else if (c->head_bytes < SMALL_PIECE_BYTES - SLACK_BYTES || s->left <= SMALL_PIECE_BYTES - SLACK_BYTES ||
		   !large_piece(k, s)) {
		small_piece(k, s, sk);
	}
	return 0;
}

static long step(u32 index, struct walk *walk)
{
	struct segment *s = walk->segment;
	(void)index;
	if (go(walk->connection, s, walk->sk))
		return 1;
	if (s->outcome)
		settle(walk->connection, s);
	return !s->gap && !s->left;
}

/* Follows a segment. The connection's state and the stream offsets are the caller's. */
static __always_inline void capture(struct walk *walk)
{
	struct connection *k = walk->connection;
	struct segment *s = walk->segment;
	struct cursor *c = cursor_of(k, s);
	bool unreadable = s->source.opaque == UNKNOWN_BUFFER && !(k->flags & CONNECTION_HTTP) && !is_skipping(c->mode);
	/* Most segments take one step. */
	if (!step(0, walk))
		bpf_loop(STEP_LIMIT, step, walk, 0);
	if (s->left && c->mode != MODE_RESYNC && c->mode != MODE_IGNORED) {
		come_to(s, OUTCOME_LOST, LOSS_STEPS);
		settle(k, s);
	}
	if (unreadable && c->mode != MODE_IGNORED)
		tally_uncovered(k, UNCOVERED_UNREADABLE);
}

#endif
