/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Frames of interpreters, and what they are found by, in the sample in hand. Part of profile.bpf.c, whose sample, maps
 * and words it uses.
 */
#ifndef OBI_GUEST_FRAMES_H
#define OBI_GUEST_FRAMES_H

enum { GUEST_FRAMES_PER_CALL = 8 };

/* Frames of an interpreter, and why there are no more. A global function for what is said of walk_frames(). */
__noinline int guest_frames(u32 zero)
{
	struct sample *s = sample_in_hand(zero);
	struct guest_walk *g;
	if (!s)
		return 1;
	g = &s->guest;
	for (u32 i = 0; i < GUEST_FRAMES_PER_CALL && g->state == GUEST_DUE; i++) {
		u64 word = guest_next(g);
		if (word)
			add(s, word);
	}
	if (g->failed) {
		mark(s, g->failed);
		g->failed = GUEST_NO_FAILURE;
	}
	return 0;
}

/* Looks for the thread's first frame of an interpreter. */
__noinline int guest_first(u32 zero)
{
	struct sample *s = sample_in_hand(zero);
	if (!s)
		return 1;
	s->guest.pc = s->walk.exact ? s->walk.pc : 0;
	guest_begin(&s->guest);
	if (s->guest.failed) {
		mark(s, s->guest.failed);
		s->guest.failed = GUEST_NO_FAILURE;
	}
	return 0;
}

static __always_inline u64 native_word(const struct unwind *w)
{
	return (w->pc & ((1ULL << STACK_ADDRESS_BITS) - 1)) | (u64)FRAME_NATIVE << STACK_ADDRESS_BITS |
	       (u64)w->exact << STACK_EXACT_BIT | (u64)w->pointer << STACK_BY_POINTER_BIT;
}

/* The frame in hand, in code without a file: 1 if it is HotSpot's, recorded and left. Global as the others are. */
__noinline int java_frame(u32 zero)
{
	struct sample *s = sample_in_hand(zero);
	u64 native, word;
	if (!s || !jvm_has(&s->jvm, s->walk.tgid, looked_up(&s->walk)))
		return 0;
	native = native_word(&s->walk);
	word = hotspot_leave(&s->walk, &s->jvm);
	add(s, word ? word : native);
	if (s->jvm.compiled)
		add(s, s->jvm.compiled);
	if (s->jvm.failed) {
		mark(s, s->jvm.failed);
		s->jvm.failed = GUEST_NO_FAILURE;
	}
	return 1;
}

/* Whether an address that find_entry() says this of may be HotSpot's. */
static __always_inline bool may_be_java(const struct sample *s, u32 wrong)
{
	return s->jvm.state != JVM_NONE &&
	       (wrong == STACK_COMPLETE ? s->walk.entry.flags & MAPPING_POINTERS : wrong == STACK_NO_MAPPING);
}

/* The frame in hand, in code that may be V8's: returns 1 if it is, recorded and left. Global as the others are. */
__noinline int javascript_frame(u32 zero)
{
	struct sample *s = sample_in_hand(zero);
	u64 native, word;
	bool is_made, is_left;
	if (!s)
		return 0;
	if (!v8_has(&s->v8, s->walk.tgid)) {
		/* Other programs make code, too. */
		if (s->walk.has_entry && s->walk.entry.flags & MAPPING_BUILTIN)
			s->v8.failed = GUEST_NO_V8;
		return 0;
	}
	native = native_word(&s->walk);
	is_made = s->walk.has_entry && s->walk.entry.flags & MAPPING_POINTERS;
	is_left = v8_leave(&s->walk, &s->v8, is_made, &word);
	if (!is_left) {
		s->v8.failed = GUEST_NO_FUNCTION;
		if (s->v8.is_strange) {
			mark(s, GUEST_NO_FUNCTION);
			s->v8.has_reported = 1;
		}
		return 0;
	}
	if (word)
		s->v8.has_reported = 1;
	add(s, word ? word : native);
	return 1;
}

/* Whether an address that find_entry() says this of may be V8's. */
static __always_inline bool may_be_javascript(const struct sample *s, u32 wrong)
{
	/* In a process whose V8 the kernel side does not know, code of V8's own shows that functions are missing. */
	if (s->v8.state == V8_NONE)
		return !s->v8.failed && wrong == STACK_COMPLETE && s->walk.entry.flags & MAPPING_BUILTIN;
	return wrong == STACK_COMPLETE ? s->walk.entry.flags & (MAPPING_POINTERS | MAPPING_BUILTIN)
				       : wrong == STACK_NO_MAPPING;
}

#endif
