/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Probes at a TLS library that find all they report in the registers of one instruction: bytes that are sent or have
 * been received, a record on its way, an object that begins or ends. Nothing is kept between two hits, and nothing by
 * thread: Go's functions may end on another thread than they began on. Which register holds what is in the attach
 * cookie (enum tls_layout_bit), so a library is a row of the agent's, not a program here.
 */
#ifndef OBI_MOMENT_H
#define OBI_MOMENT_H

#include "tls/tls.h"

/* One load, which the compiler must not make one with others: the verifier wants constant offsets. */
#define TAKE(field)			\
	do {				\
		value = ctx->field;	\
		barrier_var(value);	\
	} while (0)

/* What the register holds that is at this place of the layout; 0 if there is none. Not inlined: five of them are in one program. */
static __noinline u64 described(const struct pt_regs *ctx, u64 layout, u32 at)
{
	u64 value = 0;
#if defined(__TARGET_ARCH_x86)
	switch (layout >> at & 31) {
	case 1: TAKE(ax); break;
	case 2: TAKE(cx); break;
	case 3: TAKE(dx); break;
	case 4: TAKE(bx); break;
	case 5: TAKE(sp); break;
	case 6: TAKE(bp); break;
	case 7: TAKE(si); break;
	case 8: TAKE(di); break;
	case 9: TAKE(r8); break;
	case 10: TAKE(r9); break;
	case 11: TAKE(r10); break;
	case 12: TAKE(r11); break;
	}
#elif defined(__TARGET_ARCH_arm64)
	switch (layout >> at & 31) {
	case 1: TAKE(regs[0]); break;
	case 2: TAKE(regs[1]); break;
	case 3: TAKE(regs[2]); break;
	case 4: TAKE(regs[3]); break;
	case 5: TAKE(regs[4]); break;
	case 6: TAKE(regs[5]); break;
	case 7: TAKE(regs[6]); break;
	case 8: TAKE(regs[7]); break;
	case 30: TAKE(regs[29]); break;
	}
#endif
	return value;
}

/*
 * At the jump of a check of the stack: it is about to be taken, since the stack must grow or the goroutine is wanted to
 * stop. Then the function begins again, and its arguments come by once more.
 */
static __always_inline bool begins_again(const struct pt_regs *ctx)
{
#if defined(__TARGET_ARCH_x86)
	return ctx->flags & 0x41; /* below or equal: carry or zero */
#elif defined(__TARGET_ARCH_arm64)
	return !(ctx->pstate & 1 << 29) || ctx->pstate & 1 << 30; /* lower or same: no carry, or zero */
#endif
}

/* The object at this hit, or 0 when there is nothing to report. */
static __always_inline u64 object_now(const struct pt_regs *ctx, u64 layout)
{
	u64 object, home = layout >> TLS_HOME_AT & 0xffff;
	if (layout >> TLS_CHECK_BIT & 1 && begins_again(ctx))
		return 0;
	if (layout >> TLS_TYPE_AT & 31 && (u8)described(ctx, layout, TLS_TYPE_AT) != (u8)(layout >> TLS_WANTED_AT))
		return 0;
	if (described(ctx, layout, TLS_ERROR_AT) || !is_watched(bpf_get_current_pid_tgid() >> 32))
		return 0;
	object = described(ctx, layout, TLS_OBJECT_AT);
	if (home && bpf_probe_read_user(&object, sizeof(object), (void *)(object + home))) {
		/* Whose the bytes are is not known; each exchange has a record that is received, on either side. */
		tally_add(bpf_get_current_pid_tgid() >> 32, TALLY_LOST << 8 | LOSS_FAULT, 1);
		return 0;
	}
	return object;
}

/* `otherwise` is that of x86-64: elsewhere there is nothing to report without a cookie. */
static __always_inline u64 layout_of(struct pt_regs *ctx, u64 otherwise)
{
	u64 layout = tls_cookie(ctx);
#if defined(__TARGET_ARCH_x86)
	return layout ? layout : otherwise;
#else
	return layout;
#endif
}

/* In the portable objects the walk goes on in other programs, which find it by thread. */
static __always_inline void keep_walk(void)
{
#ifdef OBI_PORTABLE
	u32 tid = bpf_get_current_pid_tgid();
	struct tls_call none = {};
	if (!bpf_map_lookup_elem(&tls_call, &tid))
		bpf_map_update_elem(&tls_call, &tid, &none, BPF_NOEXIST);
#endif
}

/*
 * Data is about to be sent, or a record of data has been decrypted: how many bytes, as call_exits(). What is sent is
 * reported now and not when it was sent: its answer may be read before that.
 */
APART s64 moves_now(struct pt_regs *ctx, u64 layout, u32 kind, struct tls_frame *frame)
{
	struct tls_key key = { .object = object_now(ctx, layout), .tgid = bpf_get_current_pid_tgid() >> 32 };
	struct tls_connection *t;
	s64 n = described(ctx, layout, TLS_COUNT_AT);
	if (!key.object || !n)
		return 0;
	t = find_tls(&key);
	if (!t && (t = make_tls(&key, false)))
		t->collected = 1;
	frame->object = key.object;
	frame->kind = kind;
	frame->buffer = described(ctx, layout, TLS_BUFFER_AT);
	frame->begun = bpf_ktime_get_ns();
	keep_walk();
	/* No number says here that there will be no more. */
	return n < 0 ? -2 : n;
}

/* Records are about to go to whatever carries them. */
SEC("uprobe")
int tls_now_record(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = layout_of(ctx, TLS_GO_RECORD), object = object_now(ctx, layout);
	if (!object || (s64)described(ctx, layout, TLS_COUNT_AT) < (s64)sizeof(struct tls_record))
		return 0;
	return note_flight(object, described(ctx, layout, TLS_BUFFER_AT), true);
}

/*
 * A connection begins with this object. Not with one whose socket is open: that is another handshake of the same
 * connection, in the middle of what it carries.
 */
SEC("uprobe")
int tls_now_begin(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 layout = layout_of(ctx, TLS_GO_OBJECT);
	struct tls_key key = { .object = object_now(ctx, layout), .tgid = bpf_get_current_pid_tgid() >> 32 };
	struct tls_connection *t;
	if (!key.object)
		return 0;
	t = find_tls(&key);
	if (!t)
		t = make_tls(&key, true);
	else if (!t->transport || t->ending.reason || t->freed || t->connection.flags & CONNECTION_FINISHED)
		begin_anew(t);
	if (t)
		t->collected = 1;
	return 0;
}

/* The program closes it. */
SEC("uprobe")
int tls_now_end(struct pt_regs *ctx)
{
	OWN_STACK(ctx);
	u64 object = object_now(ctx, layout_of(ctx, TLS_GO_OBJECT));
	return object ? free_tls(object) : 0;
}

#endif
