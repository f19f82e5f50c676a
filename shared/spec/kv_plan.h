/*
 * How large the verifier's KV cache is: it makes it so, and the expert-cache, which has a memory to share with it, leaves room
 * for the one of the defaults. Pure.
 */
#pragma once

#include "shared/model/kv.h"

/* The verifier's defaults. */
enum {
	KV_PLAN_CONTEXT = 8192, /* tokens of one session, where the model has as many */
	KV_PLAN_SESSIONS = 16,
	KV_PLAN_PREFILL = 256, /* prompt tokens of one pass */
};

struct kv_plan {
	enum kv_type type;
	int64_t sessions, prefill;
	int64_t tokens; /* of all sessions together */
};

/* The fewest tokens with which a session can always go on to the end of its context, a full draft in flight. */
int64_t kv_plan_tokens_min(int64_t context);
/* The default: sessions times the smaller of context and 2048, and at least that. */
int64_t kv_plan_tokens(int64_t sessions, int64_t context);
/* With the verifier's defaults. */
struct kv_plan kv_plan_default(const struct model *model);
struct kv_layout kv_plan_layout(const struct kv_plan *plan, const struct model *model);
