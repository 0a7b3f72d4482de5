/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* What the protocols of databases share: how they begin, and how what is asked and what is answered stay in step. */
#ifndef OBI_TURN_H
#define OBI_TURN_H

#include "protocol/database/database.h"
#include "protocol/framed/prefixed.h"

/* Something is asked: where its answer's direction is lost, the next segment there begins with an answer. */
static __always_inline void ask(struct connection *k, const struct segment *s)
{
	struct frame_cursor *answers = &opposite_of(k, s)->frame;
	if (opposite_of(k, s)->mode != MODE_FRAME_LOST || answers->phase == PHASE_ANSWERED)
		return;
	answers->phase = PHASE_ANSWERED;
	answers->turn = cursor_of(k, s)->frame.turn;
}

/* A database's protocol from here on, in this direction and the other. */
static __always_inline void begin_database(struct connection *k, const struct segment *s, u32 upgrade)
{
	struct cursor *own = cursor_of(k, s), *other = opposite_of(k, s);
	bool joined = other->mode != MODE_START || upgrade == UPGRADE_POSTGRES_JOINED;
	cursor_reset(own, MODE_FRAME);
	__builtin_memset(&own->frame, 0, sizeof(own->frame));
	cursor_reset(other, joined ? MODE_FRAME_LOST : MODE_FRAME);
	__builtin_memset(&other->frame, 0, sizeof(other->frame));
	own->frame.joined = other->frame.joined = joined;
	own->frame.phase = upgrade == UPGRADE_POSTGRES ? PHASE_STARTUP : PHASE_MESSAGES;
	k->protocol = upgrade == UPGRADE_REDIS ? PROTOCOL_REDIS : PROTOCOL_POSTGRES;
	k->side = s->sending ? SIDE_CLIENT : SIDE_SERVER;
	k->flags |= CONNECTION_HTTP;
	k->tgid = s->id >> 32;
	count_open(k);
}

/* Messages cannot be followed: in both directions they are looked for anew, and their turns are none that was used. */
static __always_inline void lose_database(struct connection *k)
{
	struct cursor *receive = &k->receive, *send = &k->send;
	u32 turn = receive->frame.turn > send->frame.turn ? receive->frame.turn : send->frame.turn;
	receive->mode = send->mode = MODE_FRAME_LOST;
	receive->frame.turn = send->frame.turn = turn + 1;
	receive->frame.sequence++;
	send->frame.sequence++;
	receive->frame.joined = send->frame.joined = 1;
	receive->frame.phase = send->frame.phase = PHASE_MESSAGES;
	receive->frame.got = send->frame.got = 0;
	receive->frame.redis.want = send->frame.redis.want = 0;
}

/* Lost, at the start of a segment: a message begins here, or (not `found`) it is passed over. */
static __always_inline void find_again(struct cursor *c, struct segment *s, bool found)
{
	if (!found) {
		s->left = 0;
		return;
	}
	c->mode = MODE_FRAME;
	c->frame.phase = PHASE_MESSAGES;
	c->frame.got = 0;
}

/* The first bytes of the segment, if there are enough for any message to be known by. Returns how many. */
static __always_inline u32 first_bytes(struct segment *s, u8 *bytes)
{
	u64 n = s->left < s->source.length ? s->left : s->source.length;
	if (n > REDIS_LINE_BYTES)
		n = REDIS_LINE_BYTES;
	OPAQUE(n);
	if (n > REDIS_LINE_BYTES || n < POSTGRES_HEADER_BYTES || bpf_probe_read_user(bytes, n, (void *)s->source.base))
		return 0;
	return n;
}

#endif
