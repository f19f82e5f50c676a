/* What the tests of the engine share: a model with everything a forward pass needs, and ways to run
 * tokens. */
#pragma once

#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/kernels.h"
#include "shared/model/pass/forward.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RIG_BATCH 64
#define RIG_CONTEXT 320
#define RIG_PAGES 64
#define RIG_STATES 16

struct rig {
	struct model *model;
	struct backend *backend;
	struct kv kv;
	void *memory;
	struct experts_mapped experts;
	struct forward *forward;
	uint32_t n_vocab;
	uint64_t next_owner;
};

/* Over what lies in rig->memory, which is allocated when there is none. */
static inline void rig_kv(struct rig *rig, const struct kv_layout *layout, bool fresh)
{
	struct error err = {""};
	if (!rig->memory)
		rig->memory = aligned_alloc(64, kv_bytes(layout));
	assert_non_null(rig->memory);
	assert_int_equal(
		kv_init_memory(&rig->kv, rig->backend, rig->memory, layout, fresh, &err), 0);
}

static inline void rig_backend(struct rig *rig, const struct kernels *kernels, uint32_t threads)
{
	const struct backend_cpu_options options = {
		.kernels = kernels, .threads = threads, .spin_ns = 20000};
	struct error err = {""};
	assert_int_equal(backend_cpu_create(&options, &rig->backend, &err), 0);
}

/* For tests that compute nothing: one for all of them. */
static inline struct backend *test_backend(void)
{
	static struct backend *backend;
	struct error err;
	const struct backend_cpu_options options = {
		.kernels = kernels_select(NULL, &err), .threads = 1};
	if (!backend)
		assert_int_equal(backend_cpu_create(&options, &backend, &err), 0);
	return backend;
}

#define rig_limits(context)                                                                   \
	(struct forward_limits)                                                               \
	{                                                                                     \
		.n_batch = RIG_BATCH, .n_logits = RIG_BATCH, .n_picks = RIG_BATCH,            \
		.n_drafts = RIG_BATCH, .n_context = (context), .n_budgets = 4, .n_oracle = 16 \
	}

/* n_context decides the factors of longrope. */
static inline void rig_open_context(struct rig *rig, const char *path, const char *kernels,
	uint32_t threads, enum kv_type type, uint32_t n_context)
{
	struct error err = {""};
	memset(rig, 0, sizeof(*rig));
	if (model_load(path, &rig->model, &err) < 0)
		fail_msg("%s", err.text);
	const struct model_config *c = &rig->model->config;
	const struct kernels *k = kernels_select(kernels, &err);
	assert_non_null(k);
	rig_backend(rig, k, threads);
	struct kv_layout layout = kv_layout_of(rig->model, type, RIG_PAGES);
	layout.states = recurrent_layout_of(rig->model, RIG_STATES);
	layout.windows =
		kv_windows_of(rig->model, RIG_STATES, RIG_BATCH, RIG_PAGES * KV_PAGE_CELLS);
	rig_kv(rig, &layout, true);
	assert_int_equal(experts_mapped_init(&rig->experts, rig->model, rig->backend, &err), 0);
	if (forward_create(rig->model, rig->backend, &rig->kv, &rig->experts.source,
		    &rig_limits(n_context), &rig->forward, &err) < 0)
		fail_msg("%s", err.text);
	rig->n_vocab = c->n_vocab;
}

static inline void rig_open(
	struct rig *rig, const char *path, const char *kernels, uint32_t threads, enum kv_type type)
{
	rig_open_context(rig, path, kernels, threads, type, RIG_CONTEXT);
}

/* Makes a rig of a head that is loaded. */
static inline void rig_open_head(struct rig *rig, struct model *model, const char *kernels)
{
	struct error err = {""};
	memset(rig, 0, sizeof(*rig));
	rig->model = model;
	rig_backend(rig, kernels_select(kernels, &err), 2);
	struct kv_layout layout = kv_layout_of(model, KV_F32, RIG_PAGES);
	rig_kv(rig, &layout, true);
	assert_int_equal(experts_mapped_init(&rig->experts, model, rig->backend, &err), 0);
	if (forward_create(model, rig->backend, &rig->kv, &rig->experts.source,
		    &rig_limits(RIG_CONTEXT), &rig->forward, &err) < 0)
		fail_msg("%s", err.text);
	rig->n_vocab = model->output.rows;
}

static inline void rig_close(struct rig *rig)
{
	forward_destroy(&rig->forward);
	kv_exit(&rig->kv);
	free(rig->memory);
	rig->backend->ops->destroy(rig->backend);
	model_free(&rig->model);
}

static inline void rig_seq(struct rig *rig, struct kv_seq *seq)
{
	assert_int_equal(kv_seq_init(seq, ++rig->next_owner, RIG_CONTEXT), 0);
}

/* Runs and commits ids after seq's committed tokens, `chunk` per pass; logits ([n][n_vocab]) may be
 * NULL. */
static inline void rig_chain(struct rig *rig, struct kv_seq *seq, const int32_t *ids, uint32_t n,
	uint32_t chunk, float *logits)
{
	struct batch_token batch[RIG_BATCH];
	uint32_t cells[RIG_BATCH];
	for (uint32_t first = 0; first < n;) {
		uint32_t m = n - first < chunk ? n - first : chunk;
		assert_int_equal(kv_take(&rig->kv, seq, m, cells), 0);
		for (uint32_t i = 0; i < m; i++)
			batch[i] = (struct batch_token){seq, ids[first + i], seq->n + i,
				(int32_t)i - 1, logits != NULL, cells[i], false, false};
		assert_int_equal(forward_run(rig->forward, batch, m), 0);
		for (uint32_t i = 0; i < m && logits; i++)
			memcpy(logits + (size_t)(first + i) * rig->n_vocab,
				forward_logits(rig->forward, i), rig->n_vocab * sizeof(float));
		kv_commit(&rig->kv, seq, cells, m, NULL, 0);
		first += m;
	}
}

/* A small generator for test inputs: splitmix64. */
static inline uint64_t rig_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9E3779B97F4A7C15u);
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

static inline void rig_ids(uint64_t seed, uint32_t n_vocab, int32_t *ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		ids[i] = (int32_t)(rig_random(&seed) % n_vocab);
}
