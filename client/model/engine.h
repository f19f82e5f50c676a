/*
 * What the commands logits, generate and routes share: a model, a forward pass over the file's
 * mapping, and one sequence, as the common options say. One thread.
 */
#pragma once

#include "client/model/args.h"
#include "shared/model/pass/forward.h"
#include "shared/model/text/tokenizer.h"

struct kernels;

struct engine_options {
	const char *model, *backend, *arithmetic, *kernels, *activations, *kv, *format;
	const char *tokens, *prompt;
	const char *adapter; /* a gated adapter of the model, for masks.h; NULL: none */
	uint32_t threads, context, prefill_chunk;
	bool quiet, chat;
	/* the weights are copied into memory in the kernels' layout (shared/model/arch/weights.h)
	 */
	bool pack;
	bool no_prompt; /* for a command that has tokens of its own */
	/* For passes over sequences that the caller makes: rows of a pass, each with a pick, and
	 * pages of the KV cache. rows 0: the engine's own sequence and its context decide. */
	uint32_t rows, pages;
	/* For another program that runs the engine: its name, and what to do instead of --pack;
	 * NULL: those of outrider-model. */
	const char *program, *instead_of_pack;
};

/* The options for a prompt, to begin a command's table with. */
#define PROMPT_ARGS(o)                                                                        \
	{"tokens", ARG_STRING, &(o)->tokens, 0, 0, "IDS", "prompt as ids: 1,2,3"},            \
		{"prompt", ARG_STRING, &(o)->prompt, 0, 0, "TEXT", "prompt as text instead"}, \
		{"chat", ARG_FLAG, &(o)->chat, 0, 0, NULL, "the prompt is a user's message"},
/* the same words as for the verifier's key */
#define ENGINE_THREADS_HELP "default: one per core that this process may use, within its CPU time"
#define PROMPT_CONTEXT "tokens of prompt and output; default: the model's"

/* The common options; context_help: the text for --context. */
#define ENGINE_ARGS(o, context_help)                                                             \
	{"model", ARG_STRING, &(o)->model, 0, 0, "FILE", "the GGUF model (needed)"},             \
		{"format", ARG_FORMAT, &(o)->format, 0, 0, "json|text",                          \
			"output format, default json"},                                          \
		{"threads", ARG_U32, &(o)->threads, 1, LIMIT_THREADS, "N", ENGINE_THREADS_HELP}, \
		{"backend", ARG_STRING, &(o)->backend, 0, 0, "NAME",                             \
			"cpu (default); simt: the kernels for GPUs, emulated on the CPU, very "  \
			"slow, for tests; or cuda: a GPU; the results are the same"},            \
		{"kernels", ARG_STRING, &(o)->kernels, 0, 0, "NAME",                             \
			"scalar, avx2, avx512 or auto (default); the results are the same"},     \
		{"arithmetic", ARG_STRING, &(o)->arithmetic, 0, 0, "NAME",                       \
			"exact (default), or fast: prompts of F16 and BF16 models by the GPU's " \
			"own library, with other bits"},                                         \
		{"activations", ARG_STRING, &(o)->activations, 0, 0, "TYPE",                     \
			"q8 (default), or f32: exact, slow reference kernels"},                  \
		{"kv", ARG_STRING, &(o)->kv, 0, 0, "TYPE",                                       \
			"f32, f16, q8_0, q16_0 or auto (default: f32 for F32 models, else "      \
			"q16_0)"},                                                               \
		{"context", ARG_U32, &(o)->context, 1, LIMIT_CONTEXT, "N", context_help},        \
		{"prefill-chunk", ARG_U32, &(o)->prefill_chunk, 1, LIMIT_BATCH, "N",             \
			"prompt tokens per pass, default 128"},                                  \
		{"pack", ARG_FLAG, &(o)->pack, 0, 0, NULL,                                       \
			"first copy the weights into memory in the kernels' own layout"},        \
		{"quiet", ARG_FLAG, &(o)->quiet, 0, 0, NULL, "print no progress and no timing"},

struct engine {
	struct engine_options options;
	struct model *model;
	struct adapter *adapter; /* of the options, or NULL */
	bool adapter_placed; /* adapter_place */
	struct tokenizer *tokenizer; /* NULL when it was not asked for, or is not there */
	const struct kernels *kernels;
	struct backend *backend;
	struct pool *pool; /* of the forward pass; NULL: not on the CPU */
	uint32_t threads;
	struct kv kv;
	void *kv_memory, *weights; /* weights: the packed ones, or NULL */
	size_t weights_bytes, weights_mapped;
	bool placed; /* model_place */
	struct kv_seq seq;
	struct experts_mapped experts;
	struct forward *forward;
	struct batch_token *batch; /* [n_batch] */
	uint32_t *cells, n_batch; /* [n_batch] */
	uint32_t n_chunk; /* tokens of the prompt in a pass */
	int32_t *tokens; /* [n_context] prompt and output */
	uint32_t n_prompt, n_tokens, n_context;
	uint32_t n_fast; /* tokens of the prompt that are computed fast (--arithmetic) */
	uint32_t logits_from; /* engine_prefill of all: rows before this position are left out */
	/* Set before engine_start: tokens of a pass with the hook `outputs` */
	uint32_t n_oracle;
	/* Set before engine_start by a command that picks tokens: one is picked under these
	 * parameters behind the prompt and behind each step, with the hash of its logits and with
	 * log probabilities if they are wanted. No logits are kept then. */
	const struct sampler_params *sampling;
	bool want_hash, want_logprobs;
	uint32_t n_top;
	struct token_logprob top[LIMIT_TOP_LOGPROBS]; /* [n_top] of the last that was picked */
	struct pick_result picked; /* the last */
};

/* Called with the logits after the token at `position`, which are valid during the call. */
typedef void engine_row(void *arg, uint32_t position, const float *logits);

/* Checks for usage errors: no model, no prompt or two, an unknown format, backend, activation or KV
 * type. -EINVAL. */
int engine_check_options(const struct engine_options *options, struct error *err);
/* Checks the value of --kernels; NULL means auto. -EINVAL. */
int engine_check_kernels(const char *name, struct error *err);
/* Prints notices of `program` to standard error, as in the verifier's log: for slow kernels (NULL:
 * none are used) that the user did not ask for (asked is NULL or auto), and for more threads than
 * CPUs or CPU time. */
void engine_say_if_slow(
	const char *program, const struct kernels *kernels, const char *asked, uint32_t threads);
/* Opens options.model and reads the prompt (options.tokens, or options.prompt through the
 * tokenizer) into e->tokens. need_tokenizer: fails without one; otherwise a tokenizer that cannot
 * be loaded is left out. */
int engine_open(struct engine *e, bool need_tokenizer, struct error *err);
/* The tokens of a prompt as these commands run it: the beginning token, where the model has one,
 * and the text, in which nothing is a control token; with chat, a user's message in the model's
 * template. *ids is malloc'd, also on failure, and may be NULL. */
int engine_encode(const struct gguf *gguf, const struct tokenizer *tokenizer, const char *prompt,
	bool chat, int32_t **ids, size_t *n, struct error *err);
/* Makes the pool, the KV cache and the forward pass. n_extra: tokens wanted beyond the prompt; the
 * context is reduced to what that needs. */
int engine_start(struct engine *e, uint32_t n_extra, bool all_logits, struct error *err);
/* Runs the prompt in chunks. row (may be NULL) is called for every position (all), or for the last,
 * if its logits are kept. */
int engine_prefill(struct engine *e, bool all, engine_row *row, void *arg, struct error *err);
/* Drops all positions, so that engine_prefill runs e->tokens[0..n_prompt-1] again. */
void engine_rewind(struct engine *e);
/* Runs the last of e->tokens and picks the token after it. Allocates nothing. */
int engine_step(struct engine *e, struct error *err);
void engine_close(struct engine *e);
/* Reports logits that are not finite: -EINVAL, with the name of the tensor if one is the cause.
 * Reads all weights. */
int engine_not_finite(const struct engine *e, uint32_t position, struct error *err);

/* Prints "outrider-model: text" to stderr. engine_fail returns the exit status of a failure,
 * engine_usage EX_USAGE. */
int engine_fail(int rc, const struct error *err);
int engine_usage(const struct error *err);
/* Offset of the first byte that is not part of UTF-8 text; bytes when there is none. */
size_t engine_not_utf8(const char *text, size_t bytes);
/* Prints a JSON string; bytes that are not UTF-8 become U+FFFD. */
void engine_json_string(FILE *to, const char *text, size_t bytes);
bool engine_json(const struct engine *e);
