/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Part of the wire contract (event.h, which includes it behind its header): samples of stacks. */
#ifndef OBI_PROFILE_RECORD_H
#define OBI_PROFILE_RECORD_H

/* How the walk along a user's stack ended. Index of obi_profile_truncated_stacks_total. */
enum stack_end {
	STACK_COMPLETE = 0,       /* at the thread's first frame, as its unwind information or a null frame pointer says */
	STACK_NO_USER = 1,        /* a thread of the kernel, or one that is being made or has gone: there is no user's stack */
	STACK_TOO_DEEP = 2,       /* more frames than STACK_FRAMES_USER, or than the walk may take steps */
	STACK_NO_PROCESS = 3,     /* the agent has not yet reported what the process maps */
	STACK_NO_MAPPING = 4,     /* an address in nothing that is mapped executable, and no frame pointer to go by */
	STACK_NO_TABLE = 5,       /* in a file whose table is not there (yet, any more, too large), and no frame pointer */
	STACK_NO_RULE = 6,        /* the table has no rule for the address, or one that only a debugger can follow */
	STACK_UNREADABLE = 7,     /* the stack's memory could not be read: not in memory, or no stack at all */
	STACK_NO_PROGRESS = 8,    /* the caller's frame would not lie above its callee's */
	STACK_FOREIGN_MODE = 9,   /* a 32-bit program */
	STACK_ENDS = 10,
};

/* stack_event.kind: what was measured. A kind comes with the program that measures it. */
enum sample_kind {
	SAMPLE_CPU = 1, /* a CPU was looked at; `value` is CPU time in nanoseconds */
	/*
	 * A thread that serves a request has waited for something else than a CPU; `value` is nanoseconds. A wait
	 * shorter than a threshold is sampled in proportion to its length, and counts as long as the threshold:
	 * sums are those of all waits.
	 */
	SAMPLE_OFF_CPU = 2,
	SAMPLE_PAGE_FAULTS = 3, /* memory was touched that was not there; `value` is how many times */
	/*
	 * No sample of its own: the thread that has ended the wait of thread `object`, whose SAMPLE_OFF_CPU follows.
	 * `value` is that one's.
	 */
	SAMPLE_RELEASE = 4,
	SAMPLE_KINDS,
};

/*
 * A frame is a word of 64 bits: its address in the lowest STACK_ADDRESS_BITS, its kind above, then two marks. A
 * kernel's address stands in the word as it is: all bits above the address are set in it, which reads as FRAME_KERNEL.
 * So the kind costs neither room nor time. A kind of an interpreter may say something else in place of an address
 * (its code object), and take several words for a frame: the agent knows how many. What it does not know it refuses.
 */
enum frame_kind {
	FRAME_NATIVE = 0,  /* an address of the user */
	FRAME_PYTHON = 1,  /* CPython: the address of a code object by eight, and where in it: GUEST_POSITION_BITS */
	FRAME_JAVA = 2,    /* HotSpot: likewise the address of a method, and where in its bytecode */
	FRAME_CODE = 3,    /* belongs to the word before: where in its method's code, and which compilation that is */
	FRAME_JAVASCRIPT = 4, /* V8: likewise the address of what functions of the same text share; no place in it */
	FRAME_MARK = 30,   /* no frame: what follows, or should, is not whole; enum guest_failure in place of an address */
	FRAME_KERNEL = 31, /* an address of the kernel */
};

/*
 * Why frames of an interpreter are not recorded, or stand apart. Reasons `python_…`, `java_…`, `node_…` of
 * obi_profile_failures_total.
 */
enum guest_failure {
	GUEST_NO_FAILURE = 0,
	GUEST_NO_THREAD = 1,  /* the thread has no state of the interpreter's, or it is not to be found */
	GUEST_UNREADABLE = 2, /* memory could not be read */
	GUEST_NO_CODE = 3,    /* what should be a code object is none */
	GUEST_APART = 4,      /* not which native frame they belong to: they stand behind all of them */
	GUEST_NO_METHOD = 5,  /* what should be a method of Java's is none; its callers are not known */
	GUEST_NO_BLOB = 6,    /* an address in none of HotSpot's pieces of code; likewise */
	GUEST_NO_CALLER = 7,  /* what HotSpot's code should return to is none of its code; likewise */
	GUEST_UNLINKED = 8,   /* the innermost frame of Python's is not linked to its caller yet */
	/* What should be a JavaScript function is none; or none is recorded, and a frame of V8 is not as expected */
	GUEST_NO_FUNCTION = 9,
	GUEST_NO_V8 = 10,    /* V8's code runs, and how to find its functions is not known, or not yet */
	GUEST_FAILURES = 11,
};

enum {
	/* The exchange is what the program's runtime says that the code works for. Else it is the thread's. */
	SAMPLE_BY_RUNTIME = 1,
	/* Words of a stack that are reported at most. */
	STACK_FRAMES_KERNEL = 127,
	STACK_FRAMES_USER = 512,
	/* Bits of a user's address; above them stand: */
	STACK_ADDRESS_BITS = 57,
	STACK_KIND_BITS = 5,       /* enum frame_kind */
	STACK_BY_POINTER_BIT = 62, /* found by frame pointer, for want of a table */
	STACK_EXACT_BIT = 63,      /* the next instruction itself; without: behind a call */
};

/*
 * A sample of a stack. The frames follow, leaf first: `n_kernel` words of the kernel, `n_user` of the user.
 * `value` is in the unit of its kind, so that it holds whatever else changes: a clock of another period, another
 * program. A sample of a clock that finds no room in the ring is left out; its value is in the next one on this CPU.
 * Others are left out and counted: what is behind them has another stack.
 */
struct stack_event {
	/* exchange: what it was taken for; flags: of a wait its enum wait_reason, of others SAMPLE_BY_RUNTIME or 0 */
	struct event_header header;
	__u64 value;
	__u64 object; /* of a wait for another thread: address of what they share; of a release: the thread that has waited */
	__u16 cpu;     /* kernels are built for some thousand at most */
	__u16 n_kernel;
	__u16 n_user;
	__u8 kind;     /* enum sample_kind */
	__u8 end;      /* enum stack_end */
	__u8 comm[COMM_BYTES]; /* the thread's name */
};

#endif
