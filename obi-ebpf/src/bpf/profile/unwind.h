/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * From a user's registers to its caller's, one frame at a time, by the tables of profile/unwind_table.h. Pure but for
 * three things that the including file defines, so that it is the same text on the host, where it is tested:
 *   UNWIND_CHUNK(key), UNWIND_BLOCK(key)  an element of the maps, or NULL
 *   UNWIND_READ(to, bytes, address)       the user's memory; 0: done
 *   UNWIND_CACHE(number)                  an element of the cache, or NULL; any number will do
 */
#ifndef OBI_UNWIND_H
#define OBI_UNWIND_H

#include "event.h"

enum {
	UNWIND_REGISTERS = 32,
	/* Beyond this many bytes above the stack pointer a frame pointer is not believed, where no table vouches for it. */
	UNWIND_FRAME_MOST = 1 << 20,
	/* More do not help: with 32 programs in turns four times as many made no difference. */
	UNWIND_CACHE_BITS = 10,
	UNWIND_CACHED = 1 << UNWIND_CACHE_BITS,
	/* Words of the user's stack that are read at once, a power of two. */
	UNWIND_WINDOW = 128,
	/* Words below an address that are read with it: what its frame has saved. */
	UNWIND_WINDOW_BELOW = 8,
};

/* What a table said of an address: a table's number is never used twice, so this stays true. */
struct unwind_cached {
	u32 table;
	u32 pc;
	u32 rule;
	u32 pad;
};

/* A walk under way. */
struct unwind {
	u64 pc; /* 0: there is no caller */
	u64 sp;
	u64 fp;
	u64 link;   /* (arm64) return address, while no frame has saved it */
	u32 tgid;
	u8 exact;   /* 1: `pc` is the next instruction; 0: it stands behind a call, into the kernel perhaps */
	u8 all;     /* 1: `other` is known: nothing has been called from this frame */
	u8 pointer; /* 1: this frame was found by frame pointer, for want of a rule */
	u8 ended;   /* 1: see `end` */
	u32 end;    /* enum stack_end */
	u32 has_entry;
	struct mapping_entry entry; /* what the last address was found in */
	u64 other[UNWIND_REGISTERS]; /* by DWARF number; on arm64 as the kernel has them, which is the same */
	u64 memory[UNWIND_REGISTERS + 2]; /* what is read from the user's stack */
	u64 window_at;                    /* where the window is in the user's memory */
	u32 window_words;                 /* 0: nothing is in it */
	u32 pad;
	u64 window[UNWIND_WINDOW];        /* a piece of the stack: a call costs more than the bytes that it reads */
};

/* === the user's memory === */

/* Words from an address on into memory[to], memory[to + 1]; 0: done. */
static __always_inline long read_words(struct unwind *w, u32 to, u64 address, u32 words)
{
	u64 at = address - w->window_at;
	if (at & 7 || at / 8 + words > w->window_words) {
		/* Frames lie above each other, so the next ones will be in it. */
		u64 above = address - w->sp;
		w->window_at = above < UNWIND_WINDOW_BELOW * 8 ? address - (above & ~7ULL) : address - UNWIND_WINDOW_BELOW * 8;
		w->window_words = UNWIND_WINDOW;
		if (UNWIND_READ(w->window, sizeof(w->window), w->window_at)) {
			/* The stack may begin just above. */
			w->window_words = 0;
			return UNWIND_READ(w->memory + to, words * 8, address);
		}
		at = address - w->window_at;
	}
	at /= 8;
	w->memory[to] = w->window[at & (UNWIND_WINDOW - 1)];
	if (words > 1)
		w->memory[to + 1] = w->window[(at + 1) & (UNWIND_WINDOW - 1)];
	return 0;
}

/* === finding === */

/* `half` if the row is at or before the address, without a branch: to the verifier it is one way. */
#define STEP_IF_BEFORE(start, address, half) ((u64)(half) & -(((u64)(start) - (u64)(address)-1) >> 63))

/* The last row at or before `pc`; UNWIND_ROWS if there is none. */
static __always_inline u32 row_before(const struct unwind_chunk *chunk, u32 pc)
{
	u64 low = 0;
	u32 length = UNWIND_ROWS;
#pragma clang loop unroll(full)
	for (u32 i = 0; i < 8; i++) {
		u32 half = length / 2;
		low += STEP_IF_BEFORE(chunk->row[low + half - 1].pc, pc, half);
		length -= half;
	}
	low += STEP_IF_BEFORE(chunk->row[low].pc, pc, 1);
	return low ? low - 1 : UNWIND_ROWS;
}

/* Likewise; MAPPING_ENTRIES if there is none. */
static __always_inline u32 entry_before(const struct mapping_block *block, u64 address)
{
	u64 low = 0;
	u32 length = MAPPING_ENTRIES;
#pragma clang loop unroll(full)
	for (u32 i = 0; i < 6; i++) {
		u32 half = length / 2;
		low += STEP_IF_BEFORE(block->entry[low + half - 1].start, address, half);
		length -= half;
	}
	low += STEP_IF_BEFORE(block->entry[low].start, address, 1);
	return low ? low - 1 : MAPPING_ENTRIES;
}

/* Fills w->entry; returns what is wrong, or STACK_COMPLETE. */
static __always_inline u32 find_entry(struct unwind *w, u64 address)
{
	struct mapping_key key = { .tgid = w->tgid };
	const struct mapping_block *block;
	u32 i;
	if (w->has_entry && address - w->entry.start < w->entry.end - w->entry.start)
		return STACK_COMPLETE;
	w->has_entry = 0;
	block = UNWIND_BLOCK(&key);
	if (!block)
		return STACK_NO_PROCESS;
	if (address >> STACK_ADDRESS_BITS)
		return STACK_NO_MAPPING;
	i = entry_before(block, address);
	if (block->index && i < MAPPING_ENTRIES) {
		key.block = block->entry[i].table;
		block = UNWIND_BLOCK(&key);
		if (!block)
			return STACK_NO_MAPPING;
		i = entry_before(block, address);
	}
	if (i >= MAPPING_ENTRIES)
		return STACK_NO_MAPPING;
	w->entry = block->entry[i];
	if (block->key.tgid != key.tgid || block->key.block != key.block ||
	    address - w->entry.start >= w->entry.end - w->entry.start)
		return STACK_NO_MAPPING;
	w->has_entry = 1;
	return STACK_COMPLETE;
}

/* The rule for an address of a table; returns what is wrong, or STACK_COMPLETE. */
static __always_inline u32 find_rule(u32 table, u32 pc, u32 *rule)
{
	struct unwind_key key = { .table = table };
	const struct unwind_chunk *chunk = UNWIND_CHUNK(&key);
	u32 i;
	if (!chunk)
		return STACK_NO_TABLE;
	i = row_before(chunk, pc);
	if (chunk->index && i < UNWIND_ROWS) {
		key.chunk = chunk->row[i].rule;
		chunk = UNWIND_CHUNK(&key);
		if (!chunk)
			return STACK_NO_TABLE;
		i = row_before(chunk, pc);
	}
	if (i >= UNWIND_ROWS)
		return STACK_NO_RULE;
	*rule = chunk->row[i].rule;
	return chunk->key.table == key.table && chunk->key.chunk == key.chunk ? STACK_COMPLETE : STACK_NO_TABLE;
}

static __always_inline u32 find_rule_cached(u32 table, u32 pc, u32 *rule)
{
	struct unwind_cached *cached = UNWIND_CACHE((pc ^ table * 0x9e3779b1) * 0x85ebca6b >> (32 - UNWIND_CACHE_BITS));
	u32 wrong;
	if (cached && cached->table == table && cached->pc == pc) {
		*rule = cached->rule;
		return STACK_COMPLETE;
	}
	wrong = find_rule(table, pc, rule);
	if (wrong == STACK_COMPLETE && cached) {
		cached->table = table;
		cached->pc = pc;
		cached->rule = *rule;
	}
	return wrong;
}

/* === leaving a frame === */

static __always_inline void end_walk(struct unwind *w, u32 end)
{
	w->ended = 1;
	w->end = end;
}

static __always_inline void go_to_caller(struct unwind *w, u64 pc, u64 sp, u64 fp)
{
#ifdef __TARGET_ARCH_arm64
	/* Signed return addresses: what is above the address is the signature. */
	pc &= (1ULL << 48) - 1;
#endif
	if (!pc) {
		end_walk(w, STACK_COMPLETE);
		return;
	}
	w->pc = pc;
	w->sp = sp;
	w->fp = fp;
	w->exact = 0;
	w->all = 0;
	w->pointer = 0;
}

/*
 * By frame pointer. `vouched`: the code is known to keep one, and may change stacks; otherwise it must look like one,
 * and lead into code.
 */
static __always_inline void by_pointer(struct unwind *w, u32 wrong, bool vouched)
{
	u64 fp = w->fp, callee_sp = w->sp;
	if (vouched && !fp) {
		end_walk(w, STACK_COMPLETE);
		return;
	}
	if (fp & 7 || (!vouched && fp - callee_sp >= UNWIND_FRAME_MOST) || read_words(w, 0, fp, 2)) {
		end_walk(w, wrong);
		return;
	}
	if (vouched ? w->memory[0] == fp : w->memory[0] && w->memory[0] <= fp) {
		end_walk(w, vouched ? STACK_NO_PROGRESS : wrong);
		return;
	}
	if (!vouched && w->memory[1] && find_entry(w, w->memory[1] - 1)) {
		end_walk(w, wrong);
		return;
	}
	go_to_caller(w, w->memory[1], fp + 16, w->memory[0]);
	w->pointer = !vouched;
}

#ifdef __TARGET_ARCH_arm64
/* The kernel's frame: the saved registers x0–x30, then the stack pointer, then the address. */
enum { SIGNAL_WORDS = 33, SIGNAL_SP = 31, SIGNAL_PC = 32, SIGNAL_FP = 29 };
#define SIGNAL_REGISTER(number) (number)
enum { SIGNAL_GENERAL = 31 };
#else
/* r8–r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip; DWARF's order is rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8–r15. */
enum { SIGNAL_WORDS = 17, SIGNAL_SP = 15, SIGNAL_PC = 16, SIGNAL_FP = 10 };
enum { SIGNAL_GENERAL = 16 };
#define SIGNAL_REGISTER(number) ((number) >= 8 ? (number)-8 : 0x0f0a08090b0e0c0dULL >> (number)*8 & 0xff)
#endif

/* What a signal has interrupted: every register is known, and the address is that of the next instruction. */
static __always_inline void leave_signal(struct unwind *w, u64 address)
{
	if (UNWIND_READ(w->memory, SIGNAL_WORDS * 8, address)) {
		end_walk(w, STACK_UNREADABLE);
		return;
	}
	go_to_caller(w, w->memory[SIGNAL_PC], w->memory[SIGNAL_SP], w->memory[SIGNAL_FP]);
#ifdef __TARGET_ARCH_arm64
	w->link = w->memory[30];
#endif
	for (u32 i = 0; i < SIGNAL_GENERAL; i++)
		w->other[i] = w->memory[SIGNAL_REGISTER(i)];
	w->exact = 1;
	w->all = 1;
}

/* A number of so many bits, with its sign, from bit `shift` of the rule on. */
#define SIGNED_PART(rule, shift, bits) ((s64)((u64)(rule) << (64 - (shift) - (bits))) >> (64 - (bits)))
#define PART(rule, shift, bits) ((u64)(rule) >> (shift) & ((1ULL << (bits)) - 1))

/* Where the frame ends; 0: not known. */
static __always_inline u64 frame_address(struct unwind *w, u32 rule)
{
	u32 kind = PART(rule, 0, 4);
	u64 offset = PART(rule, UNWIND_OFFSET_SHIFT, UNWIND_OFFSET_BITS) * 8;
	u64 number = PART(rule, UNWIND_REGISTER_SHIFT, UNWIND_REGISTER_BITS);
	u64 at;
	if (kind == UNWIND_STACK)
		return w->sp + offset;
	if (kind == UNWIND_FRAME)
		return w->fp + offset;
	if (kind == UNWIND_PLT)
		return w->sp + 8 + ((w->pc & 15) * 8 >= offset ? 8 : 0);
	if (kind == UNWIND_REGISTER) {
		if (!w->all)
			return 0;
		return w->other[number] + SIGNED_PART(rule, UNWIND_OFFSET_SHIFT, UNWIND_SHORT_BITS + UNWIND_AT_BITS) * 8;
	}
	offset = PART(rule, UNWIND_OFFSET_SHIFT, UNWIND_SHORT_BITS) * 8;
	at = (kind == UNWIND_FRAME_AT ? w->fp : w->sp) + SIGNED_PART(rule, UNWIND_AT_SHIFT, UNWIND_AT_BITS) * 8;
	if (kind == UNWIND_INDEXED_AT) {
		if (!w->all)
			return 0;
		at += w->other[number] * 8;
	}
	if (read_words(w, 0, at, 1))
		return 0;
	return w->memory[0] + offset;
}

/* By a rule with a canonical frame address, `frame`. */
static __always_inline void by_frame(struct unwind *w, u32 rule, u64 frame)
{
	u64 saved = PART(rule, UNWIND_SAVED_SHIFT, UNWIND_SAVED_BITS);
	u64 fp = w->fp, pc;
#ifdef __TARGET_ARCH_arm64
	/* A leaf may have no frame at all. */
	if (frame < w->sp || (frame == w->sp && !w->all)) {
#else
	if (frame <= w->sp) {
#endif
		end_walk(w, STACK_NO_PROGRESS);
		return;
	}
#ifdef __TARGET_ARCH_arm64
	pc = w->link;
	if (rule & (UNWIND_LINK_SAVED | UNWIND_LINK_ALONE)) {
		if (read_words(w, 0, frame - saved * 8, 2)) {
			end_walk(w, STACK_UNREADABLE);
			return;
		}
		pc = rule & UNWIND_LINK_SAVED ? w->memory[1] : w->memory[0];
		if (rule & UNWIND_LINK_SAVED)
			fp = w->memory[0];
	} else if (!w->all) {
		end_walk(w, STACK_NO_RULE);
		return;
	}
#else
	/* Most often both stand side by side. */
	if (saved == 2 ? read_words(w, 0, frame - 16, 2) : read_words(w, 1, frame - 8, 1)) {
		end_walk(w, STACK_UNREADABLE);
		return;
	}
	pc = w->memory[1];
	if (saved == 2) {
		fp = w->memory[0];
	} else if (saved == UNWIND_SAVED_LOST) {
		fp = 0;
	} else if (saved) {
		u64 place = saved == UNWIND_SAVED_AT_FRAME ? fp : frame - saved * 8;
		if (read_words(w, 0, place, 1)) {
			end_walk(w, STACK_UNREADABLE);
			return;
		}
		fp = w->memory[0];
	}
#endif
	go_to_caller(w, pc, frame, fp);
}

/* Returns false when the rule leads nowhere. */
static __always_inline bool by_table(struct unwind *w, u32 rule)
{
	u64 frame;
	if ((rule & 15) == UNWIND_END) {
		end_walk(w, STACK_COMPLETE);
	} else if ((rule & 15) == UNWIND_SIGNAL) {
		leave_signal(w, w->sp + PART(rule, UNWIND_OFFSET_SHIFT, UNWIND_OFFSET_BITS) * 8);
	} else {
		frame = frame_address(w, rule);
		if (!frame)
			return false;
		by_frame(w, rule, frame);
	}
	return true;
}

/* The address that the frame in hand is looked up by: a call may be its function's last instruction. */
static __always_inline u64 looked_up(const struct unwind *w)
{
	return w->exact ? w->pc : w->pc - 1;
}

/* One frame up, `wrong` being what find_entry() has said. Afterwards `ended` is set, or the registers are the caller's. */
static __always_inline void unwind_leave(struct unwind *w, u32 wrong)
{
	u64 address = looked_up(w);
	u32 rule = UNWIND_NONE;
	bool vouched = false;
	if (wrong == STACK_NO_PROCESS) {
		end_walk(w, wrong);
		return;
	}
	if (wrong == STACK_COMPLETE)
		wrong = w->entry.table ? find_rule_cached(w->entry.table, address - w->entry.origin, &rule) : STACK_NO_TABLE;
	if (wrong == STACK_COMPLETE && (rule & 15) == UNWIND_NONE)
		wrong = STACK_NO_RULE;
	if (wrong == STACK_NO_TABLE && !w->fp && w->entry.flags & MAPPING_POINTERS) {
		end_walk(w, STACK_COMPLETE);
		return;
	}
	if (wrong == STACK_COMPLETE) {
		if ((rule & 15) == UNWIND_POINTER) {
			wrong = STACK_UNREADABLE;
			vouched = true;
		} else if (by_table(w, rule)) {
			return;
		} else {
			wrong = STACK_NO_RULE;
		}
	}
	by_pointer(w, wrong, vouched);
}

static __always_inline void unwind_step(struct unwind *w)
{
	unwind_leave(w, find_entry(w, looked_up(w)));
}

#endif
