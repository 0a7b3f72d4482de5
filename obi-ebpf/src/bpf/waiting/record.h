/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Part of the wire contract (event.h, which includes it behind its header): where the time of serving threads went. */
#ifndef OBI_WAITING_RECORD_H
#define OBI_WAITING_RECORD_H

/* What a thread waits for that wants no CPU. Index of times_event.blocked. */
enum wait_reason {
	WAIT_OTHER = 0,      /* nothing of the below, or not known */
	WAIT_LOCK = 1,       /* a mutex */
	WAIT_GIL = 2,        /* an interpreter's global lock, where it can be distinguished from others */
	WAIT_CONDITION = 3,  /* another thread is to make something true: condition variables, semaphores, channels, pools */
	WAIT_NETWORK = 4,    /* a socket */
	WAIT_POLL = 5,       /* any of several descriptors */
	WAIT_DISK = 6,       /* a block device, as the kernel's own count of I/O waits has it */
	WAIT_FILE = 7,       /* a call on a file, a pipe or a device that is no wait for I/O of the above */
	WAIT_PAGE_FAULT = 8, /* memory that is not there */
	WAIT_SLEEP = 9,      /* time */
	WAIT_CHILD = 10,     /* another process */
	WAIT_REASONS = 11,
};

/*
 * Of a request that its thread has read and answered itself: where the thread's time went from the read of the head to
 * the last byte, `header.time`. The sums are exactly that time. It comes before the end_event, or right behind the head
 * that says so (FLAG_TIMES).
 */
struct times_event {
	struct event_header header;
	__u64 cpu;      /* ns on a CPU, what interrupts and the hypervisor took of it included */
	__u64 runqueue; /* waiting for one */
	__u64 blocked[WAIT_REASONS];
	__u32 switches; /* times that the thread left a CPU */
	__u32 pad;
};

/* Why the time of a thread is not reported. Index of obi_lost_times_total. */
enum times_loss {
	TIMES_NO_ACCOUNT = 0, /* no memory for the thread's account */
	TIMES_LATE = 1,       /* the end of the answer was seen too late to know what came before it */
	TIMES_RING_FULL = 2,  /* no room in the ring buffer */
	TIMES_LOSSES = 3,
};

#endif
