// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/* Frames of HotSpot's code, in a world that the test makes: its memory is a function of the test's. */
#include "core/kernel.h"

#include <string.h>

struct host_java_world {
	void *context;
	u32 (*read)(void *context, void *to, u32 bytes, u64 address);
	const void *jvm;
};

static _Thread_local const struct host_java_world *world;

#define UNWIND_CHUNK(key) ((void)(key), (const struct unwind_chunk *)NULL)
#define UNWIND_BLOCK(key) ((void)(key), (const struct mapping_block *)NULL)
#define UNWIND_READ(to, bytes, address) ((long)world->read(world->context, to, bytes, address))
#define UNWIND_CACHE(number) ((void)(number), (struct unwind_cached *)NULL)
#define JVM_OF(tgid) ((void)(tgid), (const struct jvm *)world->jvm)

#include "profile/hotspot.h"

struct host_java_frame {
	u64 pc;
	u64 sp;
	u64 fp;
	u64 r13;
	u64 word;
	u32 tgid;
	u8 exact;
	u8 all;
	u8 ended;
	u8 failed;
};

/* One frame up, if it is one of HotSpot's. */
void host_java(const struct host_java_world *of, struct host_java_frame *frame)
{
	struct jvm_walk j;
	struct unwind w = {
		.pc = frame->pc,
		.sp = frame->sp,
		.fp = frame->fp,
		.tgid = frame->tgid,
		.exact = frame->exact,
		.all = frame->all,
	};
	memset(&j, 0xa5, sizeof(j));
	j.state = JVM_UNSEEN;
	j.failed = GUEST_NO_FAILURE;
	w.other[JVM_BYTECODE_REGISTER] = frame->r13;
	world = of;
	frame->word = jvm_has(&j, w.tgid, looked_up(&w)) ? hotspot_leave(&w, &j) : 0;
	frame->pc = w.pc;
	frame->sp = w.sp;
	frame->fp = w.fp;
	frame->exact = w.exact;
	frame->all = w.all;
	frame->ended = w.ended;
	frame->failed = j.failed;
}
