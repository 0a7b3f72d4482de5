/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* What the kernel knows of what caused a message: facts of the thread and of the connection, at its first byte. */
#ifndef OBI_CAUSE_H
#define OBI_CAUSE_H

#include "core/map.h"

static __always_inline void fill_cause(const struct connection *k, struct cause *cause)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct thread_state *state = bpf_map_lookup_elem(&thread, &tid);
	cause->candidate = state ? state->serving : 0;
	cause->flags = k->causes | (state ? state->flags : 0);
	cause->received_base = k->received_base;
	cause->sent_base = k->sent_base;
	cause->pad = 0;
}

#endif
