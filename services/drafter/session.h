/*
 * The drafter's own copy of a session: its tokens, taken from the session page as they are
 * committed, and after them the chain that was drafted. Keyed by page index and uid; everything in
 * it can be rebuilt from the page, which is how a restarted drafter goes on. Used by the draft
 * thread.
 */
#pragma once

#include "services/drafter/config.h"
#include "services/drafter/ngram.h"
#include "shared/ipc/region.h"
#include "shared/model/kv/kv.h"
#include "shared/spec/draft.h"
#include "shared/spec/session.h"

/* The longest chain: a draft, the token the verifier adds, and another draft. */
enum { CHAIN_MAX = 2 * LIMIT_DRAFT_DEPTH + 1 };

/* What the draft model knows about the chain's tokens. */
struct chain {
	float confidence[CHAIN_MAX];
	uint8_t n_support[CHAIN_MAX]; /* 0: a certain proposal */
	struct draft_choice (*q)[LIMIT_DRAFT_SUPPORT]; /* [CHAIN_MAX]; NULL until one was sampled */
};

/* Drafts that are kept back (foresight.h). */
enum { FORESIGHT_TOKENS = 8 }; /* of one: what is right of it shows so many tokens later */
struct foresight {
	bool on; /* asked for, with the newest request that asks for no draft */
	/* The n-grams': proposed for the tokens from `at` on, while not all it is about has come. */
	bool open;
	uint32_t at;
	int32_t token[FORESIGHT_TOKENS];
	struct foresight_draft {
		uint32_t n, right;
		float confidence[FORESIGHT_TOKENS];
	} proposal;
	/* The model's, of what it read last: from `told` on nobody knows of them. */
	struct foresight_draft read[FORESIGHT_TOKENS];
	uint32_t n_read, told;
};

struct draft_session {
	uint64_t uid; /* 0 = none */
	uint32_t page, n_prompt, n_context;
	uint32_t n; /* committed tokens, those of tokens[0..n-1] */
	uint32_t n_chain; /* drafted tokens after them; only the draft model keeps any */
	uint32_t chain_goal; /* how long the chain is to grow while nobody asks */
	uint32_t n_vocab_needed; /* largest token + 1; UINT32_MAX when one is negative */
	int32_t *tokens; /* [n_context + CHAIN_MAX] */
	struct session_request request; /* checked copy */
	struct ngram ngram;
	/* The draft model's: seq holds positions 0..seq.n-1 of tokens, seq.n < n + n_chain. */
	bool has_seq;
	struct kv_seq seq;
	struct chain *chain;
	bool wants_model; /* its drafts come from the model: worth reading for */
	struct foresight foresight;
	uint64_t used; /* grows: the smallest is evicted first */
};

/* The mapped session pages, as far as they were checked. */
struct session_view {
	struct region region; /* fd < 0 or header NULL: none */
	struct sessions_header header; /* a copy: what lies in the region may change under us */
	unsigned char *pages;
};

/* Takes the region over on success. */
int session_view_open(struct session_view *view, struct region *region, struct error *err);
void session_view_close(struct session_view *view);
struct session_page *session_view_page(const struct session_view *view, uint32_t page);

/* A session begins: copies request and prompt size from the page. -ESTALE: the page is another
 * session's by now; -EBADMSG: what it says cannot be; -ENOMEM. */
int session_begin(struct draft_session *s, const struct session_view *view, uint32_t page,
	uint64_t uid, const struct drafter_config *config);
/* Frees everything but seq, which session_end's caller has given back to the KV cache. */
void session_end(struct draft_session *s);
/* Takes the tokens up to n_tokens from the page. *kept: tokens[0..*kept-1] are what they were
 * before, chain included; the chain keeps what was not contradicted. -ESTALE, -EBADMSG: the
 * session is to be ended. */
int session_follow(struct draft_session *s, const struct session_view *view, uint32_t n_tokens,
	uint32_t *kept);
