/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Probes at a TLS library: what a program reads from it and writes to it are
 * plain bytes, which are walked as those of a socket are. The agent chooses the
 * places; all that they say here is whose call begins, and that the call in
 * hand has ended.
 */
#ifndef OBI_TLS_H
#define OBI_TLS_H

#include "core/own_stack.h"
#include "tls/registers.h"
#include "tls/tls_transport.h"

static __always_inline u64 tls_cookie(struct pt_regs *ctx)
{
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_get_attach_cookie))
		return bpf_get_attach_cookie(ctx);
	return 0;
}

/* === the walk along plain bytes === */

#ifdef OBI_PORTABLE
/* As `walks`, for this kind of program. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, WALK_PROGRAMS);
	__type(key, u32);
	__type(value, u32);
} tls_walks SEC(".maps");

static __always_inline void capture_tls(struct walk *walk)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct tls_call *call = bpf_map_lookup_elem(&tls_call, &tid);
	begin_walk(walk);
	if (call) {
		call->walk = walk->connection->tls_key.object;
		call->sending = walk->segment->sending;
		bpf_tail_call(walk->context, &tls_walks, walk_of(walk->connection, walk->segment));
	}
	/* Only a call that failed comes back. */
	come_to(walk->segment, OUTCOME_LOST, LOSS_STEPS);
	settle(walk->connection, walk->segment);
}

/* The walk that this thread is in. */
static __always_inline struct tls_call *recall_tls_walk(struct walk *walk)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id;
	struct tls_call *call = bpf_map_lookup_elem(&tls_call, &tid);
	struct tls_key key = { .tgid = id >> 32 };
	struct tls_connection *t;
	if (!call || !call->walk)
		return NULL;
	key.object = call->walk;
	t = find_tls(&key);
	if (!t)
		return NULL;
	walk->connection = &t->connection;
	walk->segment = &walk->connection->segment[call->sending & 1];
	return call;
}

static __always_inline int tls_walk_on(struct pt_regs *ctx, u32 program)
{
	struct walk walk = { .context = ctx };
	struct tls_call *call = recall_tls_walk(&walk);
	if (!call)
		return 0;
	if (!walk_steps(&walk, program, NULL))
		bpf_tail_call(ctx, &tls_walks, walk_of(walk.connection, walk.segment));
	call->walk = 0;
	end_walk(&walk);
	return 0;
}

/* Never attached, as the next ones: the targets of tail calls. */
SEC("uprobe")
int tls_walk(struct pt_regs *ctx)
{
	return tls_walk_on(ctx, WALK_HEADS);
}

SEC("uprobe")
int tls_walk_frames(struct pt_regs *ctx)
{
	return tls_walk_on(ctx, WALK_FRAMES);
}

SEC("uprobe")
int tls_walk_database(struct pt_regs *ctx)
{
	return tls_walk_on(ctx, WALK_DATABASE);
}
#else
static long tls_step(u32 index, struct walk *walk)
{
	(void)index;
	return one_step(walk, NULL);
}

static __always_inline void capture_tls(struct walk *walk)
{
	begin_walk(walk);
	if (!tls_step(0, walk))
		bpf_loop(STEP_LIMIT, tls_step, walk, 0);
	end_walk(walk);
}
#endif

/* The times of a call's socket: as in struct tls_call. */
struct tls_times {
	u64 arrival;
	u64 sent;
};

static __always_inline int move_plain(void *ctx, struct tls_connection *t, const struct tls_frame *frame, u32 n, struct tls_times at)
{
	struct connection *k = &t->connection;
	bool sending = frame->kind == TLS_CALL_SEND;
	struct cursor *c = &k->cursor[sending & 1];
	struct walk walk = { .connection = k, .context = ctx };
	struct segment *s;
	if (at.arrival)
		t->arrival = at.arrival;
	if (c->mode == MODE_IGNORED)
		return 0;
	s = walk.segment = begin_segment(k, sending);
	s->id = bpf_get_current_pid_tgid();
	s->time = s->arrival = bpf_ktime_get_ns();
	s->left = n;
	s->sending = sending;
	s->source.base = frame->buffer;
	s->source.length = n;
	if (!frame->buffer)
		s->source.opaque = KERNEL_PAGES;
	if (!sending && k->side != SIDE_CLIENT && t->arrival)
		s->arrival = t->arrival;
	/* A request is sent when the call begins; a response when its records have left (unknown with a memory BIO). */
	if (sending && k->side != SIDE_SERVER)
		s->time = s->arrival = frame->begun;
	else if (sending && at.sent)
		s->time = s->arrival = at.sent;
	place(s, c, NULL, 0, n);
	capture_tls(&walk);
	return 0;
}

/* === calls === */

/* Where the next call of the thread is to be kept, or NULL when it must go unreported. */
static __always_inline struct tls_frame *begin_call(struct tls_call *call, u64 stack)
{
	/* A call without a lower stack pointer is not inside: the calls in hand have ended unseen. */
#pragma unroll
	for (int i = 0; i < TLS_FRAMES; i++) {
		u32 depth = call->depth;
		if (depth && depth <= TLS_FRAMES && frame_at(call, depth)->stack <= stack)
			call->depth = depth - 1;
	}
	if (!call->depth)
		call->arrival = call->sent = 0;
	call->depth++;
	return call->depth <= TLS_FRAMES ? frame_at(call, call->depth) : NULL;
}

/* What passes in a call whose end cannot be understood is missing from the stream: how much is unknown. */
static __always_inline int miss_call(const struct tls_frame *frame, u32 tgid, u32 loss)
{
	struct tls_key key = { .object = frame->object, .tgid = tgid };
	struct tls_connection *t = find_tls(&key);
	bool sending = frame->kind == TLS_CALL_SEND;
	struct connection *k;
	struct segment *s;
	if (!t || frame->kind >= TLS_CALL_HANDSHAKE)
		return 0;
	k = &t->connection;
	if (k->cursor[sending & 1].mode == MODE_IGNORED)
		return 0;
	s = begin_segment(k, sending);
	s->id = bpf_get_current_pid_tgid();
	s->time = bpf_ktime_get_ns();
	s->sending = sending;
	come_to(s, OUTCOME_LOST, loss);
	settle(k, s);
	return 0;
}

static __always_inline int enter_call(struct pt_regs *ctx, struct tls_frame *frame)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id;
	struct tls_call *call;
	struct tls_frame *kept;
	if (!is_watched(id >> 32))
		return 0;
	frame->object = TLS_ARGUMENT_1(ctx);
	frame->stack = TLS_STACK(ctx);
	frame->collected = tls_cookie(ctx) >> TLS_COLLECTED_BIT & 1;
	frame->begun = frame->kind == TLS_CALL_SEND ? bpf_ktime_get_ns() : 0;
	call = bpf_map_lookup_elem(&tls_call, &tid);
	if (!call) {
		struct tls_call fresh = { .depth = 1 };
		fresh.frame[0] = *frame;
		return bpf_map_update_elem(&tls_call, &tid, &fresh, BPF_ANY) ? miss_call(frame, id >> 32, LOSS_NO_STATE) : 0;
	}
	kept = begin_call(call, frame->stack);
	if (!kept)
		return miss_call(frame, id >> 32, LOSS_STEPS);
	*kept = *frame;
	return 0;
}

static __always_inline int enter_tls(struct pt_regs *ctx, struct tls_frame *frame)
{
	frame->buffer = TLS_ARGUMENT_2(ctx);
	return enter_call(ctx, frame);
}

SEC("uprobe")
int tls_read_enter(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct tls_frame frame = { .kind = TLS_CALL_RECEIVE };
	return enter_tls(ctx, &frame);
}

SEC("uprobe")
int tls_write_enter(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct tls_frame frame = { .kind = TLS_CALL_SEND };
	return enter_tls(ctx, &frame);
}

/*
 * A function for records of any type (the second argument), into the buffer that is the third: of those that are no
 * data (23) nothing is reported. A program of its own, for kernels without cookies.
 */
SEC("uprobe")
int tls_typed_read_enter(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct tls_frame frame = { .kind = (u32)TLS_ARGUMENT_2(ctx) == 23 ? TLS_CALL_RECEIVE : TLS_CALL_REPORTED };
	frame.buffer = TLS_ARGUMENT_3(ctx);
	return enter_call(ctx, &frame);
}

/* What was gathered, and reported then, is sent. */
SEC("uprobe")
int tls_uncork_enter(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct tls_frame frame = { .kind = TLS_CALL_REPORTED };
	return enter_call(ctx, &frame);
}

static __always_inline u64 count_argument(struct pt_regs *ctx)
{
	u64 fourth = TLS_ARGUMENT_4(ctx), fifth = TLS_ARGUMENT_5(ctx);
	/* Two loads that the compiler must not make one: the verifier wants constant offsets. */
	barrier_var(fourth);
	barrier_var(fifth);
	return tls_cookie(ctx) >> TLS_FIFTH_BIT & 1 ? fifth : fourth;
}

SEC("uprobe")
int tls_read_ex_enter(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct tls_frame frame = { .kind = TLS_CALL_RECEIVE, .count = count_argument(ctx) };
	return enter_tls(ctx, &frame);
}

SEC("uprobe")
int tls_write_ex_enter(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct tls_frame frame = { .kind = TLS_CALL_SEND, .count = count_argument(ctx) };
	return enter_tls(ctx, &frame);
}

/* From a file, by the kernel's TLS: what is sent is in no memory of the process. */
SEC("uprobe")
int tls_sendfile_enter(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct tls_frame frame = { .kind = TLS_CALL_SEND };
	return enter_call(ctx, &frame);
}

/* Another connection begins with this object, at a socket that is still to be seen. */
static __always_inline void begin_anew(struct tls_connection *t)
{
	renew_tls(t, true);
	t->transport = 0;
	t->connection.family = 0;
}

/* The handshake: where a connection begins, and where its socket shows. */
SEC("uprobe")
int tls_handshake_enter(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	struct tls_frame frame = { .kind = TLS_CALL_HANDSHAKE };
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct tls_key key = { .object = TLS_ARGUMENT_1(ctx), .tgid = tgid };
	struct tls_connection *t;
	if (!is_watched(tgid))
		return 0;
	t = find_tls(&key);
	if (!t)
		t = make_tls(&key, true);
	else if (t->freed || t->connection.flags & CONNECTION_FINISHED)
		begin_anew(t);
	if (t && tls_cookie(ctx) >> TLS_COLLECTED_BIT & 1)
		t->collected = 1;
	return enter_tls(ctx, &frame);
}

/* How many bytes the call has moved; 0 when none, -1 when the library says that there will be no more. */
static __always_inline s64 bytes_of(struct pt_regs *ctx, const struct tls_frame *frame)
{
	s32 result = (s32)TLS_RESULT(ctx);
	u64 n = 0, at = frame->count;
	if (result <= 0)
		return result || at ? 0 : -1;
	if (!at)
		return result;
	/* Not to be read: what has moved is not known. */
	if (bpf_probe_read_user(&n, sizeof(n), (void *)at))
		return -2;
	return n;
}

/* The call in hand has moved `n` bytes. */
static __always_inline int reported(void *ctx, const struct tls_frame *frame, s64 n, struct tls_times at)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct tls_key key = { .object = frame->object, .tgid = tgid };
	struct tls_connection *t = find_tls(&key);
	if (n == -1) {
		/* The peer has said that it is done: for a client that is the end. */
		if (t && t->connection.side == SIDE_CLIENT && frame->kind == TLS_CALL_RECEIVE)
			end_tls(t, CLOSE_REMOTE, 0);
		return 0;
	}
	if (n < 0 || n > 0x7fffffff)
		return miss_call(frame, tgid, LOSS_FAULT);
	if (t && t->moved)
		renew_tls(t, false);
	if (!t)
		t = make_tls(&key, false);
	if (!t) {
		/* Each exchange has a call that sends, on either side. */
		if (frame->kind == TLS_CALL_SEND)
			tally_add(tgid, TALLY_LOST << 8 | LOSS_NO_STATE, 1);
		return 0;
	}
	if (frame->collected)
		t->collected = 1;
	return move_plain(ctx, t, frame, n, at);
}

/*
 * GnuTLS has made a record of what it was given and could not send it: the program calls again, with the same bytes or
 * with none, until all has gone. Then the result is the number of bytes, which are reported once.
 */
enum { GNUTLS_AGAIN = -28, GNUTLS_INTERRUPTED = -52 };

static __always_inline void find_unsent(struct tls_frame *frame, s32 result)
{
	struct tls_key key = { .object = frame->object, .tgid = bpf_get_current_pid_tgid() >> 32 };
	struct tls_connection *t;
	if (result > 0 ? frame->buffer != 0 : !frame->buffer || (result != GNUTLS_AGAIN && result != GNUTLS_INTERRUPTED))
		return;
	t = find_tls(&key);
	if (!t)
		return;
	if (result > 0)
		frame->buffer = t->unsent;
	t->unsent = result > 0 ? 0 : frame->buffer;
}

/*
 * At the end of every call that has an enter program: what it was, and how many bytes it has moved; 0 when there is
 * nothing to report.
 */
APART s64 call_exits(struct pt_regs *ctx, struct tls_frame *frame, struct tls_times *at)
{
	u32 tid = bpf_get_current_pid_tgid(), depth;
	struct tls_call *call = bpf_map_lookup_elem(&tls_call, &tid);
	struct tls_frame *around = NULL;
	s64 n;
	if (!call || !call->depth)
		return 0;
	depth = --call->depth;
	if (depth >= TLS_FRAMES)
		return 0;
	*frame = *frame_at(call, depth + 1);
	at->arrival = call->arrival;
	at->sent = call->sent;
	if (frame->kind >= TLS_CALL_HANDSHAKE || frame->reported)
		return 0;
	if (depth)
		around = frame_at(call, depth);
	if (around && around->kind == TLS_CALL_REPORTED && around->object == frame->object)
		return 0;
	if (frame->kind == TLS_CALL_SEND && !frame->count)
		find_unsent(frame, TLS_RESULT(ctx));
	n = bytes_of(ctx, frame);
	if (n && around && around->object == frame->object && around->kind == frame->kind)
		around->reported = 1;
	return n;
}

/*
 * The object is to be freed. It may live on where others hold it too, and its socket
 * shows best how the connection ends: so it goes when both have.
 */
static __always_inline int free_tls(u64 object)
{
	struct tls_key key = { .object = object, .tgid = bpf_get_current_pid_tgid() >> 32 };
	struct tls_connection *t = find_tls(&key);
	if (!t)
		return 0;
	if (!t->freed)
		t->freed = bpf_ktime_get_ns();
	if (t->transport && !t->ending.reason && t->connection.family != FAMILY_UNIX)
		return 0;
	end_tls(t, CLOSE_LOCAL, 0);
	drop_tls(t);
	return 0;
}

SEC("uprobe")
int tls_free(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	return free_tls(TLS_ARGUMENT_1(ctx));
}

/* The object has made the record at `at`: a socket may come to send it. `collected`: as in struct tls_connection. */
static __always_inline int note_flight(u64 object, u64 at, bool collected)
{
	struct tls_flight_key flight = {};
	struct tls_key key = { .object = object, .tgid = bpf_get_current_pid_tgid() >> 32 };
	struct tls_connection *t = find_tls(&key);
	if ((t && t->transport) || !read_record(&flight, at))
		return 0;
	/* A hello goes in the clear: nothing has passed before it. */
	if (!t && (t = make_tls(&key, (u8)flight.first == 1 || (u8)flight.first == 2)))
		t->collected = collected;
	bpf_map_update_elem(&tls_flight, &flight, &object, BPF_ANY);
	return 0;
}

/*
 * Records go into a BIO. A socket's shows inside the call; those of a memory BIO are sent later, by the program: then
 * the record shows which object has made it.
 */
SEC("uprobe")
int bio_write_enter(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 id = bpf_get_current_pid_tgid(), object;
	u32 tid = id, depth;
	struct tls_call *call = bpf_map_lookup_elem(&tls_call, &tid);
	if (!call || !call->depth || (s32)TLS_ARGUMENT_3(ctx) < (s32)sizeof(struct tls_record))
		return 0;
	depth = call->depth;
	if (depth > TLS_FRAMES)
		return 0;
	object = frame_at(call, depth)->object;
	return note_flight(object, TLS_ARGUMENT_2(ctx), false);
}

#endif
