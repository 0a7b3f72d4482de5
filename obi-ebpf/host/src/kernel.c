// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * A kernel to test the capture logic in: the helpers it calls, made of plain
 * memory, and a few entry points for the tests. Strict where the real kernel is
 * lenient: every record ends at an unmapped page, user memory is exactly what the
 * test handed over, new memory is filled with bytes that look like HTTP, and a
 * record reserved twice or submitted after its end aborts.
 */
#include "record.h"
#include "scan_alone.h"

/* === user memory === */

static const struct user_iovec *user;
static u32 n_user;
static bool vector_readable;

static bool inside(u64 at, u32 size, u64 base, u64 length)
{
	return at >= base && at - base <= length && size <= length - (at - base);
}

/* Only our own memory: the vectors of the tests are the user's. */
long bpf_probe_read_kernel(void *to, u32 size, const void *from)
{
	memcpy(to, from, size);
	return 0;
}

long bpf_probe_read_user(void *to, u32 size, const void *from)
{
	u64 at = (u64)from;
	bool found = vector_readable && inside(at, size, (u64)user, n_user * sizeof(*user));
	for (u32 i = 0; i < n_user && !found; i++)
		found = inside(at, size, user[i].base, user[i].length);
	CHECK(found); /* only bytes that the system call moved may be looked at */
	if (fails(faults.user)) {
		memset(to, 0, size); /* as the kernel does */
		return -14;
	}
	memcpy(to, from, size);
	return 0;
}

/* === the rest === */

long bpf_loop(u32 n, void *body, void *context, u64 flags)
{
	long (*step_of)(u32, void *) = (long (*)(u32, void *))body;
	CHECK(n <= 1 << 23 && flags == 0);
	for (u32 i = 0; i < n; i++) {
		if (step_of(i, context))
			return i + 1;
#ifndef OBI_PORTABLE
		if (body == (void *)step && fails(faults.steps))
			return i + 1;
#endif
	}
	return n;
}

struct sock {
	struct connection connection;
	u8 *spare_page;
};

void *bpf_sk_storage_get(void *map, struct sock *sk, void *value, u64 flags)
{
	if (map == &connection)
		return &sk->connection;
	CHECK(map == &spare && !value && flags == BPF_SK_STORAGE_GET_F_CREATE);
	if (!sk->spare_page && fails(faults.spare))
		return NULL;
	return guarded(&sk->spare_page, sizeof(struct spare));
}

enum { TGID = 41, TID = 43 };

static u64 now;

u64 bpf_get_current_pid_tgid(void)
{
	return (u64)TGID << 32 | TID;
}

u64 bpf_ktime_get_ns(void)
{
	return now;
}

u32 bpf_get_smp_processor_id(void)
{
	return 0;
}

/* The kernel goes on 33 times; here only a fault ends it, so that both flavours tell the same. */
static bool goes_on;
static u32 goes_on_in;

int host_tail_call(u32 program)
{
	if (fails(faults.steps))
		return 0;
	goes_on = true;
	goes_on_in = program;
	return 1;
}

/* What was begun goes on in the programs `walk`, `walk_frames` and `walk_database`, where there are any. */
static void go_on(void)
{
#ifdef OBI_PORTABLE
	while (goes_on) {
		goes_on = false;
		if (goes_on_in == WALK_FRAMES)
			walk_on(NULL, WALK_FRAMES);
		else if (goes_on_in == WALK_DATABASE)
			walk_on(NULL, WALK_DATABASE);
		else
			walk_on(NULL, WALK_HEADS);
	}
#else
	CHECK(!goes_on && !goes_on_in);
#endif
}

/* === entry points; src/lib.rs declares them === */

void host_boot(u64 seed, u32 limit, const struct host_faults *often)
{
	chance_state = seed | 1;
	faults = *often;
	head_limit = limit;
	memset(&notes.entry, 0, notes.most * sizeof(struct entry));
	memset(&threads.entry, 0, threads.most * sizeof(struct entry));
	memset(&tallies.entry, 0, tallies.most * sizeof(struct entry));
	memset(&contents.entry, 0, contents.most * sizeof(struct entry));
	notes.n = notes.most = threads.n = threads.most = tallies.n = tallies.most = contents.n = contents.most = 0;
	memset(&tally_rests, 0, sizeof(tally_rests));
	memset(&global, 0, sizeof(global));
	for (u32 i = 0; i < n_journal; i++)
		free(journal[i].bytes);
	n_journal = 0;
	now = 0;
}

void host_faults(const struct host_faults *often)
{
	faults = *often;
}

struct sock *host_connect(u64 number, u32 receive_mode, u32 send_mode)
{
	struct sock *sk = calloc(1, sizeof(*sk));
	CHECK(sk);
	sk->connection.number = number;
	sk->connection.tgid = TGID;
	sk->connection.family = FAMILY_INET;
	sk->connection.receive.mode = receive_mode;
	sk->connection.send.mode = send_mode;
	if (receive_mode || send_mode)
		sk->connection.flags |= CONNECTION_JOINED;
	return sk;
}

void host_free(struct sock *sk)
{
	if (sk->spare_page)
		munmap(sk->spare_page, 2 * PAGE);
	free(sk);
}

struct host_segment {
	const struct user_iovec *parts;
	u64 time;
	u32 n_parts;
	u32 length; /* of all parts, or of the opaque bytes */
	u32 opaque;
	u32 gap;
	u32 sending;
	u32 scattered; /* 1: the system call had an iovec array, 0: one buffer */
};

void host_segment(struct sock *sk, const struct host_segment *from)
{
	struct cursor *c = from->sending ? &sk->connection.send : &sk->connection.receive;
	struct segment *segment = &sk->connection.segment[from->sending];
	struct walk walk = { .connection = &sk->connection, .sk = sk, .segment = segment };
	struct source *source = &segment->source;
	*segment = (struct segment){
		.time = from->time, .arrival = from->time, .left = from->length, .gap = from->gap, .sending = from->sending,
		.n_requests = 7, /* of the segment before: hook sets set what they know, not all of it */
	};
	CHECK(from->scattered || from->opaque || from->n_parts <= 1);
	driven = &sk->connection;
	now = from->time;
	user = from->parts;
	n_user = from->opaque ? 0 : from->n_parts;
	vector_readable = from->scattered;
	/* As place() of the hook set does. */
	segment->offset = c->next + from->gap;
	c->next += from->gap + from->length;
	source->opaque = from->opaque;
	if (from->opaque) {
	} else if (from->scattered) {
		source->vector = (u64)user;
		source->vectors = n_user;
	} else if (n_user) {
		source->base = user->base;
		source->length = from->length;
	}
	if (c->mode != MODE_IGNORED)
		capture(&walk);
	go_on();
	for (u32 i = 0; i < RECORDS_MOST; i++)
		CHECK(!making[i].size); /* every record was submitted or discarded */
	n_user = 0;
}

void host_end(struct sock *sk, u64 time, u32 reason, u32 unseen_requests)
{
	struct ending how = { .time = time, .reason = reason, .loss = reason == CLOSE_ABANDONED ? LOSS_GAP : LOSS_NONE };
	driven = &sk->connection;
	now = time;
	if (unseen_requests)
		lose_last(&sk->connection, unseen_requests); /* as check_unseen() does */
	end_connection(&sk->connection, &how);
}

u32 host_journal(u32 index, const u8 **bytes, u64 *number, u32 *turns)
{
	CHECK(index < n_journal);
	*turns = journal[index].turns;
	*bytes = journal[index].bytes;
	*number = journal[index].number;
	return journal[index].size;
}

u32 host_journal_length(void)
{
	return n_journal;
}

u64 host_tally(u32 kind, u32 reason)
{
	u64 n = tally_rests.n[kind * 16 + reason];
	for (u32 i = 0; i < tallies.most; i++) {
		const struct tally_key *key = (const struct tally_key *)tallies.entry[i].key;
		if (tallies.entry[i].used && key->kind == kind && key->reason == reason)
			n += *(const u64 *)tallies.entry[i].value;
	}
	return n;
}

u32 host_notes(void)
{
	return notes.n;
}

/* Streams whose content is in the map. */
u32 host_contents(void)
{
	return contents.n;
}

/* What any thread is said to serve now; 0: nothing. */
u64 host_current(void)
{
	for (u32 i = 0; i < threads.most; i++) {
		const struct thread_state *state = (const struct thread_state *)threads.entry[i].value;
		if (threads.entry[i].used && state->exchange)
			return state->exchange;
	}
	return 0;
}

struct host_state {
	u32 n_requests, n_responses, n_noted, side, receive_mode, send_mode;
};

void host_state(const struct sock *sk, struct host_state *state)
{
	const struct connection *k = &sk->connection;
	*state = (struct host_state){ k->n_requests, k->n_responses, k->n_noted, k->side, k->receive.mode, k->send.mode };
}
