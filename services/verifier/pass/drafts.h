/*
 * The verifier's end of the draft rings: asks for drafts, waits a bounded time, and believes no reply it has not
 * checked. Used by the engine thread; drafts_peer_joined and drafts_peer_left may be called from any.
 */
#pragma once

#include "services/verifier/pass/pace.h"
#include "services/verifier/state/tuning.h"
#include "shared/spec/accept.h"
#include "shared/spec/draft.h"

struct drafts {
	struct draft_rings rings;
	struct draft_supports supports;
	uint64_t sequence; /* of the last request */
	uint64_t peer_seen; /* generation of the drafter that the requests went to */
	uint64_t epoch; /* requests of an earlier one will not be answered */
	/* draft_wait and draft_spin of these hold. Borrowed; another between two rounds. */
	const struct tuning *tuning;
	uint64_t looked_ns; /* at the replies, last */
	/* Requests are out and nothing has come since then; 0: none are. After draft_wait the drafter is left alone for a while,
	 * unless it answers. */
	uint64_t silent_ns;
	uint32_t n_out; /* requests that were not answered */
	uint32_t n_awaited; /* of those that this round waits for */
	uint64_t round;
	uint32_t n_vocab;
	uint64_t refused; /* replies that failed a check */
	uint64_t iteration; /* of the expert demands of the pass to come; 0 = none */
	_Atomic uint64_t peer; /* generation of the drafter that is connected; 0 = none */
	struct pace pace; /* of all sessions: what is expected of one that is new */
	struct drafts_session {
		uint64_t uid, sequence, epoch; /* of the last request */
		uint64_t asked_ns;
		uint32_t n_tokens; /* of that one */
		struct draft_budget budget; /* and this */
		bool out; /* it was not answered */
		uint64_t awaited; /* the last round that waits for it */
		struct draft_reply reply; /* checked, or as much of it as has come */
		uint32_t n_taken; /* nodes of it */
		struct pace pace;
		/* What was foreseen last, checked; foreseen 0: nothing since it was taken. */
		struct drafts_foresight {
			uint64_t uid;
			uint32_t foreseen, drafted, right, method;
			float confidence[LIMIT_DRAFT_DEPTH];
		} foresight;
	} sessions[LIMIT_SESSIONS];
};

/* generation: of this process; replies to requests of an earlier one are never taken for ours. What lies in the reply
 * ring is a predecessor's and is thrown away. payload is the draft region's, supports that of "supports". */
int drafts_init(struct drafts *drafts, void *payload, size_t bytes, void *supports,
	uint64_t generation, uint32_t n_vocab, const struct tuning *tuning, struct error *err);

void drafts_exit(struct drafts *drafts);

void drafts_peer_joined(struct drafts *drafts, uint64_t generation);
void drafts_peer_left(struct drafts *drafts);

/* Whether asking makes sense: a drafter is there, and it is not one that has left requests unanswered for too long. Starts a
 * round. */
bool drafts_begin(struct drafts *drafts, uint64_t now_ns);

enum drafts_state {
	DRAFTS_NONE, /* nothing was asked for, or it is not answered any more */
	DRAFTS_OUT, /* asked for behind these tokens; it has not come */
	DRAFTS_BEHIND, /* asked for behind fewer tokens; it has not come */
	DRAFTS_HERE, /* behind these tokens: drafts_reply */
};
/* How it stands with the draft of a session that has so many tokens. */
enum drafts_state drafts_state(
	const struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens);
/* page: index of the session page; budget.nodes > 0; last: the round ends with this one. */
void drafts_ask(struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens,
	struct draft_budget budget, bool last);
/* Tells the drafter how far a session is, without asking for anything but, if so, what it would have drafted. */
void drafts_follow(
	struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens, bool foresight);

/* A chain that the verifier drafts itself behind the session's n_tokens tokens, in the place of whatever was asked for. Its method is
 * DRAFT_NONE. Without memory there is none. */
void drafts_put(struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens,
	const int32_t *tokens, uint32_t n);
/* Leaves of a session's draft the n nodes that are kept ([its nodes], each 0 or 1), which are a draft. One with supports keeps its
 * first n instead: what a token was sampled from depends on the siblings before it. */
void drafts_keep(struct drafts *drafts, uint32_t page, const uint16_t *kept, uint32_t n);

/* How fast drafts of a session come, and what they bring. */
const struct pace *drafts_pace(const struct drafts *drafts, uint32_t page, uint64_t uid);
/* How long ago a draft that is out was asked for. */
uint64_t drafts_elapsed_ns(const struct drafts *drafts, uint32_t page, uint64_t now_ns);
/* So many tokens of a session's draft were accepted. */
void drafts_yielded(struct drafts *drafts, uint32_t page, uint32_t n_accepted);

/* This round waits for the session's draft, which is out. */
void drafts_await(struct drafts *drafts, uint32_t page);
/* Waits for the drafts that are awaited. ready: some session can go on without them, and the wait ends after limit_ns. Else it ends
 * limit_ns after it began only if one of them has come by then; if none has, it goes on until the first comes, for draft_wait at
 * most. It ends at once when all have come or the drafter is gone. */
void drafts_wait(struct drafts *drafts, uint64_t limit_ns, bool ready);
/* The reply for a session in DRAFTS_HERE, checked. Valid until it is asked about again. */
const struct draft_reply *drafts_reply(const struct drafts *drafts, uint32_t page);
/* What the drafter foresaw of the session since this was asked last; false: nothing. */
bool drafts_foresight(
	struct drafts *drafts, uint32_t page, uint64_t uid, struct drafts_foresight *out);
