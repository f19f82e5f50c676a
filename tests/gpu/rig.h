/*
 * One step on two back ends: the scalar CPU, which is the definition, and the emulated GPU. A test
 * takes rows and places of one memory, fills them, and describes a step once. rig_check runs it on
 * both, each with a copy of the memory of its own, and compares every byte of it, gaps between rows
 * included. A float that is a NaN on both sides is equal.
 */
#pragma once

#include "kernels/cpu/half.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/gpu/backend.h"
#include "kernels/kernels.h"
#include "kernels/tiles.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RIG_BYTES ((size_t)64 << 20)
enum { RIG_SEEDS = 3, RIG_MATRICES = 64, RIG_GAP = 64, RIG_IGNORED = 16 };

struct rig_side {
	struct backend *backend;
	struct queue *q;
	struct buffer memory;
};

struct rig {
	const struct kernels *kernels; /* the scalar ones, to prepare inputs with */
	struct queue_limits limits;
	uint64_t random;
	/* What descriptors name: while a step runs it is the memory of its side. */
	struct buffer memory;
	unsigned char *begin; /* [used] what both memories begin with; also memory.host for tests */
	size_t used;
	struct rig_side cpu, gpu[RIG_SEEDS];
	void *kept[RIG_MATRICES]; /* weights; freed with the rig */
	size_t kept_bytes[RIG_MATRICES];
	uint32_t n_kept, n_ignored;
	struct rows ignored[RIG_IGNORED];
	size_t ignored_bytes[RIG_IGNORED];
};

static inline uint32_t rig_random(struct rig *rig)
{
	uint64_t z = rig->random += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (uint32_t)(z >> 32);
}

/* In [-1, 1). */
static inline float rig_float(struct rig *rig)
{
	return (float)(int32_t)rig_random(rig) * 0x1p-31f;
}

static inline void rig_open_side(
	struct rig *rig, struct rig_side *side, const struct queue_limits *limits)
{
	struct error err = {""};

	if (side->backend->ops->queue(side->backend, limits, &side->q, &err) < 0)
		fail_msg("%s", err.text);
	if (side->backend->ops->alloc(side->backend, RIG_BYTES, BUFFER_HOST, &side->memory, &err) <
		0)
		fail_msg("%s", err.text);
	(void)rig;
}

/* The emulated GPU, or with OUTRIDER_TEST_BACKEND=cuda a device. */
static inline int rig_create(
	const struct backend_gpu_options *options, struct backend **out, struct error *err)
{
	const char *name = getenv("OUTRIDER_TEST_BACKEND");

	return name && strcmp(name, "cuda") == 0 ? backend_cuda_create(options, out, err)
						 : backend_simt_create(options, out, err);
}

/* seed: of the inputs. */
static inline void rig_open(struct rig *rig, const struct queue_limits *limits, uint64_t seed)
{
	struct error err = {""};

	memset(rig, 0, sizeof(*rig));
	rig->random = seed;
	rig->limits = *limits;
	rig->kernels = kernels_select("scalar", &err);
	rig->begin = calloc(1, RIG_BYTES);
	assert_non_null(rig->begin);
	rig->memory = (struct buffer){.host = rig->begin, .bytes = RIG_BYTES, .fd = -1};
	const struct backend_cpu_options cpu = {.kernels = rig->kernels, .threads = 1};
	assert_int_equal(backend_cpu_create(&cpu, &rig->cpu.backend, &err), 0);
	rig_open_side(rig, &rig->cpu, limits);
	for (uint32_t i = 0; i < RIG_SEEDS; i++) {
		const struct backend_gpu_options gpu = {.seed = i};

		if (rig_create(&gpu, &rig->gpu[i].backend, &err) < 0)
			fail_msg("%s", err.text);
		rig_open_side(rig, &rig->gpu[i], limits);
	}
}

static inline void rig_close_side(struct rig_side *side)
{
	const struct backend_ops *ops = side->backend->ops;

	ops->queue_free(side->q);
	ops->free(&side->memory);
	ops->destroy(side->backend);
}

static inline void rig_close(struct rig *rig)
{
	rig_close_side(&rig->cpu);
	for (uint32_t i = 0; i < RIG_SEEDS; i++)
		rig_close_side(&rig->gpu[i]);
	for (uint32_t i = 0; i < rig->n_kept; i++)
		free(rig->kept[i]);
	free(rig->begin);
}

/* Forgets all rows, matrices and vectors that were taken, for the next case. */
static inline void rig_clear(struct rig *rig)
{
	memset(rig->begin, 0, rig->used);
	rig->used = 0;
	rig->n_ignored = 0;
	for (uint32_t i = 0; i < rig->n_kept; i++)
		free(rig->kept[i]);
	rig->n_kept = 0;
}

/* Takes memory, at a multiple of 64, with a gap behind it. */
static inline struct place rig_place(struct rig *rig, size_t bytes)
{
	struct place place = {&rig->memory, rig->used};

	rig->used += (bytes + RIG_GAP + 63) / 64 * 64;
	assert_true(rig->used <= RIG_BYTES);
	return place;
}

/* n rows of `bytes` bytes, with gaps between them. */
static inline struct rows rig_rows(struct rig *rig, uint32_t n, size_t bytes)
{
	size_t stride = (bytes + 63) / 64 * 64 + RIG_GAP;

	return (struct rows){&rig->memory, rig_place(rig, n * stride).offset, stride, n};
}

/* Row i in the memory that both sides begin with. */
static inline void *rig_row(struct rig *rig, const struct rows *rows, uint32_t i)
{
	return rig->begin + rows->offset + i * rows->stride;
}

static inline void *rig_at(struct rig *rig, struct place place)
{
	return rig->begin + place.offset;
}

/* n rows of `width` random floats in [-scale, scale). */
static inline struct rows rig_floats(struct rig *rig, uint32_t n, uint32_t width, float scale)
{
	struct rows rows = rig_rows(rig, n, width * sizeof(float));

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < width; k++)
			((float *)rig_row(rig, &rows, i))[k] = rig_float(rig) * scale;
	return rows;
}

/* Rows for quantised activations of `width` values, unwritten. */
static inline struct rows rig_q8_rows(struct rig *rig, uint32_t n, uint32_t width)
{
	return rig_rows(rig, n, width / Q8_BLOCK * sizeof(struct q8_block));
}

/* Random activations in both forms; width is a multiple of 32. */
static inline struct inputs rig_inputs(struct rig *rig, uint32_t n, uint32_t width)
{
	struct inputs in = {.f32 = rig_floats(rig, n, width, 2), .q8 = rig_q8_rows(rig, n, width)};

	for (uint32_t i = 0; i < n; i++)
		rig->kernels->quantise_q8(rig_row(rig, &in.f32, i), width, rig_row(rig, &in.q8, i));
	return in;
}

/* Rows that the step uses as it likes: `bytes` of each are not compared. */
static inline void rig_ignore(struct rig *rig, const struct rows *rows, size_t bytes)
{
	assert_true(rig->n_ignored < RIG_IGNORED);
	rig->ignored_bytes[rig->n_ignored] = bytes;
	rig->ignored[rig->n_ignored++] = *rows;
}

/* Memory of the host's, which is not compared. placed: of these bytes; 0: no kernel reads it. */
static inline void *rig_keep_placed(struct rig *rig, size_t bytes, size_t placed)
{
	void *at = aligned_alloc(256, (bytes + 255) / 256 * 256);

	assert_non_null(at);
	assert_true(rig->n_kept < RIG_MATRICES);
	rig->kept_bytes[rig->n_kept] = placed;
	rig->kept[rig->n_kept++] = at;
	return at;
}

/* Weights. */
static inline void *rig_keep(struct rig *rig, size_t bytes)
{
	return rig_keep_placed(rig, bytes, bytes);
}

/* A random vector of weights. */
static inline float *rig_vector(struct rig *rig, size_t n, float scale)
{
	float *out = rig_keep(rig, n * sizeof(*out));

	for (size_t i = 0; i < n; i++)
		out[i] = rig_float(rig) * scale;
	return out;
}

/* Makes the float16 scales of a block moderate, so that products stay finite. */
static inline void rig_scale_block(struct rig *rig, enum tensor_type type, uint8_t *block)
{
	static const struct {
		enum tensor_type type;
		uint32_t n, at[2];
	} scales[] = {{TENSOR_Q8_0, 1, {0}}, {TENSOR_Q4_0, 1, {0}}, {TENSOR_Q4_1, 2, {0, 2}},
		{TENSOR_Q5_0, 1, {0}}, {TENSOR_Q5_1, 2, {0, 2}}, {TENSOR_Q2_K, 2, {80, 82}},
		{TENSOR_Q3_K, 1, {108}}, {TENSOR_Q4_K, 2, {0, 2}}, {TENSOR_Q5_K, 2, {0, 2}},
		{TENSOR_Q6_K, 1, {208}}, {TENSOR_IQ4_NL, 1, {0}}, {TENSOR_IQ4_XS, 1, {0}},
		{TENSOR_IQ1_S, 1, {0}}, {TENSOR_IQ2_XXS, 1, {0}}, {TENSOR_IQ2_XS, 1, {0}},
		{TENSOR_IQ2_S, 1, {0}}, {TENSOR_IQ3_XXS, 1, {0}}, {TENSOR_IQ3_S, 1, {0}},
		{TENSOR_TQ1_0, 1, {52}}, {TENSOR_TQ2_0, 1, {64}}};

	for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++)
		for (uint32_t s = 0; scales[i].type == type && s < scales[i].n; s++) {
			uint16_t half = half_of_float(rig_float(rig) / 16);

			memcpy(block + scales[i].at[s], &half, sizeof(half));
		}
	if (type == TENSOR_MXFP4)
		block[0] = (uint8_t)(118 + rig_random(rig) % 12);
	if (type == TENSOR_IQ1_M)
		block[55] = (uint8_t)((block[55] & 0x0f) | 0x20);
}

/* A random matrix: `type` in rows, or in tiles where its type and size allow them. cols: a multiple
 * of the type's block. */
static inline struct matrix rig_matrix(struct rig *rig, enum tensor_type type, uint32_t rows,
	uint32_t cols, enum matrix_layout layout)
{
	const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
	struct matrix w = {.type = type, .rows = rows, .cols = cols, .layout = LAYOUT_ROWS};
	uint8_t *data, *tiles;

	assert_true(cols % info->block_weights == 0);
	w.row_bytes = (size_t)cols / info->block_weights * info->block_bytes;
	w.data = data = rig_keep(rig, rows * w.row_bytes);
	for (size_t i = 0; i < rows * w.row_bytes; i++)
		data[i] = (uint8_t)rig_random(rig);
	for (size_t i = 0; i < (size_t)rows * cols / info->block_weights; i++) {
		uint8_t *block = data + i * info->block_bytes;
		float value = rig_float(rig);
		uint16_t half = type == TENSOR_F16 ? half_of_float(value)
						   : (uint16_t)(bits_of_float(value) >> 16);

		if (type == TENSOR_F32)
			memcpy(block, &value, sizeof(value));
		else if (!info->quantised)
			memcpy(block, &half, sizeof(half));
		else
			rig_scale_block(rig, type, block);
	}
	if (layout == LAYOUT_ROWS || !tiles_possible(&w))
		return w;
	tiles = rig_keep(rig, rows * w.row_bytes);
	tiles_pack(&w, 0, rows, tiles);
	w.data = tiles;
	w.layout = LAYOUT_TILES;
	return w;
}

/* A low-rank addition to a product with outputs x inputs weights. */
static inline struct low_rank rig_low_rank(
	struct rig *rig, enum tensor_type type, uint32_t outputs, uint32_t inputs, uint32_t rank)
{
	return (struct low_rank){rig_matrix(rig, type, rank, inputs, LAYOUT_ROWS),
		rig_matrix(rig, type, outputs, rank, LAYOUT_ROWS), 0.3f + rig_float(rig) / 8};
}

/* All types, ended by 0 behind the last: RIG_TYPES of them. */
static const enum tensor_type rig_types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16, TENSOR_Q8_0,
	TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1, TENSOR_Q2_K, TENSOR_Q3_K, TENSOR_Q4_K,
	TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_MXFP4, TENSOR_NVFP4,
	TENSOR_IQ1_S, TENSOR_IQ1_M, TENSOR_IQ2_XXS, TENSOR_IQ2_XS, TENSOR_IQ2_S, TENSOR_IQ3_XXS,
	TENSOR_IQ3_S, TENSOR_TQ1_0, TENSOR_TQ2_0};
#define RIG_TYPES (sizeof(rig_types) / sizeof(rig_types[0]))

/* Runs one or more steps on a side. */
typedef void rig_step(const struct backend_ops *ops, struct queue *q, const void *arg);

static inline void rig_run(struct rig *rig, struct rig_side *side, rig_step *step, const void *arg)
{
	const struct backend_ops *ops = side->backend->ops;
	struct error err = {""};

	for (uint32_t i = 0; i < rig->n_kept; i++)
		if (rig->kept_bytes[i] > 0 &&
			ops->place(side->backend, rig->kept[i], rig->kept_bytes[i], &err) < 0)
			fail_msg("%s", err.text);
	memcpy(side->memory.host, rig->begin, rig->used);
	rig->memory = side->memory;
	step(ops, side->q, arg);
	assert_int_equal(ops->wait(side->q, ops->ticket(side->q)), 0);
	for (uint32_t i = 0; i < rig->n_kept; i++)
		if (rig->kept_bytes[i] > 0)
			ops->forget(side->backend, rig->kept[i], rig->kept_bytes[i]);
	rig->memory = (struct buffer){.host = rig->begin, .bytes = RIG_BYTES, .fd = -1};
}

static inline bool rig_is_nan(uint32_t bits)
{
	return (bits & 0x7fffffffu) > 0x7f800000u;
}

static inline bool rig_is_ignored(const struct rig *rig, size_t at)
{
	for (uint32_t i = 0; i < rig->n_ignored; i++) {
		const struct rows *r = &rig->ignored[i];

		if (at >= r->offset && at < r->offset + r->n * r->stride &&
			(at - r->offset) % r->stride < rig->ignored_bytes[i])
			return true;
	}
	return false;
}

/* Runs the step on all sides; all bytes must be the same. what: of the case, for messages. */
static inline void rig_check(struct rig *rig, const char *what, rig_step *step, const void *arg)
{
	rig_run(rig, &rig->cpu, step, arg);
	for (uint32_t i = 0; i < RIG_SEEDS; i++) {
		rig_run(rig, &rig->gpu[i], step, arg);
		for (size_t at = 0; at < rig->used; at += 4) {
			uint32_t want, got;

			memcpy(&want, rig->cpu.memory.host + at, 4);
			memcpy(&got, rig->gpu[i].memory.host + at, 4);
			if (want == got || (rig_is_nan(want) && rig_is_nan(got)) ||
				rig_is_ignored(rig, at))
				continue;
			fail_msg("%s: with seed %u byte %zu is %08x (%g), not %08x (%g)", what, i,
				at, got, (double)float_of_bits(got), want,
				(double)float_of_bits(want));
		}
	}
}

/* For a step that is one function of the table: RIG_STEP(norm) defines run_norm. */
#define RIG_STEP(name)                                                                           \
	static void run_##name(const struct backend_ops *ops, struct queue *q, const void *step) \
	{                                                                                        \
		ops->name(q, step);                                                              \
	}
