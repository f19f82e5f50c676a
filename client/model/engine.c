#include "client/model/engine.h"

#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/gpu/backend.h"
#include "kernels/kernels.h"
#include "shared/model/text/breakers.h"
#include "shared/base/cpus.h"
#include "shared/base/huge_pages.h"
#include "shared/base/memory_fits.h"
#include "shared/model/text/chat.h"
#include "shared/model/gguf/gguf_scan.h"
#include "shared/model/arch/place.h"
#include "shared/model/arch/weights.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	PREFILL_CHUNK = 128,
	/* A pass gives work to threads some tens of times within a millisecond: threads spin
	 * through these gaps, but not longer. */
	SPIN_NS = 50000,
	/* Memory in addition to packed weights, KV cache and a pass's buffers: stacks, tables of
	 * the batch, and what packing allocates. */
	PACK_BYTES = 16 << 20,
};

static const char *kernels_name(const struct engine_options *o)
{
	return o->activations && strcmp(o->activations, "f32") == 0 ? "reference" : o->kernels;
}

/* Only the reference kernels use float32 activations. */
static int check_activations(const struct engine_options *o, struct error *err)
{
	if (!o->activations || strcmp(o->activations, "q8") == 0)
		return 0;
	if (strcmp(o->activations, "f32") != 0)
		return error_set(err, EINVAL, "--activations: \"%s\", allowed are q8 and f32",
			o->activations);
	if (o->kernels && strcmp(o->kernels, "auto") != 0)
		return error_set(err, EINVAL,
			"--activations f32 and --kernels %s contradict each other", o->kernels);
	return 0;
}

static bool on_cuda(const struct engine_options *o)
{
	return o->backend && strcmp(o->backend, "cuda") == 0;
}

/* On a GPU, or on the emulation of one. */
static bool on_gpu(const struct engine_options *o)
{
	return o->backend && (on_cuda(o) || strcmp(o->backend, "simt") == 0);
}

static bool is_fast(const struct engine_options *o)
{
	return o->arithmetic && strcmp(o->arithmetic, "fast") == 0;
}

static int check_arithmetic(const struct engine_options *o, struct error *err)
{
	if (o->arithmetic && !is_fast(o) && strcmp(o->arithmetic, "exact") != 0)
		return error_set(err, EINVAL, "--arithmetic is \"%s\", allowed are exact and fast",
			o->arithmetic);
	if (is_fast(o) && !on_gpu(o))
		return error_set(err, EINVAL,
			"--arithmetic fast needs a GPU (--backend cuda): the CPU computes in the "
			"exact arithmetic alone");
	if (is_fast(o) && o->prefill_chunk && o->prefill_chunk % FORWARD_FAST_CHUNK != 0)
		return error_set(err, EINVAL,
			"--prefill-chunk %u: with --arithmetic fast a multiple of %d is needed",
			o->prefill_chunk, FORWARD_FAST_CHUNK);
	return 0;
}

static int check_backend(const struct engine_options *o, struct error *err)
{
	if (o->backend && strcmp(o->backend, "cpu") != 0 && !on_gpu(o))
		return error_set(err, EINVAL, "--backend is \"%s\", allowed are cpu, simt and cuda",
			o->backend);
	if (on_gpu(o) && o->activations && strcmp(o->activations, "f32") == 0)
		return error_set(err, EINVAL,
			"--activations f32 and --backend %s contradict each other", o->backend);
	return 0;
}

int engine_check_kernels(const char *name, struct error *err)
{
	if (name && strcmp(name, "reference") == 0)
		return error_set(err, EINVAL,
			"--kernels: reference gives other bits; outrider-model has it as "
			"--activations f32");
	if (!kernels_select(name, err))
		return error_prefix(err, -EINVAL, "--kernels");
	return 0;
}

int engine_check_options(const struct engine_options *o, struct error *err)
{
	if (!o->model)
		return error_set(err, EINVAL, "--model FILE is needed");
	if (!o->no_prompt && !o->tokens == !o->prompt)
		return error_set(err, EINVAL, "one prompt is needed, as --tokens or as --prompt");
	if (o->chat && !o->prompt)
		return error_set(err, EINVAL, "--chat needs --prompt");
	if (o->format && strcmp(o->format, "json") != 0 && strcmp(o->format, "text") != 0)
		return error_set(
			err, EINVAL, "--format: \"%s\", allowed are json and text", o->format);
	enum kv_type type;
	if (o->kv && strcmp(o->kv, "auto") != 0 && kv_type_named(o->kv, &type) < 0)
		return error_set(err, EINVAL,
			"--kv: \"%s\", allowed are f32, f16, q8_0, q16_0 and auto", o->kv);
	int rc = engine_check_kernels(o->kernels, err);
	if (rc == 0)
		rc = check_backend(o, err);
	if (rc == 0)
		rc = check_arithmetic(o, err);
	return rc < 0 ? rc : check_activations(o, err);
}

int engine_encode(const struct gguf *gguf, const struct tokenizer *tokenizer, const char *prompt,
	bool chat, int32_t **ids, size_t *n, struct error *err)
{
	size_t capacity = 0;
	int32_t bos = tokenizer_bos(tokenizer);
	*ids = NULL;
	*n = 0;
	if (chat) {
		struct chat_message message = {
			.role = "user", .text = prompt, .text_bytes = strlen(prompt)};
		return chat_encode(gguf, tokenizer, &message, 1, ids, n, &capacity, err);
	}
	if (bos >= 0) {
		capacity = 16;
		*ids = malloc(capacity * sizeof(**ids));
		if (!*ids)
			return error_set(err, ENOMEM, "no memory for the prompt");
		(*ids)[(*n)++] = bos;
	}
	return tokenizer_encode(tokenizer, prompt, strlen(prompt), false, ids, n, &capacity, err);
}

static int read_prompt(struct engine *e, struct error *err)
{
	const struct engine_options *o = &e->options;
	int32_t *ids = NULL;
	uint32_t n = 0;
	int rc = 0;
	if (o->tokens) {
		rc = args_tokens(o->tokens, &ids, &n, err);
	} else {
		size_t used = 0;
		rc = engine_encode(
			e->model->gguf, e->tokenizer, o->prompt, o->chat, &ids, &used, err);
		if (rc == 0 && used > LIMIT_CONTEXT)
			rc = error_set(err, EINVAL, "a prompt of %zu tokens, allowed are 1..%d",
				used, LIMIT_CONTEXT);
		n = (uint32_t)used;
	}
	e->tokens = ids;
	e->n_prompt = n;
	if (rc < 0)
		return rc;
	if (n == 0)
		return error_set(err, EINVAL, "the prompt is empty: at least one token is needed");
	for (uint32_t i = 0; i < n; i++)
		if (ids[i] < 0 || (uint32_t)ids[i] >= e->model->config.n_vocab)
			return error_set(err, EINVAL,
				"token %u of the prompt is %d, allowed are 0..%u", i, ids[i],
				e->model->config.n_vocab - 1);
	return 0;
}

int engine_open(struct engine *e, bool need_tokenizer, struct error *err)
{
	struct error ignored;
	int rc = model_load(e->options.model, &e->model, err);
	if (rc < 0)
		return rc;
	if (e->options.adapter)
		rc = adapter_load(e->options.adapter, e->model, &e->adapter, err);
	if (rc < 0)
		return rc;
	bool needed = need_tokenizer || e->options.prompt;
	rc = tokenizer_load(e->model->gguf, &e->tokenizer, needed ? err : &ignored);
	if (rc < 0 && needed)
		return rc;
	return read_prompt(e, err);
}

/* The model's context or the one asked for, which decides between longrope's factors. */
static uint32_t context_of(const struct engine *e)
{
	return e->options.context ? e->options.context : e->model->config.n_context;
}

/* As much of the context as this run needs; the prompt must leave room for one more token if more
 * are wanted. */
static int set_context(struct engine *e, uint32_t n_extra, struct error *err)
{
	uint32_t most = context_of(e);
	uint64_t wanted = (uint64_t)e->n_prompt + n_extra;
	if (e->n_prompt + (n_extra > 0) > most)
		return error_set(err, EINVAL,
			"a prompt of %u tokens is too long: the context is %u tokens%s",
			e->n_prompt, most, n_extra > 0 ? ", and one is for the output" : "");
	e->n_context = wanted < most ? (uint32_t)wanted : most;
	int32_t *tokens = realloc(e->tokens, e->n_context * sizeof(*tokens));
	if (!tokens)
		return error_set(err, ENOMEM, "no memory for %u tokens", e->n_context);
	e->tokens = tokens;
	e->n_tokens = e->n_prompt;
	return 0;
}

/* The rows of a pass with the most drafts, and the most masks behind each of its tokens; 0 without
 * an adapter. */
static uint32_t masked_rows(const struct engine *e)
{
	uint32_t tokens = e->adapter ? e->adapter->draft_length + 1 : 0;
	return tokens * tokens;
}

static struct kv_layout plan_kv(const struct engine *e)
{
	uint32_t cells = e->n_context + masked_rows(e);
	struct kv_layout layout = kv_layout_of(e->model, kv_type_of(e->options.kv, e->model),
		e->options.rows ? e->options.pages : (cells + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS);
	if (e->options.rows == 0)
		layout.windows =
			kv_windows_of(e->model, 1, e->n_batch, layout.n_pages * KV_PAGE_CELLS);
	return layout;
}

static int start_kv(struct engine *e, const struct kv_layout *layout, struct error *err)
{
	bool away = e->backend->device != NULL;
	size_t bytes = away ? kv_map_bytes(layout) : kv_bytes(layout);
	e->kv_memory = huge_pages_alloc(bytes);
	if (!e->kv_memory)
		return error_set(err, ENOMEM, "no memory for a KV cache of %zu bytes", bytes);
	int rc = away ? kv_init_own(&e->kv, e->backend, e->kv_memory, layout, err)
		      : kv_init_memory(&e->kv, e->backend, e->kv_memory, layout, true, err);
	if (rc < 0)
		return rc;
	rc = kv_seq_init(&e->seq, 1, e->n_context + masked_rows(e));
	return rc < 0 ? error_set(err, -rc, "no memory for a sequence of %u tokens", e->n_context)
		      : 0;
}

static void say_if_small(const struct huge_pages *pages)
{
	char text[384];
	huge_pages_notice(pages, text, sizeof(text));
	if (text[0] && pages->kind == HUGE_NONE)
		fprintf(stderr, "outrider-model: packed weights: %s\n", text);
}

/* Memory is allocated only when it is touched, except in the huge-page pool. *own: what is still to
 * be allocated. */
static int map_weights(struct engine *e, uint64_t *own, struct error *err)
{
	e->weights_bytes = weights_bytes(e->model, WEIGHTS_ALL);
	*own = 0;
	if (!e->options.pack || e->weights_bytes == 0)
		return 0;
	struct huge_pages pages;
	int rc = huge_pages_map(e->weights_bytes, &pages, &e->weights, err);
	if (rc < 0)
		return error_prefix(err, rc, "packed weights");
	e->weights_mapped = pages.bytes;
	*own = pages.kind == HUGE_POOL ? 0 : e->weights_bytes;
	if (!e->options.quiet)
		say_if_small(&pages);
	return 0;
}

static struct forward_limits limits_of(const struct engine *e, bool all_logits)
{
	uint32_t n_picks = e->options.rows ? e->options.rows : e->sampling ? 1 : 0;
	if (e->adapter)
		n_picks = e->adapter->draft_length + 1;
	uint32_t n_logits = all_logits ? e->n_batch : n_picks ? 0 : 1;

	return (struct forward_limits){
		.n_batch = e->n_batch,
		.n_logits = n_logits,
		.n_picks = n_picks,
		.n_drafts = n_logits,
		.n_context = context_of(e),
		.n_oracle = e->n_oracle,
		.fast = e->n_fast > 0,
		.adapter = e->adapter,
	};
}

/* Without this check the kernel might end the process without a message. */
static int check_room(
	const struct engine *e, uint64_t weights, uint64_t kv, bool all_logits, struct error *err)
{
	const char *instead = e->options.instead_of_pack;
	const struct forward_limits limits = limits_of(e, all_logits);
	uint64_t buffers = forward_bytes(e->model, e->backend, &limits);
	struct memory_limit limit;

	memory_limit_now(&limit);
	if (weights == 0)
		return memory_fits(&limit, kv + buffers, "KV cache and buffers take",
			"take fewer tokens or a smaller --context or --kv", err);
	return memory_fits(&limit, weights + kv + buffers + PACK_BYTES,
		"packed weights, KV cache and buffers take", instead ? instead : "leave out --pack",
		err);
}

static int pack_weights(struct engine *e, uint32_t threads, struct error *err)
{
	if (!e->weights)
		return 0;
	int rc = weights_pack(e->model, WEIGHTS_ALL, e->weights, threads, NULL, NULL);
	if (rc < 0)
		return error_set(err, -rc, "no memory to pack the weights");
	weights_use(e->model, WEIGHTS_ALL, e->weights);
	return 0;
}

void engine_say_if_slow(
	const char *program, const struct kernels *kernels, const char *asked, uint32_t threads)
{
	const char *slow = kernels ? kernels_notice(kernels, "auto") : NULL;
	struct cpus cpus;
	char text[256];
	if (slow && (!asked || strcmp(asked, "auto") == 0))
		fprintf(stderr, "%s: %s\n", program, slow);
	cpus_now(&cpus);
	cpus_notice(&cpus, threads, text, sizeof(text));
	if (text[0])
		fprintf(stderr, "%s: %s\n", program, text);
}

static int open_gpu(struct engine *e, struct error *err)
{
	const struct backend_gpu_options options = {.seed = 0};

	e->threads = 1;
	return on_cuda(&e->options) ? backend_cuda_create(&options, &e->backend, err)
				    : backend_simt_create(&options, &e->backend, err);
}

static int open_backend(struct engine *e, struct error *err)
{
	const struct engine_options *o = &e->options;
	struct cpus cpus;

	if (on_gpu(o))
		return open_gpu(e, err);
	cpus_now(&cpus);
	uint32_t threads = o->threads ? o->threads : cpus.threads;
	if (!o->quiet)
		engine_say_if_slow(o->program ? o->program : "outrider-model", e->kernels,
			kernels_name(o), threads);
	/* With all cores, threads can be bound to them; with fewer threads the kernel knows which
	 * cores are free. */
	const struct backend_cpu_options options = {
		e->kernels, threads, threads >= cpus.cores, SPIN_NS};
	e->threads = threads;
	return backend_cpu_create(&options, &e->backend, err);
}

/* Decides how many tokens of the prompt are computed fast: whole chunks, behind which a token is left. */
static int start_fast(struct engine *e, struct error *err)
{
	char name[BACKEND_FAST_NAME];

	e->n_fast = 0;
	if (!is_fast(&e->options))
		return 0;
	if (!forward_can_be_fast(e->model)) {
		fprintf(stderr, "outrider-model: --arithmetic fast changes nothing: the model has "
				"no F16 or BF16 "
				"matrices that it is for\n");
		return 0;
	}
	e->n_fast = forward_fast_tokens(e->n_prompt);
	return e->backend->ops->fast(e->backend, name, err);
}

int engine_start(struct engine *e, uint32_t n_extra, bool all_logits, struct error *err)
{
	const struct engine_options *o = &e->options;
	uint64_t weights = 0;
	int rc = set_context(e, n_extra, err);
	if (rc < 0)
		return rc;
	e->kernels = kernels_select(kernels_name(o), err);
	assert(e->kernels); /* engine_check_options has checked the name */
	rc = open_backend(e, err);
	if (rc < 0)
		return rc;
	e->n_chunk = o->prefill_chunk ? o->prefill_chunk : PREFILL_CHUNK;
	if (e->n_chunk > e->n_prompt)
		e->n_chunk = e->n_prompt;
	e->n_batch = e->n_chunk > masked_rows(e) ? e->n_chunk : masked_rows(e);
	if (o->rows)
		e->n_batch = o->rows;
	struct kv_layout layout = plan_kv(e);
	rc = start_fast(e, err);
	if (rc == 0)
		rc = map_weights(e, &weights, err);
	if (rc == 0)
		rc = check_room(e, weights, kv_bytes(&layout), all_logits, err);
	if (rc == 0)
		rc = pack_weights(e, e->threads, err);
	if (rc == 0)
		rc = model_place(e->model, e->backend, err);
	e->placed = rc == 0;
	if (rc == 0 && e->adapter)
		rc = adapter_place(e->adapter, e->model, e->backend, err);
	e->adapter_placed = rc == 0 && e->adapter;
	if (rc == 0)
		rc = start_kv(e, &layout, err);
	if (rc < 0)
		return rc;
	e->batch = calloc(e->n_batch, sizeof(*e->batch));
	e->cells = calloc(e->n_batch, sizeof(*e->cells));
	if (!e->batch || !e->cells)
		return error_set(err, ENOMEM, "no memory for a batch of %u", e->n_batch);
	rc = experts_mapped_init(&e->experts, e->model, e->backend, err);
	if (rc < 0)
		return rc;
	const struct forward_limits limits = limits_of(e, all_logits);
	rc = forward_create(
		e->model, e->backend, &e->kv, &e->experts.source, &limits, &e->forward, err);
	if (rc == 0 && !on_gpu(o))
		e->pool = backend_cpu_pool(forward_queue(e->forward));
	return rc;
}

/* Runs tokens first..first+n-1 as one pass and commits them; the last one (or all) with logits, or
 * with a pick. */
static int run_chunk(
	struct engine *e, uint32_t first, uint32_t n, bool all, bool last, struct error *err)
{
	int rc = kv_take(&e->kv, &e->seq, n, e->cells);
	if (rc < 0)
		return error_set(err, -rc, "the KV cache is full at token %u", first);
	for (uint32_t i = 0; i < n; i++)
		e->batch[i] = (struct batch_token){
			.seq = &e->seq,
			.token = e->tokens[first + i],
			.position = first + i,
			.parent = (int32_t)i - 1,
			.logits = (all && first + i >= e->logits_from) ||
				  (last && i == n - 1 && !e->sampling),
			.cell = e->cells[i],
			.fast = first + i < e->n_fast,
		};
	const struct pick_row pick = {
		.params = e->sampling,
		.history = e->tokens,
		.n_history = first + n,
		.n_prompt = e->n_prompt,
		.dry_reach = e->sampling ? breakers_reach(
						   e->tokenizer, e->sampling, e->tokens, first + n)
					 : 0,
		.parent = -1,
		.source = n - 1,
		.position = first + n,
		.want_hash = e->want_hash,
		.want_logprobs = e->want_logprobs,
		.top = e->top,
		.n_top = e->n_top,
	};
	rc = forward_run_picks(
		e->forward, e->batch, n, &pick, last && e->sampling ? 1 : 0, &e->picked);
	if (rc < 0)
		return error_set(err, -rc, "the forward pass failed at token %u", first);
	kv_commit(&e->kv, &e->seq, e->cells, n, NULL, 0);
	return 0;
}

int engine_prefill(struct engine *e, bool all, engine_row *row, void *arg, struct error *err)
{
	bool progress = !e->options.quiet && isatty(STDERR_FILENO);
	for (uint32_t first = 0; first < e->n_prompt;) {
		uint32_t n = e->n_prompt - first < e->n_chunk ? e->n_prompt - first : e->n_chunk;
		bool last = first + n == e->n_prompt;
		int rc = run_chunk(e, first, n, all, last, err);
		if (rc < 0)
			return rc;
		for (uint32_t i = 0; i < n && row; i++)
			if (e->batch[i].logits)
				row(arg, first + i, forward_logits(e->forward, i));
		first += n;
		if (progress)
			fprintf(stderr, "\rprompt: %u of %u tokens%s", first, e->n_prompt,
				last ? "\r\033[K" : "");
	}
	return 0;
}

void engine_rewind(struct engine *e)
{
	kv_truncate(&e->kv, &e->seq, 0);
	e->n_tokens = e->n_prompt;
}

int engine_not_finite(const struct engine *e, uint32_t position, struct error *err)
{
	const struct gguf *gguf = e->model->gguf;
	for (size_t i = 0; i < gguf_n_tensors(gguf); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(gguf, i);
		struct gguf_scan scan;
		if (gguf_scan_tensor(gguf, t, true, &scan) && scan.n)
			return error_set(err, EINVAL,
				"the logits after token %u are not finite: tensor %s: %s at column "
				"%llu of row %llu is %s",
				position, gguf_name_text(t->name).text, scan.what,
				(unsigned long long)scan.column, (unsigned long long)scan.row,
				scan.value);
	}
	return error_set(err, EINVAL,
		"the logits after token %u are not finite, though every weight is", position);
}

int engine_step(struct engine *e, struct error *err)
{
	return run_chunk(e, e->n_tokens - 1, 1, false, true, err);
}

void engine_close(struct engine *e)
{
	forward_destroy(&e->forward);
	if (e->kv.pages)
		kv_seq_exit(&e->kv, &e->seq);
	kv_exit(&e->kv);
	free(e->kv_memory);
	experts_mapped_exit(&e->experts);
	if (e->adapter_placed)
		adapter_forget(e->adapter, e->model, e->backend);
	adapter_free(&e->adapter);
	if (e->placed)
		model_forget(e->model, e->backend);
	if (e->weights)
		munmap(e->weights, e->weights_mapped);
	free(e->batch);
	free(e->cells);
	free(e->tokens);
	if (e->backend)
		e->backend->ops->destroy(e->backend);
	tokenizer_free(&e->tokenizer);
	model_free(&e->model);
}
