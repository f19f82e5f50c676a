/*
 * The verifier's end of the draft rings: asks for drafts, waits a bounded time for them, and checks
 * each reply before it is used. The engine thread uses it; drafts_peer_joined and drafts_peer_left
 * may be called from any thread.
 */
#pragma once

#include "services/verifier/pass/pace.h"
#include "services/verifier/state/tuning.h"
#include "shared/spec/accept.h"
#include "shared/spec/draft.h"
#include "shared/spec/session.h"

struct drafts {
	struct draft_rings rings;
	struct draft_supports supports;
	uint64_t sequence; /* of the last request */
	uint64_t peer_seen; /* generation of the drafter to which the requests went */
	uint64_t epoch; /* requests of an earlier epoch will not be answered */
	/* draft_wait and draft_spin of it are used. Borrowed; may be replaced between two rounds.
	 */
	const struct tuning *tuning;
	uint64_t looked_ns; /* when the replies were last looked at */
	/* Since when requests are out and no reply has come; 0: none are out. Once this exceeds
	 * draft_wait, the drafter is asked for nothing for a while, unless it answers. */
	uint64_t silent_ns;
	uint32_t n_out; /* requests that were not answered yet */
	uint32_t n_awaited; /* how many of them this round waits for */
	uint64_t round;
	uint32_t n_vocab;
	uint64_t refused; /* replies that failed a check */
	uint64_t iteration; /* of the first expert demand of the next pass; 0 = none */
	_Atomic uint64_t peer; /* generation of the connected drafter; 0 = none */
	struct pace pace; /* over all sessions: the expectation for a new one */
	struct drafts_session {
		uint64_t uid, sequence, epoch; /* of the last request */
		uint64_t asked_ns;
		uint32_t n_tokens; /* of the last request */
		struct draft_budget budget; /* of the last request */
		bool out; /* the last request was not answered yet */
		uint64_t awaited; /* the last round that waited for it */
		struct draft_reply reply; /* checked, or as much of it as has come */
		uint32_t n_taken; /* nodes of it that have come */
		struct pace pace;
		/* The drafter's last report of foresight, checked. foreseen 0: there is none since
		 * the last was taken. */
		struct drafts_foresight {
			uint64_t uid;
			uint32_t foreseen, drafted, right, method;
			float confidence[LIMIT_DRAFT_DEPTH];
		} foresight;
	} sessions[LIMIT_SESSIONS];
};

/* generation: this process's; replies to requests of an earlier one are never taken for replies to
 * ours. Replies in the ring are for a predecessor and are dropped. payload, supports: the payloads
 * of the regions "draft" and "supports". */
int drafts_init(struct drafts *drafts, void *payload, size_t bytes, void *supports,
	uint64_t generation, uint32_t n_vocab, const struct tuning *tuning, struct error *err);

void drafts_exit(struct drafts *drafts);

void drafts_peer_joined(struct drafts *drafts, uint64_t generation);
void drafts_peer_left(struct drafts *drafts);
/* Wakes the drafter, for which there are hidden states but no request. */
void drafts_wake(struct drafts *drafts);

/* Begins a round. True when drafts may be asked for: a drafter is connected, and it has not left
 * requests unanswered for too long. */
bool drafts_begin(struct drafts *drafts, uint64_t now_ns);

enum drafts_state {
	DRAFTS_NONE, /* nothing was asked for, or no answer is expected any more */
	DRAFTS_OUT, /* asked for behind these tokens; it has not come */
	DRAFTS_BEHIND, /* asked for behind fewer tokens; it has not come */
	DRAFTS_HERE, /* drafts_reply has the draft behind these tokens */
};
/* The state of the draft of a session that has n_tokens tokens. */
enum drafts_state drafts_state(
	const struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens);
/* Asks for a draft behind n_tokens. page: index of the session page; budget.nodes > 0; needs_words: as
 * in struct draft_request; last: this request is the round's last one. */
void drafts_ask(struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens,
	struct draft_budget budget, uint32_t needs_words, bool last);
/* Tells the drafter that the session has n_tokens, without asking for a draft. foresight: asks it
 * to report what it would have drafted. A draft from masks that is there is told, too, for hints. */
void drafts_follow(
	struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens, bool foresight);

/* A chain that the verifier drafted itself. chance: how sure each token is, given those before it;
 * NULL: all are certain. */
struct drafts_own {
	enum draft_method method; /* DRAFT_NONE: a grammar's */
	uint32_t n;
	const int32_t *tokens;
	const float *chance;
};
/* Puts such a chain, which follows the session's n_tokens, in place of the draft that was asked for.
 * Without memory the session gets no draft. */
void drafts_put(struct drafts *drafts, uint32_t page, uint64_t uid, uint32_t n_tokens,
	const struct drafts_own *own);
/* Reduces a session's draft to the n nodes that are kept (kept: [its nodes], each 0 or 1); they
 * must form a draft. One with supports keeps its first n nodes instead, because the distribution of
 * a token depends on the siblings before it. */
void drafts_keep(struct drafts *drafts, uint32_t page, const uint16_t *kept, uint32_t n);

/* How long drafts of a session take, and how many of their tokens are accepted. Before the first
 * draft of a session: the figures of all sessions. */
const struct pace *drafts_pace(const struct drafts *drafts, uint32_t page, uint64_t uid);
/* How long ago the last draft was asked for. */
uint64_t drafts_elapsed_ns(const struct drafts *drafts, uint32_t page, uint64_t now_ns);
/* Reports that n_accepted tokens of a session's draft were accepted. */
void drafts_yielded(struct drafts *drafts, uint32_t page, uint32_t n_accepted);

/* Makes this round wait for the session's draft, which is out. */
void drafts_await(struct drafts *drafts, uint32_t page);
/* Waits for the awaited drafts. ready: some session can go on without them, and the wait ends after
 * limit_ns. Otherwise it ends limit_ns after its beginning only if one of the drafts has come by
 * then; if none has, it goes on until the first comes, for draft_wait at most. It ends at once when
 * all have come or the drafter is gone. */
void drafts_wait(struct drafts *drafts, uint64_t limit_ns, bool ready);
/* The checked reply for a session in state DRAFTS_HERE. Valid until the next request for that
 * session. */
const struct draft_reply *drafts_reply(const struct drafts *drafts, uint32_t page);
/* Takes the last report of foresight about the session; false when there is none since the last
 * call. */
bool drafts_foresight(
	struct drafts *drafts, uint32_t page, uint64_t uid, struct drafts_foresight *out);
