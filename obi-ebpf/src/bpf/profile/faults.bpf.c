/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Samples of page faults: at every so many of a CPU's the stacks of the kernel and of the user. Loaded beside the
 * sampler of what runs (profile.bpf.c), whose text and whose maps it has, but for its memory: the clock's interrupt may
 * come in between.
 */
#define OBI_BESIDE
#include "profile/profile.bpf.c"

SEC("perf_event")
int page_fault(struct context *ctx)
{
	struct sample *s = sample_in_hand(0);
	if (!s || !begin(s, ctx))
		return 0;
	s->event.kind = SAMPLE_PAGE_FAULTS;
	WALK_AND_TELL(ctx, s, begin_user(s, ctx));
}
