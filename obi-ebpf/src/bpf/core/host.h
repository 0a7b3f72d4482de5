/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Takes the place of the kernel and of libbpf when the capture logic is compiled
 * for the host to be tested there (OBI_HOST): the same helpers, as plain functions
 * that the test harness defines. Nothing of it reaches the kernel programs.
 */
#ifndef OBI_HOST_H
#define OBI_HOST_H

#include <stddef.h>
#include <linux/bpf.h>

#define SEC(name)
#define __uint(name, value) int(*name)[value]
#define __type(name, value) value *name
#define __noinline __attribute__((noinline))
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
/* Tests change the settings between runs. */
#define SETTING volatile
#define barrier() ((void)0)
#define barrier_var(name) ((void)(name))
#define SHARED __noinline
#define RARE __noinline
#define APART static __noinline

struct sock;

/* 1: the program goes on in another one, element `program` of `walks`. */
int host_tail_call(u32 program);
void *bpf_map_lookup_elem(void *map, const void *key);
long bpf_map_update_elem(void *map, const void *key, const void *value, u64 flags);
long bpf_map_delete_elem(void *map, const void *key);
long bpf_map_push_elem(void *map, const void *value, u64 flags);
void *bpf_ringbuf_reserve(void *map, u64 size, u64 flags);
void bpf_ringbuf_submit(void *record, u64 flags);
void bpf_ringbuf_discard(void *record, u64 flags);
u64 bpf_ringbuf_query(void *map, u64 flags);
long bpf_probe_read_kernel(void *to, u32 size, const void *from);
long bpf_probe_read_user(void *to, u32 size, const void *from);
long bpf_loop(u32 n, void *body, void *context, u64 flags);
void *bpf_sk_storage_get(void *map, struct sock *sk, void *value, u64 flags);
u64 bpf_get_current_pid_tgid(void);
u64 bpf_ktime_get_ns(void);
u32 bpf_get_smp_processor_id(void);

#endif
