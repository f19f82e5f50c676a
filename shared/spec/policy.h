/*
 * The policy region, owned by the policy-controller. It has the ring of iteration records (verifier
 * to policy-controller; a full ring drops and counts) and the policy page (policy-controller to
 * all). The verifier reads the page once per iteration and never waits; a page that has not been
 * written yet gives the defaults.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/ipc/page.h"
#include "shared/ipc/ring.h"
#include "shared/spec/draft.h"

#define POLICY_REGION "policy"
#define POLICY_LAYOUT 11

enum { POLICY_RECORD_SLOTS = 4096 };

/* One record per session and iteration. Times in ns. */
struct iteration_record {
	uint64_t session, iteration;
	uint64_t finished_ns; /* CLOCK_MONOTONIC */
	uint32_t page, n_context; /* n_context: committed tokens after the iteration */
	uint8_t k; /* depth that was asked for */
	/* length of the recorded path of the draft (confidence); of a chain its length */
	uint8_t depth;
	/* accepted: tokens; emitted: accepted + 1, or 0 during prefill */
	uint8_t accepted, emitted;
	/* method: enum draft_method; k_fixed: 0, or 1 + the K that the request fixed, in which case
	 * the policy did not decide */
	uint8_t method, k_fixed;
	uint16_t drafted; /* nodes of the draft; equal to depth for a chain */
	uint16_t batch_sessions; /* sessions in this pass */
	uint8_t unfollowed; /* 1: the drafter was not told of the session's tokens */
	/* With k = 0, and not all of them 0: a foresight, a draft that nobody asked for and that
	 * the drafter compared with the tokens that came. foreseen: tokens that would have been
	 * asked for; foreseen_drafted: tokens that it has; foreseen_right: the first of these that
	 * came true. `confidence` is then that of the foresight. */
	uint8_t foreseen, foreseen_drafted, foreseen_right, foreseen_method;
	uint8_t width; /* children of one token that were asked for */
	/* rows with masks, from which the verifier itself drafts: they are among batch_tokens */
	uint16_t masks;
	/* accepted tokens that the draft's main path alone would not have brought */
	uint8_t beside;
	uint32_t batch_tokens; /* tokens in the pass */
	/* prompt tokens among them, of any session; an iteration with such tokens measures no K */
	uint32_t prefill_tokens;
	uint32_t unique_experts, expert_hits, expert_misses; /* of the whole pass */
	/* low half of the policy_session.decision with which K was read; 0: none */
	uint32_t decision;
	/* Targets of the session's class (classes.h), in us; 0: none. */
	uint32_t tpot_us, ttft_us;
	uint64_t expert_bytes;
	uint64_t draft_ns; /* time that the verifier waited for drafts */
	uint64_t verify_ns; /* forward pass */
	uint64_t sample_ns; /* sampling and acceptance */
	uint64_t iteration_ns; /* the whole iteration, including the wait for drafts */
	/* For each depth: how sure the drafter was that one of the tokens that it proposed there
	 * comes, given the path so far. It is the sum of the siblings' confidences in units of 1 /
	 * POLICY_CONFIDENCE, rounded. All POLICY_CONFIDENCE: the method has no confidences. 0
	 * behind `depth`. The path is the accepted one, continued by the draft's main path. */
	uint8_t confidence[LIMIT_DRAFT_DEPTH];
};
#define POLICY_CONFIDENCE 255
#define POLICY_RECORD_BYTES 192
static_assert(
	sizeof(struct iteration_record) <= POLICY_RECORD_BYTES, "a record is three cache lines");
/* Sets the record's depth, drafted and confidences from a draft of which the nodes `accepted` were
 * accepted, in order. */
void policy_record_draft(struct iteration_record *record, const struct draft_reply *draft,
	const int16_t *accepted, uint32_t n_accepted);
/* Sets the record's confidences to those of n tokens, 0 to 1 each, and the rest to 0. */
void policy_record_confidence(struct iteration_record *record, const float *confidence, uint32_t n);

/* What the nodes of a draft cost and bring, in ns: by these the verifier chooses which of them it
 * verifies (verifier/pass/node_pick.h). token 0: it verifies all. */
struct policy_prices {
	float token; /* what one more token is worth: the time of a token at the best rate */
	float row; /* one more row of a pass */
	float expert; /* one more expert that the pass computes with */
	float load; /* what it costs more when it is not resident */
};

/* The knobs of one session slot, in 8-byte words for page_read. */
struct policy_session {
	/* uid of the session that this is about; for any other session use the defaults */
	uint64_t session;
	uint32_t k;
	float utility; /* last measured; 0: not measured */
	float acceptance; /* recent, accepted / drafted */
	float etr; /* recent, tokens per iteration */
	uint64_t decision; /* number of the newest decision about this session */
	/* A path of a draft ends before depth i (from 0) when the product of the confidences along
	 * it falls below cut[i]; 0 cuts nothing. */
	float cut[LIMIT_DRAFT_DEPTH + 1];
	/* A trial: k holds for the first trial_n iterations that see this trial_id, and k_then
	 * after them. So a trial costs what it was meant to cost, however late its records are
	 * read. trial_n 0: k holds. */
	uint32_t trial_id, trial_n, k_then;
	/* 1: at K = 0 the drafter need not follow, because no draft will be requested soon */
	uint32_t unfollowed;
	uint32_t foresight; /* 1: the policy learns from drafts that are kept back */
	/* Children of one token that the drafter is asked for; 0: as the verifier's settings say. */
	uint32_t width;
	struct policy_prices prices;
	/* A tree of fixed shape: each token of depth i - 1 gets shape[i] children; 0 ends it.
	 * shape[0] 0: none. */
	uint8_t shape[DRAFT_SHAPE];
};

/* The verifier's progress in a session's trial. */
struct policy_trial {
	uint64_t session;
	uint32_t id, used;
};

static_assert(sizeof(struct policy_session) % 8 == 0, "page_read copies 8-byte words");

struct policy_page {
	struct page_lock defaults_lock;
	uint32_t pad;
	struct policy_defaults {
		/* for sessions that the policy has not seen; as in struct policy_session */
		uint32_t k, unfollowed, foresight;
		/* for the drafter: 1 = draft ahead, assuming that all drafted tokens are accepted
		 */
		uint32_t run_ahead;
		char name[32]; /* "static:3", "cascade" */
	} defaults;
	struct policy_page_session {
		struct page_lock lock; /* protects knobs */
		uint32_t pad;
		struct policy_session knobs;
	} sessions[LIMIT_SESSIONS];
};

/* Payload: the page, then the record ring. */
size_t policy_bytes(void);
void policy_format(void *payload);
int policy_attach(void *payload, size_t bytes, struct policy_page **page, struct ring *records,
	struct error *err);
/* The K of the session's next iteration, which is counted towards its trial. */
uint32_t policy_next_k(const struct policy_session *knobs, struct policy_trial *trial);
/* How many of the n tokens of one path the bounds in `cut` leave, given their confidences: 0 to n,
 * whatever the page holds. */
uint32_t policy_cut_path(const struct policy_session *knobs, const float *confidence, uint32_t n);
/* Shortens a checked draft without supports: each path ends before the first token at which the
 * product of confidences is below the bound of its depth. Whatever the page holds, the result is a
 * draft. */
void policy_cut(const struct policy_session *knobs, struct draft_reply *draft);
/* Looks up K and knobs of a session. False when it has none: *out gets the page's defaults, or K =
 * 0 with page NULL. */
bool policy_lookup(const struct policy_page *page, uint32_t slot, uint64_t session,
	struct policy_session *out);
