// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/* The walk along an interpreter's frames, in a world that the test makes. */
#include "core/kernel.h"

#include <string.h>

struct host_guest_world {
	void *context;
	const void *(*guest)(void *context, u32 tgid);
	u32 (*read)(void *context, void *to, u32 bytes, u64 address);
};

static _Thread_local const struct host_guest_world *world;

#define GUEST_OF(number) ((const struct guest *)world->guest(world->context, number))
#define GUEST_READ(to, bytes, address) ((long)world->read(world->context, to, bytes, address))

#include "profile/guest.h"

/* `rest`: ends of calls do not count. */
struct host_guest_thread {
	u64 pointer;
	u64 pc;
	u32 tgid;
	u32 rest;
};

struct host_guest_walk {
	u32 n_words;
	u32 n_calls;
	u32 failed;
	u32 state;
};

/*
 * Words of a stack, `most` of them and as many steps; where a call of the evaluating function ends a word 0 stands in
 * between.
 */
void host_guest(const struct host_guest_world *of, const struct host_guest_thread *thread, u64 *words, u32 most,
		struct host_guest_walk *came_to)
{
	struct guest_walk g;
	memset(&g, 0xa5, sizeof(g));
	g.tgid = thread->tgid;
	g.thread_pointer = thread->pointer;
	g.pc = thread->pc;
	g.frame = 0;
	g.state = GUEST_UNSEEN;
	g.failed = GUEST_NO_FAILURE;
	g.rest = thread->rest;
	g.window_words = 0;
	world = of;
	memset(came_to, 0, sizeof(*came_to));
	guest_begin(&g);
	while (g.state != GUEST_OVER && came_to->n_calls < most && came_to->n_words < most) {
		u64 word = guest_next(&g);
		came_to->n_calls += 1;
		if (word)
			words[came_to->n_words++] = word;
		if (g.state == GUEST_WAITING) {
			g.state = GUEST_DUE;
			if (came_to->n_words < most)
				words[came_to->n_words++] = 0;
		}
	}
	came_to->failed = g.failed;
	came_to->state = g.state;
}
