/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* Every map in one place, with its size and the reason for it; and the settings made at load time. */
#ifndef OBI_MAP_H
#define OBI_MAP_H

#include "core/kernel.h"
#include "event.h"
#include "core/cursor.h"
#include "core/watch.h"

/* === settings: written by the agent before the programs load === */

/* The agent itself, never watched. */
SETTING u32 self_tgid = 0;
/* Bytes of one head that are copied; the rest is framed, not copied. */
SETTING u32 head_limit = 8192;
/* Length of a jiffy. */
SETTING u64 tick_ns = 4000000;
/* The agent is woken when this much waits in the ring; below, it polls. */
SETTING u64 wakeup_bytes = 1048576;

/* 1: the agent may read what other users' processes are given, so it can have it from here as well. */
SETTING u32 tells_given = 0;
/* 1: what a database's own process is asked is of interest, too. */
SETTING u32 follows_databases = 1;
/* Whether more than the first instance of each program is attached, where there are several. */
SETTING u32 is_preempted = 0;

/* === maps === */

struct global_state global = {};

/* Records to the agent. Size set at load time (capture.ring_bytes). */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 * 1024 * 1024);
} events SEC(".maps");

/* What went wrong, by process. Never read on the hot path. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 8192);
	__type(key, struct tally_key);
	__type(value, u64);
} tally SEC(".maps");

/* Tallies whose process had no room in `tally`: number kind * 16 + reason of one value, which the agent reads at once. */
struct tally_rests {
	u64 n[TALLY_RESTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tally_rests);
} tally_rest SEC(".maps");

/*
 * Exchanges whose end was lost after the agent had seen their beginning, so that
 * it can forget them. A full queue only means that they are forgotten later.
 */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 4096);
	__type(value, u64);
} forgotten SEC(".maps");

enum note_flag {
	NOTE_HEAD = 1,    /* the request's method is HEAD: its response has no body */
	NOTE_CONNECT = 2, /* a 2xx response opens a tunnel */
	NOTE_LOST = 4,    /* already counted as lost */
};

/*
 * exchange number -> note_flag of a pending request that is out of the ordinary.
 * A queue inside the connection would bound the pipelining depth; this does not.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 6144);
	__type(key, u64);
	__type(value, u32);
} note SEC(".maps");

enum connection_flag {
	CONNECTION_HTTP = 1,       /* at least one whole head was seen */
	CONNECTION_JOINED = 2,     /* it carried bytes before we saw it */
	CONNECTION_UNREADABLE = 4, /* requests may have passed unseen */
	CONNECTION_REPORTED = 8,   /* counted as uncovered */
	CONNECTION_FINISHED = 16,  /* its end has been reported */
	CONNECTION_COUNTED = 32,   /* in global.n_open */
	CONNECTION_DAMAGED = 64,   /* one of its directions could not be followed for a while */
	CONNECTION_SPARE = 128,    /* it has spare memory */
};

/*
 * Content of streams whose DATA is interrupted by that of others: one stream of each direction is in the
 * connection, and with little traffic none is here. An entry goes when its stream ends. Those of connections
 * that end before their streams stay until their room is needed: hence LRU. A program that finds the entry gone
 * reports the number as not known. The agent takes those of a connection that ends with them (close_event.n_aside).
 * A thousand streams at once that all send and receive, seen at both ends, need 4,000.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 7168);
	__type(key, struct stream_key);
	__type(value, struct stream_data);
} content SEC(".maps");

/* User memory of a send or a receive in progress, kept from its beginning until bytes have moved. */
struct transfer {
	u64 base;    /* or the address of the iovec array */
	u64 length;  /* of the buffer; 0 with an iovec array */
	u64 skip;    /* bytes of the first iovec already gone */
	u64 message; /* the kernel's msghdr */
	u64 count;   /* bytes still to go in it when last looked at */
	u32 vectors;
	u32 opaque;  /* enum opacity */
	u32 tid;     /* 0: none */
	u32 pad;
};

enum opacity {
	READABLE = 0,
	UNKNOWN_BUFFER = 1, /* the user's buffer could not be found */
	KERNEL_PAGES = 2,   /* sendfile, splice: the bytes never were in user memory */
};

/* Where the bytes of a segment are: user memory, but for a vector that the kernel has copied. */
struct source {
	u64 base;    /* the contiguous range in hand */
	u64 length;
	u64 skip;    /* bytes to pass over before the next one of interest */
	u64 vector;  /* iovec entries to come */
	u32 vectors;
	u32 opaque;  /* enum opacity */
	u64 message; /* entries of a sendmmsg or recvmmsg to come */
	u32 messages;
	u32 message_left; /* bytes of the one in hand, behind those in hand; only with `bounded` */
	u32 bounded;
	u32 kernel_vector; /* 1: `vector` is the kernel's copy */
};

/* How pending exchanges end without a whole response. */
struct ending {
	u64 time;
	u32 error;
	u16 reason; /* close_reason */
	u16 loss;   /* loss_reason */
	u16 keeps_request; /* 1: requests are not concerned, neither a head under way nor those that were answered ahead */
	u16 leaves; /* 1: it is not HTTP/1: what looked like the beginning of a request is none */
};

/*
 * What is known of the bytes on their way. No pointers: global functions, which
 * the verifier checks once and by themselves, cannot be handed any inside.
 */
struct segment {
	u64 id; /* bpf_get_current_pid_tgid() */
	u64 time;
	u64 arrival;
	struct source source;
	u32 left;   /* bytes to go */
	u32 gap;    /* bytes before them that passed unseen */
	u32 offset; /* stream offset of the next byte */
	u32 sending;
	u32 begun;    /* 1: no longer at the first byte of the segment */
	u32 sendable; /* 1: the piece in hand is a record, 0: spare memory */
	u32 outcome;  /* enum outcome of the step just taken */
	u32 detail;   /* of the outcome: a scan_result or a loss_reason */
	struct ending ending; /* of what is lost with it */
	u32 unreadable; /* 1: nothing of it can be read, and nothing of the connection was so far */
	u32 n_requests; /* heads of requests completed in it */
	u64 serving;      /* the request that its thread served when it began; 0: none, or it holds no head */
	u32 thread_flags; /* thread_state.flags by then */
	u32 behind_us;    /* cause.behind_us */
};

/* An object of a TLS library (SSL *) in a process. */
struct tls_key {
	u64 object;
	u32 tgid;
	u32 pad;
};

enum tls_flag {
	TLS_TRANSPORT = 1, /* records of TLS pass at this socket */
	TLS_READ = 2,      /* their plain bytes are read at the object in `tls_key` */
	TLS_OBJECT = 4,    /* no socket: the plain bytes of that object */
};

/* Exchanges in a row that have ended together. */
struct sweep {
	u32 ordinal;
	u32 n;
	u32 forgets; /* 1: they are reported to the agent as forgotten, as far as there is room */
	u32 lost;    /* by place, the first lowest: has been counted, and has no note (any more) */
};

/* State of one end of a connection. Never leaves the kernel. */
struct connection {
	u64 number;
	u32 n_requests;  /* request heads completed */
	u32 n_responses; /* responses completed */
	u32 n_noted;     /* entries of `note` outstanding */
	u32 n_noted_lost;
	u32 n_abandoned; /* responses still to come whose exchanges have been given up */
	u32 n_unasked;   /* of a server, responses to no request that was seen, since one was seen to be missing */
	u32 noted_flags; /* one note without a map entry: rarely is more than one request out of the ordinary */
	u32 lost_ahead;  /* answers that have ended before their requests were seen, the first lowest: 1 if lost, and counted */
	u64 noted_exchange;
	u32 owner; /* thread whose current exchange is ours */
	u32 tgid;
	u16 family;
	u16 local_port;
	u16 remote_port;
	u8 side;
	u8 flags;
	u32 n_resync; /* segments in which no head was found; of a transport of TLS: segments that no probe read */
	u32 bodies; /* of the answers that have ended last, the newest lowest: 1 if it had one */
	u16 held; /* 1: the network has ended it, and its process may still read what had come */
	u8 protocol;    /* enum protocol */
	u8 encrypted;   /* 1: its bytes are read at a TLS library */
	u8 websocket_closed; /* as in websocket_event.closed */
	u8 pipelined;   /* 1: two requests have come in one segment: answers are not waited for */
	u8 causes;      /* enum cause_flag of the connection */
	u32 received_base; /* as in struct cause */
	u32 sent_base;
	/* Of HTTP/2: */
	u32 last_stream; /* highest identifier of a stream that a request has opened */
	u32 last_ended;  /* the stream whose response has ended last */
	u32 n_opened;
	u32 n_ended;
	u32 tls; /* enum tls_flag */
	struct tls_key tls_key;
	u8 local_address[ADDRESS_BYTES];
	u8 remote_address[ADDRESS_BYTES];
	u64 last_response_byte;
	union {
		struct {
			struct cursor receive;
			struct cursor send;
		};
		struct cursor cursor[2]; /* chosen by arithmetic: for the verifier that is one way, a branch is two */
	};
	struct sweep sweep; /* by way of here, because the verifier forgets what is here */
	struct segment segment[2]; /* the ones being walked, received and sent: too large for the stack */
	struct transfer sends;
#ifndef OBI_FUNCTION_SET
	u32 followed[2]; /* without offsets, received and sent: the thread whose movement has been followed, see is_followed() */
#endif
#ifndef OBI_SOCKET_SET
	struct transfer receives;
	u64 birth; /* distinguishes sockets that follow each other at one address */
#endif
};

/*
 * Room to look at head bytes when the ring is full: the exchange is lost, the
 * framing must not be. Per connection and direction, because per-CPU scratch is
 * not safe where a program can be preempted. Allocated at the first need.
 */
struct spare {
	struct {
		struct head_event head;
		u8 bytes[SMALL_PIECE_BYTES];
	} direction[2];
};

#endif
