#include "services/knobs/verifier.h"

#include "kernels/kernels.h"
#include "shared/spec/balance.h"
#include "shared/spec/budget.h"
#include "shared/spec/classes.h"
#include "shared/spec/kv_plan.h"

static const char *const device_lost_names[] = {"cpu", "end", NULL};
static const char *const auto_names[] = {"auto", NULL};
static const char *const kv_memory_names[] = {"device", "host", NULL};
static const char *const pin_names[] = {"auto", "no", "yes", NULL};
const char *const verifier_kv_names[] = {"auto", "f32", "f16", "q8_0", "q16_0", NULL};
static const char *const weights_names[] = {"auto", "packed", "mapped", NULL};
static const char *const gates_names[] = {"auto", "on", "off", "near", NULL};
static const char *const arithmetic_names[] = {"exact", "fast", NULL};
static const char *const experts_names[] = {"auto", "mapped", "cached", NULL};

#define AT(field) \
	offsetof(struct verifier_config, field), sizeof(((struct verifier_config *)0)->field)
#define SECOND 1e9

static_assert(BUDGET_ORACLE_ROWS == 512, "the help of budget_oracle says it");
static_assert(KV_PLAN_TOKENS_EACH == 2048 && KV_PLAN_TOKENS_MORE == 48,
	"the help of kv_tokens says them");

const struct config_key verifier_config_keys[] = {
	{"", "model", CONFIG_STRING, AT(model), 0, 0, NULL, "", "path",
		"GGUF file of the model to serve.", KNOB_AT_START, KNOB_MODEL},
	{"", "adapter", CONFIG_STRING, AT(adapter), 0, 0, NULL, "", "path",
		"GGUF file of a gated adapter for the model, with which the verifier drafts for "
		"itself (draft method mtp-lora). Without one that fits, the service goes on.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "device", CONFIG_STRING, AT(device), 0, 0, NULL, "cpu", "device",
		"What computes, with the same bits: cpu; cuda:N or cuda:GPU-UUID, that GPU; auto, "
		"a "
		"GPU if one can be used, else the CPU; simt, a GPU's kernels emulated, for tests. "
		"No GPU has been tried yet.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "device_shared", CONFIG_BOOL, AT(device_shared), 0, 0, NULL, "no", NULL,
		"Whether to compute on a GPU that another service of this machine uses. no: "
		"refused, with the process that is there. yes: both may; set device_budget of each "
		"expert-cache.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "device_lost", CONFIG_ENUM, AT(device_lost), 0, 0, device_lost_names, "cpu", NULL,
		"What happens when the GPU fails in use: cpu (the verifier starts again and goes "
		"on with its sessions on the CPU), or end (they end with an error, and the "
		"verifier starts again with the GPU).",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "arithmetic", CONFIG_ENUM, AT(arithmetic), 0, 0, arithmetic_names, "exact", NULL,
		"fast: the GPU's own library (cuBLAS) multiplies prompts with F16 and BF16 "
		"weights. Answers get other bits, which still do not depend on K or neighbours. "
		"No answer goes on under the other setting.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "hybrid", CONFIG_ENUM, AT(hybrid), 0, 0, balance_rule_names, "off", NULL,
		"Who computes experts that a device lacks: off, the device, after a copy; greedy, "
		"the CPU, while it takes no longer; spac, the CPU, those below MoE-SpAc's "
		"threshold. The answers are the same.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "kernels", CONFIG_ENUM, AT(kernels), 0, 0, kernels_names, "auto", NULL,
		"Kernel set: auto, scalar, avx2 or avx512. All give the same bits.", KNOB_AT_START,
		KNOB_GLOBAL},
	{"", "threads", CONFIG_INT, AT(threads), 0, LIMIT_THREADS, NULL, "0", "threads",
		"Threads of a forward pass. 0: one per core that this process may use, within the "
		"CPU time of its control group. Threads beyond the number of CPUs stay idle.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "pin", CONFIG_ENUM, AT(pin), 0, 0, pin_names, "auto", NULL,
		"Whether each thread of the pass is bound to a CPU of its own: cores first, spread "
		"over the memory nodes. auto: if there are as many threads as cores, or several "
		"nodes.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "pool_spin", CONFIG_STRING, AT(pool_spin), 0, 0, NULL, "auto", CONFIG_SPIN_RANGE,
		"How long an idle thread of the pass spins before it sleeps.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "kv_type", CONFIG_ENUM, AT(kv_type), 0, 0, verifier_kv_names, "auto", NULL,
		"Number type of the KV cache. auto: f32 for F32 models, else q16_0, which is as "
		"exact as f16, 3 % larger, and faster at long contexts. q8_0 takes about half the "
		"memory and is the fastest.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "context", CONFIG_INT, AT(context), 0, LIMIT_CONTEXT, NULL, "0", "tokens",
		"The longest session, prompt and output. 0: the model's context, at most 8192. A "
		"model with longrope uses other factors beyond its original context.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "sessions_max", CONFIG_INT, AT(sessions_max), 1, LIMIT_RUNNING, NULL, "16", "sessions",
		"The most sessions computed in one batch. With recurrent layers, memory is "
		"reserved for the states of this many sessions.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "queue_max", CONFIG_INT, AT(queue_max), 0, LIMIT_SESSIONS, NULL, "32", "sessions",
		"Sessions that may wait for a place. Further ones are refused.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "client_requests", CONFIG_INT, AT(client_requests), 1, LIMIT_SESSIONS, NULL, "32",
		"requests",
		"Requests of one client process that may run or wait at a time. Further ones are "
		"refused.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "classes", CONFIG_STRING, AT(classes), 0, 0, NULL, "", CLASSES_FORM,
		"Classes that requests may name; a request without one has the class default. "
		"Greater priority (-100 to 100) goes first. tpot is a target for the time per "
		"token, ttft for the first token.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "ageing", CONFIG_NS, AT(ageing), 0.001 * SECOND, 86400 * SECOND, NULL, "10s", NULL,
		"A session gains one step of priority each time that this long has passed since "
		"its admission, up to the greatest priority that there is. So every session has "
		"its turn.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "admit", CONFIG_BOOL, AT(admit), 0, 0, NULL, "yes", NULL,
		"Whether new requests are accepted. no: sessions that run or wait go on to their "
		"end, and can be resumed. outriderctl drain sets it to no.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "kv_tokens", CONFIG_INT, AT(kv_tokens), 0, (double)KV_PAGES_MAX *KV_PAGE_CELLS, NULL,
		"0", "tokens",
		"Capacity of the KV cache, for all sessions together. 0: for each of sessions_max, "
		"the smaller of context and 2048, plus 48 for a draft in flight; at least context "
		"plus 48.",
		KNOB_LIVE, KNOB_MODEL},
	{"", "kv_memory", CONFIG_ENUM, AT(kv_memory), 0, 0, kv_memory_names, "device", NULL,
		"Where the KV cache lies when a GPU computes: device, in its memory, of which less "
		"is left for experts; host, in the machine's, which the GPU reads over its link "
		"with every token.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "device_memory", CONFIG_STRING, AT(device_memory), 0, 0, auto_names, "auto",
		"auto, above 0% to 100%, or bytes as 12G",
		"The most of a GPU's memory that the service takes: weights, passes, KV cache, "
		"draft model, and for experts the rest. A share of it, bytes, or auto: all but a "
		"16th.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "device_kv", CONFIG_STRING, AT(device_kv), 0, 0, auto_names, "auto",
		"auto, above 0% to 100%, or bytes as 2G",
		"Memory of a GPU for the KV cache: bytes, or a share of device_memory as 30%. "
		"auto: as kv_tokens says.",
		KNOB_LIVE, KNOB_MODEL},
	{"", "prefix_tokens", CONFIG_INT, AT(prefix_tokens), -1,
		(double)KV_PAGES_MAX *KV_PAGE_CELLS, NULL, "-1", "tokens",
		"The most tokens of ended sessions that stay in the KV cache, for prompts that "
		"begin with them. Those found least often give way first. -1: no limit. "
		"prefix_states may allow less.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "prefix_states", CONFIG_BYTES, AT(prefix_states), 0, 1e15, NULL, "512M", "bytes",
		"Memory for states of recurrent layers, or for windows of windowed ones, after "
		"parts of prompts and answers. Prompts that begin alike go on from there. 0: they "
		"are computed anew.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "prefix_windows", CONFIG_BOOL, AT(prefix_windows), 0, 0, NULL, "no", NULL,
		"Whether layers with a sliding window keep all tokens: prompts then go on from any "
		"32 tokens, and a device's pages go to disk. no: they keep what they need, and "
		"what prefix_states has room for.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "prefix_dir", CONFIG_STRING, AT(prefix_dir), 0, 0, NULL, "", "path",
		"A directory of its own, on a local disk, in which KV pages are kept for prompts "
		"that begin with their tokens, across restarts. Empty: none. The files contain "
		"prompts.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "prefix_disk", CONFIG_BYTES, AT(prefix_disk), 0, 1e15, NULL, "8G", "bytes",
		"The most bytes of the files in prefix_dir. Those found least often give way "
		"first.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "sleep_after", CONFIG_NS, AT(sleep_after), 0, 86400 * SECOND, NULL, "30s", NULL,
		"After this time KV pages are written to prefix_dir, and a session whose client "
		"takes nothing falls asleep: its pages are given up. 0: never.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "sleep_timeout", CONFIG_NS, AT(sleep_timeout), 0.01 * SECOND, 30.0 * 86400 * SECOND,
		NULL, "1d", NULL,
		"A session that was told to sleep, and whose client is gone or takes nothing, is "
		"kept for this long. client_timeout holds for it again once it is woken.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "prefill_chunk", CONFIG_INT, AT(prefill_chunk), 1, LIMIT_PREFILL, NULL, "256",
		"tokens", "Prompt tokens computed in one pass, of all sessions together.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "hidden_tokens", CONFIG_INT, AT(hidden_tokens), 0, 1 << 24, NULL, "2048", "tokens",
		"How many tokens' hidden states are kept for a draft head, of all sessions "
		"together. A head that reads late loses the oldest. Two passes fit at least. "
		"Takes no memory without a head.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "experts", CONFIG_ENUM, AT(experts), 0, 0, experts_names, "auto", NULL,
		"Where experts come from: mapped (the file), or cached or auto (the expert-cache "
		"while it is there, else the file).",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "weights", CONFIG_ENUM, AT(weights), 0, 0, weights_names, "auto", NULL,
		"Where the other weights are, and experts that are mapped: packed (a copy in "
		"memory, in the layout that multiplies fastest), mapped (the file), or auto "
		"(packed if memory has room).",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "expert_spin", CONFIG_STRING, AT(expert_spin), 0, 0, NULL, "auto", CONFIG_SPIN_RANGE,
		"How long to spin for a missing expert before sleeping.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "expert_patience", CONFIG_NS, AT(expert_patience), 0, 60 * SECOND, NULL, "20ms", NULL,
		"How long to wait for the expert-cache before the verifier reads the expert from "
		"the file itself.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "gate_hints", CONFIG_ENUM, AT(gate_hints), 0, 0, gates_names, "auto", NULL,
		"Whether routers foresee the next layers' experts if the expert-cache lacks room "
		"for all. auto: as far as its policy asks for it. near: the same, for the next "
		"layer only. on: always.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "default_k", CONFIG_INT, AT(default_k), 0, LIMIT_DRAFT_DEPTH, NULL, "0", "tokens",
		"The draft length K until a policy sets one.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "draft_width", CONFIG_INT, AT(draft_width), 1, LIMIT_DRAFT_WIDTH, NULL, "1", "tokens",
		"How many tokens may be drafted for one place, if a request does not say. 1: "
		"drafts "
		"are chains. More: trees that are K tokens deep.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "draft_nodes", CONFIG_INT, AT(draft_nodes), 0, LIMIT_DRAFT_NODES, NULL, "0", "tokens",
		"The most tokens of a tree that draft_width asks for: the likeliest are taken. 0: "
		"K "
		"times draft_width.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "budget_experts", CONFIG_STRING, AT(budget_experts), 0, 0, NULL, "0",
		"0, all, a number of experts, or LAYERS:NUMBER,...",
		"Lossy: at most this many experts of a layer compute drafted tokens (MoE-Spec). "
		"For "
		"later sessions whose request says nothing. By layers: 0-3:16,4-:8. 0 or all: off.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "budget_ranking", CONFIG_ENUM, AT(budget_ranking), 0, 0, budget_ranking_names,
		"router", NULL,
		"Which experts a budget keeps: router (the greatest sums of the router's scores), "
		"static (the most used of budget_profile), or oracle (computes all experts; for "
		"comparison).",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "budget_coverage", CONFIG_ENUM, AT(budget_coverage), 0, 0, budget_coverage_names,
		"substitution", NULL,
		"What a token does without an expert that it chose: substitution (chooses among "
		"those kept) or truncation (goes without).",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "budget_profile", CONFIG_STRING, AT(budget_profile), 0, 0, NULL, "", "path",
		"How often each expert was used, for the ranking static: a file of outrider-bench "
		"cache profile.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "budget_oracle", CONFIG_BOOL, AT(budget_oracle), 0, 0, NULL, "no", NULL,
		"Whether memory is reserved for the ranking oracle: the results of all experts for "
		"the 512 tokens of a largest draft.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "follow_at_zero", CONFIG_BOOL, AT(follow_at_zero), 0, 0, NULL, "yes", NULL,
		"Whether the drafter is kept up to date while K is 0.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "draft_wait", CONFIG_NS, AT(draft_wait), 0, 10 * SECOND, NULL, "50ms", NULL,
		"The longest time that a pass waits for drafts. It waits less if going on without "
		"late drafts gives more tokens per second.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "draft_spin", CONFIG_STRING, AT(draft_spin), 0, 0, NULL, "auto", CONFIG_SPIN_RANGE,
		"How long to spin for drafts before sleeping.", KNOB_LIVE, KNOB_GLOBAL},
	{"", "stream_interval", CONFIG_NS, AT(stream_interval), 0, SECOND, NULL, "4ms", NULL,
		"The shortest time between two messages with tokens to a client. First and last "
		"tokens are sent at once.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "client_timeout", CONFIG_NS, AT(client_timeout), 0.01 * SECOND, 86400 * SECOND, NULL,
		"60s", NULL,
		"A session is cancelled if its client takes nothing for this long. After one "
		"second it lets other sessions go first.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "linger", CONFIG_NS, AT(linger), 0, 86400 * SECOND, NULL, "60s", NULL,
		"How long a finished session is kept for a client that reconnects.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "ahead_max", CONFIG_INT, AT(ahead_max), 0, LIMIT_CONTEXT, NULL, "256", "tokens",
		"Tokens computed beyond the number that the client has granted.", KNOB_LIVE,
		KNOB_GLOBAL},
	{0},
};
