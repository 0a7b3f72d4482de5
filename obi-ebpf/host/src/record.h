// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/* The ring buffer of the kernel to test in: each record ends at an unmapped page; what was submitted is the journal. */
#pragma once
#include "map.h"

/* === the journal: records and forgotten exchanges, in their order === */

struct journal_entry {
	u32 size; /* 0: `number` was forgotten */
	u32 turns; /* 1: the number's ordinal says how many turns a database was asked for */
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

/* What the capture logic works on. */
static const struct connection *driven;

long bpf_map_push_elem(void *map, const void *value, u64 flags)
{
	struct journal_entry *entry = journal_add();
	CHECK(map == &forgotten && flags == 0);
	entry->number = *(const u64 *)value;
	entry->turns = driven->protocol == PROTOCOL_POSTGRES || driven->protocol == PROTOCOL_REDIS;
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
