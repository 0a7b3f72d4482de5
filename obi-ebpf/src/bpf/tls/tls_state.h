/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What is known of the objects of TLS libraries: the plain bytes of each are a
 * connection of their own, framed like those of a socket; and which call of the
 * library each thread is in.
 */
#ifndef OBI_TLS_STATE_H
#define OBI_TLS_STATE_H

#include "protocol/http1/ending.h"

enum {
	TLS_CONNECTIONS_MOST = 2048, /* where all are allocated at once; on demand, the agent allows for more */
	TLS_SPARES_MOST = 256,
	TLS_CALLS_MOST = 4096, /* threads that have called a TLS library; likewise */
	TLS_FLIGHTS_MOST = 512, /* records on their way from a memory BIO to a socket: gone within a turn of the event loop */
	TLS_PROCESSES_MOST = 4096,
	TLS_FRAMES = 2, /* calls of a library inside each other: TLS inside TLS, wrappers. A power of two */
};

/* The plain side of a TLS object. */
struct tls_connection {
	struct connection connection; /* first: `tls_key` is its own key, sockets and cursors are as anywhere */
	u64 transport;		/* number of the connection of its socket, 0: not known */
	u64 arrival;		/* when the records last read from the socket had arrived there, 0: not known */
	u64 freed;		/* when the program asked the library to free the object, 0: it did not */
	u32 moved;		/* 1: it is at another socket now; what has been followed so far is over */
	u16 collected;		/* 1: no call shows when its memory is free: it goes with its socket */
	u16 sent;		/* (rustls) 1: it has made a record */
	u64 unsent;		/* the bytes of a call that the library has taken and not sent: another call, without bytes, goes on */
	struct ending ending;	/* the end that its socket has met; reason 0: none yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TLS_CONNECTIONS_MOST);
	__type(key, struct tls_key);
	__type(value, struct tls_connection);
} tls_connection SEC(".maps");

#ifndef OBI_PORTABLE
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TLS_SPARES_MOST);
	__type(key, struct tls_key);
	__type(value, struct spare);
} tls_spare SEC(".maps");
#endif

/* Zeroes to begin with: neither fits the stack. */
struct tls_blank {
	struct tls_connection connection;
	struct spare spare;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tls_blank);
} tls_blank SEC(".maps");

enum tls_call_kind {
	TLS_CALL_RECEIVE = 0, /* as `sending` elsewhere */
	TLS_CALL_SEND = 1,
	TLS_CALL_HANDSHAKE = 2, /* as the next one, it moves no bytes that are to be reported */
	TLS_CALL_REPORTED = 3,      /* what is sent inside has been reported: bytes that were gathered before */
	TLS_CALL_RECORD = 4,    /* (rustls) no call that has begun: a record is being made */
};

/* A call of the library that has begun. */
struct tls_frame {
	u64 object;
	u64 buffer; /* 0: the bytes are in no memory of the process */
	u64 count; /* where the number of bytes will be written, 0: it is the result */
	u64 stack; /* stack pointer at its probe: calls inside it have lower ones */
	u64 begun; /* when, of one that sends: encryption takes its time */
	u32 kind;
	u16 reported;  /* 1: its bytes have been reported by a call inside it */
	u16 collected; /* 1: as in struct tls_connection */
};

struct tls_call {
	u64 arrival; /* of what has been read at the socket inside the outermost call, 0: nothing */
	u64 sent;    /* when what was last sent at the socket inside the outermost call had left, 0: nothing was */
	u64 walk;    /* (portable) the object whose walk goes on in another program */
	u32 sending; /* 1: along what is sent */
	u32 depth;
	struct tls_frame frame[TLS_FRAMES];
};

/*
 * The call that is `depth` calls deep, from 1 to TLS_FRAMES. Verifiers before 6.3 learn no bound of a register from
 * one of its copy, so the mask has to stay where the compiler sees no need of it.
 */
static __always_inline struct tls_frame *frame_at(struct tls_call *call, u32 depth)
{
	u32 index = depth - 1;
	OPAQUE(index);
	return &call->frame[index & (TLS_FRAMES - 1)];
}

/* tid -> the calls that the thread is in. Gone with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TLS_CALLS_MOST);
	__type(key, u32);
	__type(value, struct tls_call);
} tls_call SEC(".maps");

/* The first bytes of a record, behind its header: random in each handshake, ciphertext afterwards. */
struct tls_flight_key {
	u64 first;
	u64 second;
	u32 tgid;
	u32 pad;
};

/*
 * Records that an object has put into its BIO, until they are seen at a socket: with
 * memory BIOs no I/O happens inside the call. What is pushed out would have shown where
 * the object's socket is; the next record shows it as well.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TLS_FLIGHTS_MOST);
	__type(key, struct tls_flight_key);
	__type(value, u64);
} tls_flight SEC(".maps");

/* tgid -> how many objects of it we hold: others need not be looked for when a process ends. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TLS_PROCESSES_MOST);
	__type(key, u32);
	__type(value, u64);
} tls_process SEC(".maps");

/* Before 6.2 a key may not lie in memory that a global function was handed: the stack will do. */
static __always_inline struct tls_connection *find_tls(const struct tls_key *at)
{
	struct tls_key key = *at;
	return bpf_map_lookup_elem(&tls_connection, &key);
}

static __always_inline void count_tls(u32 tgid, s64 n)
{
	u64 *count = bpf_map_lookup_elem(&tls_process, &tgid), one = 1;
	if (count)
		__sync_fetch_and_add(count, n);
	else if (n > 0)
		bpf_map_update_elem(&tls_process, &tgid, &one, BPF_NOEXIST);
}

/* From the very first byte, or joined in the middle: then the next heads have to be found. */
static __always_inline void start_tls(struct tls_connection *t, const struct tls_key *key, bool from_start)
{
	struct connection *k = &t->connection;
	k->tgid = key->tgid;
	k->number = next_connection_number();
	k->tls = TLS_OBJECT;
	k->encrypted = 1;
	k->tls_key = *key;
	if (from_start)
		return;
	k->flags = CONNECTION_JOINED;
	k->receive.mode = MODE_RESYNC;
	k->send.mode = MODE_RESYNC;
}

static __always_inline struct tls_connection *make_tls(const struct tls_key *key, bool from_start)
{
	u32 zero = 0;
	struct tls_blank *from = bpf_map_lookup_elem(&tls_blank, &zero);
	struct tls_connection *t;
	if (!from || bpf_map_update_elem(&tls_connection, key, &from->connection, BPF_NOEXIST))
		return NULL;
	t = find_tls(key);
	if (!t)
		return NULL;
	start_tls(t, key, from_start);
	count_tls(key->tgid, 1);
	return t;
}

static __always_inline void drop_tls(struct tls_connection *t)
{
	struct tls_key key = t->connection.tls_key;
#ifndef OBI_PORTABLE
	if (t->connection.flags & CONNECTION_SPARE)
		bpf_map_delete_elem(&tls_spare, &key);
#endif
	bpf_map_delete_elem(&tls_connection, &key);
	count_tls(key.tgid, -1);
}

#ifndef OBI_PORTABLE
/* As make_spare(), for connections without a socket. */
static __always_inline struct spare *make_tls_spare(struct connection *k)
{
	struct tls_key key = k->tls_key;
	u32 zero = 0;
	struct tls_blank *from = bpf_map_lookup_elem(&tls_blank, &zero);
	k->flags |= CONNECTION_SPARE;
	if (from)
		bpf_map_update_elem(&tls_spare, &key, &from->spare, BPF_NOEXIST);
	return bpf_map_lookup_elem(&tls_spare, &key);
}
#endif

/* Ends what is pending; the socket's end goes before what the program does. Inlined: calls nest eight deep. */
static __always_inline int end_tls(struct tls_connection *t, u32 reason, u32 loss)
{
	struct ending how = {};
	if (!t)
		return 0;
	if (t->ending.reason && reason < CLOSE_ABANDONED) {
		how = t->ending;
	} else {
		how.reason = reason;
		how.loss = loss;
		how.time = t->freed ? t->freed : bpf_ktime_get_ns();
	}
	return end_connection(&t->connection, &how);
}

/* The object is used for another connection. What it still owed is lost. Its socket stays as it is known. Inlined as above. */
static __always_inline int renew_tls(struct tls_connection *t, u32 from_start)
{
	struct connection *k;
	struct tls_key key;
	u8 addresses[2 * ADDRESS_BYTES];
	u16 family, local_port, remote_port;
	if (!t)
		return 0;
	if (t->freed || t->ending.reason)
		end_tls(t, CLOSE_LOCAL, 0);
	else
		end_tls(t, CLOSE_ABANDONED, LOSS_GAP);
	k = &t->connection;
	key = k->tls_key;
	family = k->family;
	local_port = k->local_port;
	remote_port = k->remote_port;
	__builtin_memcpy(addresses, k->local_address, sizeof(addresses));
	/* In two parts: the compiler has no memset for more than 1 KiB. */
	__builtin_memset(k, 0, offsetof(struct connection, sweep));
	barrier();
	__builtin_memset(&k->sweep, 0, sizeof(*k) - offsetof(struct connection, sweep));
	start_tls(t, &key, from_start);
	k->family = family;
	k->local_port = local_port;
	k->remote_port = remote_port;
	__builtin_memcpy(k->local_address, addresses, sizeof(addresses));
	t->arrival = 0;
	t->freed = 0;
	t->moved = 0;
	t->sent = 0;
	t->unsent = 0;
	t->ending.reason = 0;
	return 0;
}

#endif
