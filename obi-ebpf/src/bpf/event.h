/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The wire contract: every type that crosses from the kernel programs to the
 * agent, and the keys and values of the maps that both sides touch.
 *
 * This file is the only definition. The kernel programs include it; build.rs
 * generates the Rust side from it and checks sizes and offsets at compile time.
 * Rules: fixed-width integers and byte arrays only, no implicit padding (the
 * Rust derive refuses it), no pointers, no enums as field types.
 */
#ifndef OBI_EVENT_H
#define OBI_EVENT_H

#ifndef OBI_KERNEL
#include <linux/types.h>
#endif

#include "profile/unwind_table.h"
#include "runtime/layout.h"
#include "tls/layout.h"

/* event_header.kind */
enum event_kind {
	EVENT_HEAD = 1,    /* head_event: a piece of a request or response head */
	EVENT_END = 2,     /* end_event: the last byte of a message has passed */
	EVENT_CLOSE = 3,   /* close_event: pending exchanges end without a whole response */
	EVENT_PROCESS = 4, /* process_event: exec, fork, exit */
	EVENT_FRAME = 5,   /* frame_event: a frame of HTTP/2 or a message of a database protocol, or a piece of it */
	EVENT_WEBSOCKET = 6, /* websocket_event: the WebSocket that an exchange was upgraded to has ended */
	EVENT_STACK = 7,     /* stack_event, in a ring buffer of its own */
	EVENT_TIMES = 8,     /* times_event: where the time of the thread went that has served a request */
};

/* Which end of the connection the observed process is. */
enum side {
	SIDE_UNKNOWN = 0,
	SIDE_SERVER = 1, /* it received the request */
	SIDE_CLIENT = 2, /* it sent the request */
};

enum message {
	MESSAGE_REQUEST = 1,
	MESSAGE_RESPONSE = 2,
};

/* What a connection speaks. */
enum protocol {
	PROTOCOL_HTTP1 = 0, /* as far as is known */
	PROTOCOL_HTTP2,
	PROTOCOL_WEBSOCKET,
	/* From here on databases: */
	PROTOCOL_POSTGRES, /* PostgreSQL's frontend/backend protocol, version 3 */
	PROTOCOL_REDIS,    /* RESP, versions 2 and 3 */
};

/* event_header.flags of EVENT_HEAD and EVENT_END */
enum event_flag {
	FLAG_FIRST_PIECE = 1,         /* this piece holds the first byte of the head */
	FLAG_LAST_PIECE = 2,          /* the head is complete with this piece */
	FLAG_MESSAGE_END = 4,         /* the whole message is complete; body_bytes is final */
	FLAG_TRUNCATED = 8,           /* the head is longer than the limit; the rest was not copied */
	FLAG_INTERIM = 16,            /* a 1xx response head (not 101): forget its bytes */
	FLAG_REQUEST_INCOMPLETE = 32, /* the response ended before the request's body, or even its head, did */
	FLAG_CLOSE_DELIMITED = 64,    /* the end of this body is the end of the connection */
	FLAG_TUNNEL = 128,            /* 101 or a successful CONNECT: not HTTP/1 from here on */
	FLAG_HTTP2 = 256,             /* with FLAG_TUNNEL: `Upgrade: h2c`; the answer to this request comes on stream 1 */
	FLAG_WEBSOCKET = 512,         /* with FLAG_TUNNEL: a WebSocket; its websocket_event will follow */
	FLAG_CAUSE = 1024,            /* with FLAG_FIRST_PIECE: `carry` begins with a struct cause */
	FLAG_TIMES = 2048,            /* with FLAG_MESSAGE_END of a head: a times_event of this exchange follows */
};

/* event_header.flags of EVENT_FRAME */
enum frame_flag {
	FRAME_FIRST_PIECE = 1, /* this piece holds the first payload byte of the frame */
	FRAME_LAST_PIECE = 2,  /* and this one the last that will be copied */
	FRAME_TRUNCATED = 4,   /* the rest of the frame was not copied */
	/*
	 * Frames have passed unseen before this one in this direction: the connection was joined in the middle, or, if
	 * the flag was not there before, it could not be followed for a while. What the header table holds is not known.
	 */
	FRAME_JOINED = 8,
	/*
	 * No frame: what a stream had carried in one direction when it was reset, or when its connection ended (see
	 * close_event.n_aside). A record of type DATA without END_STREAM, outside the sequence. It comes before that end,
	 * where the numbers are known.
	 */
	FRAME_APART = 16,
	FRAME_CAUSE = 32, /* `cause` is filled */
};

/* Facts about what caused a message, at its first byte. The agent judges them. */
struct cause {
	__u64 candidate; /* the exchange whose request the thread has read last, until it is answered; 0: none */
	/* With CAUSE_BASES: sequence numbers of the first byte each way. Both ends of a connection have the same two. */
	__u32 received_base;
	__u32 sent_base;
	__u32 flags; /* enum cause_flag */
	/*
	 * With CAUSE_RUNTIME: 0, or promises have sent the message behind a callback that began so long ago (µs, rounded
	 * up). They may be those of other requests than the candidate. That may be a call, whose answer was read then.
	 */
	__u32 behind_us;
};

enum cause_flag {
	CAUSE_WAITS_MANY = 1, /* the thread has waited for more than a few descriptors at once since it lives */
	CAUSE_BASES = 2,      /* received_base and sent_base are known */
	CAUSE_COUNTED = 4,    /* joined in the middle: at the end that has called connect(), sent_base is that of its SYN */
	CAUSE_NO_POSITION = 8, /* plain bytes of TLS, not seen from the first on: positions say nothing */
	CAUSE_SERVES = 16,     /* of threads: the current exchange is a request that it serves, not a call */
	CAUSE_RUNTIME = 32,    /* the candidate is what the program's own runtime says, whatever its threads do; 0: nothing */
	CAUSE_CONTEXT = 64,    /* with CAUSE_RUNTIME: by the context of who sends, which may send what others have to say */
	/* No flag: with CAUSE_RUNTIME, a bit of the candidate. It was handed on: who calls was started for it. */
	CAUSE_STARTED_BIT = 63,
	/* In the kernel only: the context is a copy of the one that has read the request, or of such a copy. */
	CONTEXT_COPIED_BIT = 62,
	/* Likewise: the context is of a task that serves a connection, said by its lower half (runtime/context.h). */
	CONTEXT_CONNECTION_BIT = 61,
	/* Likewise: the next goroutine that this one starts is that of the exchange's own handler. */
	GOROUTINE_HANDS_OVER_BIT = 62,
	/* Likewise: it sends the heads of its calls itself. */
	GOROUTINE_SENDS_BIT = 61,
};

/* event_header.flags of EVENT_CLOSE */
enum close_flag {
	/*
	 * The connection spoke HTTP/2: header.exchange has ordinal 0, `pending` means nothing. If it cannot be
	 * reported, that number comes among the forgotten ones, and the streams open then are counted already.
	 */
	CLOSE_HTTP2 = 1,
	/* As CLOSE_HTTP2, of a database's protocol; the ordinal of the forgotten number is that of the client's next turn. */
	CLOSE_DATABASE = 2,
};

/* close_event.reason */
enum close_reason {
	CLOSE_LOCAL = 1,      /* the observed process closed the connection */
	CLOSE_REMOTE = 2,     /* the peer closed it */
	CLOSE_RESET = 3,      /* reset, by either end */
	CLOSE_TIMEOUT = 4,    /* the transport gave up */
	/* From here on the outcome is unknown: the exchanges are lost, not failed. */
	CLOSE_ABANDONED = 16, /* close_event.loss says why */
};

/* Why the kernel side could not follow an exchange. Index of obi_lost_total{stage="kernel"}. */
enum loss_reason {
	LOSS_NONE = 0,
	LOSS_RING_FULL = 1,      /* no room in the ring buffer */
	LOSS_UNREADABLE = 2,     /* the user buffer could not be found (io_uring, compat system call) */
	LOSS_FAULT = 3,          /* reading the user buffer failed */
	LOSS_GAP = 4,            /* bytes passed unseen inside a head or past a known boundary */
	LOSS_FRAMING = 5,        /* not parseable as HTTP/1 after all, or beyond a fixed limit */
	LOSS_NO_STATE = 6,       /* connection state could not be allocated */
	LOSS_NOTE_FULL = 7,      /* the note of a pending HEAD or CONNECT could not be stored */
	LOSS_STEPS = 8,          /* more pieces in one system call than the loop limit */
	LOSS_REQUEST_UNSEEN = 9, /* a response was seen whose request was not readable */
	LOSS_REASONS = 10,
};

/* Connections that we can see but not read. Index of obi_uncovered_connections_total. */
enum uncovered_reason {
	UNCOVERED_TLS = 1,
	UNCOVERED_HTTP2 = 2,
	UNCOVERED_JOINED = 3,     /* joined in the middle and no head was found again */
	UNCOVERED_UNREADABLE = 4, /* user buffers not visible (io_uring) */
	UNCOVERED_REASONS = 5,
};

/* tally_key.kind */
enum tally_kind {
	TALLY_LOST = 1,      /* exchanges; reason is a loss_reason */
	TALLY_UNCOVERED = 2, /* connections; reason is an uncovered_reason */
	TALLY_THREAD_FULL = 3, /* current-exchange slots that could not be stored */
	TALLY_READ_LATE = 4, /* connections counted as TALLY_UNCOVERED that are read from then on */
	TALLY_PROCESS_LOST = 5, /* process_events that found no room in the ring */
	TALLY_TIMES_LOST = 6, /* requests whose thread's time is not reported; reason is a times_loss */
	TALLY_RESTS = (TALLY_TIMES_LOST + 1) * 16, /* no kind: sixteen reasons for each of them */
};

enum process_action {
	PROCESS_EXEC = 1,
	PROCESS_FORK = 2,
	PROCESS_EXIT = 3,
};

/* event_header.flags of EVENT_PROCESS */
enum given_flag {
	GIVEN_CUT = 1, /* the environment is longer than what follows */
};

enum {
	COMM_BYTES = 16,
	ADDRESS_BYTES = 16,
	/* The unfinished line that a head piece starts with is kept this long at most. */
	CARRY_BYTES = 48,
	/* Payload room of the two record sizes; with ring header 512 and 2048 bytes. */
	SMALL_PIECE_BYTES = 344,
	LARGE_PIECE_BYTES = 1880,
	/* Of what a program is given; with ring header and process_event 4 and 32 KiB. The rest is not reported. */
	SMALL_GIVEN_BYTES = 4016,
	LARGE_GIVEN_BYTES = 32688,
	/* Of these at most: the path, which comes last. */
	PATH_GIVEN_BYTES = 256,
	/* Of it, arguments. */
	SMALL_ARGUMENT_BYTES = 1024,
	LARGE_ARGUMENT_BYTES = 4096,
	/* Bits of an exchange number that count exchanges on one connection. */
	ORDINAL_BITS = 24,
};

struct event_header {
	__u32 kind;
	__u32 tgid;     /* process, in the initial pid namespace */
	__u32 tid;
	__u32 flags;
	__u64 time;     /* CLOCK_MONOTONIC, ns */
	__u64 exchange; /* connection number << ORDINAL_BITS | ordinal; 0: none */
};

#include "profile/record.h"
#include "waiting/record.h"

struct head_event {
	struct event_header header;
	__u64 arrival;    /* when the first data of this head arrived at the host (server) or was sent (client) */
	__u64 started;    /* when the process read or sent the first byte of this head */
	__u64 body_bytes; /* with FLAG_MESSAGE_END: bytes of the body, without chunk framing */
	__u32 offset;     /* stream offset of the first payload byte, modulo 2^32 */
	__u32 position;   /* bytes of this head before this piece */
	__u16 length;     /* payload bytes in use, the `lead` ones included */
	__u8 side;
	__u8 message;
	__u16 family;      /* AF_INET, AF_INET6, AF_UNIX */
	__u16 local_port;  /* host order */
	__u16 remote_port; /* host order */
	__u8 lead;         /* the payload starts this many bytes before the end of `carry` */
	__u8 encrypted;    /* 1: read at a TLS library */
	__u8 pad[4];
	__u8 local_address[ADDRESS_BYTES]; /* IPv4 as ::ffff:a.b.c.d */
	__u8 remote_address[ADDRESS_BYTES];
	__u8 carry[CARRY_BYTES]; /* bytes before this piece; its last `lead` bytes belong to the payload. Or see FLAG_CAUSE */
	/* the rest of the payload follows */
};

struct end_event {
	struct event_header header;
	__u64 body_bytes;
	__u8 side;
	__u8 message;
	__u8 pad[6];
};

/* Of body_bytes below: some of the stream's DATA may have passed unseen. */
/* No macro: bindgen takes a macro's value for an int of C. */
static const __u64 BODY_UNKNOWN = 0xffffffffffffffffULL;
#define MESSAGES_UNKNOWN 0xffffffffu

/*
 * An HTTP/2 frame (RFC 9113 §4): HEADERS, CONTINUATION, PUSH_PROMISE, SETTINGS, RST_STREAM with their payload, padding
 * and priority included, GOAWAY with its first eight bytes, DATA as a mark without payload, and only when it ends its
 * stream. CONTINUATION frames without payload, or beyond the limit of a block, are left out without a step in the
 * sequence, but for the one that ends the block. `header.exchange` is the connection number with ordinal 0, `header.time` that
 * of the piece's last byte, of a mark the time when the last byte of its frame had passed.
 */
struct frame_event {
	struct event_header header;
	/* When the first byte of the frame arrived at the host (received) or was sent; of DATA: when the last byte of the
	 * stream's content in this direction had passed, 0: there was none. */
	__u64 arrival;
	__u64 body_bytes;  /* with END_STREAM or FRAME_APART: DATA of this stream in this direction, without padding, or BODY_UNKNOWN; else meaningless */
	/*
	 * Messages of gRPC's framing begun in that DATA; meaningless for other content. 0xffffffff: not known, or other
	 * content. When HEADERS that end their stream are the first ones in their direction, both numbers are 0,
	 * whatever stands here.
	 */
	__u32 messages;
	__u32 offset;      /* stream offset of the first payload byte, modulo 2^32 */
	__u32 sequence;    /* counts the pieces of this connection and direction, lost ones too: a step says how many */
	__u32 stream;      /* stream identifier */
	__u32 frame_bytes; /* payload bytes of the whole frame */
	__u32 position;    /* payload bytes before this piece; of a mark, all */
	__u16 length;      /* payload bytes in this piece */
	__u8 type;
	__u8 flags;        /* the frame's own */
	__u8 sent;         /* 1: the observed process sent it, 0: received it */
	__u8 side;         /* SIDE_UNKNOWN until the preface was seen, or, if joined, a block that begins with a known field */
	__u8 encrypted;    /* 1: read at a TLS library */
	__u8 protocol;     /* enum protocol: a database's, or else it is HTTP/2, known to be or not yet */
	__u8 pad[2];
	__u16 family;      /* AF_INET, AF_INET6, AF_UNIX */
	__u16 local_port;  /* host order */
	__u16 remote_port; /* host order */
	__u8 local_address[ADDRESS_BYTES]; /* IPv4 as ::ffff:a.b.c.d */
	__u8 remote_address[ADDRESS_BYTES];
	struct cause cause; /* with FRAME_CAUSE */
	/* the payload follows */
};

/*
 * A message of a database protocol is a frame_event too: `type` is the message's first byte, `stream` its turn,
 * `frame_bytes` the length of its payload; `body_bytes`, `messages` and `flags` mean nothing. Turns pair what is asked
 * with what is answered, and show how many were missed. Messages that say nothing of a call (rows, values) have no
 * record. PostgreSQL: the start-up message is turn 0, each Query, FunctionCall and Sync of the client ends a turn, each
 * ReadyForQuery of the server answers one; a Sync before the rows of a COPY is passed over by the server and ends none.
 * Redis: each command and each reply is a turn; pushes of RESP3 have that of the reply to come. Turns grow; after a loss they go on above all earlier ones, in step in both directions.
 */
enum database_message {
	POSTGRES_STARTUP = 1, /* frame_event.type of the message without one: parameters, NUL-terminated names and values */
	REDIS_INLINE = 2,     /* a command that is a plain line */
};

/* Payload of a Redis command's record. No value, no key and no password gets this far. */
struct redis_command {
	__u32 n_words;      /* the command and its arguments */
	__u8 word_bytes;    /* 0: the command is longer than any that is known */
	__u8 argument_bytes;
	__u8 word[26];      /* the command, in the client's case; what follows `word_bytes` means nothing */
	__u8 argument[8];   /* of SELECT, HELLO and CLIENT: the next word, if it is that short */
};

/*
 * A WebSocket (RFC 6455) from its upgrade, `header.exchange`, to its end, `header.time`: when both Close frames have
 * passed, or with the connection. If it cannot be reported, the number comes among the forgotten ones, already counted.
 */
struct websocket_event {
	struct event_header header;
	__u64 received_bytes; /* payload, without control frames */
	__u64 sent_bytes;
	__u32 received_messages;
	__u32 sent_messages;
	__u16 close_code; /* of the first Close frame, 0: there was none, or it carried no code */
	__u8 closed;      /* 0: no Close frame was seen; 1: the peer's came first; 2: the observed process's */
	__u8 reason;      /* close_reason of the connection; CLOSE_ABANDONED: it could not be followed to its end */
	__u8 pad[4];
};

/* All exchanges `header.exchange` … `header.exchange + pending - 1` of the connection end here. */
struct close_event {
	struct event_header header;
	__u64 request_body_bytes;  /* of the newest of them, as far as seen */
	__u64 response_body_bytes; /* of the oldest of them, as far as seen */
	__u64 last_byte;           /* time of the last byte of the oldest one's response, 0 if none */
	__u32 pending;             /* how many, a partly seen request head included */
	__u16 error;               /* errno of the socket, 0 if none */
	__u8 reason;
	__u8 loss;             /* loss_reason, with CLOSE_ABANDONED */
	__u8 side;
	__u8 response_started; /* 1: the oldest one's response head is complete */
	__u8 pad[2];
	/* Of HTTP/2: */
	__u32 last_stream;     /* highest identifier of a stream opened by a request, 0: none */
	__u32 received_pieces; /* frame_event.sequence that would come next, by direction */
	__u32 sent_pieces;
	__u32 n_aside;   /* streams that may be in the map `content`: what they have had is the agent's to find out */
	__u16 epoch[2];  /* stream_key.direction >> 1, received and sent */
};

/* A stream of HTTP/2 in one direction: key of the map `content`. */
struct stream_key {
	__u64 connection; /* number */
	__u32 stream;
	__u32 direction;  /* 1: sent; the higher bits count the times that this direction was lost */
};

/* How much content it has had: value of the map. */
struct stream_data {
	__u64 bytes;       /* without padding */
	__u32 messages;    /* of gRPC's framing, begun */
	__u32 left;        /* bytes to the end of the message under way */
	__u32 stream;      /* identifier; 0: none */
	__u16 n_empty;     /* messages without content in a row */
	__u8 prefix_bytes; /* of `prefix` that are there */
	__u8 unknown;      /* 1: not gRPC's framing, or its place in it was lost */
	__u64 prefix;      /* of the next message, the first byte lowest */
	__u64 last;        /* time of the last byte, 0: none */
};

struct process_event {
	struct event_header header; /* flags of an exec: GIVEN_CUT */
	__u32 parent; /* tgid */
	__u32 action;
	__u8 comm[COMM_BYTES];
	/*
	 * Of an exec, what the program was given; the bytes follow: arguments, environment, and the path that the program
	 * was executed by, as its caller gave it. All 0: not reported.
	 */
	__u32 n_arguments;
	__u32 n_environment;
	__u32 n_path; /* with its NUL */
	__u32 exec_id; /* which program of the process this is; changes with each exec, a fork has its parent's */
};

struct tally_key {
	__u32 tgid;
	__u16 reason;
	__u8 kind;
	__u8 side;
};

/* Value of the map `profile_setting`, written by the agent before the sampler of stacks is attached. */
struct profile_setting {
	__u32 self_tgid;    /* the agent, never sampled */
	__u32 wakeup_bytes; /* the agent is woken when this much waits in the ring; below, it polls */
	__u32 stack_bytes;  /* of a thread's stack in the kernel: its saved registers lie at the end (helper since 5.15) */
	__u32 pad;
};

/* Value of the map `wait_setting`, written by the agent at any time. */
struct wait_setting {
	__u64 threshold; /* ns, below 2^32: a wait this long is always sampled, a shorter one as often as it is long */
};

/* The programs that walks go on in, by tail call (portable): elements of the maps `walks` and `tls_walks`. */
enum walk_program {
	WALK_HEADS = 0,
	WALK_FRAMES = 1,
	WALK_DATABASE = 2,
	WALK_PROGRAMS = 3,
};

/* With `thread_state.accepted`: the thread runs uvloop, which enters contexts itself. */
enum { THREAD_ENTERS = 1 };

/* Value of the `thread` map: what a thread is serving. */
struct thread_state {
	__u64 exchange;   /* current exchange number, 0: none */
	__u64 call;       /* what its system call is about: the user's array of a sendmmsg or recvmmsg, or (kprobe) the socket */
	/*
	 * the request that it has read last, or with READ_STREAMS the connection of which it has read requests of
	 * HTTP/2, until it reads or waits again; (portable) the socket whose walk goes on in another program
	 */
	__u64 read;
	__u32 mmsg_index; /* message within the array that comes next */
	__u32 sending;    /* 1: that walk is along what is sent */
	__u32 flags;      /* CAUSE_WAITS_MANY, CAUSE_SERVES */
	/* the connection that it is about to serve, by the even part of its first byte's number; THREAD_ENTERS */
	__u32 accepted;
	__u64 bound;      /* said by the probe of a runtime: what this thread sends next from `buffer` is for this exchange; 0: for none */
	__u64 buffer;     /* 0: nothing was said */
};

/* The programs' global variables, shared with the agent. */
struct global_state {
	__u64 n_connections; /* connections seen so far; the last connection number given out */
	__u64 n_open;        /* of them, those whose state is alive: TCP, and unix sockets that speak HTTP */
	__u64 begun_ns;      /* when `active` was set, by the kernel's monotonic clock */
	__u32 active;        /* 0: programs return at once. Set when all of them are attached: half a view misleads */
	__u32 wanted;        /* enum wanted, set by the programs */
	__u32 keeps_accounts; /* 1: there are hooks in the scheduler that book the time of threads. Set with `active` */
	__u32 follows_ids;    /* 1: there is a thread that runs Node's loop, set by the programs */
	__u32 n_async_logs;   /* logs given out to such threads so far */
	__u32 follows_reads;  /* 1: there is a program that asks what a thread has read last, set by the programs */
	__u32 follows_contexts;   /* 1: there is a program whose contexts are known, set by the programs */
	__u32 follows_goroutines; /* 1: likewise, goroutines */
	__u32 follows_greenlets;  /* 1: likewise, greenlets */
	__u32 pad;
};

/* Programs that cost every send something and that few machines need: attached when first missed. */
enum wanted {
	WANT_SEND_MESSAGES = 1, /* tcp_sendmsg_locked: a send whose buffer is not in the registers (io_uring) */
};

/*
 * Value of the `process` map: the program of the process that is to be ignored. The process may run another one by the
 * time the agent has decided, which is watched until the agent knows it.
 */
struct ignored_program {
	__u32 exec_id; /* as in its process_event */
	__u32 any;     /* 1: whatever it runs; it was there before the agent, so no record has its exec_id */
};

#endif
