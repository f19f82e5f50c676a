/* Store, transfer worker and the verifier's expert source together, on the demo model, in one
 * process. */
#pragma once

#include "services/expert-cache/transfer.h"

#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/kernels.h"
#include "kernels/tiles.h"
#include "shared/base/clock.h"
#include "shared/model/gguf/gguf_watch.h"
#include "tests/until.h"

#include <fcntl.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL "models/outrider-demo-moe-q8_0.gguf"

static struct model *model;
static struct slots_geometry geometry;

static inline const unsigned char *place_at(struct place place)
{
	return place.buffer->host + place.offset;
}

/* One for all sources of a test program. */
static inline struct backend *test_backend(void)
{
	static struct backend *backend;
	const struct backend_cpu_options options = {
		.kernels = kernels_select(NULL, NULL), .threads = 1};
	if (!backend)
		assert_int_equal(backend_cpu_create(&options, &backend, NULL), 0);
	return backend;
}

static inline int group_init(void **state)
{
	(void)state;
	struct error err = {.text = ""};
	if (access(MODEL, R_OK) != 0)
		return 0;
	if (model_load(MODEL, &model, &err) != 0) {
		print_error("%s\n", err.text);
		return -1;
	}
	slots_geometry_init(&geometry, model);
	return 0;
}

static inline int group_exit(void **state)
{
	(void)state;
	model_free(&model);
	return 0;
}

static inline void need_model(void)
{
	if (model != NULL)
		return;
	print_message("# no " MODEL "\n");
	skip();
}

struct rig {
	struct store store;
	struct reader *reader;
	struct transfer transfer;
	struct experts_cached *cached;
	struct expert_source *source;
	bool alive; /* what the source is told */
};

static inline bool rig_alive(void *arg)
{
	return ((const struct rig *)arg)->alive;
}

struct rig_options {
	uint32_t budget;
	int recovered_fd;
	enum io_choice io;
	bool preload, no_worker, packs, packs_later, pages_ahead;
	uint64_t patience_ns;
	const char *path; /* of what is read, MODEL when NULL */
};

static inline void rig_start(struct rig *rig, const struct rig_options *options)
{
	struct error err = {.text = ""};
	memset(rig, 0, sizeof(*rig));
	rig->alive = true;
	struct store_options store = {
		.budget = options->budget,
		.model_fingerprint = model->fingerprint,
		.model_files = gguf_files(model->gguf),
		.policy = cache_policy_find("lru"),
		.queue_max = 64,
		.recovered_fd = options->recovered_fd > 0 ? options->recovered_fd : -1,
		.recovered_hints_fd = -1,
	};
	assert_int_equal(store_open(&rig->store, &geometry, &store, &err), 0);
	struct reader_file file = {.path = options->path != NULL ? options->path : MODEL};
	struct reader_options reader = {.io = options->io, .depth = 24, .read_bytes = 64 << 10};
	assert_int_equal(reader_open(&file, 1, &reader, &rig->reader, &err), 0);
	reader_slots(rig->reader, slots_at(&rig->store.slots, 0), (size_t)geometry.slot_bytes,
		options->budget);
	struct transfer_options transfer = {.preload = options->preload,
		.packs = options->packs,
		.packs_later = options->packs_later,
		.pages_ahead = options->pages_ahead,
		.generation = 1};
	if (!options->no_worker)
		assert_int_equal(transfer_start(&rig->transfer, &rig->store, rig->reader, NULL,
					 &transfer, &err),
			0);
	struct experts_cached_options cached = {
		.backend = test_backend(),
		.patience_ns = options->patience_ns != 0 ? options->patience_ns : 30000000000ull,
		.generation = 5,
		.cache_alive = rig_alive,
		.arg = rig,
	};
	assert_int_equal(experts_cached_create(model, &cached, &rig->cached, &err), 0);
	assert_int_equal(
		experts_cached_attach(rig->cached, &rig->store.region, &rig->store.hints, &err), 0);
	rig->source = experts_cached_source(rig->cached);
}

static inline void rig_stop(struct rig *rig)
{
	experts_cached_destroy(&rig->cached);
	transfer_stop(&rig->transfer);
	reader_close(&rig->reader);
	store_close(&rig->store);
}

static inline const unsigned char *in_file(const struct expert_tensor *tensor, uint32_t expert)
{
	return (const unsigned char *)tensor->shape.data + expert * tensor->expert_bytes;
}

static inline void expect_part(const struct expert_tensor *tensor, uint32_t expert,
	const void *view, enum matrix_layout layout)
{
	if (layout == LAYOUT_ROWS) {
		assert_memory_equal(view, in_file(tensor, expert), tensor->expert_bytes);
		return;
	}
	struct matrix rows = tensor->shape;
	rows.data = in_file(tensor, expert);
	void *tiles = malloc(tensor->expert_bytes);
	assert_non_null(tiles);
	tiles_pack(&rows, 0, rows.rows, tiles);
	assert_memory_equal(view, tiles, tensor->expert_bytes);
	assert_int_equal((uintptr_t)view % CACHE_LINE, 0);
	free(tiles);
}

/* One layer as the forward pass asks for it: every view's bytes are the file's, each expert comes
 * once. Returns how many views pointed into the slots. */
static inline uint32_t run_layer(struct rig *rig, uint32_t layer, uint32_t first, uint32_t n)
{
	uint16_t experts[LIMIT_EXPERTS], tokens[LIMIT_EXPERTS];
	bool seen[LIMIT_EXPERTS] = {false};
	static struct expert_view views[LIMIT_EXPERTS];
	uint32_t returned = 0, from_slots = 0;
	for (uint32_t i = 0; i < n; i++) {
		experts[i] = (uint16_t)(first + i);
		tokens[i] = 1;
	}
	const struct layer *l = &model->layers[layer];
	struct expert_source *source = rig->source;
	source->ops->begin(source, layer, experts, tokens, n);
	int k;
	while ((k = source->ops->ready(source, views)) > 0) {
		for (int i = 0; i < k; i++) {
			uint32_t index = views[i].index;
			assert_true(index < n);
			assert_false(seen[index]);
			seen[index] = true;
			expect_part(
				&l->gate, experts[index], place_at(views[i].gate), views[i].layout);
			expect_part(&l->up, experts[index], place_at(views[i].up), views[i].layout);
			expect_part(
				&l->down, experts[index], place_at(views[i].down), views[i].layout);
			/* The source maps the region elsewhere; the file's mapping is where the
			 * tensors are. */
			from_slots += place_at(views[i].gate) != in_file(&l->gate, experts[index]);
		}
		returned += (uint32_t)k;
	}
	source->ops->end(source);
	assert_int_equal(k, 0);
	assert_int_equal(returned, n);
	return from_slots;
}

static inline uint64_t counter(_Atomic uint64_t *value)
{
	return atomic_load(value);
}

static inline bool wait_for(_Atomic uint64_t *value, uint64_t least)
{
	return COMES_TRUE(counter(value) >= least);
}
