/*
 * The drafter's own copy of a session: its tokens, taken from the session page as they are
 * committed, and after them the chain that was drafted. It is identified by page index and uid. All
 * of it can be made again from the page, which is how a restarted drafter continues. Used by the
 * draft thread.
 */
#pragma once

#include "services/drafter/config.h"
#include "services/drafter/ngram.h"
#include "shared/ipc/region.h"
#include "shared/model/kv/kv.h"
#include "shared/spec/constraint.h"
#include "shared/spec/draft.h"
#include "shared/spec/session.h"

/* The longest chain: a draft, the token the verifier adds, and another draft. */
enum { CHAIN_MAX = 2 * LIMIT_DRAFT_DEPTH + 1 };

/* What the draft model says of the chain's tokens. */
struct chain {
	float confidence[CHAIN_MAX];
	/* size of q for the token; 0: the token was chosen with certainty */
	uint8_t n_support[CHAIN_MAX];
	struct draft_choice (*q)[LIMIT_DRAFT_SUPPORT]; /* [CHAIN_MAX]; NULL until one was sampled */
};

/* Drafts that are compared but not sent (foresight.h). */
/* most tokens of one; its comparison is complete after as many tokens */
enum { FORESIGHT_TOKENS = 8 };
struct foresight {
	bool on; /* the newest request asks for no draft, but for foresight */
	/* The n-grams' proposal for the tokens from index `at` on. open: tokens that it needs are
	 * still to come. */
	bool open;
	uint32_t at;
	int32_t token[FORESIGHT_TOKENS];
	struct foresight_draft {
		uint32_t n, right;
		float confidence[FORESIGHT_TOKENS];
	} proposal;
	/* The model's drafts in the tokens that it read last. Those from `told` on are not reported
	 * yet. */
	struct foresight_draft read[FORESIGHT_TOKENS];
	uint32_t n_read, told;
};

struct draft_model;

struct draft_session {
	uint64_t uid; /* 0 = none */
	uint32_t page, n_prompt, n_context;
	uint32_t n; /* committed tokens, which are tokens[0..n-1] */
	uint32_t n_chain; /* drafted tokens behind them; only the draft model keeps any */
	uint32_t chain_goal; /* the length to which the chain may grow while no request waits */
	uint32_t n_vocab_needed; /* largest token + 1; UINT32_MAX when a token is negative */
	int32_t *tokens; /* [n_context + CHAIN_MAX] */
	struct session_request request; /* a checked copy */
	struct ngram ngram;
	/* The grammar of its output (grammars.h); NULL: none, or not yet. Owned, given back before
	 * session_end. */
	struct constraint *constraint;
	uint32_t n_constrained; /* output tokens that it has followed */
	bool grammar_asked, grammar_broken;
	/* The sequence of the draft model or head that drafts for it: `drafter`, whose KV cache it
	 * is in. Its position i is that of token i + shift: a model's shift is 0, and seq.n < n +
	 * n_chain. */
	bool has_seq;
	struct draft_model *drafter;
	struct kv_seq seq;
	uint32_t shift;
	/* Of a draft head (head.h): how many positions come from the target's states; the head's
	 * own state behind the last one; and for each token 1 + the row that has its state (0:
	 * unknown), for tokens below n_states. */
	uint32_t n_true;
	float *out;
	uint64_t *state_row; /* [n_context] or NULL */
	struct head_trail *trail; /* of a head with several blocks (head_blocks.h), or NULL */
	uint32_t n_states;
	struct chain *chain;
	/* the draft model's newest tree (model_tree.h); NULL until it has drafted one */
	struct model_tree *grown;
	/* where its drafts come from, if a model or head, which so reads its tokens ahead of requests;
	 * NULL also from an eviction to the next request */
	const struct draft_model *wants;
	struct foresight foresight;
	/* the draft model's count of uses at the last one: the smallest is evicted first */
	uint64_t used;
};

/* The mapped session pages, and what was checked of their region. */
struct session_view {
	struct region region; /* fd < 0 or header NULL: none */
	struct sessions_header header; /* a copy, because the region may change at any time */
	unsigned char *pages;
};

/* Takes the region over on success. */
int session_view_open(struct session_view *view, struct region *region, struct error *err);
void session_view_close(struct session_view *view);
struct session_page *session_view_page(const struct session_view *view, uint32_t page);

/* Begins a session: copies the request and the size of the prompt from the page. -ESTALE: the page
 * belongs to another session by now; -EBADMSG: its content is impossible; -ENOMEM. */
int session_begin(struct draft_session *s, const struct session_view *view, uint32_t page,
	uint64_t uid, const struct drafter_config *config);
/* Copies the whole request of the session, with its stops and its grammar, into
 * session_request_bytes(&s->request). -ESTALE: the page belongs to another session by now. */
int session_copy_texts(const struct draft_session *s, const struct session_view *view,
	struct session_request *out);
/* Frees everything but seq, whose cells the caller has given back to the KV cache before. */
void session_end(struct draft_session *s);
/* Takes the tokens up to n_tokens from the page. *kept: tokens[0..*kept-1], chain included, are
 * unchanged; the chain keeps what was not contradicted. -ESTALE, -EBADMSG: the caller must end the
 * session. */
int session_follow(struct draft_session *s, const struct session_view *view, uint32_t n_tokens,
	uint32_t *kept);
