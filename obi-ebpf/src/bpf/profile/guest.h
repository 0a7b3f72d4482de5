/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The frames that an interpreter keeps for itself, one at a time, by what the agent has put into struct guest. Pure
 * but for two things that the including file defines, so that it is the same text on the host, where it is tested:
 *   GUEST_OF(tgid)                   an element of the map, or NULL
 *   GUEST_READ(to, bytes, address)   the user's memory; 0: done
 *
 * CPython: the thread's state stands in a slot below the thread's descriptor and names the thread that it belongs to,
 * which proves the way to it. From it a list leads from frame to frame, outwards. One call of the evaluating function
 * in C runs some of them: the list says where these end, so they can stand before its native frame.
 */
#ifndef OBI_GUEST_H
#define OBI_GUEST_H

#include "event.h"

enum {
	/* Words that are read at once, a power of two: since 3.11 frames lie side by side, some ten in so much. */
	GUEST_WINDOW = 128,
};

enum guest_state {
	GUEST_UNSEEN = 0,  /* nothing has been looked at */
	GUEST_WAITING = 1, /* for the next native frame of the evaluating function */
	GUEST_DUE = 2,     /* frames are to be recorded */
	GUEST_OVER = 3,    /* there are no more, or what is there cannot be followed */
};

struct guest_walk {
	u64 thread_pointer; /* of the thread: where its descriptor is */
	u64 frame;          /* the next to be recorded; 0: none */
	u64 read;           /* a word of the user's */
	u64 pc;             /* the thread's next instruction, if the evaluating function's own; else anything */
	u32 tgid;
	u8 state;           /* enum guest_state */
	u8 rest;            /* 1: the native walk is over, so all that is left is recorded */
	u8 failed;          /* enum guest_failure, to be reported; GUEST_NO_FAILURE: nothing is */
	u8 pad;
	struct guest of;
	u64 window_at;
	u64 window_words;   /* 0: nothing is in it */
	u64 window[GUEST_WINDOW];
};

/* === the user's memory === */

/* Has the frame in hand in the window; 0: done. */
static __always_inline long read_frame(struct guest_walk *g)
{
	u64 at = g->frame - g->window_at;
	if (!(at & 7) && at / 8 + GUEST_FRAME_WORDS <= g->window_words)
		return 0;
	if (g->frame & 7)
		return 1;
	if (g->of.adjacent) {
		/* Callers lie below. */
		g->window_at = g->frame - (GUEST_WINDOW - GUEST_FRAME_WORDS) * 8;
		g->window_words = GUEST_WINDOW;
		if (!GUEST_READ(g->window, sizeof(g->window), g->window_at))
			return 0;
		/* Their memory may begin between. */
	}
	g->window_at = g->frame;
	g->window_words = GUEST_FRAME_WORDS;
	if (!GUEST_READ(g->window, GUEST_FRAME_WORDS * 8, g->window_at))
		return 0;
	g->window_words = 0;
	return 1;
}

/* A word of it, that `offset` lies in. */
static __always_inline u64 frame_word(const struct guest_walk *g, u64 offset)
{
	return g->window[((g->frame - g->window_at + offset) / 8) & (GUEST_WINDOW - 1)];
}

static __always_inline u32 frame_byte(const struct guest_walk *g, u64 offset)
{
	return frame_word(g, offset) >> (offset & 7) * 8 & 0xff;
}

/* === walk === */

static __always_inline void guest_fails(struct guest_walk *g, u8 failure)
{
	g->failed = failure;
	g->frame = 0;
	g->state = GUEST_OVER;
}

static __always_inline bool is_unlinked(const struct guest_walk *g)
{
	u64 at = g->pc - g->of.eval;
	for (u32 i = 0; i < GUEST_UNLINKED_PIECES; i++) {
		if (at - g->of.unlinked[i].from < g->of.unlinked[i].bytes)
			return true;
	}
	return false;
}

/* From the thread to its innermost frame. Does nothing for a process without an interpreter that is known. */
static __always_inline void guest_begin(struct guest_walk *g)
{
	const struct guest *of = GUEST_OF(g->tgid);
	u64 thread;
	g->state = GUEST_OVER;
	if (!of)
		return;
	g->of = *of;
	/* The kernel may give an element's memory to another one meanwhile. */
	if (g->of.tgid != g->tgid || !g->thread_pointer)
		return;
	if (is_unlinked(g)) {
		guest_fails(g, GUEST_UNLINKED);
		return;
	}
	if (GUEST_READ(&g->read, 8, g->thread_pointer + g->of.slot)) {
		guest_fails(g, GUEST_UNREADABLE);
		return;
	}
	thread = g->read;
	if (!thread || GUEST_READ(&g->read, 8, thread + g->of.thread_id) || g->read != g->thread_pointer) {
		guest_fails(g, GUEST_NO_THREAD);
		return;
	}
	if (GUEST_READ(&g->frame, 8, thread + g->of.frame) ||
	    (g->of.by_call && (!g->frame || GUEST_READ(&g->frame, 8, g->frame + g->of.current)))) {
		guest_fails(g, GUEST_UNREADABLE);
		return;
	}
	if (g->frame)
		g->state = GUEST_DUE;
}

/* Where in the code object, or beside it, the instruction is, in units of two bytes. */
static __always_inline u64 frame_position(const struct guest_walk *g, u64 code)
{
	u64 word = frame_word(g, g->of.instruction);
	/* Negative: before the first. */
	u64 position = (s32)word < 0 ? 0 : (u32)word;
	if (g->of.position == GUEST_BY_ADDRESS)
		position = (word - code) / 2;
	else if (g->of.position == GUEST_BY_BYTE)
		position /= 2;
	return position < GUEST_NO_POSITION ? position : GUEST_NO_POSITION;
}

/*
 * The next frame, as a word of a stack; 0: this one is not recorded. Afterwards either there are more (GUEST_DUE),
 * or those of this call of the evaluating function are recorded, or all.
 */
static __always_inline u64 guest_next(struct guest_walk *g)
{
	u64 code, word = 0;
	u32 owner, ends;
	if (g->state != GUEST_DUE || !g->frame) {
		g->state = GUEST_OVER;
		return 0;
	}
	if (read_frame(g)) {
		guest_fails(g, GUEST_UNREADABLE);
		return 0;
	}
	owner = frame_byte(g, g->of.owner);
	/* A shim stands for the call itself. */
	if (g->of.ends != GUEST_ENDS_BY_SHIM || owner < GUEST_SHIM) {
		/* References may be tagged. */
		code = frame_word(g, g->of.code) & ~7ULL;
		if (!code || code >> GUEST_CODE_BITS) {
			guest_fails(g, GUEST_NO_CODE);
			return 0;
		}
		word = (u64)FRAME_PYTHON << STACK_ADDRESS_BITS | code / 8 << GUEST_POSITION_BITS |
		       frame_position(g, code);
	}
	ends = g->of.ends == GUEST_ENDS_BY_SHIM ? owner == GUEST_SHIM : g->of.ends == GUEST_ENDS_BY_MARK ? owner == 1 : 1;
	g->frame = frame_word(g, g->of.previous);
	if (!g->frame)
		g->state = GUEST_OVER;
	else if (ends && !g->rest)
		g->state = GUEST_WAITING;
	return word;
}

#endif
