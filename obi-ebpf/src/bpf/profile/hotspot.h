/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Frames of HotSpot's code, one at a time, by what the agent has put into struct jvm. Behind profile/unwind.h,
 * whose walk they are part of, and pure as that is, but for
 *   JVM_OF(tgid)   an element of the map, or NULL
 *
 * The interpreter runs each method in a frame of the machine's stack that keeps a frame pointer: below it stand the
 * method and where in its bytecode it is. The bytecode lies behind the method's own description, which no two other
 * words on a stack do: that proves both. A method of the processor's own code has no bytecode and says so.
 *
 * Compiled methods and stubs keep no frame pointer. A map of the code's segments leads from an address to the piece of
 * code (a blob) that it is in, which knows its method and how large its frame is. Where that leads to must be code of
 * HotSpot's again: only its stub for calls from outside, which keeps a frame pointer, is called by others.
 */
#ifndef OBI_HOTSPOT_H
#define OBI_HOTSPOT_H

#include "profile/unwind.h"

enum jvm_state {
	JVM_UNSEEN = 0, /* nothing has been looked at */
	JVM_NONE = 1,   /* the process has no HotSpot that is known */
	JVM_KNOWN = 2,
};

enum {
	/* A power of two, not less than JVM_BLOB_WORDS. */
	JVM_BLOB_ROOM = 64,
};

struct jvm_walk {
	u8 state;  /* enum jvm_state */
	u8 failed; /* enum guest_failure, to be reported; GUEST_NO_FAILURE: nothing is */
	u8 step;   /* back, in the map of segments */
	u8 pad[5];
	u64 compiled; /* of the frame in hand, where in compiled code it is, as a word; 0: it is none such */
	struct jvm of;
	u64 frame[JVM_FRAME_WORDS];
	u64 method[JVM_METHOD_WORDS];
	u64 blob[JVM_BLOB_ROOM];
	u64 code[2]; /* instructions: before, and from where it is */
	u64 top[2];  /* of the stack */
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
	/* Steps back in the map of segments: most code needs none or one. */
	JVM_STEPS = 4,
	JVM_FREE_SEGMENT = 0xff,
	/* Bytes of a compiled frame. */
	JVM_FRAME_MOST = 1 << 16,
};

static __always_inline bool is_code_of(const struct jvm_walk *j, u64 address)
{
	return address - j->of.code < j->of.code_bytes;
}

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
	return j->state == JVM_KNOWN && is_code_of(j, address);
}

/* What is there is not as it should be: nothing leads on. */
static __always_inline u64 java_fails(struct unwind *w, struct jvm_walk *j, u8 failure)
{
	j->failed = failure;
	end_walk(w, STACK_NO_RULE);
	return 0;
}

/* === the interpreter === */

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

static __always_inline bool may_be_method(u64 method)
{
	return method && !(method & 7) && !(method >> GUEST_CODE_BITS);
}

/* Where in the bytecode a frame of `method` is; JVM_BYTECODES: it is none. GUEST_NO_POSITION for native ones. */
static __always_inline u64 bytecode_at(struct unwind *w, struct jvm_walk *j, u64 method)
{
	u64 first, at;
	if (!may_be_method(method) || UNWIND_READ(j->method, sizeof(j->method), method))
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

/*
 * Goes on where the word at an address says, `is_saved`: with the frame pointer below it. False: that is not HotSpot's
 * code.
 */
static __always_inline bool returns_to(struct unwind *w, const struct jvm_walk *j, u64 at, bool is_saved)
{
	if (at & 7 || read_words(w, 0, at - 8, 2) || !is_code_of(j, w->memory[1] - 1))
		return false;
	go_to_caller(w, w->memory[1], at + 8, is_saved ? w->memory[0] : w->fp);
	return true;
}

/* A frame of the interpreter. Returns its word; 0: it has none. It is left in any case. */
static __always_inline u64 leave_interpreted(struct unwind *w, struct jvm_walk *j)
{
	u64 fp = w->fp, above = fp - w->sp, method, position, sender;
	bool is_frame = !(fp & 7) && above < UNWIND_FRAME_MOST;
	if (is_frame && above >= JVM_FRAME_MADE && !UNWIND_READ(j->frame, sizeof(j->frame), fp - JVM_FRAME_BELOW)) {
		method = j->frame[JVM_FRAME_METHOD];
		position = bytecode_at(w, j, method);
		if (position < JVM_BYTECODES && is_code_of(j, j->frame[JVM_FRAME_RETURN] - 1)) {
			sender = j->frame[JVM_FRAME_SENDER];
			if (sender - (fp + 16) >= UNWIND_FRAME_MOST)
				sender = fp + 16;
			go_to_caller(w, j->frame[JVM_FRAME_RETURN], sender, j->frame[JVM_FRAME_POINTER]);
			return java_word(method, position);
		}
	}
	/* While a method is entered, and when it has been left, the frame pointer may still be, or be again, the caller's. */
	if (w->exact && (is_frame && above < JVM_FRAME_MADE ? returns_to(w, j, fp + 8, true) : returns_to(w, j, w->sp, false)))
		return 0;
	return java_fails(w, j, GUEST_NO_METHOD);
}

/* === compiled code === */

/* The piece of code that an address lies in; 0: none. */
static __always_inline u64 blob_of(struct jvm_walk *j, u64 address)
{
	u64 start = 0, segments = 0, segment;
#pragma clang loop unroll(full)
	for (u32 i = 0; i < JVM_HEAPS; i++) {
		if (address - j->of.heap[i].start < j->of.heap[i].bytes) {
			start = j->of.heap[i].start;
			segments = j->of.heap[i].segments;
		}
	}
	if (!start)
		return 0;
	segment = (address - start) >> (j->of.segment_bits & 31);
	for (u32 i = 0; i < JVM_STEPS; i++) {
		if (UNWIND_READ(&j->step, 1, segments + segment) || j->step == JVM_FREE_SEGMENT || j->step > segment)
			return 0;
		if (!j->step)
			return start + (segment << (j->of.segment_bits & 31)) + j->of.block;
		segment -= j->step;
	}
	return 0;
}

static __always_inline u64 blob_word(const struct jvm_walk *j, u64 offset)
{
	return j->blob[offset / 8 & (JVM_BLOB_ROOM - 1)];
}

static __always_inline u32 blob_integer(const struct jvm_walk *j, u64 offset)
{
	return blob_word(j, offset) >> (offset & 7) * 8;
}

/* Where the innermost frame has the address that it returns to. */
enum jvm_leaf {
	JVM_USUAL = 0,   /* where the frame ends, with the frame pointer below it */
	JVM_UNSAVED = 1, /* likewise, the frame pointer has not been saved yet */
	JVM_TOP = 2,     /* the stack pointer points to it */
	JVM_SECOND = 3,  /* behind the saved frame pointer there */
	JVM_UNKNOWN = 4,
};

/* `is_entering`: the frame is being made. By the instructions that compilers write for that. */
static __always_inline u32 leaf_kind(struct unwind *w, struct jvm_walk *j, bool is_entering)
{
	u64 here, before;
	if (UNWIND_READ(j->code, sizeof(j->code), w->pc - 8))
		return JVM_UNKNOWN;
	before = j->code[0];
	here = j->code[1];
	/* push rbp; ret */
	if ((here & 0xff) == 0x55 || (here & 0xff) == 0xc3)
		return JVM_TOP;
	/* pop rbp */
	if ((here & 0xff) == 0x5d)
		return JVM_SECOND;
	/* Is a safepoint asked for? cmp rsp, [r15 + …] (since 16), test of a page (before), each with what follows. */
	if ((here & 0xffffff) == 0xa73b49 || (here & 0xffffff) == 0x673b49 || (here & 0xffffffff) == 0xc3028541 ||
	    here >> 32 == 0xc3028541 || ((here & 0xffff) == 0x0585 && (here >> 48 & 0xff) == 0xc3))
		return JVM_TOP;
	if (((here & 0xffff) == 0x870f || (here & 0xff) == 0x77) &&
	    ((before >> 8 & 0xffffff) == 0xa73b49 || (before >> 32 & 0xffffff) == 0x673b49))
		return JVM_TOP;
	if (!is_entering)
		return JVM_USUAL;
	/* mov [rsp - …], eax: is there room on the stack? */
	if ((here & 0xffffff) == 0x248489)
		return JVM_TOP;
	/* sub rsp, …, behind push rbp, or mov rbp, rsp; or first of all */
	if ((here & 0xffffff) == 0xec8348 || (here & 0xffffff) == 0xec8148)
		return before >> 56 == 0x55 || before >> 40 == 0xec8b48 ? JVM_SECOND : JVM_TOP;
	/* mov rbp, rsp */
	if ((here & 0xffffff) == 0xec8b48)
		return JVM_SECOND;
	/* mov [rsp + …], rbp */
	if ((here & 0xffffffff) == 0x246c8948 || (here & 0xffffffff) == 0x24ac8948)
		return JVM_UNSAVED;
	/* cmp dword [r15 + …], …: may it be entered? */
	if ((here & 0xffffff) == 0x7f8141)
		return JVM_USUAL;
	return JVM_UNKNOWN;
}

/* Code without a frame of a known size: it may keep a frame pointer, or have none at all. */
static __always_inline u64 leave_stub(struct unwind *w, struct jvm_walk *j)
{
	u64 fp = w->fp;
	bool by_pointer, by_top = false;
	by_pointer = !(fp & 7) && fp - w->sp < UNWIND_FRAME_MOST && !read_words(w, 0, fp, 2);
	if (by_pointer && !w->exact && w->pc == j->of.call_stub) {
		/* Called from outside. */
		go_to_caller(w, w->memory[1], fp + 16, w->memory[0]);
		return 0;
	}
	by_pointer = by_pointer && is_code_of(j, w->memory[1] - 1);
	if (w->exact) {
		by_top = !UNWIND_READ(j->top, 8, w->sp) && is_code_of(j, j->top[0] - 1);
		if (by_top && by_pointer)
			by_pointer = leaf_kind(w, j, false) != JVM_TOP;
	}
	if (by_pointer == by_top || !returns_to(w, j, by_top ? w->sp : fp + 8, by_pointer))
		return java_fails(w, j, GUEST_NO_CALLER);
	return 0;
}

/* Code that is compiled. Returns the word of its method; 0: it has none. It is left in any case. */
static __always_inline u64 leave_compiled(struct unwind *w, struct jvm_walk *j)
{
	u64 address = looked_up(w), blob = blob_of(j, address), begin, usual, at, method = 0, place = 0;
	u32 bytes, entered, kind = JVM_USUAL;
	bool is_top, is_usual;
	if (!blob || UNWIND_READ(j->blob, JVM_BLOB_WORDS * 8, blob) || address - blob >= blob_integer(j, j->of.blob_size))
		return java_fails(w, j, GUEST_NO_BLOB);
	if ((blob_integer(j, j->of.header_size) & 0xffff) == j->of.method_header) {
		method = blob_word(j, j->of.method);
		if (!may_be_method(method))
			return java_fails(w, j, GUEST_NO_METHOD);
		place = (u64)FRAME_CODE << STACK_ADDRESS_BITS | (u64)w->exact << STACK_EXACT_BIT |
			(blob_integer(j, j->of.compile_id) & ((1ULL << JVM_COMPILATION_BITS) - 1)) << JVM_ADDRESS_BITS |
			(w->pc & ((1ULL << JVM_ADDRESS_BITS) - 1));
	}
	bytes = blob_integer(j, j->of.frame_size) * 8;
	if (bytes - 8 >= JVM_FRAME_MOST)
		return leave_stub(w, j);
	at = usual = w->sp + bytes - 8;
	if (w->exact) {
		begin = j->of.code_is_offset ? blob + blob_integer(j, j->of.code_begin) : blob_word(j, j->of.code_begin);
		entered = blob_integer(j, j->of.frame_complete) & 0xffff;
		kind = leaf_kind(w, j, entered != 0xffff && w->pc - begin < entered);
		if (kind == JVM_UNKNOWN) {
			is_top = !UNWIND_READ(j->top, 8, w->sp) && is_code_of(j, j->top[0] - 1);
			is_usual = !UNWIND_READ(j->top, 8, usual) && is_code_of(j, j->top[0] - 1);
			if (is_top == is_usual)
				return java_fails(w, j, GUEST_NO_CALLER);
			kind = is_top ? JVM_TOP : JVM_USUAL;
		}
		if (kind == JVM_TOP)
			at = w->sp;
		else if (kind == JVM_SECOND)
			at = w->sp + 8;
	}
	if (!returns_to(w, j, at, kind == JVM_USUAL || kind == JVM_SECOND))
		return java_fails(w, j, GUEST_NO_CALLER);
	j->compiled = place;
	return method ? java_word(method, GUEST_NO_POSITION) : 0;
}

/* The frame in hand, which is one of HotSpot's code. Returns its word; 0: it runs no method. It is left in any case. */
static __always_inline u64 hotspot_leave(struct unwind *w, struct jvm_walk *j)
{
	j->compiled = 0;
	if (looked_up(w) - j->of.interpreter < j->of.interpreter_bytes)
		return leave_interpreted(w, j);
	return leave_compiled(w, j);
}

#endif
