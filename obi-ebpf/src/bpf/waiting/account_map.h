/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Where accounts are: the map that the hook set shares with those who sample waits. */
#ifndef OBI_ACCOUNT_MAP_H
#define OBI_ACCOUNT_MAP_H

#include "waiting/times.h"

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct account);
} account SEC(".maps");

#endif
