/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Samples of what runs: at every tick of a CPU's performance event the stacks of the kernel and of the user, with the
 * exchange that the code works for, or else the thread. Loaded beside a hook set, some of whose maps it reads.
 *
 * The program runs in an interrupt (of the timer, or with hardware events one that cannot be masked), so nothing else
 * of this CPU comes in between, and the kernel starts no second one while it runs: memory by CPU is its own.
 */
#include "core/watch.h"
#include "runtime/binding.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* === maps === */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct profile_setting);
} profile_setting SEC(".maps");

/* Records to the agent. Size set at load time. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 * 1024 * 1024);
} stacks SEC(".maps");

/* See profile/unwind_table.h. Sizes set at load time. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct unwind_key);
	__type(value, struct unwind_chunk);
} unwind_chunk SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct mapping_key);
	__type(value, struct mapping_block);
} mappings SEC(".maps");

/* tgid -> the interpreter in the process. Absent: none that is known, or its native frames only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct guest);
} guest SEC(".maps");

/* tgid -> HotSpot in the process. Absent: none that is known. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct jvm);
} jvm SEC(".maps");

/* tgid -> V8 in the process. Absent: none that is known. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct v8);
} v8 SEC(".maps");

/* enum profile_count */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PROFILE_COUNTS);
	__type(key, u32);
	__type(value, u64);
} profile_count SEC(".maps");

#define UNWIND_CHUNK(key) bpf_map_lookup_elem(&unwind_chunk, key)
#define UNWIND_BLOCK(key) bpf_map_lookup_elem(&mappings, key)
#define UNWIND_READ(to, bytes, address) bpf_probe_read_user(to, bytes, (const void *)(address))
#define UNWIND_CACHE(number) cached_rule(number)
#define GUEST_OF(tgid) bpf_map_lookup_elem(&guest, &(tgid))
#define GUEST_READ UNWIND_READ
#define JVM_OF(tgid) bpf_map_lookup_elem(&jvm, &(tgid))
#define V8_OF(tgid) bpf_map_lookup_elem(&v8, &(tgid))

struct unwind_cached;
static __always_inline struct unwind_cached *cached_rule(u32 number);

#include "profile/unwind.h"
#include "profile/guest.h"
#include "profile/hotspot.h"
#include "profile/v8.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, UNWIND_CACHED);
	__type(key, u32);
	__type(value, struct unwind_cached);
} unwind_cache SEC(".maps");

static __always_inline struct unwind_cached *cached_rule(u32 number)
{
	return bpf_map_lookup_elem(&unwind_cache, &number);
}

/* The sample in hand, too large for the stack. */
struct sample {
	struct unwind walk;
	struct guest_walk guest;
	struct jvm_walk jvm;
	struct v8_walk v8;
	u32 n_addresses;
	u32 is_reported;    /* 1: the interpreter's frames that the native frame in hand runs are recorded */
	struct stack_event event;
	u64 address[STACK_FRAMES_KERNEL + STACK_FRAMES_USER]; /* directly behind the event */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct sample);
} sample SEC(".maps");

static __always_inline struct sample *sample_in_hand(u32 zero)
{
	return bpf_map_lookup_elem(&sample, &zero);
}

static __always_inline void count(u32 what)
{
	u64 *n = bpf_map_lookup_elem(&profile_count, &what);
	if (n)
		*n += 1;
}

#include "profile/user_registers.h"

/* === walk === */

/* Adds a word to the user's part of the stack. */
static __always_inline void add(struct sample *s, u64 word)
{
	u32 n = s->n_addresses;
	if (n >= STACK_FRAMES_KERNEL + STACK_FRAMES_USER || s->event.n_user >= STACK_FRAMES_USER)
		return;
	s->address[n] = word;
	s->n_addresses = n + 1;
	s->event.n_user += 1;
}

static __always_inline bool is_full(const struct sample *s)
{
	return s->event.n_user >= STACK_FRAMES_USER;
}

static __always_inline void mark(struct sample *s, u8 failure)
{
	if (failure)
		add(s, (u64)FRAME_MARK << STACK_ADDRESS_BITS | failure);
}

#include "profile/guest_frames.h"

/* The native walk is over. Returns whether interpreter frames are left: the program's part is recorded in any case. */
static __always_inline bool has_rest(struct sample *s)
{
	struct guest_walk *g = &s->guest;
	if (g->rest)
		return false;
	g->rest = 1;
	/* A walk that breaks off before the evaluating function has not looked. */
	if (g->state == GUEST_UNSEEN && s->walk.end != STACK_COMPLETE)
		guest_first(0);
	if (g->state != GUEST_DUE && g->state != GUEST_WAITING)
		return false;
	g->state = GUEST_DUE;
	mark(s, GUEST_APART);
	return true;
}

/* The frame in hand is recorded, and left; or something of what it runs. Returns 1 at the end of the walk. */
static __always_inline long walk_frame(struct sample *s)
{
	struct unwind *w = &s->walk;
	struct guest_walk *g = &s->guest;
	u32 wrong;
	if (is_full(s))
		return 1;
	if (g->state == GUEST_DUE) {
		guest_frames(0);
		return w->ended && g->state != GUEST_DUE;
	}
	wrong = find_entry(w, looked_up(w));
	if (wrong == STACK_COMPLETE && w->entry.flags & MAPPING_EVAL && !s->is_reported) {
		s->is_reported = 1;
		if (g->state == GUEST_UNSEEN)
			guest_first(0);
		else if (g->state == GUEST_WAITING)
			g->state = GUEST_DUE;
		guest_frames(0);
		return 0;
	}
	s->is_reported = 0;
	if (may_be_java(s, wrong) && java_frame(0))
		return w->ended && !has_rest(s);
	if (may_be_javascript(s, wrong)) {
		if (javascript_frame(0))
			return w->ended && !has_rest(s);
		/* It has looked at where the frame would return to. */
		wrong = find_entry(w, looked_up(w));
	}
	add(s, native_word(w));
	unwind_leave(w, wrong);
	return w->ended && !has_rest(s);
}

/* Some records wide, since every CPU adds to it. */
enum { WAKEUP_WINDOW = 16384 };

static __always_inline int tell(struct sample *s)
{
	u32 zero = 0, bytes;
	struct profile_setting *setting = bpf_map_lookup_elem(&profile_setting, &zero);
	/* On the way up, once or a few times: a wake-up costs more than the sample. */
	u64 beyond = bpf_ringbuf_query(&stacks, BPF_RB_AVAIL_DATA) - (setting ? setting->wakeup_bytes : 0);
	u64 flags = beyond < WAKEUP_WINDOW ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
	if (!s->v8.has_reported)
		mark(s, s->v8.failed);
	bytes = s->n_addresses * 8;
	s->event.end = s->walk.ended && s->guest.state != GUEST_DUE ? s->walk.end : STACK_TOO_DEEP;
	/* Short-lived programs would be half over before the agent looks by itself. */
	if (s->event.end == STACK_NO_PROCESS)
		flags = BPF_RB_FORCE_WAKEUP;
	if (bytes > sizeof(s->address))
		bytes = sizeof(s->address);
	/* Its time is lost with it: the CPU's next sample may be of another process, which has not spent it. */
	count(bpf_ringbuf_output(&stacks, &s->event, sizeof(s->event) + bytes, flags) ? PROFILE_LOST : PROFILE_REPORTED);
	return 0;
}

/* === programs === */

/* A walk of the current thread, of process `tgid`, that has not begun. */
static __always_inline void begin_walk(struct sample *s, u32 tgid)
{
	s->walk.tgid = tgid;
	s->walk.exact = 1;
	s->walk.all = 1;
	s->walk.pointer = 0;
	s->walk.ended = 0;
	s->walk.has_entry = 0;
	s->walk.window_words = 0;
	s->guest.tgid = tgid;
	s->guest.state = GUEST_UNSEEN;
	s->guest.rest = 0;
	s->guest.failed = GUEST_NO_FAILURE;
	s->guest.window_words = 0;
	s->guest.frame = 0;
	s->jvm.state = JVM_UNSEEN;
	s->jvm.failed = GUEST_NO_FAILURE;
	s->v8.state = V8_UNSEEN;
	s->v8.has_reported = 0;
	s->v8.failed = GUEST_NO_FAILURE;
	s->is_reported = 0;
}

/* What every record of a sample begins with: the current thread, at this time. */
static __always_inline void begin_event(struct sample *s, u64 exchange, u32 kind, u64 value)
{
	u64 id = bpf_get_current_pid_tgid();
	s->event.header.kind = EVENT_STACK;
	s->event.header.tgid = id >> 32;
	s->event.header.tid = id;
	s->event.header.flags = 0;
	s->event.header.time = bpf_ktime_get_ns();
	s->event.header.exchange = exchange;
	s->event.value = value;
	s->event.kind = kind;
	s->event.cpu = bpf_get_smp_processor_id();
	s->event.n_user = 0;
	bpf_get_current_comm(s->event.comm, sizeof(s->event.comm));
	begin_walk(s, id >> 32);
}

/* The walk begins by registers that were found, or (`wrong`) not; returns whether there is a stack to walk. */
static __always_inline bool begin_stack(struct sample *s, u32 wrong)
{
	s->guest.thread_pointer = THREAD_POINTER(current_task());
	if (wrong == STACK_COMPLETE)
		return true;
	s->walk.ended = 1;
	s->walk.end = wrong;
	return false;
}

/* Fills the record but for the user's stack; returns false when there is to be none. */
static __always_inline bool begin(struct sample *s, struct context *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 zero = 0, tgid = id >> 32, tid = id;
	struct profile_setting *setting = bpf_map_lookup_elem(&profile_setting, &zero);
	struct thread_state *state;
	u64 exchange;
	bool is_said;
	long bytes;
	if (!tid) {
		count(PROFILE_IDLE);
		return false;
	}
	if (setting && setting->self_tgid == tgid) {
		count(PROFILE_SELF);
		return false;
	}
	if (is_ignored(tgid)) {
		count(PROFILE_IGNORED);
		return false;
	}
	state = bpf_map_lookup_elem(&thread, &tid);
	is_said = is_working_for(id, state, &exchange);
	if (!is_said)
		exchange = state ? state->exchange : 0;
	/* Nanoseconds of the clock's period, which the event itself knows, also where another one begins. */
	begin_event(s, exchange, SAMPLE_CPU, ctx->sample_period);
	s->event.header.flags = is_said ? SAMPLE_BY_RUNTIME : 0;
	/* There is none when the interrupt has come to the user's program. */
	bytes = IS_USER(&ctx->regs) ? 0 : bpf_get_stack(ctx, s->address, STACK_FRAMES_KERNEL * 8, 0);
	s->n_addresses = s->event.n_kernel = bytes > 0 ? bytes / 8 : 0;
	return true;
}

/* Returns whether there is a stack of a user to walk. */
static __always_inline bool begin_user(struct sample *s, struct context *ctx)
{
	return begin_stack(s, take_registers(&s->walk, ctx));
}

/* By call of the function below: coming here costs as much as a frame by frame pointers. On 5.10 more is too complex. */
#ifdef OBI_PORTABLE
enum { FRAMES_PER_CALL = 1 };
#else
enum { FRAMES_PER_CALL = 4 };
#endif

/* A global function without pointers, which the verifier checks once and by itself, on 5.10, too. */
__noinline int walk_frames(u32 zero)
{
	struct sample *s = sample_in_hand(zero);
	if (!s)
		return 1;
	for (u32 i = 0; i < FRAMES_PER_CALL; i++) {
		if (walk_frame(s))
			return 1;
	}
	return 0;
}

#ifdef OBI_PORTABLE
/* Loops of this length came with 5.17: before, a program that calls itself 33 times, some frames each. */
enum { FRAMES_PER_PROGRAM = STACK_FRAMES_USER / 32 };

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} profile_walks SEC(".maps");

SEC("perf_event")
int profile_walk(struct context *ctx)
{
	struct sample *s;
	for (u32 i = 0; i < FRAMES_PER_PROGRAM; i++) {
		if (walk_frames(0))
			goto end;
	}
	bpf_tail_call(ctx, &profile_walks, 0);
end:
	s = sample_in_hand(0);
	return s ? tell(s) : 0;
}
#else
static long step(u32 index, void *unused)
{
	long ended = walk_frames(0);
	/* The compiler knows that it is 0 or 1, the verifier does not. */
	barrier_var(ended);
	return ended & 1;
}
#endif

/* The walk along the user's stack, if there is one, and the record of it. */
#ifdef OBI_PORTABLE
#define WALK_AND_TELL(ctx, s, has_user)                        \
	do {                                                   \
		if (has_user)                                  \
			bpf_tail_call(ctx, &profile_walks, 0); \
		return tell(s);                                \
	} while (0)
#else
#define WALK_AND_TELL(ctx, s, has_user)                                               \
	do {                                                                          \
		if (has_user)                                                         \
			bpf_loop(STACK_FRAMES_USER / FRAMES_PER_CALL, step, NULL, 0); \
		return tell(s);                                                       \
	} while (0)
#endif

/* Other programs that walk stacks are objects of their own, with memory of their own: faults.bpf.c, waits.bpf.c. */
#ifndef OBI_BESIDE
SEC("perf_event")
int profile(struct context *ctx)
{
	struct sample *s = sample_in_hand(0);
	if (!s || !begin(s, ctx))
		return 0;
	WALK_AND_TELL(ctx, s, begin_user(s, ctx));
}
#endif
