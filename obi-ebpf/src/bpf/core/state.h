/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Where the state of a connection lives: in the socket itself where the kernel
 * lets our kind of program do that, otherwise in a hash by the socket's address.
 */
#ifndef OBI_STATE_H
#define OBI_STATE_H

#include "core/tally.h"

#ifdef OBI_STATE_IN_HASH

enum { CONNECTIONS_MOST = 16384, SPARES_MOST = 1024 };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, CONNECTIONS_MOST);
	__type(key, u64);
	__type(value, struct connection);
} connection SEC(".maps");

#ifndef OBI_PORTABLE
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SPARES_MOST);
	__type(key, u64);
	__type(value, struct spare);
} spare SEC(".maps");
#endif

/* Zeroes to begin with: neither fits the stack. */
struct blank {
	struct connection connection;
	struct spare spare;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct blank);
} blank SEC(".maps");

static __always_inline struct connection *find_connection(struct sock *sk)
{
	u64 key = (u64)sk;
	return bpf_map_lookup_elem(&connection, &key);
}

static __always_inline struct connection *make_connection(struct sock *sk)
{
	u64 key = (u64)sk;
	u32 zero = 0;
	struct blank *from = bpf_map_lookup_elem(&blank, &zero);
	if (from)
		bpf_map_update_elem(&connection, &key, &from->connection, BPF_NOEXIST);
	return bpf_map_lookup_elem(&connection, &key);
}

#ifndef OBI_PORTABLE
static __always_inline struct spare *make_spare(struct connection *k, struct sock *sk)
{
	u64 key = (u64)sk;
	u32 zero = 0;
	struct blank *from = bpf_map_lookup_elem(&blank, &zero);
	k->flags |= CONNECTION_SPARE;
	if (from)
		bpf_map_update_elem(&spare, &key, &from->spare, BPF_NOEXIST);
	return bpf_map_lookup_elem(&spare, &key);
}
#endif

/* The socket is gone, or never to be used again. */
static __always_inline void drop_connection(struct connection *k, struct sock *sk)
{
	u64 key = (u64)sk;
#ifndef OBI_PORTABLE
	if (k->flags & CONNECTION_SPARE)
		bpf_map_delete_elem(&spare, &key);
#else
	(void)k;
#endif
	bpf_map_delete_elem(&connection, &key);
}

#else

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connection);
} connection SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct spare);
} spare SEC(".maps");

static __always_inline struct connection *find_connection(struct sock *sk)
{
	return bpf_sk_storage_get(&connection, sk, NULL, 0);
}

static __always_inline struct connection *make_connection(struct sock *sk)
{
	return bpf_sk_storage_get(&connection, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
}

static __always_inline struct spare *make_spare(struct connection *k, struct sock *sk)
{
	k->flags |= CONNECTION_SPARE;
	return bpf_sk_storage_get(&spare, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
}

/* It goes with the socket. */
static __always_inline void drop_connection(struct connection *k, struct sock *sk)
{
	(void)k;
	(void)sk;
}

#endif

/* === their number === */

#ifdef OBI_PORTABLE
/* Atomic additions that return something came with 5.12: each CPU numbers its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} connection_count SEC(".maps");

enum { COUNT_BITS = 28 };

static __always_inline u64 next_connection_number(void)
{
	u32 zero = 0;
	u64 *count = bpf_map_lookup_elem(&connection_count, &zero);
	u64 cpu = bpf_get_smp_processor_id() + 1;
	__sync_fetch_and_add(&global.n_connections, 1);
	if (!count)
		return 0; /* cannot be: an array has its elements */
	*count += 1;
	return cpu << COUNT_BITS | (*count & ((1u << COUNT_BITS) - 1));
}
#else
static __always_inline u64 next_connection_number(void)
{
	return __sync_fetch_and_add(&global.n_connections, 1) + 1;
}
#endif

/* The end of a unix socket is seen only if it speaks HTTP: others are not counted at all. */
static __always_inline void count_open(struct connection *k)
{
	if (k->flags & (CONNECTION_COUNTED | CONNECTION_FINISHED))
		return;
	k->flags |= CONNECTION_COUNTED;
	__sync_fetch_and_add(&global.n_open, 1);
}

#endif
