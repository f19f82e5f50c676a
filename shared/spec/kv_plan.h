/*
 * How large the verifier's KV cache is: it makes it so, and the expert-cache, which has a memory to share with it, leaves room
 * for the one of the defaults until a verifier has told its own. Pure.
 */
#pragma once

#include "shared/model/kv/kv.h"

/* The verifier's defaults. */
enum {
	KV_PLAN_CONTEXT = 8192, /* tokens of one session, where the model has as many */
	KV_PLAN_SESSIONS = 16,
	KV_PLAN_PREFILL = 256, /* prompt tokens of one pass */
};

/* What there is room for by default, for each session: few fill their context. */
enum {
	KV_PLAN_TOKENS_EACH = 2048, /* or the context, if that is smaller */
	KV_PLAN_TOKENS_MORE =
		LIMIT_DRAFT_SHARE + 1 +
		KV_PAGE_CELLS, /* its share of drafts in flight, and a page that is begun */
};

struct kv_plan {
	enum kv_type type;
	int64_t sessions, prefill;
	int64_t tokens; /* of all sessions together */
};

/* The fewest tokens with which a session can always go on to the end of its context, a draft of LIMIT_DRAFT_SHARE tokens in flight. */
int64_t kv_plan_tokens_min(int64_t context);
/* The default: for each session the smaller of context and KV_PLAN_TOKENS_EACH, and KV_PLAN_TOKENS_MORE; at least
 * kv_plan_tokens_min. */
int64_t kv_plan_tokens(int64_t sessions, int64_t context);
/* Rows of a pass: those of so many sessions, each with its share of drafted tokens, and of prompts. */
uint32_t kv_plan_rows(int64_t sessions, int64_t prefill);
/* The default of one session. */
uint32_t kv_plan_context(const struct model *model);
/* With the verifier's defaults. */
struct kv_plan kv_plan_default(const struct model *model);
struct kv_layout kv_plan_layout(const struct kv_plan *plan, const struct model *model);
