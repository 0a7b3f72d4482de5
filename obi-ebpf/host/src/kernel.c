// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * A kernel to test the capture logic in: the helpers it calls, made of plain
 * memory, and a few entry points for the tests. Strict where the real kernel is
 * lenient: every record ends at an unmapped page, user memory is exactly what the
 * test handed over, new memory is filled with bytes that look like HTTP, and a
 * record reserved twice or submitted after its end aborts.
 */
#include "capture.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "host kernel: broken rule at line %d: %s\n", __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

/* === chance === */

static u64 chance_state;

static u64 chance(void)
{
	chance_state ^= chance_state << 13;
	chance_state ^= chance_state >> 7;
	chance_state ^= chance_state << 17;
	return chance_state;
}

/* How often out of 256 something fails. */
struct host_faults {
	u32 ring;
	u32 user;
	u32 note;
	u32 spare;
};

static struct host_faults faults;

static bool fails(u32 often)
{
	return often && (chance() & 0xff) < often;
}

/* === hash maps === */

enum { TABLE_ENTRIES = 8192, KEY_MOST = 8, VALUE_MOST = 32 };

struct entry {
	bool used;
	u8 key[KEY_MOST] __attribute__((aligned(8)));
	u8 value[VALUE_MOST] __attribute__((aligned(8)));
};

struct table {
	u32 key_size, value_size, n, most; /* `most`: entries at or above this index were never used */
	struct entry entry[TABLE_ENTRIES];
};

static struct table notes = { .key_size = sizeof(u64), .value_size = sizeof(u32) };
static struct table threads = { .key_size = sizeof(u32), .value_size = sizeof(struct thread_state) };
static struct table tallies = { .key_size = sizeof(struct tally_key), .value_size = sizeof(u64) };
static u64 tally_rests[64];
static u8 *guarded(u8 **page, u32 size);
#ifdef OBI_PORTABLE
static u8 *scratch_page;
#endif

static struct table *table_of(void *map)
{
	CHECK(map == &note || map == &thread || map == &tally);
	return map == &note ? &notes : map == &thread ? &threads : &tallies;
}

static struct entry *find(struct table *t, const void *key)
{
	for (u32 i = 0; i < t->most; i++)
		if (t->entry[i].used && !memcmp(t->entry[i].key, key, t->key_size))
			return &t->entry[i];
	return NULL;
}

void *bpf_map_lookup_elem(void *map, const void *key)
{
	struct entry *found;
	if (map == &tally_rest) {
		u32 index = *(const u32 *)key;
		return index < 64 ? &tally_rests[index] : NULL;
	}
#ifdef OBI_PORTABLE
	if (map == &scratch)
		return *(const u32 *)key ? NULL : guarded(&scratch_page, sizeof(struct scratch));
#endif
	found = find(table_of(map), key);
	return found ? found->value : NULL;
}

long bpf_map_update_elem(void *map, const void *key, const void *value, u64 flags)
{
	struct table *t = table_of(map);
	struct entry *found = find(t, key);
	u32 i = 0;
	if (found && flags == BPF_NOEXIST)
		return -17;
	if (!found) {
		if (map == &note && fails(faults.note))
			return -7;
		while (i < TABLE_ENTRIES && t->entry[i].used)
			i++;
		if (i == TABLE_ENTRIES)
			return -7;
		found = &t->entry[i];
		found->used = true;
		memcpy(found->key, key, t->key_size);
		t->n++;
		t->most = i + 1 > t->most ? i + 1 : t->most;
	}
	memcpy(found->value, value, t->value_size);
	return 0;
}

long bpf_map_delete_elem(void *map, const void *key)
{
	struct table *t = table_of(map);
	struct entry *found = find(t, key);
	if (!found)
		return -2;
	found->used = false;
	t->n--;
	return 0;
}

/* === the journal: records and forgotten exchanges, in their order === */

struct journal_entry {
	u32 size; /* 0: `number` was forgotten */
	u64 number;
	u8 *bytes;
};

static struct journal_entry *journal;
static u32 n_journal, journal_room;

static struct journal_entry *journal_add(void)
{
	if (n_journal == journal_room) {
		journal_room = journal_room ? 2 * journal_room : 64;
		journal = realloc(journal, journal_room * sizeof(*journal));
		CHECK(journal);
	}
	memset(&journal[n_journal], 0, sizeof(*journal));
	return &journal[n_journal++];
}

long bpf_map_push_elem(void *map, const void *value, u64 flags)
{
	CHECK(map == &forgotten && flags == 0);
	journal_add()->number = *(const u64 *)value;
	return 0;
}

/* === memory that ends at an unmapped page === */

enum { PAGE = 4096 };

static void stale(u8 *bytes, u32 size)
{
	static const char text[] = "\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\nGET / HTTP/1.1\r\n\n\n";
	u32 from = chance() % sizeof(text);
	for (u32 i = 0; i < size; i++)
		bytes[i] = text[(from + i) % sizeof(text)];
}

static u8 *guarded(u8 **page, u32 size)
{
	CHECK(size <= PAGE && size % 8 == 0);
	if (!*page) {
		*page = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(*page != MAP_FAILED && !mprotect(*page + PAGE, PAGE, PROT_NONE));
	}
	return *page + PAGE - size;
}

/* === ring buffer: a record is in the making while another one may be reserved inside it === */

enum { RECORDS_MOST = 4 };

static struct {
	u8 *page;
	u32 size; /* 0: free */
} making[RECORDS_MOST];

void *bpf_ringbuf_reserve(void *map, u64 size, u64 flags)
{
	u32 i = 0;
	u8 *record;
	CHECK(map == &events && flags == 0);
	if (fails(faults.ring))
		return NULL;
	while (i < RECORDS_MOST && making[i].size)
		i++;
	CHECK(i < RECORDS_MOST);
	record = guarded(&making[i].page, size);
	making[i].size = size;
	stale(record, size);
	return record;
}

static u32 made(void *record)
{
	for (u32 i = 0; i < RECORDS_MOST; i++)
		if (making[i].size && making[i].page + PAGE - making[i].size == record)
			return i;
	CHECK(!"a record that is not reserved");
	return 0;
}

void bpf_ringbuf_submit(void *record, u64 flags)
{
	u32 i = made(record);
	struct journal_entry *entry = journal_add();
	CHECK(flags == 0 || flags == BPF_RB_NO_WAKEUP || flags == BPF_RB_FORCE_WAKEUP);
	entry->size = making[i].size;
	entry->bytes = malloc(entry->size);
	CHECK(entry->bytes);
	memcpy(entry->bytes, record, entry->size);
	making[i].size = 0;
}

void bpf_ringbuf_discard(void *record, u64 flags)
{
	CHECK(flags == BPF_RB_NO_WAKEUP || flags == BPF_RB_FORCE_WAKEUP);
	making[made(record)].size = 0;
}

u64 bpf_ringbuf_query(void *map, u64 flags)
{
	CHECK(map == &events && flags == BPF_RB_AVAIL_DATA);
	return chance() % (4 * wakeup_bytes);
}

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
	for (u32 i = 0; i < n; i++)
		if (step_of(i, context))
			return i + 1;
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

/* The kernel goes on 33 times; here that has no limit, so that both flavours tell the same. */
static bool goes_on;

int host_tail_call(void)
{
	goes_on = true;
	return 1;
}

/* What was begun goes on in the program `walk`, where there is one. */
static void go_on(void)
{
#ifdef OBI_PORTABLE
	while (goes_on) {
		goes_on = false;
		walk_on(NULL);
	}
#else
	CHECK(!goes_on);
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
	notes.n = notes.most = threads.n = threads.most = tallies.n = tallies.most = 0;
	memset(tally_rests, 0, sizeof(tally_rests));
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
	};
	CHECK(from->scattered || from->opaque || from->n_parts <= 1);
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

void host_end(struct sock *sk, u64 time, u32 reason)
{
	struct ending how = { .time = time, .reason = reason };
	now = time;
	end_connection(&sk->connection, &how);
}

u32 host_journal(u32 index, const u8 **bytes, u64 *number)
{
	CHECK(index < n_journal);
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
	u64 n = tally_rests[kind * 16 + reason];
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

/* === the framing scan alone === */

/* Marks the newlines of eight bytes and says where the first one ends (0: none). */
u32 host_first_newline(u64 word, u64 *flags)
{
	*flags = newlines(word);
	return *flags ? through_first(*flags) : 0;
}

struct host_head {
	u64 content_length;
	u32 result, used, flags, mode, status;
};

/* Scans one piece as the first of a head. */
void host_scan(const u8 *bytes, u32 length, struct host_head *head)
{
	static u8 *page;
	struct large_record *r = (struct large_record *)guarded(&page, sizeof(*r));
	struct cursor c = {};
	CHECK(length <= LARGE_PIECE_BYTES - SLACK_BYTES);
	stale((u8 *)r, sizeof(*r));
	memcpy(r->bytes, bytes, length);
	cursor_reset(&c, MODE_HEAD);
	scan_begin(&c, length);
	while (c.result == SCAN_MORE && c.at < AREA_START + length) {
		c.end = AREA_START + length;
		scan_piece(&c, &r->head, LARGE_PIECE_BYTES);
	}
	*head = (struct host_head){ c.content_length, c.result, c.at - AREA_START, c.flags,
				    c.result == SCAN_HEAD_END ? body_mode(&c, false) : MODE_HEAD, c.status };
}

struct host_chunk {
	u64 remaining;
	u32 result, used, mode;
};

/* Feeds the bytes of chunk framing until something happens. */
void host_chunk(const u8 *bytes, u32 length, struct host_chunk *chunk)
{
	struct cursor c = {};
	u8 result = CHUNK_MORE;
	u32 used = 0;
	cursor_reset(&c, MODE_CHUNK_SIZE);
	while (used < length && result == CHUNK_MORE)
		result = chunk_byte(&c, bytes[used++]);
	*chunk = (struct host_chunk){ c.remaining, result, used, c.mode };
}
