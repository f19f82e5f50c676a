/*
 * The size of the verifier's KV cache. The verifier creates it with this size. The expert-cache,
 * which shares memory with it, leaves room for the default size until a verifier has told its own.
 * Pure.
 */
#pragma once

#include "shared/model/kv/kv.h"

/* The verifier's defaults. */
enum {
	KV_PLAN_CONTEXT = 8192, /* tokens of one session, if the model has as many */
	KV_PLAN_SESSIONS = 16,
	KV_PLAN_PREFILL = 256, /* prompt tokens in one pass */
};

/* Default room for each session; few sessions fill their context. */
enum {
	KV_PLAN_TOKENS_EACH = 2048, /* or the context, if that is smaller */
	KV_PLAN_TOKENS_MORE =
		LIMIT_DRAFT_SHARE + 1 +
		/* its share of drafted tokens in flight, and a page that is only begun */
		KV_PAGE_CELLS,
};

/* Bytes of recurrent states or windows that are kept for later prompts, and their number at most. */
#define KV_PLAN_STATES_BYTES (UINT64_C(512) << 20)
enum { KV_PLAN_STATES_MAX = 1024 };

struct kv_plan {
	enum kv_type type;
	int64_t sessions, prefill;
	int64_t tokens; /* of all sessions together */
	/* layers with a window are stored like the others, and their pages can be shared anywhere */
	bool windows_whole;
	/* of snapshots (snapshots.h); those of windows are of a quarter of the tokens at most */
	uint64_t states_bytes;
};

/* The least number of tokens with which a session can always continue to the end of its context,
 * with a draft of LIMIT_DRAFT_SHARE tokens in flight. */
int64_t kv_plan_tokens_min(int64_t context);
/* The default: for each session the smaller of context and KV_PLAN_TOKENS_EACH, plus
 * KV_PLAN_TOKENS_MORE; at least kv_plan_tokens_min. */
int64_t kv_plan_tokens(int64_t sessions, int64_t context);
/* Rows in a pass: those of `sessions` sessions, each with its share of drafted tokens, and
 * `prefill` of prompts. */
uint32_t kv_plan_rows(int64_t sessions, int64_t prefill);
/* The default context of one session. */
uint32_t kv_plan_context(const struct model *model);
/* The plan with the verifier's defaults. */
struct kv_plan kv_plan_default(const struct model *model);
struct kv_layout kv_plan_layout(const struct kv_plan *plan, const struct model *model);
