/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Part of the wire contract: the rules by which the kernel side walks a user's stack. Two hash maps, both written
 * by the agent only:
 *   unwind_chunk  unwind_key  -> unwind_chunk   which rule holds at which address, file by file
 *   mappings      mapping_key -> mapping_block  which table holds at which address of a process
 * Both have the same shape: what is found under number 0 is sorted rows, or, with `index` set, the sorted beginnings
 * of the other elements, whose numbers stand in `rule` or `table`. What is not in use of an element holds UNUSED_PC or
 * UNUSED_START, so that a search need not ask for its length. Every element repeats its key: the kernel may give an
 * element's memory to another one while a program looks at it, and then the key shows it.
 */
#ifndef OBI_UNWIND_TABLE_H
#define OBI_UNWIND_TABLE_H

#ifndef OBI_KERNEL
#include <linux/types.h>
#endif

enum {
	/*
	 * With its key and the kernel's own 56 bytes an element is 2048 bytes at most: an element of a map that
	 * allocates on demand takes the next power of two.
	 */
	UNWIND_ROWS = 246,
	MAPPING_ENTRIES = 61,
	/* Elements of a table, the index included; of a process' mappings. */
	UNWIND_CHUNKS = UNWIND_ROWS + 1,
	MAPPING_BLOCKS = MAPPING_ENTRIES + 1,
};

/* Behind every address. */
#define UNUSED_PC 0xffffffff
#define UNUSED_START 0x7fffffffffffffff

/*
 * How the caller's registers are found: the canonical frame address (CFA), what stood in the frame pointer, where to
 * return to. All offsets count words of eight bytes.
 */
enum unwind_kind {
	UNWIND_NONE = 0,         /* no rule, or one that only a debugger can follow */
	UNWIND_END = 1,          /* the thread's first frame: it returns nowhere */
	UNWIND_STACK = 2,        /* CFA = stack pointer + offset */
	UNWIND_FRAME = 3,        /* CFA = frame pointer + offset */
	UNWIND_FRAME_AT = 4,     /* CFA = *(frame pointer + at) + offset: a stack that was aligned */
	UNWIND_STACK_AT = 5,     /* CFA = *(stack pointer + at) + offset */
	UNWIND_PLT = 6,          /* CFA = stack pointer + 1, one more from byte `offset` of each 16 on */
	UNWIND_SIGNAL = 7,       /* a signal's trampoline: the kernel's frame stands `offset` above the stack pointer */
	UNWIND_POINTER = 8,      /* the code keeps frame pointers, across a change of stacks, too (Go's runtime) */
	UNWIND_REGISTER = 9,     /* CFA = register + offset; known in the first frame only, and where a signal came in */
	UNWIND_INDEXED_AT = 10,  /* CFA = *(stack pointer + register * 8 + at) + offset; as above */
	/* arm64 (on x86-64 the return address is the word below the CFA): */
	UNWIND_LINK_SAVED = 16,  /* bit: it stands one word above the saved frame pointer */
	UNWIND_LINK_ALONE = 32,  /* bit: it stands where `saved` says, and the frame pointer has not changed */
};

/* Bits of unwind_row.rule, from the lowest: kind 6, saved 8, then by kind. */
enum unwind_rule {
	UNWIND_KIND_BITS = 6,
	UNWIND_SAVED_SHIFT = 6,
	UNWIND_SAVED_BITS = 8,
	UNWIND_OFFSET_SHIFT = 14,
	UNWIND_OFFSET_BITS = 18, /* STACK, FRAME, PLT, SIGNAL */
	/* FRAME_AT, STACK_AT, INDEXED_AT: `at` is signed and stands above the offset. REGISTER: offset as here, signed. */
	UNWIND_SHORT_BITS = 6,
	UNWIND_AT_SHIFT = 20,
	UNWIND_AT_BITS = 8,
	/* REGISTER, INDEXED_AT: the register's DWARF number. */
	UNWIND_REGISTER_SHIFT = 28,
	UNWIND_REGISTER_BITS = 4,

	/* saved: where the caller's frame pointer is. 0: it has not changed; n: n words below the CFA; and: */
	UNWIND_SAVED_AT_FRAME = 1, /* where the frame pointer points to */
	UNWIND_SAVED_LOST = 255,   /* not known */
};

struct unwind_key {
	__u32 table; /* from 1 on; never used twice in a run */
	__u32 chunk;
};

struct unwind_row {
	__u32 pc;   /* relative to the table's origin; the row holds from here to the next one */
	__u32 rule; /* in an index: number of the chunk that begins here */
};

struct unwind_chunk {
	struct unwind_key key;
	__u32 n_rows;
	__u32 index; /* 1: the rows are an index. Only chunk 0 may be one */
	struct unwind_row row[UNWIND_ROWS];
};

struct mapping_key {
	__u32 tgid; /* in the initial pid namespace */
	__u32 block;
};

enum mapping_flag {
	/* Code made at run time, and files without tables that are known to keep them: frame pointers are the rule. */
	MAPPING_POINTERS = 1,
	/* The function in which an interpreter evaluates its program's. */
	MAPPING_EVAL = 2,
	/* Code that V8 has made when it was built. */
	MAPPING_BUILTIN = 4,
};

/* Addresses of a process under one table. A mapping of a large file takes as many entries as the file has tables. */
struct mapping_entry {
	__u64 start;
	__u64 end;    /* exclusive */
	__u64 origin; /* the address that the table's rows are relative to: where `Table::first` is mapped */
	__u32 table;  /* 0: none. In an index: number of the block that begins at `start` */
	__u32 flags;  /* enum mapping_flag */
};

struct mapping_block {
	struct mapping_key key;
	__u32 n_entries;
	__u32 index; /* 1: the entries are an index; `end` is unused there. Only block 0 may be one */
	struct mapping_entry entry[MAPPING_ENTRIES];
};

/* How far a call of the evaluating function goes along the list of frames. */
enum guest_ends {
	GUEST_ENDS_ALWAYS = 0,  /* one frame, one call (CPython to 3.10) */
	GUEST_ENDS_BY_MARK = 1, /* at the frame whose `owner` is 1 (3.11) */
	GUEST_ENDS_BY_SHIM = 2, /* at a frame of its own, whose `owner` is GUEST_SHIM (since 3.12) */
};

/* What identifies the instruction. */
enum guest_position {
	GUEST_BY_ADDRESS = 0, /* its address, in the code object */
	GUEST_BY_BYTE = 1,    /* an integer of 32 bits: bytes */
	GUEST_BY_UNIT = 2,    /* likewise: units of two bytes */
};

enum {
	/* From this `owner` on a frame is none of the program's. */
	GUEST_SHIM = 3,
	/* Lowest bits of a guest's word: where in its code. Above: the code object's address by eight. */
	GUEST_POSITION_BITS = 13,
	GUEST_NO_POSITION = (1 << GUEST_POSITION_BITS) - 1,
	GUEST_CODE_BITS = 47,
	/* Words of a frame that are looked at. */
	GUEST_FRAME_WORDS = 14,
	/* Pieces of the evaluating function, see below. Builds of 3.11 and 3.12 have three to six. */
	GUEST_UNLINKED_PIECES = 8,
};

/*
 * Instructions before which the innermost frame is known already, its caller not yet: what stands there is left of an
 * earlier call.
 */
struct guest_unlinked {
	__u32 from;  /* the first, from the beginning of the evaluating function on */
	__u32 bytes; /* 0: none */
};

/* Value of the map `guest`, by process: where the interpreter in it keeps frames. Offsets in bytes. */
struct guest {
	__u32 tgid;        /* as the key */
	__u32 slot;        /* from the thread's descriptor to where the address of its state stands */
	__u16 thread_id;   /* in the state: address of the thread's descriptor */
	__u16 frame;       /* in the state: the innermost frame, or (`by_call`) what knows it */
	__u16 current;     /* there: the innermost frame */
	__u16 code;        /* in a frame: the code object */
	__u16 previous;    /* its caller */
	__u16 instruction; /* see `position` */
	__u16 owner;       /* a byte, see `ends` */
	__u8 by_call;
	__u8 adjacent;     /* 1: frames lie side by side */
	__u8 ends;         /* enum guest_ends */
	__u8 position;     /* enum guest_position */
	__u8 pad[6];
	__u64 eval;        /* address of the evaluating function */
	struct guest_unlinked unlinked[GUEST_UNLINKED_PIECES];
};

enum {
	/* Words of an interpreted frame of HotSpot's that are looked at, up to where it returns to; of a method. */
	JVM_FRAME_WORDS = 10,
	JVM_METHOD_WORDS = 16,
	/* Of a piece of its code, what describes it. */
	JVM_BLOB_WORDS = 48,
	/* Bits of a compilation's number that a sample holds, above the address. */
	JVM_ADDRESS_BITS = 47,
	JVM_COMPILATION_BITS = 10,
	/* Heaps of code: one, or those of stubs, of methods that are profiled, and of others. */
	JVM_HEAPS = 3,
};

/* A heap of HotSpot's code, in segments. */
struct jvm_heap {
	__u64 start;
	__u64 bytes;
	__u64 segments; /* a byte for each: how many to go back to where a piece of code begins */
};

/*
 * Value of the map `jvm`, by process: where HotSpot has its code, and what it says of itself. A piece of code is a
 * blob. Offsets in bytes.
 */
struct jvm {
	__u32 tgid;          /* as the key */
	__u16 const_method;  /* in a method: what of it never changes */
	__u16 bytecode;      /* from there to the first bytecode */
	__u64 code;          /* where code may be that HotSpot makes; `code_bytes` from there on */
	__u64 code_bytes;
	__u64 interpreter;   /* of that, the interpreter */
	__u64 interpreter_bytes;
	__u64 call_stub;     /* where methods return to that are called from outside */
	struct jvm_heap heap[JVM_HEAPS];
	__u16 access;        /* in a method: flags of the language */
	__u16 block;         /* from the beginning of a blob's first segment to the blob */
	__u16 blob_size;     /* in a blob: its bytes */
	__u16 header_size;   /* in a blob: those of its description, 16 bits */
	__u16 method_header; /* which so many bytes has the description of a compiled method */
	__u16 method;        /* in a blob of a method: the method */
	__u16 frame_size;    /* in a blob: words of its frame */
	__u16 frame_complete; /* in a blob: from the first instruction to where the frame is made, 16 bits; all set: never */
	__u16 code_begin;    /* in a blob: the first instruction */
	__u8 code_is_offset; /* 1: counted from the blob on; 0: an address */
	__u8 segment_bits;   /* a segment has so many bytes, as a power of two */
	__u16 compile_id;    /* in a blob of a method: which compilation it is */
	__u8 pad[2];
};

/* Value of the map `v8`, by process: how V8's functions are found. Offsets in bytes, from where an object begins. */
struct v8 {
	__u32 tgid;           /* as the key */
	__u16 shared;         /* in a function: what all functions of the same text share */
	__u16 instance_type;  /* in a map: what its objects are, 16 bits */
	__u16 first_function; /* of these, functions: from here */
	__u16 last_function;  /* to here */
	__u8 pad[4];
	__u64 entries;        /* bits: kinds of frames that are called from outside */
};

/* What became of the times a CPU was looked at. Index of the map `profile_count`, by CPU. */
enum profile_count {
	PROFILE_REPORTED = 0,    /* a record went to the agent */
	PROFILE_LOST = 1,    /* no room in the ring buffer */
	PROFILE_IDLE = 2,    /* nothing ran */
	PROFILE_SELF = 3,    /* the agent ran */
	PROFILE_IGNORED = 4, /* a process that is not to be watched ran */
	PROFILE_BUSY = 5,    /* (waits) another walk was under way on this CPU */
	PROFILE_COUNTS = 6,
};

#endif
