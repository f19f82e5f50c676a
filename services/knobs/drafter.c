#include "services/knobs/drafter.h"

#include "kernels/kernels.h"
#include "shared/spec/session.h"

static const char *const choice_names[] = {"auto", "on", "off", NULL};
static const char *const arithmetic_names[] = {"auto", "exact", NULL};

#define AT(field) \
	offsetof(struct drafter_config, field), sizeof(((struct drafter_config *)0)->field)

/*
 * ngram_min, measured on the recorded outputs of the four workloads
 * (models/golden/workload-outputs.jsonl), K = 3, tokens per iteration and share of drafted tokens
 * accepted: 1: 1.93, 46%; 2: 1.74, 54%; 3: 1.61, 61%. On an MoE target a wrong token costs nearly
 * what a right one does, so 2 wins where a token adds more than about 15% to an iteration. Suffixes
 * beyond 8 tokens change nothing.
 */
const struct config_key drafter_config_keys[] = {
	{"", "draft", CONFIG_STRING, AT(draft), 0, 0, NULL, "", "path",
		"GGUF file of a draft model with the served model's tokenizer, or of an EAGLE-3 "
		"head "
		"for it. Empty: the served model's own layer for drafts is used, if it has one, or "
		"n-grams.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "method", CONFIG_ENUM, AT(method), 0, 0, draft_method_names, "auto", NULL,
		"The source of drafts if a request names none. auto: what draft names, else the "
		"served model's own layer for drafts, else n-grams. mtp: that layer, even if draft "
		"names a model.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "skip_layers", CONFIG_STRING, AT(skip_layers), 0, 0, NULL, "auto", "layers",
		"For requests of method layer-skip: which of the served model's layers do not "
		"draft. Layers and ranges, counted from 0, such as 4-8,11. auto:N: N, evenly "
		"between "
		"the first and the last. auto: half.",
		KNOB_LIVE, KNOB_MODEL},
	{"", "device", CONFIG_STRING, AT(device), 0, 0, NULL, "cpu", "device",
		"What computes the draft model or head: as the verifier's setting. The "
		"expert-cache shares out the GPU's memory; without enough, the CPU drafts.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "device_shared", CONFIG_BOOL, AT(device_shared), 0, 0, NULL, "no", NULL,
		"Whether to draft on a GPU that another service of this machine uses, as the "
		"verifier's setting. no: then the CPU drafts.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "arithmetic", CONFIG_ENUM, AT(arithmetic), 0, 0, arithmetic_names, "auto", NULL,
		"auto: on a GPU its own library (cuBLAS), if there is one, reads texts with F16 "
		"and "
		"BF16 weights. Drafts may differ, answers do not. exact: drafts are the CPU's.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "kernels", CONFIG_ENUM, AT(kernels), 0, 0, kernels_names, "auto", NULL,
		"Kernel set of the draft model: auto, scalar, avx2 or avx512.", KNOB_AT_START,
		KNOB_GLOBAL},
	{"", "threads", CONFIG_INT, AT(threads), 0, LIMIT_THREADS, NULL, "0", "threads",
		"Threads of the draft model. 0: one, or two if there are more than two CPUs.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "chunk", CONFIG_INT, AT(chunk), 16, 2048, NULL, "128", "tokens",
		"The most tokens that the draft model reads in one pass while it catches up. A "
		"session further behind gets n-gram drafts meanwhile.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "ngram_min", CONFIG_INT, AT(ngram_min), 1, LIMIT_NGRAM, NULL, "2", "tokens",
		"The shortest suffix that n-gram drafts may be based on. A change affects sessions "
		"that begin after it.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "ngram_max", CONFIG_INT, AT(ngram_max), 1, LIMIT_NGRAM, NULL, "8", "tokens",
		"The longest suffix that n-gram drafts look for. A change affects sessions that "
		"begin after it.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "run_ahead", CONFIG_ENUM, AT(run_ahead), 0, 0, choice_names, "auto", NULL,
		"Whether to draft on while the verifier works, as if all drafted tokens were "
		"accepted. auto: if there are more than two CPUs, unless the policy says no.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "hints", CONFIG_ENUM, AT(hints), 0, 0, choice_names, "auto", NULL,
		"Whether to hint to an expert-cache without room for all which experts come next: "
		"by a draft model of the target's hidden size and layers, else by the needs of "
		"earlier tokens.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "history", CONFIG_BYTES, AT(history), 0, 64.0 * (1 << 30), NULL, "32M", "bytes",
		"Memory for the record of which experts earlier tokens needed. More memory covers "
		"more tokens.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "spin", CONFIG_STRING, AT(spin), 0, 0, NULL, "auto", CONFIG_SPIN_RANGE,
		"How long to spin for a request before sleeping. auto: 0 with four CPUs or fewer, "
		"else 50us.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "kv_tokens", CONFIG_INT, AT(kv_tokens), 0, 32000000, NULL, "0", "tokens",
		"Capacity of the draft model's KV cache, for all sessions together. Its memory "
		"grows to that and stays; on a GPU it is there at once. 0: 32768, or context plus "
		"47 if that is more.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "context", CONFIG_INT, AT(context), 0, LIMIT_CONTEXT, NULL, "0", "tokens",
		"The longest session that the draft model drafts for. 0: its own context, at most "
		"8192.",
		KNOB_AT_START, KNOB_MODEL},
	{.name = NULL},
};
