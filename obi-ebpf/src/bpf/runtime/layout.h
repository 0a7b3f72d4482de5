/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* What the agent passes to the probes of runtimes, in their attach cookies. */
#ifndef OBI_RUNTIME_LAYOUT_H
#define OBI_RUNTIME_LAYOUT_H

/* Of Go: where in a goroutine (`runtime.g`) things are, in bytes. 0: not given, so nothing is looked for. */
enum go_layout_bit {
	GO_NUMBER_AT = 0,   /* its number, `goid` */
	GO_CREATOR_AT = 16, /* the number of the goroutine that has made it, `parentGoid` (Go 1.21) */
};

#define GO_OFFSET_MASK 0xffff

/* Of CPython: where in a thread's state (`PyThreadState`) things are, bytes. 0: not given, so nothing is looked for. */
enum python_layout_bit {
	PYTHON_THREAD_AT = 0, /* the thread's descriptor, `thread_id` */
};

#define PYTHON_OFFSET_MASK 0xffff

/* Of Node: where things are, bytes. 0: not here. */
enum node_layout_bit {
	NODE_NUMBERS_AT = 0, /* in the environment, second argument: the address of a thread's three numbers */
	NODE_OWN_AT = 16,    /* in the object, second argument instead: the callback's own two numbers */
	NODE_IN_R8_BIT = 32, /* a callback's own two numbers are the fifth argument of its scope, not the fourth */
};

#define NODE_OFFSET_MASK 0xffff

#endif
