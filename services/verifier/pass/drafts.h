/*
 * The verifier's end of the draft rings: asks for drafts, waits a bounded time, and believes no reply it has not
 * checked. Used by the engine thread; drafts_peer_joined and drafts_peer_left may be called from any.
 */
#pragma once

#include "shared/spec/accept.h"
#include "shared/spec/draft.h"

struct drafts {
	struct draft_rings rings;
	uint64_t sequence; /* of the last request */
	uint64_t answered; /* newest sequence a reply carried */
	uint64_t asked; /* newest sequence that wants a reply */
	uint64_t retry_ns; /* after a time-out: not before, unless the drafter answers again */
	uint64_t peer_seen; /* generation of the drafter the three above are about */
	uint64_t wait_ns, spin_ns;
	uint32_t n_vocab;
	uint64_t round;
	uint32_t n_waiting; /* sessions of this round without a reply */
	uint64_t refused; /* replies that failed a check */
	uint64_t iteration; /* of the expert demands of the pass to come; 0 = none */
	_Atomic uint64_t peer; /* generation of the drafter that is connected; 0 = none */
	struct drafts_session {
		uint64_t uid, sequence, round; /* of the last request */
		uint32_t k;
		bool arrived;
		struct draft_reply reply;
		/* What was foreseen last, checked; foreseen 0: nothing since it was taken. */
		struct drafts_foresight {
			uint64_t uid;
			uint32_t foreseen, drafted, right, method;
			float confidence[LIMIT_DRAFT];
		} foresight;
	} sessions[LIMIT_SESSIONS];
};

/* generation: of this process; replies to requests of an earlier one are never taken for ours. What lies in the reply
 * ring is a predecessor's and is thrown away. payload is the draft region's. */
int drafts_init(struct drafts *drafts, void *payload, size_t bytes, uint64_t generation,
	uint32_t n_vocab, uint64_t wait_ns, uint64_t spin_ns, struct error *err);

/* Other waits, between two rounds. */
void drafts_tune(struct drafts *drafts, uint64_t wait_ns, uint64_t spin_ns);

void drafts_peer_joined(struct drafts *drafts, uint64_t generation);
void drafts_peer_left(struct drafts *drafts);

/* Whether asking makes sense: a drafter is there, and it is not one that let the last round time out. Starts a round. */
bool drafts_begin(struct drafts *drafts, uint64_t now_ns);
/* page: index of the session page. k > 0; last: the round ends with this one. */
void drafts_ask(struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens, uint32_t k,
	bool last);
/* Tells the drafter how far a session is, without asking for anything but, if so, what it would have drafted. */
void drafts_follow(
	struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens, bool foresight);
/* Until all have answered, the time is over, or the drafter is gone. */
void drafts_wait(struct drafts *drafts);
/* What the drafter foresaw of the session since this was asked last; false: nothing. */
bool drafts_foresight(
	struct drafts *drafts, uint32_t page, uint64_t uid, struct drafts_foresight *out);
/* This round's reply for a page, checked, or NULL. Valid until the next round. */
const struct draft_reply *drafts_reply(const struct drafts *drafts, uint32_t page);
