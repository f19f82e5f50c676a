/*
 * A draft model: a GGUF model with a KV cache of its own, which all sessions share. Missing cells
 * of a session are computed again from its tokens, so to evict the least recently used one costs
 * only time. It is opened before the draft thread starts, and used by that thread. A draft head
 * (head.h) is one too, in most respects; the draft thread itself opens it.
 */
#pragma once

#include "services/drafter/draft.h"
#include "services/drafter/draft_kv.h"
#include "services/drafter/head_experts.h"
#include "services/drafter/head_routes.h"
#include "services/drafter/head_states.h"
#include "services/drafter/hints.h"
#include "shared/model/pass/forward.h"
#include "shared/model/text/tokenizer.h"

/* Rows of logits in one pass: one for the drafted token of every session, or as many for foresight
 * (foresight.h). */
enum { DRAFT_MODEL_LOGITS = LIMIT_RUNNING };

struct draft_model {
	enum draft_method method; /* what its drafts are called */
	struct model *model;
	/* The target whose tensors it borrows, if it does. */
	struct model *target;
	/* Of a head; NULL: it is none. What it reads, and logits for all tokens, where it has some
	 * for a part of them. */
	const struct head *head;
	struct head_states *states; /* borrowed */
	struct hidden_shape wanted;
	float *logits; /* [config.n_vocab] or NULL */
	bool *is_true; /* [n_batch_max] the row's state is the target's */
	struct head_blocks
		*blocks; /* nextn: with those behind the first (head_blocks.h); else NULL */
	/* Which experts its tokens need, and of each row its index there, -1: none. */
	struct head_routes routes;
	int16_t *route; /* [n_batch_max] */
	/* What computes (model_engine.h): the CPU, which is its own, or a device, borrowed. */
	struct backend *host, *backend;
	bool placed; /* its weights are on a device */
	/* The device's library may multiply (worker_device.h); and it does so for fast tokens, because
	 * the model has matrices for it. */
	bool use_library, fast;
	struct forward *forward;
	/* On a device: rows of hidden states that hints are made from (model_hints.c), and the same
	 * for the CPU. */
	struct buffer seen, seen_host;
	/* For those with experts: of a draft model's own file; or of the target, which the
	 * expert-cache may have. */
	struct experts_mapped experts;
	struct head_experts_of
		experts_of; /* set before the engine is opened; n_cached 0: the former */
	struct head_experts head_experts;
	struct kv kv;
	struct draft_kv_memory memory;
	struct tokenizer *tokenizer;
	struct sampler sampler; /* over the tokens that the target has too */
	struct hints *hints; /* borrowed */
	uint32_t n_vocab; /* tokens that it can read */
	uint32_t n_context;
	uint32_t n_batch, n_batch_max; /* rows of a pass, now and at most */
	/* uses counts the drafts of sessions; round is its value when the present round began */
	uint64_t uses, round;
	/* The worker's table, borrowed: sessions[n_sessions]. */
	struct draft_session *sessions;
	uint32_t n_sessions;
	/* The batch of the next pass. */
	struct batch_token *batch; /* [n_batch_max] */
	struct draft_session **owner; /* [n_batch_max] the session of each token */
	uint32_t *cells; /* [n_batch_max] */
	uint32_t n_in_batch;
	/* For trees (model_tree.c): sequences without pages, made when they are first used, and the
	 * stamps of the trees whose committed cells their maps hold. */
	struct kv_seq views[DRAFT_MODEL_LOGITS];
	uint64_t view_holds[DRAFT_MODEL_LOGITS];
	/* The loop thread reads them for the status. fast_tokens: those that the library multiplied */
	_Atomic uint64_t passes, tokens, fast_tokens, evictions;
};

/* sessions[n_sessions], the worker's table, and hints are borrowed. Errors name the file or the
 * setting. */
int draft_model_open(const struct drafter_config *config, struct draft_session *sessions,
	uint32_t n_sessions, struct hints *hints, struct draft_model **out, struct error *err);
void draft_model_close(struct draft_model **model);

/* Prepares for the target whose file is at path and whose tokenizer has this fingerprint. The
 * vocabularies may differ in size if the tokens that both have are the same strings: then only
 * those are drafted. Otherwise an error says what differs, and the model must not be used. No
 * session may have tokens in the KV cache at this time. */
int draft_model_meet(
	struct draft_model *m, const char *path, uint64_t fingerprint, struct error *err);

/* Reads the tokenizer that the verifier says it uses from its model's file. */
int draft_target_tokenizer(
	const char *path, uint64_t fingerprint, struct tokenizer **out, struct error *err);

/* Takes over the settings that may change while it runs: the tokens of one pass, at most as many as
 * at the start. */
void draft_model_tune(struct draft_model *m, const struct drafter_config *config);

/* True when the session can be drafted for: it fits the model's context, and its tokens are in the
 * vocabulary. */
bool draft_model_fits(const struct draft_model *m, const struct draft_session *s);
/* Call after session_follow, with its *kept: keeps what a tree's accepted tokens need no more to be
 * computed for, drops the positions of tokens that were contradicted, and the last token's, whose
 * logits are needed again. */
void draft_model_rewind(struct draft_model *m, struct draft_session *s, uint32_t kept);
/* Gives back the session's cells, whichever model's they are. */
void draft_model_drop(struct draft_session *s);
/* One pass of work for which no request waits: it reads the tokens of sessions that are far behind;
 * when there are none and `ahead` is true, it drafts on behind the drafts that were sent. False
 * when there is nothing to do, or the pass failed. */
bool draft_model_idle(struct draft_model *m, bool ahead);
