/*
 * The session pages: region "sessions", owned by the verifier, read by the drafter and by the
 * verifier's successor. They contain everything that decides a session's output, so that a
 * successor goes on with the same tokens.
 *
 * Layout: struct sessions_header, then n_sessions pages of page_bytes each: struct session_page
 * followed by int32_t tokens[n_context] and int32_t replay[n_context].
 *
 * The verifier itself uses copies of its own (services/verifier/state/journal.h): it writes these
 * pages, and reads them only once, when it takes them over from a predecessor. Checksums then tell
 * whether another process has written to them.
 *
 * Only the verifier writes. tokens[i] is written before n_tokens > i is stored with release; a
 * reader that loads n_tokens with acquire may read tokens[0..n_tokens-1]. These are constant as
 * long as uid is. uid is stored last when a session begins and cleared first when it ends; a reader
 * must check uid again after it has copied anything.
 */
#pragma once

#include "shared/base/limits.h"
#include "kernels/sampler.h"
#include "shared/spec/classes.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>

#define SESSIONS_REGION "sessions"
#define SESSIONS_LAYOUT 17

enum session_state {
	SESSION_FREE = 0,
	SESSION_QUEUED, /* admitted, waiting for KV pages */
	SESSION_PREFILL,
	SESSION_RUNNING,
	SESSION_DONE, /* kept for a client that reconnects */
};

/* A session that sleeps is not computed, and its KV pages are on disk or gone. */
enum session_sleep {
	SLEEP_NOT = 0,
	SLEEP_TOLD, /* until it is woken */
	SLEEP_IDLE, /* until its client takes tokens again */
};

enum session_end {
	SESSION_END_NONE = 0,
	SESSION_END_EOS,
	SESSION_END_STOP, /* a stop string */
	SESSION_END_LENGTH, /* max_tokens or the context is full */
	SESSION_END_CANCELLED,
	SESSION_END_DEADLINE,
	SESSION_END_ERROR,
};

/* Where drafts come from. AUTO: what the drafter was given (a draft model or an EAGLE-3 head), else
 * the target's own layer for drafts (multi-token prediction), else n-grams. */
enum draft_method {
	DRAFT_AUTO = 0,
	DRAFT_NONE,
	DRAFT_NGRAM,
	DRAFT_MODEL,
	DRAFT_REPLAY,
	DRAFT_EAGLE3, /* a head that reads the target's hidden states */
	DRAFT_MTP, /* the same, from the target's own file */
	/* the verifier's own: masks behind the tokens of a pass, with an adapter (pass/masks.h) */
	DRAFT_MTP_LORA,
	DRAFT_LAYER_SKIP, /* a part of the target's layers (shared/model/arch/skip.h) */
	DRAFT_METHODS
};
extern const char *const draft_method_names[]; /* "auto", "none", "ngram", "model", ..., NULL */

/* Pages that are used at a time with the verifier's default settings. */
enum { SESSIONS_USED = 64 };

#define SESSION_K_POLICY (-1) /* K comes from the policy page */

struct session_request {
	struct sampler_params sampling;
	uint32_t max_tokens;
	uint32_t ignore_eos;
	int32_t k; /* the draft's depth: 0..LIMIT_DRAFT_DEPTH fixed, or SESSION_K_POLICY */
	/* A tree: its tokens, and the most children of one token, 1..LIMIT_DRAFT_NODES and
	 * 1..LIMIT_DRAFT_WIDTH. Both 0: as the verifier's settings say. */
	uint32_t draft_nodes, draft_width;
	uint32_t draft_method; /* enum draft_method */
	/* Whether there is an expert budget while drafts are verified, its enum budget_ranking and
	 * enum budget_coverage, and the most experts of each layer (0: no limit). It is the same from
	 * the first token to the last. */
	uint32_t budgeted, budget_ranking, budget_coverage;
	uint16_t budget_experts[LIMIT_LAYERS];
	uint32_t budget_default; /* before admission: as the service is set then */
	uint32_t n_replay; /* tokens of replay[] (the recorded continuation) */
	float replay_error; /* probability that a proposed token is replaced */
	/* 1: the output tokens came with the request, and are computed to see which the model picks
	 * in their places. The page has them, and its end, from the beginning. */
	uint32_t audit;
	uint32_t control_text; /* control tokens are part of the text */
	uint32_t logits_hash; /* the client wants a hash of each position's logits */
	/* entries of log probabilities per token: its own, then those of the likeliest tokens; 0:
	 * none */
	uint32_t logprobs;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0 = none */
	/* Its class, as the settings described it when the request was admitted (classes.h). */
	struct request_class of_class;
	uint64_t prefix_domain; /* shares KV pages with sessions of the same domain only */
	uint64_t digest; /* of the request: another request under the same uid is refused */
	uint32_t grammar_kind, grammar_bytes; /* enum grammar_kind; bytes of its source */
	uint32_t n_stops, stops_bytes; /* number, and bytes together */
	/* The stop strings one after the other, each with its NUL, then the source of the grammar,
	 * without a NUL. */
	char stops[LIMIT_STOPS_BYTES + LIMIT_GRAMMAR_BYTES];
};

/* The bytes of a request that are in use. The rest is neither copied nor read, so it costs no
 * memory. */
static inline size_t session_request_bytes(const struct session_request *request)
{
	return offsetof(struct session_request, stops) + request->stops_bytes +
	       request->grammar_bytes;
}

static inline const char *session_grammar(const struct session_request *request)
{
	return request->stops + request->stops_bytes;
}

/* A checksum over the uid, the prompt's length, the request and the first n_tokens tokens. */
struct session_sum {
	_Atomic uint64_t sum;
	_Atomic uint32_t n_tokens;
	uint32_t pad;
};

struct session_page {
	_Atomic uint64_t uid; /* 0 = free; chosen by the client, random */
	_Atomic uint32_t state; /* enum session_state */
	_Atomic uint32_t end; /* enum session_end, valid when DONE */
	uint32_t n_prompt;
	_Atomic uint32_t told; /* 1: the client was sent the end */
	_Atomic uint32_t asleep; /* enum session_sleep */
	/* number of its admission: an earlier session comes first, also after a restart */
	uint64_t admitted;
	struct session_request request;
	alignas(CACHE_LINE) _Atomic uint32_t n_tokens; /* committed: prompt and output */
	_Atomic uint64_t iterations;
	/* For observers, counted across restarts; nothing is computed from these. k: the last K
	 * asked for, before the end of the answer limited it. Times by CLOCK_MONOTONIC, which goes
	 * on as long as this page exists; ended_ns 0 = not yet. */
	_Atomic uint32_t k, drafted, accepted;
	_Atomic uint32_t cached; /* tokens of the prompt that other sessions had computed */
	_Atomic uint32_t lossy; /* output tokens that its expert budget affected */
	_Atomic uint64_t begun_ns, ended_ns;
	/* At any instant one of the two is that of n_tokens: the other one is written before
	 * n_tokens changes. */
	struct session_sum sums[2];
	_Atomic uint64_t end_sum; /* over that sum and `end`; written before end */
	alignas(CACHE_LINE) int32_t tokens[]; /* [n_context], then replay[n_context] */
};

struct sessions_header {
	uint32_t n_sessions, n_context;
	uint64_t page_bytes;
	/* of the target: a successor with another model does not take over the sessions */
	uint64_t model_fingerprint;
	/* gguf_fingerprint and gguf_stamps of the file at model_path. A process that finds the same
	 * numbers there has the same file. */
	uint64_t file_fingerprint, model_stamps;
	/* Not 0: the process that made this region had found other files at model_path than its
	 * predecessor's region named; these are the stamps of the files that it found. What clients
	 * have of earlier answers is then of another model, whatever the fingerprint says. */
	uint64_t other_stamps;
	uint64_t arithmetic; /* in which the answers were computed (shared/base/arithmetic.h) */
	uint64_t tokenizer_fingerprint; /* a drafter with another tokenizer is refused by this */
	char model_path
		[1024]; /* absolute; the drafter reads the target's routers and tokenizer from it */
	/* sessions_sum of everything before. There are two, so that one is right at any instant
	 * while model_stamps changes: the second is written before it, the first after it. */
	uint64_t sums[2];
};

size_t sessions_bytes(uint32_t n_sessions, uint32_t n_context); /* of the payload */
size_t session_page_bytes(uint32_t n_context);
/* Checks sizes against `bytes`, those of the payload. */
int sessions_check(const struct sessions_header *header, size_t bytes, struct error *err);
uint64_t sessions_sum(const struct sessions_header *header);
/* header: a copy to which no other process writes; payload: the region's. */
struct session_page *session_at(const struct sessions_header *header, void *payload, uint32_t i);
int32_t *session_replay(const struct sessions_header *header, struct session_page *page);
