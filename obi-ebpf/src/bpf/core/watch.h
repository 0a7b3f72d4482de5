/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Who is watched, and what each thread serves: the maps that the profiler shares with the hook set. */
#ifndef OBI_WATCH_H
#define OBI_WATCH_H

#include "core/kernel.h"
#include "event.h"

/*
 * tgid -> which program of it is ignored. Absent means "watch": a process is seen from
 * its very first byte, the agent filters again when it knows the name.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct ignored_program);
} process SEC(".maps");

/* How many processes are to be ignored: with none, no process is looked up. An array, since that costs no call. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} n_ignored SEC(".maps");

/* tid -> what the thread serves right now. Entries live as long as the thread. As many as the maps have room for. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 24576);
	__type(key, u32);
	__type(value, struct thread_state);
} thread SEC(".maps");

#ifndef OBI_HOST
/* Whether the current process, `tgid`, runs a program that is to be ignored. */
static __always_inline bool is_ignored(u32 tgid)
{
	u32 zero = 0, *count = bpf_map_lookup_elem(&n_ignored, &zero);
	struct ignored_program *ignored;
	if (count && !*count)
		return false;
	ignored = bpf_map_lookup_elem(&process, &tgid);
	if (!ignored)
		return false;
	return ignored->any || ignored->exec_id == (u32)READ((struct task_struct *)bpf_get_current_task(), self_exec_id);
}
#endif

#endif
