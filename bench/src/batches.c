#include "bench/src/batches.h"

#include "shared/base/clock.h"
#include "shared/model/arch/weights.h"

#include <stdlib.h>
#include <string.h>

static int32_t random_token(struct batches *b)
{
	b->random = b->random * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (int32_t)((b->random >> 33) % b->engine.model->config.n_vocab);
}

int batches_open(
	struct batches *b, const struct engine_options *options, uint64_t seed, struct error *err)
{
	struct engine *e = &b->engine;

	e->options = *options;
	e->options.tokens = "0"; /* the engine wants a prompt; it is never run */
	e->options.quiet = true;
	b->random = seed;
	sampler_params_default(&b->greedy);
	b->greedy.temperature = 0;
	int rc = engine_open(e, false, err);
	if (rc < 0)
		return rc;
	const struct kv_layout layout =
		kv_layout_of(e->model, kv_type_of(options->kv, e->model), 1);
	if (layout.states.n_layers > 0)
		return error_set(err, ENOTSUP,
			"%s has recurrent layers: the states of many sequences would have to be "
			"computed, token by token",
			options->model);
	return 0;
}

uint64_t batches_pages(uint32_t sessions, uint32_t context, uint32_t rows)
{
	return (uint64_t)sessions * ((context + rows + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS);
}

uint64_t batches_bytes(const struct batches *b, uint64_t pages)
{
	const struct model *model = b->engine.model;
	const struct kv_layout one =
		kv_layout_of(model, kv_type_of(b->engine.options.kv, model), 1);

	return weights_bytes(model, WEIGHTS_ALL) + pages * kv_bytes(&one);
}

/* The same content in every page: that of the pages which `seq` has filled, in turn. */
static void copy_pages(struct kv *kv, const struct kv_seq *seq)
{
	uint8_t *store = kv->store.host;
	uint32_t n_from = seq->n / KV_PAGE_CELLS;
	size_t k = KV_PAGE_CELLS * kv->k_bytes, v = KV_PAGE_CELLS * kv->v_bytes;
	bool values = kv->layout.v_dim != 0;

	for (uint32_t layer = 0; layer < kv->layout.n_layers; layer++)
		for (uint32_t head = 0; head < kv->layout.n_kv_heads; head++)
			for (uint32_t page = 0, i = 0; page < kv->layout.n_pages; page++) {
				if (kv->pages[page].owner == seq->owner)
					continue;
				uint32_t from =
					seq->cell[i++ % n_from * KV_PAGE_CELLS] / KV_PAGE_CELLS;
				size_t keys = kv_k(kv, layer, head);

				memcpy(store + keys + page * k, store + keys + from * k, k);
				if (!values)
					continue;
				size_t of = kv_v(kv, layer, head);
				memcpy(store + of + page * v, store + of + from * v, v);
			}
}

/* Adds `rows` tokens of a sequence to the batch, from row `first` on. */
static int add_rows(
	struct batches *b, struct kv_seq *seq, uint32_t first, uint32_t rows, struct error *err)
{
	struct engine *e = &b->engine;
	int rc = kv_take(&e->kv, seq, rows, b->cells + first);

	if (rc < 0)
		return error_set(err, -rc, "the KV cache is full with %u tokens of a sequence",
			seq->n + rows);
	for (uint32_t i = 0; i < rows; i++) {
		uint32_t row = first + i;
		int32_t token = random_token(b);

		e->batch[row] = (struct batch_token){
			.seq = seq,
			.token = token,
			.position = seq->n + i,
			.parent = i > 0 ? (int32_t)row - 1 : -1,
			.cell = b->cells[row],
		};
		b->picks[row] = (struct pick_row){
			.params = &b->greedy,
			.parent = e->batch[row].parent,
			.token = token,
			.source = row,
			.position = seq->n + i + 1,
		};
	}
	return 0;
}

/* Computes a prompt, as much of it as there is room for in whole pages. */
static int fill(struct batches *b, uint32_t context, struct error *err)
{
	struct engine *e = &b->engine;
	uint32_t most = e->kv.layout.n_pages * KV_PAGE_CELLS, n = BATCHES_PROMPT;
	struct kv_seq seq;

	n = n < most ? n : most;
	n = n < context ? n : context;
	n = n > KV_PAGE_CELLS ? n / KV_PAGE_CELLS * KV_PAGE_CELLS : KV_PAGE_CELLS;
	int rc = kv_seq_init(&seq, 2, n);
	if (rc < 0)
		return error_set(err, -rc, "no memory for a sequence of %u tokens", n);
	while (rc == 0 && seq.n < n) {
		uint32_t rows = n - seq.n < e->n_batch ? n - seq.n : e->n_batch;

		rc = add_rows(b, &seq, 0, rows, err);
		if (rc < 0)
			break;
		rc = forward_run(e->forward, e->batch, rows);
		if (rc < 0)
			error_set(err, -rc, "the forward pass failed");
		kv_commit(&e->kv, &seq, b->cells, rows, NULL, 0);
	}
	if (rc == 0)
		copy_pages(&e->kv, &seq);
	kv_seq_exit(&e->kv, &seq);
	return rc;
}

int batches_start(
	struct batches *b, uint32_t pages, uint32_t rows, uint32_t context, struct error *err)
{
	struct engine *e = &b->engine;

	e->options.rows = rows;
	e->options.pages = pages;
	/* Longer contexts than the model's cost what they would cost. */
	if (e->model->config.n_context < context)
		e->options.context = context;
	int rc = engine_start(e, 0, false, err);
	if (rc < 0)
		return rc;
	b->n_cells = rows > context ? rows : context;
	b->cells = calloc(b->n_cells, sizeof(*b->cells));
	b->seqs = calloc(LIMIT_RUNNING, sizeof(*b->seqs));
	b->picks = calloc(rows, sizeof(*b->picks));
	b->results = calloc(rows, sizeof(*b->results));
	if (!b->cells || !b->seqs || !b->picks || !b->results)
		return error_set(err, ENOMEM, "no memory for passes of %u rows", rows);
	return fill(b, context, err);
}

static void end_sequences(struct batches *b)
{
	while (b->n_seqs > 0)
		kv_seq_exit(&b->engine.kv, &b->seqs[--b->n_seqs]);
}

void batches_close(struct batches *b)
{
	end_sequences(b);
	free(b->seqs);
	free(b->cells);
	free(b->picks);
	free(b->results);
	engine_close(&b->engine);
	memset(b, 0, sizeof(*b));
}

int batches_begin(
	struct batches *b, uint32_t sessions, uint32_t context, uint32_t rows, struct error *err)
{
	struct kv *kv = &b->engine.kv;
	int rc = 0;

	end_sequences(b);
	while (rc == 0 && b->n_seqs < sessions) {
		struct kv_seq *seq = &b->seqs[b->n_seqs];

		rc = kv_seq_init(seq, b->n_seqs + 1, context + rows);
		if (rc < 0)
			break;
		b->n_seqs++;
		rc = kv_take(kv, seq, context, b->cells);
		if (rc == 0)
			kv_commit(kv, seq, b->cells, context, NULL, 0);
	}
	return rc < 0 ? error_set(err, -rc, "no room for %u sequences of %u tokens", sessions,
				context)
		      : 0;
}

int batches_run(struct batches *b, uint32_t rows, struct batches_pass *out, struct error *err)
{
	struct engine *e = &b->engine;
	uint32_t n = b->n_seqs * rows;

	for (uint32_t i = 0; i < b->n_seqs; i++) {
		int rc = add_rows(b, &b->seqs[i], i * rows, rows, err);

		if (rc < 0)
			return rc;
	}
	uint64_t start = clock_ns();
	int rc = forward_run_picks(e->forward, e->batch, n, b->picks, n, b->results);
	const struct forward_stats *stats = forward_stats(e->forward);
	*out = (struct batches_pass){
		.seconds = (double)(clock_ns() - start) / 1e9,
		.layers_s = (double)(stats->attention_ns + stats->moe_ns) / 1e9,
		.experts = (uint32_t)stats->unique_experts,
	};
	for (uint32_t i = 0; i < b->n_seqs; i++)
		kv_commit(&e->kv, &b->seqs[i], NULL, 0, b->cells + i * rows, rows);
	return rc < 0 ? error_set(err, -rc, "the forward pass failed") : 0;
}
