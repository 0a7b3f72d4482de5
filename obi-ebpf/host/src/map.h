// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/* The hash maps of the kernel to test in, and what decides when something fails. */
#pragma once
#include "core/capture.h"
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
	u32 steps;
};

static struct host_faults faults;

static bool fails(u32 often)
{
	return often && (chance() & 0xff) < often;
}

/* === hash maps === */

enum { TABLE_ENTRIES = 8192, KEY_MOST = 16, VALUE_MOST = 40 };

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
static struct table contents = { .key_size = sizeof(struct stream_key), .value_size = sizeof(struct stream_data) };
static struct tally_rests tally_rests;
static u8 *guarded(u8 **page, u32 size);
#ifdef OBI_PORTABLE
static u8 *scratch_page;
#endif

static struct table *table_of(void *map)
{
	CHECK(map == &note || map == &thread || map == &tally || map == &content);
	return map == &note ? &notes : map == &thread ? &threads : map == &content ? &contents : &tallies;
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
	if (map == &tally_rest)
		return *(const u32 *)key ? NULL : &tally_rests;
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
