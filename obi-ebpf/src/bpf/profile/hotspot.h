/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Frames of HotSpot's code, one at a time, by what the agent has told of it (struct jvm). Behind profile/unwind.h, whose
 * walk they are part of, and pure as that is, but for
 *   JVM_OF(tgid)   an element of the map, or NULL
 *
 * The interpreter runs each function of Java in a frame of the machine's stack that keeps a frame pointer: below it
 * stand the method and where in its bytecode it is. The bytecode lies behind the method's own description, which no
 * two other words on a stack do: that proves both. A method of the processor's own code has no bytecode and says so.
 */
#ifndef OBI_HOTSPOT_H
#define OBI_HOTSPOT_H

#include "profile/unwind.h"

enum jvm_state {
	JVM_UNSEEN = 0, /* nothing has been looked at */
	JVM_NONE = 1,   /* the process has no HotSpot that is known */
	JVM_KNOWN = 2,
};

struct jvm_walk {
	u8 state;  /* enum jvm_state */
	u8 failed; /* enum guest_failure, to be told; GUEST_NO_FAILURE: nothing is */
	u8 pad[6];
	struct jvm of;
	u64 frame[JVM_FRAME_WORDS];
	u64 method[JVM_METHOD_WORDS];
};

/* Of an interpreted frame, words from JVM_FRAME_BELOW below the frame pointer on. */
enum {
	JVM_FRAME_BELOW = 64,
	JVM_FRAME_BYTECODE = 0,
	JVM_FRAME_METHOD = 5,
	JVM_FRAME_SENDER = 7, /* the caller's stack pointer, before what was made room for */
	JVM_FRAME_POINTER = 8,
	JVM_FRAME_RETURN = 9,
	/* What must have been pushed for the method to be there. */
	JVM_FRAME_MADE = 24,
	/* Flag of a method that is not written in bytecode. */
	JVM_NATIVE = 0x100,
	/* Of a method. */
	JVM_BYTECODES = 65536,
	/* Where the interpreter keeps the bytecode's address while it runs: r13. */
	JVM_BYTECODE_REGISTER = 13,
};

/* Whether an address is code of HotSpot's. */
static __always_inline bool jvm_has(struct jvm_walk *j, u32 tgid, u64 address)
{
	if (j->state == JVM_UNSEEN) {
		const struct jvm *of = JVM_OF(tgid);
		j->state = JVM_NONE;
		if (!of)
			return false;
		j->of = *of;
		/* The kernel may give an element's memory to another one meanwhile. */
		if (j->of.tgid != tgid)
			return false;
		j->state = JVM_KNOWN;
	}
	return j->state == JVM_KNOWN && address - j->of.code < j->of.code_bytes;
}

/* A word of the method, that `offset` lies in. */
static __always_inline u64 method_word(const struct jvm_walk *j, u64 offset)
{
	return j->method[offset / 8 & (JVM_METHOD_WORDS - 1)];
}

static __always_inline u64 java_word(u64 method, u64 position)
{
	return (u64)FRAME_JAVA << STACK_ADDRESS_BITS | method / 8 << GUEST_POSITION_BITS |
	       (position < GUEST_NO_POSITION ? position : GUEST_NO_POSITION);
}

/* Where in the bytecode a frame of `method` is; JVM_BYTECODES: it is none. GUEST_NO_POSITION for native ones. */
static __always_inline u64 bytecode_at(struct unwind *w, struct jvm_walk *j, u64 method)
{
	u64 first, at;
	if (!method || method & 7 || method >> GUEST_CODE_BITS ||
	    UNWIND_READ(j->method, sizeof(j->method), method))
		return JVM_BYTECODES;
	first = method_word(j, j->of.const_method) + j->of.bytecode;
	if (w->all) {
		/* What is saved in the frame is older. */
		at = w->other[JVM_BYTECODE_REGISTER] - first;
		if (at < JVM_BYTECODES)
			return at;
	}
	at = j->frame[JVM_FRAME_BYTECODE];
	if (!at)
		return method_word(j, j->of.access) >> (j->of.access & 7) * 8 & JVM_NATIVE ? GUEST_NO_POSITION : JVM_BYTECODES;
	at -= first;
	return at < JVM_BYTECODES ? at : JVM_BYTECODES;
}

/* A frame of the interpreter. Returns its word, and has left it; 0: it is to be left by other means. */
static __always_inline u64 leave_interpreted(struct unwind *w, struct jvm_walk *j)
{
	u64 fp = w->fp, above = fp - w->sp, method, position, sender;
	/* While a method is entered, and when it has been left, the frame pointer may still be, or be again, the caller's. */
	if (fp & 7 || above >= UNWIND_FRAME_MOST || above < JVM_FRAME_MADE ||
	    UNWIND_READ(j->frame, sizeof(j->frame), fp - JVM_FRAME_BELOW)) {
		j->failed = w->exact ? GUEST_NO_FAILURE : GUEST_NO_METHOD;
		return 0;
	}
	method = j->frame[JVM_FRAME_METHOD];
	position = bytecode_at(w, j, method);
	if (position >= JVM_BYTECODES) {
		j->failed = w->exact ? GUEST_NO_FAILURE : GUEST_NO_METHOD;
		return 0;
	}
	sender = j->frame[JVM_FRAME_SENDER];
	if (sender - (fp + 16) >= UNWIND_FRAME_MOST)
		sender = fp + 16;
	go_to_caller(w, j->frame[JVM_FRAME_RETURN], sender, j->frame[JVM_FRAME_POINTER]);
	return java_word(method, position);
}

/* The frame in hand, which is one of HotSpot's code. Returns its word, and has left it; 0: neither. */
static __always_inline u64 hotspot_leave(struct unwind *w, struct jvm_walk *j)
{
	if (looked_up(w) - j->of.interpreter < j->of.interpreter_bytes)
		return leave_interpreted(w, j);
	return 0;
}

#endif
