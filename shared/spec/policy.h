/*
 * The policy region, owned by the policy-controller: the ring of iteration records (verifier -> policy; a full ring
 * drops and counts) and the policy page (policy -> all). The verifier reads the page once per iteration and never
 * waits; a page that has not been written yet gives the defaults.
 */
#pragma once

#include "shared/base/limits.h"
#include "shared/ipc/page.h"
#include "shared/ipc/ring.h"
#include "shared/spec/draft.h"

#define POLICY_REGION "policy"
#define POLICY_LAYOUT 8

enum { POLICY_RECORD_SLOTS = 4096 };

/* One per session and iteration. Times in ns. */
struct iteration_record {
	uint64_t session, iteration;
	uint64_t finished_ns; /* CLOCK_MONOTONIC */
	uint32_t page, n_context; /* committed tokens after it */
	uint8_t k; /* the depth that was asked for */
	uint8_t depth; /* of the draft's path that is recorded (confidence); a chain's length */
	uint8_t accepted, emitted; /* tokens accepted; accepted + 1 (0 in prefill) */
	uint8_t method,
		k_fixed; /* enum draft_method; 0, or 1 + the K that the request fixed: the policy had no say */
	uint16_t drafted; /* nodes of the draft; a chain has as many as its depth */
	uint16_t batch_sessions; /* sessions in this iteration */
	uint8_t unfollowed; /* 1: the drafter was not told of what the session has */
	/* With k = 0 and not all of them 0: a draft that nobody asked for, which the drafter compared with what came. Asked
	 * would have been so many tokens, of which it has so many, and the first of them were right; `confidence` is
	 * theirs. */
	uint8_t foreseen, foreseen_drafted, foreseen_right, foreseen_method;
	uint32_t batch_tokens; /* tokens in the forward pass */
	uint32_t
		prefill_tokens; /* of them, prompt tokens of whatever session: such an iteration measures no K */
	uint32_t unique_experts, expert_hits, expert_misses; /* of the whole pass */
	uint32_t
		decision; /* low half of the policy_session.decision that K was read with; 0: of none */
	uint64_t expert_bytes;
	uint64_t draft_ns; /* the verifier's wait for drafts */
	uint64_t verify_ns; /* forward pass */
	uint64_t sample_ns; /* sampling and acceptance */
	uint64_t iteration_ns; /* all of it, draft wait included */
	/* By depth, how sure the drafter was that one of the tokens it proposed there comes, given the path so far: the sum of
	 * the confidences of the siblings, in POLICY_CONFIDENCE-ths, rounded; all of them POLICY_CONFIDENCE: the method has
	 * none. 0 behind `depth`. The path is the one that was accepted and goes on as the draft's main path does. */
	uint8_t confidence[LIMIT_DRAFT_DEPTH];
};
#define POLICY_CONFIDENCE 255
#define POLICY_RECORD_BYTES 192
static_assert(
	sizeof(struct iteration_record) <= POLICY_RECORD_BYTES, "a record is three cache lines");
/* The record's depth, drafted and confidences are those of a draft, of which these nodes were accepted, in order. */
void policy_record_draft(struct iteration_record *record, const struct draft_reply *draft,
	const int16_t *accepted, uint32_t n_accepted);
/* The record's confidences are those of n tokens, 0 to 1 each, and 0 behind them. */
void policy_record_confidence(struct iteration_record *record, const float *confidence, uint32_t n);

/* The knobs of one session slot. 8-byte words for page_read. */
struct policy_session {
	uint64_t session; /* uid this is about; another: use the defaults */
	uint32_t k;
	float utility; /* last measured; 0 = not measured */
	float acceptance; /* recent accepted / drafted */
	float etr; /* recent tokens per iteration */
	uint64_t decision; /* number of the newest one about this session */
	/* A path of a draft ends before depth i (from 0) when the product of the confidences along it falls below cut[i]; 0
	 * cuts nothing. */
	float cut[LIMIT_DRAFT_DEPTH + 1];
	/* A trial, so that trying a K costs what it was meant to cost however late its records are read: k holds for the
	 * first trial_n iterations that see this trial_id, k_then after them. trial_n 0: k holds. */
	uint32_t trial_id, trial_n, k_then;
	uint32_t
		unfollowed; /* 1: at K = 0 the drafter need not follow: no draft will be asked for soon */
	uint32_t foresight; /* 1: the policy learns from drafts that are kept back */
	uint32_t pad;
};

/* Who obeys a trial remembers how much of it is over. */
struct policy_trial {
	uint64_t session;
	uint32_t id, used;
};

static_assert(sizeof(struct policy_session) % 8 == 0, "page_read copies 8-byte words");

struct policy_page {
	struct page_lock defaults_lock;
	uint32_t pad;
	struct policy_defaults {
		uint32_t k, unfollowed,
			foresight; /* for sessions the policy has not seen, as theirs */
		uint32_t run_ahead; /* drafter: 1 = draft on from "all accepted" */
		char name[32]; /* "static:3", "cascade" */
	} defaults;
	struct policy_page_session {
		struct page_lock lock; /* of knobs */
		uint32_t pad;
		struct policy_session knobs;
	} sessions[LIMIT_SESSIONS];
};

/* Payload: the page, then the record ring. */
size_t policy_bytes(void);
void policy_format(void *payload);
int policy_attach(void *payload, size_t bytes, struct policy_page **page, struct ring *records,
	struct error *err);
/* The K of the session's next iteration, which counts towards its trial. */
uint32_t policy_next_k(const struct policy_session *knobs, struct policy_trial *trial);
/* How many tokens of one path the thresholds leave, given their confidences. Whatever the page holds, 0 to n. */
uint32_t policy_cut_path(const struct policy_session *knobs, const float *confidence, uint32_t n);
/* What the thresholds leave of a checked draft without supports: of each path what comes before the first token whose product of
 * confidences is below the threshold of its depth. Whatever the page holds, what is left is a draft. */
void policy_cut(const struct policy_session *knobs, struct draft_reply *draft);
/* K and knobs for a session; false (and the page's defaults, or K = 0 with page NULL) when it has none. */
bool policy_lookup(const struct policy_page *page, uint32_t slot, uint64_t session,
	struct policy_session *out);
