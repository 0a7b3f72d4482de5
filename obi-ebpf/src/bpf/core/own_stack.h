/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Programs that the kernel may preempt keep to the stack of their thread. */
#ifndef OBI_OWN_STACK_H
#define OBI_OWN_STACK_H

#include "core/map.h"

#ifdef OBI_PORTABLE
/* Kernels that take this flavour know nothing of the below. */
#define OWN_STACK(context)
#else
/*
 * From 6.13 on the kernel gives programs of the kinds kprobe and tracepoint a stack for each processor, trusting that
 * no second run of one begins there before the first has ended (`bpf_enable_priv_stack()`). Of probes in user space,
 * whose programs it preempts, that is not true: two runs share one stack, and what the verifier has found out about a
 * pointer in it is true of another's. On 7.2 that was a NULL, and the end of the machine. A program with a tail call
 * stays on its thread's stack. This one is never made, and leaves no code: the setting is a constant to the verifier,
 * which does not come to ask for the map. With a map there would be one more to leave behind: the kernel forgets to put
 * one of this kind down when it is listed while its last holder goes (`prog_array_map_clear()`, seen on 6.18).
 */
#define OWN_STACK(context)				\
	do {						\
		if (!self_tgid)				\
			bpf_tail_call(context, NULL, 0);	\
	} while (0)
#endif

#endif
