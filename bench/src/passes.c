#include "bench/src/passes.h"

#include "shared/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 256 << 20, PIECE_BYTES = 1 << 20 };

/* The value of every byte of the keys and values: a small finite number as float16, as float32, and
 * as a block's scale and integers. */
#define KV_FILL 0x2d

static uint32_t random_token(struct passes *p)
{
	p->random = p->random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((p->random >> 33) % p->engine.model->config.n_vocab);
}

static void count_experts(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct passes *p = arg;
	const struct model_config *c = &p->engine.model->config;
	uint16_t *chosen = p->chosen + (size_t)layer * c->n_experts;

	(void)weights;
	(void)hidden;
	memset(chosen, 0, c->n_experts * sizeof(*chosen));
	for (size_t i = 0; experts && i < (size_t)n_tokens * c->n_experts_used; i++)
		chosen[experts[i]]++;
}

/* The engine wants a prompt, and a batch with room for it; this prompt is never run. */
static int open_engine(struct passes *p, const struct engine_options *options, uint32_t n_batch,
	uint32_t depth, struct error *err)
{
	struct engine *e = &p->engine;
	char *prompt = malloc((size_t)n_batch * 2);
	int rc;

	if (!prompt)
		return error_set(err, ENOMEM, "no memory for a prompt of %u tokens", n_batch);
	for (size_t i = 0; i < n_batch; i++) {
		prompt[2 * i] = '0';
		prompt[2 * i + 1] = i + 1 < n_batch ? ',' : '\0';
	}
	e->options = *options;
	e->options.tokens = prompt;
	e->options.prefill_chunk = n_batch;
	rc = engine_open(e, false, err);
	e->options.tokens = NULL;
	free(prompt);
	if (rc < 0)
		return rc;
	uint32_t context = options->context ? options->context : e->model->config.n_context;
	if (n_batch > context || depth > context - n_batch)
		return error_set(err, EINVAL,
			"%u tokens and a pass of %u more are too many: the model's context is %u "
			"tokens",
			depth, n_batch, context);
	return engine_start(e, depth + KV_PAGE_CELLS, true, err);
}

/* Fills the KV cache, on a device by copies. */
static int fill(struct passes *p, const struct buffer *store, size_t bytes, struct error *err)
{
	struct queue *q = forward_queue(p->engine.forward);
	struct buffer piece;

	if (store->host != NULL) {
		memset(store->host, KV_FILL, bytes);
		return 0;
	}
	int rc = q->ops->alloc(q->backend, PIECE_BYTES, BUFFER_HOST, &piece, err);
	if (rc < 0)
		return rc;
	memset(piece.host, KV_FILL, PIECE_BYTES);
	for (size_t at = 0; at < bytes; at += PIECE_BYTES)
		q->ops->copy(q, (struct place){store, at}, (struct place){&piece, 0},
			bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES);
	rc = q->ops->wait(q, q->ops->ticket(q));
	q->ops->free(&piece);
	return rc < 0 ? error_set(err, -rc, "the KV cache cannot be filled") : 0;
}

int passes_open(struct passes *p, const struct engine_options *options, uint32_t n_batch,
	uint32_t depth, uint32_t most, uint64_t seed, struct error *err)
{
	/* Before the weights are packed, because these take all the room that is left. */
	int rc = peaks_memory_get(&p->memory, READ_BYTES, err);

	if (rc == 0)
		rc = open_engine(p, options, n_batch, depth, err);
	if (rc < 0)
		return rc;
	const struct model_config *c = &p->engine.model->config;
	p->random = seed;
	p->chosen =
		calloc(((size_t)most + 1) * c->n_layers * (c->n_experts + 1), sizeof(*p->chosen));
	if (!p->chosen)
		return error_set(err, ENOMEM, "no memory for the experts' counts");
	const struct forward_hooks hooks = {.layer = count_experts, .arg = p};
	forward_set_hooks(p->engine.forward, &hooks);
	const struct kv *kv = &p->engine.kv;
	if (!kv_states(&p->engine.kv))
		rc = fill(p, &kv->store, kv_store_bytes(&kv->layout), err);
	if (rc == 0 && p->engine.pool == NULL)
		rc = gpu_copy_open_own(p->engine.backend, &p->copy, err);
	return rc;
}

void passes_close(struct passes *p)
{
	gpu_copy_close(&p->copy);
	engine_close(&p->engine);
	peaks_memory_put(&p->memory);
	free(p->chosen);
	p->chosen = NULL;
}

static double read_now(struct passes *p)
{
	return p->engine.pool != NULL ? peaks_read(&p->memory, p->engine.pool)
				      : gpu_copy_own(&p->copy);
}

void passes_peaks(struct passes *p, struct peaks *out)
{
	if (p->engine.pool != NULL)
		peaks_measure(&p->memory, p->engine.pool, out);
	else
		*out = (struct peaks){
			gpu_copy_own(&p->copy), PASSES_NO_PEAK, PASSES_NO_PEAK, PASSES_NO_PEAK, 0};
}

static int take(struct passes *p, uint32_t n, bool all_logits, bool last_logits, struct error *err)
{
	struct engine *e = &p->engine;
	int rc = kv_take(&e->kv, &e->seq, n, e->cells);

	if (rc < 0)
		return error_set(err, -rc, "the KV cache is full with a pass of %u", n);
	for (uint32_t i = 0; i < n; i++)
		e->batch[i] = (struct batch_token){
			.seq = &e->seq,
			.token = (int32_t)random_token(p),
			.position = e->seq.n + i,
			.parent = (int32_t)i - 1,
			.logits = all_logits || (last_logits && i + 1 == n),
			.cell = e->cells[i],
		};
	return 0;
}

int passes_depth(struct passes *p, uint32_t depth, struct error *err)
{
	struct engine *e = &p->engine;

	kv_truncate(&e->kv, &e->seq, depth);
	while (e->seq.n < depth) {
		uint32_t n = depth - e->seq.n < e->n_batch ? depth - e->seq.n : e->n_batch;
		int rc = take(p, n, false, false, err);

		if (rc < 0)
			return rc;
		if (kv_states(&e->kv))
			rc = forward_run(e->forward, e->batch, n);
		kv_commit(&e->kv, &e->seq, e->cells, n, NULL, 0);
		if (rc < 0)
			return error_set(err, -rc, "the forward pass failed");
	}
	return 0;
}

static int run_one(struct passes *p, const struct series *s, double *seconds, struct error *err)
{
	struct engine *e = &p->engine;
	int rc = take(p, s->n, s->all_logits, true, err);

	if (rc < 0)
		return rc;
	uint64_t start = clock_ns();
	rc = forward_run(e->forward, e->batch, s->n);
	*seconds = (double)(clock_ns() - start) / 1e9;
	kv_commit(&e->kv, &e->seq, NULL, 0, e->cells, s->n);
	return rc < 0 ? error_set(err, -rc, "the forward pass failed") : 0;
}

static void add_floor(struct series *s, uint32_t round, uint32_t count, const struct floor *floor)
{
	s->bytes_s[round] += floor->bytes_s / count;
	s->kv_s[round] += floor->kv_s / count;
	s->expert_s[round] += floor->expert_s / count;
	s->roofline_s[round] += floor->roofline_s / count;
	s->bytes += floor->bytes;
	s->expert_bytes += floor->expert_bytes;
	s->kv_bytes += floor->kv_bytes;
	s->int8_ops += floor->int8_ops;
	s->experts += floor->experts;
	s->n_passes++;
}

int passes_run(struct passes *p, struct series *s, uint32_t round, uint32_t count,
	const struct peaks *peaks, struct error *err)
{
	const struct engine *e = &p->engine;
	const struct model_config *c = &e->model->config;
	size_t layers = (size_t)c->n_layers * c->n_experts;
	struct peaks here = *peaks;
	double before = read_now(p);

	s->depth = e->seq.n;
	s->seconds[round] = s->bytes_s[round] = s->kv_s[round] = s->expert_s[round] =
		s->roofline_s[round] = 0;
	for (uint32_t i = 0; i < count; i++) {
		double seconds;
		int rc = run_one(p, s, &seconds, err);

		if (rc < 0)
			return rc;
		s->seconds[round] += seconds / count;
		memcpy(p->chosen + (i + 1) * layers, p->chosen, layers * sizeof(*p->chosen));
	}
	here.read_gb_s = (before + read_now(p)) / 2;
	s->read_gb_s[round] = here.read_gb_s;
	for (uint32_t i = 0; i < count; i++) {
		struct floor floor;
		struct floor_pass pass = {
			s->n, s->all_logits ? s->n : 1, s->depth, p->chosen + (i + 1) * layers};

		floor_of(e->model, &e->kv.layout, &here, &pass, &floor);
		add_floor(s, round, count, &floor);
	}
	return 0;
}

static uint64_t field(const char *line, const char *name)
{
	size_t n = strlen(name);

	return strncmp(line, name, n) == 0 ? strtoull(line + n, NULL, 10) << 10 : 0;
}

void passes_memory(const char *status_path, const char *smaps, uint64_t *peak, uint64_t *mapped)
{
	char line[4352];
	bool model = false;
	FILE *status = fopen(status_path, "re"), *maps = fopen(smaps, "re");

	*peak = *mapped = 0;
	/* The resident set, whose peak VmHWM is, does not contain pages of the huge-page pool;
	 * these are not given back in the meantime. */
	while (status && fgets(line, sizeof(line), status))
		*peak += field(line, "VmHWM:") + field(line, "HugetlbPages:");
	while (maps && fgets(line, sizeof(line), maps)) {
		/* A mapping's own line begins with its addresses, in lower-case hexadecimal. */
		if (strchr("0123456789abcdef", line[0])) {
			size_t end = strcspn(line, "\n");
			model = end > 5 && strncmp(line + end - 5, ".gguf", 5) == 0;
		} else if (model) {
			*mapped += field(line, "Rss:");
		}
	}
	if (status)
		fclose(status);
	if (maps)
		fclose(maps);
}
