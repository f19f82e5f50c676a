#include "services/knobs/verifier.h"

#include "kernels/kernels.h"
#include "shared/spec/kv_plan.h"

static const char *const pin_names[] = {"auto", "no", "yes", NULL};
const char *const verifier_kv_names[] = {"auto", "f32", "f16", "q8_0", "q16_0", NULL};
static const char *const weights_names[] = {"auto", "packed", "mapped", NULL};
static const char *const gates_names[] = {"auto", "on", "off", "near", NULL};
static const char *const experts_names[] = {"auto", "mapped", "cached", NULL};

#define AT(field) \
	offsetof(struct verifier_config, field), sizeof(((struct verifier_config *)0)->field)
#define SECOND 1e9

static_assert(KV_PLAN_TOKENS_EACH == 2048 && KV_PLAN_TOKENS_MORE == 48,
	"the help of kv_tokens says them");

const struct config_key verifier_config_keys[] = {
	{"", "model", CONFIG_STRING, AT(model), 0, 0, NULL, "", "path",
		"GGUF file of the model that is served.", KNOB_AT_START, KNOB_MODEL},
	{"", "kernels", CONFIG_ENUM, AT(kernels), 0, 0, kernels_names, "auto", NULL,
		"Kernel set: auto, scalar, avx2 or avx512; all give the same bits.", KNOB_AT_START,
		KNOB_GLOBAL},
	{"", "threads", CONFIG_INT, AT(threads), 0, LIMIT_THREADS, NULL, "0", "threads",
		"Threads of a forward pass; 0 takes one per core that this process may use, within "
		"the CPU time its control group allows. More than there are CPUs do not take "
		"part.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "pin", CONFIG_ENUM, AT(pin), 0, 0, pin_names, "auto", NULL,
		"Bind each thread of the pass to a CPU of its own, cores first, spread over the "
		"memory nodes; auto does when there are as many threads as cores, or several "
		"nodes.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "pool_spin", CONFIG_STRING, AT(pool_spin), 0, 0, NULL, "auto", CONFIG_SPIN_RANGE,
		"How long an idle pass thread spins before it sleeps.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "kv_type", CONFIG_ENUM, AT(kv_type), 0, 0, verifier_kv_names, "auto", NULL,
		"Number type of the KV cache: auto is f32 for F32 models, else q16_0, which is as "
		"exact as f16, 3 % larger and faster behind long contexts; q8_0 takes about half "
		"and is the fastest.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "context", CONFIG_INT, AT(context), 0, LIMIT_CONTEXT, NULL, "0", "tokens",
		"Prompt and output of one session; 0 takes the model's, at most 8192. A model with "
		"longrope computes with other factors beyond its original context.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "sessions_max", CONFIG_INT, AT(sessions_max), 1, LIMIT_RUNNING, NULL, "16", "sessions",
		"Sessions computed in one batch. With recurrent layers there is room for the "
		"states of as "
		"many.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "queue_max", CONFIG_INT, AT(queue_max), 0, LIMIT_SESSIONS, NULL, "32", "sessions",
		"Sessions that may wait for a place; more are refused.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "client_requests", CONFIG_INT, AT(client_requests), 1, LIMIT_SESSIONS, NULL, "32",
		"requests",
		"Requests of one client process that may run or wait at a time; more are refused.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "kv_tokens", CONFIG_INT, AT(kv_tokens), 0, (double)KV_PAGES_MAX *KV_PAGE_CELLS, NULL,
		"0", "tokens",
		"Tokens the KV cache holds, all sessions together; 0 takes, for each of "
		"sessions_max, the smaller of context and 2048, and 48 for a draft in flight; at "
		"least context and 48.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "prefill_chunk", CONFIG_INT, AT(prefill_chunk), 1, LIMIT_PREFILL, NULL, "256",
		"tokens", "Prompt tokens computed in one pass, all sessions together.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "experts", CONFIG_ENUM, AT(experts), 0, 0, experts_names, "auto", NULL,
		"Where experts come from: mapped (the file), cached or auto (the expert-cache "
		"while it "
		"is there).",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "weights", CONFIG_ENUM, AT(weights), 0, 0, weights_names, "auto", NULL,
		"Where the other weights are, and experts that are mapped: packed (a copy in "
		"memory, "
		"in the "
		"layout that is multiplied fastest), mapped (the file) or auto (packed where "
		"memory has room).",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "expert_spin", CONFIG_STRING, AT(expert_spin), 0, 0, NULL, "auto", CONFIG_SPIN_RANGE,
		"How long to spin for a missing expert before sleeping.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "expert_patience", CONFIG_NS, AT(expert_patience), 0, 60 * SECOND, NULL, "20ms", NULL,
		"How long the expert-cache may take before the file is read here.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "gate_hints", CONFIG_ENUM, AT(gate_hints), 0, 0, gates_names, "auto", NULL,
		"Foresee the next layers' experts by their routers: auto as far as the "
		"expert-cache's policy asks for it, near the next layer's alone, on those always "
		"where it lacks room for all experts.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "default_k", CONFIG_INT, AT(default_k), 0, LIMIT_DRAFT_DEPTH, NULL, "0", "tokens",
		"Drafted tokens per iteration while no policy has spoken.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "follow_at_zero", CONFIG_BOOL, AT(follow_at_zero), 0, 0, NULL, "yes", NULL,
		"Keep the drafter up to date while K is 0.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "draft_wait", CONFIG_NS, AT(draft_wait), 0, 10 * SECOND, NULL, "50ms", NULL,
		"The longest that a pass waits for drafts. It waits less where going on without "
		"late ones gives more tokens per second.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "draft_spin", CONFIG_STRING, AT(draft_spin), 0, 0, NULL, "auto", CONFIG_SPIN_RANGE,
		"How long to spin for drafts before sleeping.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "stream_interval", CONFIG_NS, AT(stream_interval), 0, SECOND, NULL, "4ms", NULL,
		"Tokens are sent to clients at most this often; first and last ones at once.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "client_timeout", CONFIG_NS, AT(client_timeout), 0.01 * SECOND, 86400 * SECOND, NULL,
		"60s", NULL,
		"A session whose client takes nothing for this long is cancelled. After a second "
		"it "
		"lets others go first.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "linger", CONFIG_NS, AT(linger), 0, 86400 * SECOND, NULL, "60s", NULL,
		"How long a finished session is kept for a client that reconnects.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "ahead_max", CONFIG_INT, AT(ahead_max), 0, LIMIT_CONTEXT, NULL, "256", "tokens",
		"Tokens computed beyond what the client has granted.", KNOB_LIVE, KNOB_GLOBAL},
	{0},
};
