/*
 * The draft model: a GGUF model with a KV cache of its own, shared by all sessions. A session's
 * part of it is rebuilt from its tokens whenever something is missing, so evicting the least
 * recently used one costs only time. Used by the draft thread; opened before it starts.
 */
#pragma once

#include "services/drafter/draft.h"
#include "services/drafter/hints.h"
#include "shared/model/pass/forward.h"
#include "shared/model/text/tokenizer.h"

/* Rows of logits in one pass: a draft's token of every session, or so many that are only looked at (foresight.h). */
enum { DRAFT_MODEL_LOGITS = LIMIT_RUNNING };

struct draft_model {
	struct model *model;
	struct backend *backend;
	struct forward *forward;
	struct experts_mapped experts; /* for draft models that have some */
	struct kv kv;
	void *memory;
	size_t memory_bytes;
	struct tokenizer *tokenizer;
	struct sampler sampler; /* over the tokens that the target has too */
	struct hints *hints; /* borrowed */
	uint32_t n_vocab; /* tokens it can read */
	uint32_t n_context, n_batch;
	uint64_t uses, round; /* counts uses; its value when the round began */
	/* All sessions with a sequence; the worker's table. */
	struct draft_session *sessions;
	uint32_t n_sessions;
	/* The batch of a pass. */
	struct batch_token *batch; /* [n_batch] */
	struct draft_session **owner; /* [n_batch] */
	uint32_t *cells; /* [n_batch] */
	uint32_t n_in_batch;
	_Atomic uint64_t passes, tokens, evictions; /* read by the loop thread for status */
};

/* sessions: [n_sessions], the worker's table, and its hints, borrowed. Errors name the file or setting. */
int draft_model_open(const struct drafter_config *config, struct draft_session *sessions,
	uint32_t n_sessions, struct hints *hints, struct draft_model **out, struct error *err);
void draft_model_close(struct draft_model **model);

/* Prepares for the target at path, whose tokenizer has this fingerprint. Vocabularies of different sizes will do where
 * the tokens that both have are the same strings: then only those are drafted. Otherwise an error that says what
 * differs, and the model is not to be used. No session has tokens of the model's at this time. */
int draft_model_meet(
	struct draft_model *m, const char *path, uint64_t fingerprint, struct error *err);

/* Takes over what may change while it runs: the tokens of one pass, at most those of the start. */
void draft_model_tune(struct draft_model *m, const struct drafter_config *config);

/* Whether the session can be drafted for: it is short enough, its tokens are in the vocabulary. */
bool draft_model_fits(const struct draft_model *m, const struct draft_session *s);
/* After session_follow: forgets what was contradicted. */
void draft_model_rewind(struct draft_model *m, struct draft_session *s, uint32_t kept);
/* Gives back the session's cells. */
void draft_model_drop(struct draft_model *m, struct draft_session *s);
/* One pass of work nobody waits for: reading tokens of sessions that are far behind, then, with
 * ahead, drafting on. False when there is nothing to do. */
bool draft_model_idle(struct draft_model *m, bool ahead);
