/* Decodes a workload, one prompt after the other, greedily, with the engine alone, and keeps what its routers chose. */
#include "bench/src/cache.h"

#include "bench/src/cache_history.h"
#include "client/model/engine.h"
#include "services/drafter/config.h"
#include "services/drafter/ngram.h"
#include "shared/base/clock.h"
#include "shared/base/rand.h"
#include "shared/model/chat.h"
#include "shared/model/moe_route.h"
#include "shared/spec/slots.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64, TOKENS_MAX = 1 << 15 };

/* A model and one sequence of it. */
struct side {
	struct engine engine;
};

struct recorder {
	const struct cache_record_options *options;
	struct side target, draft;
	struct ngram ngram; /* of the answer that is made */
	struct cache_history history;
	struct cache_trace trace;
	int status; /* of the hooks: the first failure */
	int32_t *tokens, *recorded; /* [TOKENS_MAX] prompt and output; the output at K = 0 */
	uint32_t n, n_prompt, n_recorded;
	bool prefill, silent; /* silent: this run is not recorded */
	/* The pass that runs. */
	uint64_t mark_ns; /* when the part of a layer that runs began */
	uint64_t draft_start_ns;
	uint16_t *tokens_of; /* [n_experts] */
	bool *told; /* [n_layers][n_experts] hinted for in this drafting */
	float *scores; /* [n_experts] */
	struct moe_router router; /* the target's */
};

/* ---- Hints. ---- */

/* Once in a drafting. */
static void add_hint(struct recorder *r, const struct trace_hint *hint)
{
	bool *told = &r->told[(size_t)hint->layer * r->trace.n_experts + hint->expert];
	if (!*told && cache_trace_add_hint(&r->trace, hint) < 0)
		r->status = -ENOMEM;
	*told = true;
}

/* What the target's router of `layer` makes of these tokens, as the service hints: each expert once, with the sum of its
 * weights; what this drafting has hinted for before not again. */
static void add_hints(struct recorder *r, enum hint_source source, uint32_t layer,
	const float *const *hidden, uint32_t n_tokens, uint64_t start_ns)
{
	moe_router_run(&r->router, layer, hidden, n_tokens);
	uint32_t n_chosen = n_tokens * r->trace.n_experts_used;
	uint32_t at_ns = (uint32_t)(clock_ns() - start_ns);
	memset(r->scores, 0, r->trace.n_experts * sizeof(*r->scores));
	for (uint32_t i = 0; i < n_chosen; i++)
		r->scores[r->router.chosen[i]] += r->router.weights[i];
	for (uint32_t i = 0; i < n_chosen; i++) {
		uint16_t expert = r->router.chosen[i];
		struct trace_hint hint = {.layer = (uint16_t)layer,
			.expert = expert,
			.source = source,
			.score = r->scores[expert],
			.at_ns = at_ns};
		add_hint(r, &hint);
	}
}

/* What tokens[first..first+n-1], which the pass will compute, wanted before. */
static void add_history(struct recorder *r, uint64_t session, uint32_t first, uint32_t n)
{
	struct cache_history *h = &r->history;
	if (r->silent)
		return;
	cache_history_expect(h, session, r->tokens, first, n);
	for (uint32_t o = 0; o < h->history.n_moe; o++) {
		uint32_t chosen = cache_history_choose(h, o);
		uint32_t at_ns = (uint32_t)(clock_ns() - r->draft_start_ns);
		for (uint32_t i = 0; i < chosen; i++)
			add_hint(r, &(struct trace_hint){.layer = h->history.layer[o],
					    .expert = h->experts[i],
					    .source = HINT_HISTORY,
					    .score = h->score[i],
					    .at_ns = at_ns});
	}
}

static void learn(struct recorder *r, uint64_t session, uint32_t n)
{
	const struct engine *e = &r->target.engine;
	if (!r->silent)
		cache_history_learn(&r->history, e->batch, n, session,
			e->seq.n > 0 ? r->tokens[e->seq.n - 1] : -1);
}

static void forget_hints(struct recorder *r)
{
	memset(r->told, 0, (size_t)r->trace.n_layers * r->trace.n_experts * sizeof(*r->told));
}

/* ---- The target's hooks. ---- */

static uint32_t next_moe(const struct recorder *r, uint32_t layer)
{
	do
		layer++;
	while (layer < r->trace.n_layers && !r->trace.moe[layer]);
	return layer;
}

static void add_uses(struct recorder *r, uint32_t n_tokens, const uint16_t *experts)
{
	uint32_t n_experts = r->trace.n_experts;
	memset(r->tokens_of, 0, n_experts * sizeof(*r->tokens_of));
	for (size_t i = 0; i < (size_t)n_tokens * r->trace.n_experts_used; i++)
		r->tokens_of[experts[i]]++;
	for (uint32_t e = 0; e < n_experts; e++) {
		struct trace_use use = {(uint16_t)e, r->tokens_of[e]};
		if (use.tokens > 0 && cache_trace_add_use(&r->trace, use) < 0)
			r->status = -ENOMEM;
	}
}

/* Between attention and experts: the layer's first half has ended. */
static void on_layer(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const float *const *hidden)
{
	struct recorder *r = arg;
	uint64_t now_ns = clock_ns();
	(void)weights;
	if (r->silent || r->status != 0 || experts == NULL)
		return;
	struct trace_layer run = {.layer = layer, .before_ns = (uint32_t)(now_ns - r->mark_ns)};
	if (cache_trace_add_layer(&r->trace, &run) < 0) {
		r->status = -ENOMEM;
		return;
	}
	add_uses(r, n_tokens, experts);
	cache_history_layer(&r->history, layer, n_tokens, experts);
	uint32_t next = next_moe(r, layer);
	uint64_t start_ns = clock_ns();
	/* A prompt's tokens would ask for every expert. */
	if (!r->prefill && next < r->trace.n_layers) {
		forget_hints(r);
		add_hints(r, HINT_GATE, next, hidden, n_tokens, start_ns);
	}
	r->mark_ns = clock_ns();
}

/* Before each layer, and behind the last: the second half of the one before has ended. */
static void on_residual(void *arg, uint32_t layer, uint32_t n_tokens, const float *x)
{
	struct recorder *r = arg;
	uint64_t now_ns = clock_ns();
	(void)n_tokens;
	(void)x;
	if (r->silent || r->status != 0)
		return;
	const struct trace_pass *pass = &r->trace.passes[r->trace.n_passes - 1];
	if (layer > 0 && r->trace.moe[layer - 1] && pass->n_layers > 0) {
		r->trace.layers[r->trace.n_layer_runs - 1].after_ns =
			(uint32_t)(now_ns - r->mark_ns);
		r->mark_ns = now_ns;
	}
}

/* The draft model's feed-forward input through the target's router of the same layer (SP-MoE, section 3.2). */
static void on_draft_layer(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const float *const *hidden)
{
	struct recorder *r = arg;
	(void)experts;
	(void)weights;
	if (r->silent || r->status != 0 || hidden == NULL || !r->trace.moe[layer])
		return;
	/* Only the last token is about to be verified: what the drafter caught up on has been. */
	add_hints(r, HINT_DRAFT, layer, &hidden[n_tokens - 1], 1, r->draft_start_ns);
}

/* ---- Passes. ---- */

static int32_t greatest(const float *logits, uint32_t n)
{
	uint32_t best = 0;
	for (uint32_t i = 1; i < n; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}

/* Tokens as one pass behind the committed ones, all with logits, all but the first drafts or none; the caller commits. */
static int run_tokens(
	struct side *side, const int32_t *tokens, uint32_t n, bool drafts, struct error *err)
{
	struct engine *e = &side->engine;
	int rc = kv_take(&e->kv, &e->seq, n, e->cells);
	if (rc < 0)
		return error_set(err, -rc, "the KV cache is full at token %u", e->seq.n);
	for (uint32_t i = 0; i < n; i++)
		e->batch[i] = (struct batch_token){.seq = &e->seq,
			.token = tokens[i],
			.position = e->seq.n + i,
			.parent = (int32_t)i - 1,
			.logits = true,
			.draft = drafts && i > 0,
			.cell = e->cells[i]};
	rc = forward_run(e->forward, e->batch, n);
	return rc < 0 ? error_set(err, -rc, "the forward pass failed at token %u", e->seq.n) : 0;
}

static void commit(struct side *side, uint32_t accepted, uint32_t n)
{
	struct engine *e = &side->engine;
	kv_commit(&e->kv, &e->seq, e->cells, accepted, e->cells + accepted, n - accepted);
}

/* A pass of the target, recorded. */
static int run_target(
	struct recorder *r, const struct trace_pass *pass, const int32_t *tokens, struct error *err)
{
	if (!r->silent && cache_trace_add_pass(&r->trace, pass) < 0)
		return error_set(err, ENOMEM, "no memory for the trace");
	r->mark_ns = clock_ns();
	return run_tokens(&r->target, tokens, pass->tokens, false, err);
}

static int prefill(struct recorder *r, uint64_t session, int32_t *first, struct error *err)
{
	int rc = 0;
	r->prefill = true;
	for (uint32_t at = 0; rc == 0 && at < r->n_prompt;) {
		uint32_t n = r->n_prompt - at < CHUNK ? r->n_prompt - at : CHUNK;
		struct trace_pass pass = {.session = session, .tokens = n, .prefill = true};
		pass.emitted = at + n == r->n_prompt;
		rc = run_target(r, &pass, r->tokens + at, err);
		if (rc < 0)
			break;
		struct engine *e = &r->target.engine;
		*first = greatest(forward_logits(e->forward, n - 1), e->model->config.n_vocab);
		learn(r, session, n);
		commit(&r->target, n, n);
		at += n;
	}
	r->prefill = false;
	return rc;
}

/* ---- Drafting. ---- */

/* Tokens the drafter lacks, then one pass per drafted token; the last token's pass gives hints. */
static int draft_by_model(
	struct recorder *r, uint32_t k, int32_t *out, uint32_t *n, struct error *err)
{
	struct engine *e = &r->draft.engine;
	bool silent = r->silent;
	int rc = 0;
	kv_truncate(&e->kv, &e->seq, e->seq.n < r->n - 1 ? e->seq.n : r->n - 1);
	while (rc == 0 && r->n - e->seq.n > 1) {
		uint32_t lag = r->n - 1 - e->seq.n, chunk = lag < CHUNK ? lag : CHUNK;
		r->silent = true;
		rc = run_tokens(&r->draft, r->tokens + e->seq.n, chunk, false, err);
		if (rc == 0)
			commit(&r->draft, chunk, chunk);
	}
	r->silent = silent;
	int32_t token = r->tokens[r->n - 1];
	for (*n = 0; rc == 0 && *n < k; ++*n) {
		rc = run_tokens(&r->draft, &token, 1, false, err);
		if (rc < 0)
			break;
		token = greatest(forward_logits(e->forward, 0), e->model->config.n_vocab);
		out[*n] = token;
		commit(&r->draft, 1, 1);
	}
	return rc;
}

/* What the run at K = 0 gave, some of it wrong. */
static uint32_t draft_by_replay(const struct recorder *r, uint32_t k, int32_t *out)
{
	uint32_t n = 0;
	for (; n < k && r->n - r->n_prompt + n < r->n_recorded; n++) {
		uint32_t position = r->n + n;
		int32_t token = r->recorded[r->n - r->n_prompt + n];
		bool right = rand_uniform(1, RAND_REPLAY, position, 0) * 100 <
			     r->options->accept_percent;
		out[n] = right ? token : token > 0 ? token - 1 : 1;
	}
	return n;
}

/* The longest suffix that was there before, and what followed it. */
static uint32_t draft_by_ngram(struct recorder *r, uint32_t k, int32_t *out)
{
	uint32_t length, from;
	ngram_update(&r->ngram, r->tokens, r->n);
	from = ngram_find(&r->ngram, r->tokens, r->n, &length);
	if (from == NGRAM_NONE)
		return 0;
	ngram_propose(r->tokens, r->n, from, k, out);
	return k;
}

static int draft(struct recorder *r, uint32_t k, int32_t *out, uint32_t *n, struct error *err)
{
	*n = 0;
	if (k > 0 && r->options->drafter == CACHE_DRAFT_MODEL)
		return draft_by_model(r, k, out, n, err);
	if (k > 0 && r->options->drafter == CACHE_DRAFT_REPLAY)
		*n = draft_by_replay(r, k, out);
	else if (k > 0 && r->options->drafter == CACHE_DRAFT_NGRAM)
		*n = draft_by_ngram(r, k, out);
	return 0;
}

static bool eog(const struct recorder *r, int32_t token)
{
	return tokenizer_is_eog(r->target.engine.tokenizer, token);
}

/* One iteration: drafts, verifies, emits what was accepted and one more. *done: an end, or enough. */
static int iterate(struct recorder *r, uint64_t session, uint32_t k, uint32_t most, bool *done,
	struct error *err)
{
	int32_t batch[1 + LIMIT_DRAFT];
	uint32_t drafted = 0, left = most - (r->n - r->n_prompt);
	if (k >= left)
		k = left - 1;
	batch[0] = r->tokens[r->n - 1];
	/* The pass comes first in the trace: the hints of its drafting belong to it. */
	struct trace_pass pass = {.session = session, .tokens = 1};
	if (!r->silent && cache_trace_add_pass(&r->trace, &pass) < 0)
		return error_set(err, ENOMEM, "no memory for the trace");
	uint32_t at = r->trace.n_passes - 1;
	forget_hints(r);
	r->draft_start_ns = clock_ns();
	int rc = draft(r, k, batch + 1, &drafted, err);
	if (rc < 0)
		return rc;
	uint64_t draft_ns = clock_ns() - r->draft_start_ns;
	/* The draft model has hinted for all but its last token, whose hidden states it did not compute. */
	bool by_model = drafted > 0 && r->options->drafter == CACHE_DRAFT_MODEL;
	memcpy(r->tokens + r->n, batch + 1, drafted * sizeof(*batch));
	add_history(r, session, r->n - 1 + (by_model ? drafted : 0), by_model ? 1 : 1 + drafted);
	r->mark_ns = clock_ns();
	rc = run_tokens(&r->target, batch, 1 + drafted, true, err);
	if (rc < 0)
		return rc;
	learn(r, session, 1 + drafted);
	uint32_t emitted = 0;
	const struct engine *e = &r->target.engine;
	for (bool right = true; right && !*done; emitted++) {
		int32_t token =
			greatest(forward_logits(e->forward, emitted), e->model->config.n_vocab);
		r->tokens[r->n++] = token;
		*done = eog(r, token) || r->n - r->n_prompt == most;
		right = emitted < drafted && batch[1 + emitted] == token;
	}
	commit(&r->target, emitted, 1 + drafted);
	if (!r->silent) {
		struct trace_pass *to = &r->trace.passes[at];
		to->tokens = 1 + drafted;
		to->drafted = drafted;
		to->emitted = emitted;
		to->draft_ns = drafted > 0 ? draft_ns : 0;
	}
	return 0;
}

/* With the settings that the drafter has by itself. */
static int restart_ngram(struct recorder *r)
{
	struct drafter_config config;
	config_defaults(drafter_config_keys, &config);
	ngram_exit(&r->ngram);
	return ngram_init(
		&r->ngram, (uint32_t)config.ngram_min, (uint32_t)config.ngram_max, TOKENS_MAX, 1);
}

/* A whole answer to the prompt in r->tokens. */
static int answer(
	struct recorder *r, uint64_t session, uint32_t k, uint32_t most, struct error *err)
{
	struct engine *e = &r->target.engine;
	bool done = false;
	kv_truncate(&e->kv, &e->seq, 0);
	if (r->options->drafter == CACHE_DRAFT_MODEL)
		kv_truncate(&r->draft.engine.kv, &r->draft.engine.seq, 0);
	r->n = r->n_prompt;
	if (r->options->drafter == CACHE_DRAFT_NGRAM && restart_ngram(r) < 0)
		return error_set(err, ENOMEM, "no memory for n-grams");
	int rc = prefill(r, session, &r->tokens[r->n], err);
	if (rc < 0)
		return rc;
	done = eog(r, r->tokens[r->n++]) || most <= 1;
	while (rc == 0 && !done)
		rc = iterate(r, session, k, most, &done, err);
	if (rc == 0 && r->status != 0)
		rc = error_set(err, -r->status, "no memory for the trace");
	return rc;
}

/* ---- Prompts. ---- */

static int encode(
	struct recorder *r, const json_t *line, int32_t **ids, size_t *n, struct error *err)
{
	const struct engine *e = &r->target.engine;
	const char *prompt = json_string_value(json_object_get(line, "prompt"));
	size_t capacity = 0, i;
	if (prompt)
		return tokenizer_encode(
			e->tokenizer, prompt, strlen(prompt), false, ids, n, &capacity, err);
	struct chat_message messages[16];
	size_t n_messages = 0;
	const json_t *message;
	json_array_foreach(json_object_get(line, "messages"), i, message)
	{
		const char *role = json_string_value(json_object_get(message, "role"));
		const char *text = json_string_value(json_object_get(message, "content"));
		if (!role || !text || n_messages == 16)
			break;
		messages[n_messages++] = (struct chat_message){
			.role = role, .text = text, .text_bytes = strlen(text)};
	}
	return chat_encode(
		e->model->gguf, e->tokenizer, messages, n_messages, ids, n, &capacity, err);
}

static int record_line(struct recorder *r, const json_t *line, uint64_t session, struct error *err)
{
	const struct cache_record_options *o = r->options;
	int32_t *ids = NULL;
	size_t n = 0;
	int rc = encode(r, line, &ids, &n, err);
	json_int_t own = json_integer_value(json_object_get(line, "max_tokens"));
	uint32_t most = own > 0 && own < o->max_tokens ? (uint32_t)own : o->max_tokens;
	uint32_t room = r->target.engine.n_context;
	if (rc == 0 && (n == 0 || n + most + LIMIT_DRAFT + 1 > room))
		rc = error_set(err, EINVAL,
			"a prompt of %zu tokens and %u more do not fit the context of %u", n, most,
			room);
	if (rc == 0) {
		memcpy(r->tokens, ids, n * sizeof(*ids));
		r->n_prompt = (uint32_t)n;
	}
	free(ids);
	if (rc == 0 && o->drafter == CACHE_DRAFT_REPLAY) {
		r->silent = true;
		rc = answer(r, session, 0, most, err);
		r->silent = false;
		r->n_recorded = r->n - r->n_prompt;
		memcpy(r->recorded, r->tokens + r->n_prompt, r->n_recorded * sizeof(*r->recorded));
	}
	return rc == 0 ? answer(r, session, o->k, most, err) : rc;
}

static int record_lines(struct recorder *r, struct error *err)
{
	const struct cache_record_options *o = r->options;
	FILE *file = fopen(o->workload, "re");
	if (!file)
		return error_set(err, errno, "%s: %s", o->workload, strerror(errno));
	char *text = NULL;
	size_t capacity = 0;
	uint32_t number = 0;
	int rc = 0;
	while (rc == 0 && number < o->limit && getline(&text, &capacity, file) > 0) {
		json_error_t error;
		json_t *line = json_loads(text, 0, &error);
		number++;
		rc = line ? record_line(r, line, number, err)
			  : error_set(err, EBADMSG, "%s", error.text);
		if (rc < 0)
			error_prefix(err, rc, "%s:%u", o->workload, number);
		json_decref(line);
	}
	free(text);
	fclose(file);
	if (rc == 0 && number == 0)
		rc = error_set(err, EBADMSG, "%s: no prompts", o->workload);
	return rc;
}

/* ---- Setting up. ---- */

/* The engine sizes its batch by a prompt; this one is never run. */
static int open_side(struct side *side, const char *model, const struct cache_record_options *o,
	struct error *err)
{
	char prompt[2 * CHUNK];
	for (size_t i = 0; i < CHUNK; i++) {
		prompt[2 * i] = '0';
		prompt[2 * i + 1] = i + 1 < CHUNK ? ',' : '\0';
	}
	struct engine *e = &side->engine;
	e->options = (struct engine_options){.model = model,
		.tokens = prompt,
		.prefill_chunk = CHUNK,
		.quiet = true,
		.threads = o->threads};
	int rc = engine_check_options(&e->options, err);
	if (rc == 0)
		rc = engine_open(e, true, err);
	e->options.tokens = NULL;
	if (rc < 0)
		return rc;
	uint32_t context = e->model->config.n_context;
	if (context <= CHUNK)
		return error_set(err, EINVAL, "%s: a context of %u is too short", model, context);
	uint32_t room = context < TOKENS_MAX ? context : TOKENS_MAX;
	return engine_start(e, room - CHUNK, true, err);
}

static int check_draft(const struct recorder *r, struct error *err)
{
	const struct model_config *target = &r->target.engine.model->config;
	const struct model_config *draft = &r->draft.engine.model->config;
	if (draft->n_embd != target->n_embd || draft->n_layers != target->n_layers ||
		draft->n_vocab != target->n_vocab)
		return error_set(err, EINVAL,
			"%s: %u layers of %u and %u tokens; for hints it takes the target's %u of "
			"%u and %u",
			r->options->draft, draft->n_layers, draft->n_embd, draft->n_vocab,
			target->n_layers, target->n_embd, target->n_vocab);
	return 0;
}

static void describe(struct recorder *r)
{
	const struct cache_record_options *o = r->options;
	const struct model *model = r->target.engine.model;
	struct cache_trace *trace = &r->trace;
	struct slots_geometry geometry;
	slots_geometry_init(&geometry, model);
	trace->n_layers = model->config.n_layers;
	trace->n_experts = model->config.n_experts;
	trace->n_experts_used = model->config.n_experts_used;
	trace->k = o->drafter == CACHE_DRAFT_NONE ? 0 : o->k;
	for (uint32_t l = 0; l < trace->n_layers; l++) {
		uint64_t bytes = 0;
		trace->moe[l] = geometry.layers[l].moe;
		for (int p = 0; trace->moe[l] && p < EXPERT_PARTS; p++)
			bytes += geometry.layers[l].part[p].bytes;
		if (bytes > trace->expert_bytes)
			trace->expert_bytes = bytes;
	}
	const char *slash = strrchr(o->workload, '/');
	static const char *const drafters[] = {"no drafter", "model", "replay", "ngram"};
	snprintf(trace->name, sizeof(trace->name), "%.60s, %s, K %u",
		slash ? slash + 1 : o->workload, drafters[o->drafter], trace->k);
}

static int open_all(struct recorder *r, struct error *err)
{
	const struct cache_record_options *o = r->options;
	int rc = open_side(&r->target, o->model, o, err);
	if (rc < 0)
		return rc;
	if (r->target.engine.model->config.n_experts == 0)
		return error_set(err, EINVAL, "%s has no experts", o->model);
	describe(r);
	if (o->drafter == CACHE_DRAFT_MODEL) {
		rc = open_side(&r->draft, o->draft, o, err);
		if (rc == 0)
			rc = check_draft(r, err);
	}
	uint32_t n_experts = r->trace.n_experts;
	r->tokens = calloc(TOKENS_MAX, sizeof(*r->tokens));
	r->recorded = calloc(TOKENS_MAX, sizeof(*r->recorded));
	r->tokens_of = calloc(n_experts, sizeof(*r->tokens_of));
	r->told = calloc((size_t)r->trace.n_layers * n_experts, sizeof(*r->told));
	r->scores = calloc(n_experts, sizeof(*r->scores));
	if (rc == 0 && !(r->tokens && r->recorded && r->tokens_of && r->told && r->scores))
		rc = error_set(err, ENOMEM, "no memory to record");
	if (rc == 0)
		rc = moe_router_init(
			&r->router, r->target.engine.model, r->target.engine.kernels, CHUNK, err);
	if (rc == 0)
		rc = cache_history_init(&r->history, r->target.engine.model, CHUNK, err);
	if (rc < 0)
		return rc;
	const struct forward_hooks hooks = {on_layer, on_residual, r};
	forward_set_hooks(r->target.engine.forward, &hooks);
	const struct forward_hooks draft_hooks = {.layer = on_draft_layer, .arg = r};
	if (o->drafter == CACHE_DRAFT_MODEL)
		forward_set_hooks(r->draft.engine.forward, &draft_hooks);
	return 0;
}

int cache_record(const struct cache_record_options *options, struct error *err)
{
	struct recorder *r = calloc(1, sizeof(*r));
	if (!r)
		return error_set(err, ENOMEM, "no memory to record");
	r->options = options;
	cache_trace_init(&r->trace);
	int rc = open_all(r, err);
	if (rc == 0)
		rc = record_lines(r, err);
	if (rc == 0)
		rc = cache_trace_write(&r->trace, options->out, err);
	if (rc == 0)
		printf("%s: %s: %u passes, %u runs of a layer, %u experts used, %u hints\n",
			options->out, r->trace.name, r->trace.n_passes, r->trace.n_layer_runs,
			r->trace.n_uses, r->trace.n_hints);
	cache_trace_exit(&r->trace);
	moe_router_exit(&r->router);
	cache_history_exit(&r->history);
	ngram_exit(&r->ngram);
	engine_close(&r->target.engine);
	if (options->drafter == CACHE_DRAFT_MODEL)
		engine_close(&r->draft.engine);
	free(r->tokens);
	free(r->recorded);
	free(r->tokens_of);
	free(r->told);
	free(r->scores);
	free(r);
	return rc;
}
