/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* What the agent passes to a program about the place in a TLS library that it is attached to. */
#ifndef OBI_LAYOUT_H
#define OBI_LAYOUT_H

#ifndef OBI_KERNEL
#include <linux/types.h>
#endif

/*
 * Attach cookie of the probes at a TLS library that see calls, from their beginning to their end. 0, or a kernel
 * without cookies: an enter probe sees the arguments of the ABI, an exit probe the function's result in the ABI's
 * register (PT_REGS_RC), be it at a return probe or at a jump behind which nothing changes that register. TLS_FIFTH:
 * to an enter probe the pointer to the count is the fifth argument, not the fourth. One call may be seen twice, one
 * probe after the other (the same file attached under two names): an enter probe with the stack pointer, object and
 * buffer of the call in hand is that call, and an exit probe without a call is none. A call may also end unseen,
 * where it failed before it did anything: the thread's next enter probe takes its place. TLS_COLLECTED: to an enter
 * probe, that no probe sees when the memory of an object is free: then the object goes with its socket.
 */
enum tls_cookie {
	TLS_FIFTH_BIT = 62,
	TLS_COLLECTED_BIT = 63,
};

/*
 * Attach cookie of the probes that find all they report in the registers of one instruction: where each thing is. A
 * field of five bits is a register, by its number in machine code plus one; 0: there is no such thing.
 */
enum tls_layout_bit {
	TLS_OBJECT_AT = 0,
	TLS_BUFFER_AT = 5,
	TLS_COUNT_AT = 10,
	TLS_TYPE_AT = 15,   /* its lowest byte is the type of the record: those of another type are not reported */
	TLS_ERROR_AT = 20,  /* 0 unless the call has failed: then nothing is reported */
	TLS_WANTED_AT = 25, /* no register, but the wanted type: eight bits */
	TLS_CHECK_BIT = 34, /* the jump of a check of the stack: where it is taken, the function begins again later, with the same arguments */
	/*
	 * No register, but 16 bits: unless 0, the object is in memory, so many bytes above where its register points.
	 * Go keeps a first argument there, in its home.
	 */
	TLS_HOME_AT = 35,
};

/*
 * Attach cookie of the probe at rustls that sees what was received: from the connection's state, where what encrypts
 * its records is, and how many records that has made. 16 bits each; never 0 as a whole.
 */
enum rustls_layout_bit {
	RUSTLS_ENCRYPTER_AT = 0,
	RUSTLS_SEQUENCE_AT = 16,
	RUSTLS_PRESENT_BIT = 32,
};

/*
 * Attach cookies of the program that sees plain bytes (tls/bytes.h), beside all of the above: at what kind of place it
 * is, two bits. A return or the end of a call has 0.
 */
enum tls_place_bit {
	TLS_PLACE_AT = 56,
};

enum tls_place {
	TLS_PLACE_EXIT = 0,
	TLS_PLACE_SEND = 1,
	TLS_PLACE_RECEIVE = 2,
	TLS_PLACE_RECORD_RECEIVED = 3,
};

#define TLS_REGISTER(number, at) ((__u64)((number) + 1) << (at))
#define TLS_DATA_RECORD (23ULL << TLS_WANTED_AT)
#define TLS_CHECK (1ULL << TLS_CHECK_BIT)
/* On x86-64 above the frame pointer and the return address. */
#define TLS_HOME (16ULL << TLS_HOME_AT)

/*
 * Layouts of Go's crypto/tls, in the ABI of 1.17 and later on x86-64 (arguments and results in rax, rbx, rcx, rdi,
 * rsi): an object; a record of bytes to the socket; data to be sent; what has been decrypted. Kernels without cookies
 * (before 5.15) take these for every probe of their programs.
 */
enum tls_layout {
	TLS_GO_OBJECT = TLS_CHECK | TLS_REGISTER(0, TLS_OBJECT_AT),
	TLS_GO_RECORD = TLS_GO_OBJECT | TLS_REGISTER(3, TLS_BUFFER_AT) | TLS_REGISTER(1, TLS_COUNT_AT),
	TLS_GO_SEND = TLS_GO_OBJECT | TLS_REGISTER(3, TLS_TYPE_AT) | TLS_DATA_RECORD | TLS_REGISTER(1, TLS_BUFFER_AT) |
		      TLS_REGISTER(7, TLS_COUNT_AT),
	TLS_GO_RECEIVE = TLS_HOME | TLS_REGISTER(5, TLS_OBJECT_AT) | TLS_REGISTER(7, TLS_TYPE_AT) | TLS_DATA_RECORD |
			 TLS_REGISTER(6, TLS_ERROR_AT) | TLS_REGISTER(0, TLS_BUFFER_AT) | TLS_REGISTER(3, TLS_COUNT_AT),
};

/*
 * The same on arm64, since 1.18 (x0 to x4). How far the home is above the frame pointer depends on the frame, so the
 * agent adds TLS_HOME_AT; without cookies there is nothing to go by.
 */
enum tls_layout_arm64 {
	TLS_GO_ARM64_OBJECT = TLS_CHECK | TLS_REGISTER(0, TLS_OBJECT_AT),
	TLS_GO_ARM64_RECORD = TLS_GO_ARM64_OBJECT | TLS_REGISTER(1, TLS_BUFFER_AT) | TLS_REGISTER(2, TLS_COUNT_AT),
	TLS_GO_ARM64_SEND = TLS_GO_ARM64_OBJECT | TLS_REGISTER(1, TLS_TYPE_AT) | TLS_DATA_RECORD |
			    TLS_REGISTER(2, TLS_BUFFER_AT) | TLS_REGISTER(3, TLS_COUNT_AT),
	TLS_GO_ARM64_RECEIVE = TLS_REGISTER(29, TLS_OBJECT_AT) | TLS_REGISTER(3, TLS_TYPE_AT) | TLS_DATA_RECORD |
			       TLS_REGISTER(4, TLS_ERROR_AT) | TLS_REGISTER(0, TLS_BUFFER_AT) | TLS_REGISTER(1, TLS_COUNT_AT),
};

#endif
