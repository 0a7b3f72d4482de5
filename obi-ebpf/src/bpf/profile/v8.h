/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Frames of V8's code, one at a time, by what the agent has put into struct v8. Behind profile/unwind.h, whose
 * walk they are part of, and pure as that is, but for
 *   V8_OF(tgid)   an element of the map, or NULL
 *
 * All code that V8 makes, at run time or when it was built, keeps frame pointers. Below the saved one stands a context,
 * then the function that runs there; where no function of the program's runs, a number says what kind of frame it is
 * instead. References to objects are odd, numbers are even. That the function's own description (its map) says that it
 * is a function proves it. It leads to what all functions of the same text share, which names are read by.
 *
 * What calls V8's code from outside keeps no frame pointer; the agent says which kinds of frames those are.
 */
#ifndef OBI_V8_H
#define OBI_V8_H

#include "profile/unwind.h"

enum v8_state {
	V8_UNSEEN = 0, /* nothing has been looked at */
	V8_NONE = 1,   /* the process has no V8 that is known */
	V8_KNOWN = 2,
};

enum {
	/* Maps of functions that are remembered, a power of two: a program has some five. */
	V8_MAPS = 8,
	/* Of an object, words that are looked at. */
	V8_FUNCTION_WORDS = 6,
	/* A power of two, not less. */
	V8_FUNCTION_ROOM = 8,
	V8_KINDS = 64,
	/* Nothing lies below this address. */
	V8_LOWEST = 1 << 16,
};

struct v8_walk {
	u8 state;       /* enum v8_state */
	u8 has_reported;    /* 1: functions of this sample have been recorded, or that one of them cannot be */
	u8 is_strange;  /* 1: the frame in hand refers to something that is no function where its function should be */
	u8 failed;      /* enum guest_failure: why functions may be missing */
	u16 type;       /* read from a map */
	u16 pad_too;
	u32 maps_of;    /* process */
	u32 pad_end;
	u64 map[V8_MAPS]; /* that were proven to be of functions, in this or an earlier sample of the process */
	struct v8 of;
	u64 function[V8_FUNCTION_ROOM];
	u64 code[2]; /* instructions: before, and from where it is */
	u64 top[2];  /* of the stack */
};

/* Where the innermost frame is made, or left. */
enum v8_leaf {
	V8_MADE = 0,   /* it is there */
	V8_TOP = 1,    /* the address to return to is on top of the stack, the frame pointer is the caller's */
	V8_SECOND = 2, /* likewise, behind the caller's frame pointer */
};

/* Whether the process has a V8 that is known. */
static __always_inline bool v8_has(struct v8_walk *v, u32 tgid)
{
	if (v->state == V8_UNSEEN) {
		const struct v8 *of = V8_OF(tgid);
		v->state = V8_NONE;
		if (!of)
			return false;
		v->of = *of;
		/* The kernel may give an element's memory to another one meanwhile. */
		if (v->of.tgid != tgid)
			return false;
		v->state = V8_KNOWN;
		if (v->maps_of != tgid) {
			v->maps_of = tgid;
#pragma clang loop unroll(full)
			for (u32 i = 0; i < V8_MAPS; i++)
				v->map[i] = 0;
		}
	}
	return v->state == V8_KNOWN;
}

static __always_inline bool is_reference(u64 word)
{
	return (word & 3) == 1 && !(word >> GUEST_CODE_BITS);
}

/* The word of a function, which `reference` may be one to; 0: it is none. */
static __always_inline u64 function_word(struct v8_walk *v, u64 reference)
{
	u64 map, shared, *known;
	if (!is_reference(reference) || UNWIND_READ(v->function, V8_FUNCTION_WORDS * 8, reference - 1))
		return 0;
	map = v->function[0];
	shared = v->function[v->of.shared / 8 & (V8_FUNCTION_ROOM - 1)];
	if (!is_reference(map) || !is_reference(shared))
		return 0;
	/* They lie side by side, and most are of 40 to 80 bytes. */
	known = &v->map[(map >> 3 ^ map >> 6) & (V8_MAPS - 1)];
	if (*known != map) {
		if (UNWIND_READ(&v->type, sizeof(v->type), map - 1 + v->of.instance_type) ||
		    v->type < v->of.first_function || v->type > v->of.last_function)
			return 0;
		*known = map;
	}
	return (u64)FRAME_JAVASCRIPT << STACK_ADDRESS_BITS | shared / 8 << GUEST_POSITION_BITS | GUEST_NO_POSITION;
}

#ifdef __TARGET_ARCH_x86
/* By the instructions that frames are made and left with. */
static __always_inline u32 v8_leaf(struct unwind *w, struct v8_walk *v)
{
	u64 here;
	if (UNWIND_READ(v->code, sizeof(v->code), w->pc - 8))
		return V8_MADE;
	here = v->code[1];
	/* push rbp; ret; ret … */
	if ((here & 0xff) == 0x55 || (here & 0xff) == 0xc3 || (here & 0xff) == 0xc2)
		return V8_TOP;
	/* mov rbp, rsp, behind push rbp; pop rbp */
	if (((here & 0xffffff) == 0xe58948 && v->code[0] >> 56 == 0x55) || (here & 0xff) == 0x5d)
		return V8_SECOND;
	return V8_MADE;
}
/* Where a function is handed over that is called: rdi. */
enum { V8_CALLED_REGISTER = 5 };
#else
static __always_inline u32 v8_leaf(struct unwind *w, struct v8_walk *v)
{
	return V8_MADE;
}
enum { V8_CALLED_REGISTER = 1 };
#endif

/* Leaves a frame that has none of its own yet, or no more. False: where it returns to is no code. */
static __always_inline bool leave_unmade(struct unwind *w, struct v8_walk *v, u32 leaf)
{
	u64 at = w->sp, fp = w->fp;
	if (UNWIND_READ(v->top, sizeof(v->top), at))
		return false;
	if (leaf == V8_SECOND) {
		fp = v->top[0];
		at += 8;
		v->top[0] = v->top[1];
	}
	if (!v->top[0] || find_entry(w, v->top[0] - 1))
		return false;
	go_to_caller(w, v->top[0], at + 8, fp);
	return true;
}

/*
 * The frame in hand, in code that may be V8's. Returns whether it is one, which is left then; `*word` is set to its
 * function's, or 0. `is_made`: the code was made at run time, for a function of the program's.
 */
static __always_inline bool v8_leave(struct unwind *w, struct v8_walk *v, bool is_made, u64 *word)
{
	u64 fp = w->fp, above = fp - w->sp, kind, function = 0;
	u32 leaf = w->exact && w->all ? v8_leaf(w, v) : V8_MADE;
	bool is_entry = false, is_function = false;
	v->is_strange = 0;
	*word = 0;
	if (leaf != V8_MADE) {
		/* At its end a function is not handed over any more. */
		if (is_made && (v->code[1] & 0xff) != 0xc3 && (v->code[1] & 0xff) != 0xc2 && (v->code[1] & 0xff) != 0x5d)
			*word = function_word(v, w->other[V8_CALLED_REGISTER]);
		return leave_unmade(w, v, leaf);
	}
	if (fp & 7 || above >= UNWIND_FRAME_MOST || read_words(w, 2, fp, 2))
		return false;
	if (above >= 16) {
		if (read_words(w, 0, fp - 16, 2))
			return false;
		function = w->memory[0];
		kind = w->memory[1];
		is_function = kind & 1;
		if (is_function) {
			*word = function_word(v, function);
		} else {
			kind >>= 1;
			if (!kind || kind >= V8_KINDS)
				return false;
			is_entry = v->of.entries >> kind & 1;
		}
	} else {
		/* It is being made: what stands below is older. */
		if (is_made && w->all)
			*word = function_word(v, w->other[V8_CALLED_REGISTER]);
	}
	if (is_function && !*word) {
		/* Code of regular expressions has frames of its own, with a text there, and a number below. */
		v->is_strange = is_reference(function) && function > V8_LOWEST;
		return false;
	}
	if ((!is_entry && w->memory[2] <= fp) || (!*word && find_entry(w, w->memory[3] - 1))) {
		*word = 0;
		return false;
	}
	go_to_caller(w, w->memory[3], fp + 16, w->memory[2]);
	return true;
}

#endif
