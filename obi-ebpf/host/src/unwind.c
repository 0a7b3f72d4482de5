// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/* The walk along a user's stack, in a world that the test makes: its memory and its tables are functions of the test's. */
#include "core/kernel.h"

#include <string.h>

struct host_world {
	void *context;
	const void *(*chunk)(void *context, u32 table, u32 chunk);
	const void *(*block)(void *context, u32 tgid, u32 block);
	u32 (*read)(void *context, void *to, u32 bytes, u64 address);
	void *cache; /* UNWIND_CACHED elements, or NULL */
};

static _Thread_local const struct host_world *world;

#define UNWIND_CHUNK(key) ((const struct unwind_chunk *)world->chunk(world->context, (key)->table, (key)->chunk))
#define UNWIND_BLOCK(key) ((const struct mapping_block *)world->block(world->context, (key)->tgid, (key)->block))
#define UNWIND_READ(to, bytes, address) ((long)world->read(world->context, to, bytes, address))
#define UNWIND_CACHE(number) (world->cache ? (struct unwind_cached *)world->cache + (number) : NULL)

#include "profile/unwind.h"

struct host_frame {
	u64 pc;
	u64 sp;
	u64 fp;
	u64 link;
	u64 other[UNWIND_REGISTERS];
	u32 tgid;
	u8 exact;
	u8 all;
	u8 pointer;
	u8 ended;
	u32 end;
	u32 pad;
};

u32 host_unwind_cache_bytes(void)
{
	return UNWIND_CACHED * sizeof(struct unwind_cached);
}

/* One frame up. */
void host_unwind(const struct host_world *of, struct host_frame *frame)
{
	struct unwind w = {
		.pc = frame->pc,
		.sp = frame->sp,
		.fp = frame->fp,
		.link = frame->link,
		.tgid = frame->tgid,
		.exact = frame->exact,
		.all = frame->all,
	};
	memcpy(w.other, frame->other, sizeof(w.other));
	world = of;
	unwind_step(&w);
	frame->pc = w.pc;
	frame->sp = w.sp;
	frame->fp = w.fp;
	frame->link = w.link;
	frame->exact = w.exact;
	frame->all = w.all;
	frame->pointer = w.pointer;
	frame->ended = w.ended;
	frame->end = w.end;
	memcpy(frame->other, w.other, sizeof(w.other));
}
