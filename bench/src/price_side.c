#include "bench/src/price_side.h"

#include "bench/src/gpu.h"
#include "shared/base/clock.h"
#include "shared/base/round.h"

#include <errno.h>
#include <string.h>

/* Every byte of the inputs: a small finite number as float32, and as a block's scale and integers. */
#define INPUT_FILL 0x2d

static const struct matrix *part(const struct price_side *side, enum expert_part p)
{
	return &side->arena->layer->part[p].matrix;
}

static size_t f32_bytes(const struct price_side *side)
{
	return part(side, EXPERT_GATE)->cols * sizeof(float);
}

static size_t q8_bytes(const struct price_side *side)
{
	return (part(side, EXPERT_GATE)->cols + Q8_BLOCK - 1) / Q8_BLOCK * sizeof(struct q8_block);
}

static size_t y_bytes(const struct price_side *side)
{
	return part(side, EXPERT_DOWN)->rows * sizeof(float);
}

/* What is read before anything was written to it. */
static int fill(struct price_side *side, struct error *err)
{
	const struct backend_ops *ops = side->backend->ops;
	size_t most = side->f32.bytes > side->q8.bytes ? side->f32.bytes : side->q8.bytes;
	struct buffer from;
	int rc = ops->alloc(side->backend, most, BUFFER_HOST, &from, err);

	if (rc < 0)
		return rc;
	memset(from.host, INPUT_FILL, most);
	ops->copy(
		side->q, (struct place){&side->f32, 0}, (struct place){&from, 0}, side->f32.bytes);
	ops->copy(side->q, (struct place){&side->q8, 0}, (struct place){&from, 0}, side->q8.bytes);
	rc = gpu_finish(side->q, err);
	ops->free(&from);
	return rc;
}

static int put_experts(struct price_side *side, struct error *err)
{
	const struct buffer *arena = &side->arena->memory;
	const struct backend_ops *ops = side->backend->ops;

	if (side->backend->device == NULL)
		return ops->wrap_weights(
			side->backend, arena->host, arena->bytes, &side->experts, err);
	int rc = ops->alloc(side->backend, arena->bytes, BUFFER_SHARED, &side->experts, err);
	if (rc < 0)
		return rc;
	ops->copy(
		side->q, (struct place){&side->experts, 0}, (struct place){arena, 0}, arena->bytes);
	return gpu_finish(side->q, err);
}

int price_side_open(struct price_side *side, const struct expert_arena *arena, uint32_t n_rows,
	struct error *err)
{
	const struct backend_ops *ops = side->backend->ops;
	uint32_t k = arena->geometry.n_experts_used;

	side->arena = arena;
	const struct queue_limits limits = {
		.products = k,
		.pairs = k * n_rows,
		.ffn_pairs = k * n_rows,
		.ffn_width = (uint32_t)round_up(part(side, EXPERT_GATE)->rows, Q8_BLOCK),
		.ffn_plain = !matrix_quantised(part(side, EXPERT_DOWN)),
	};
	const struct {
		struct buffer *to;
		size_t bytes;
		enum buffer_kind kind;
	} all[] = {
		{&side->f32, n_rows * f32_bytes(side), BUFFER_OWN},
		{&side->q8, n_rows * q8_bytes(side), BUFFER_OWN},
		{&side->y, (size_t)n_rows * k * y_bytes(side), BUFFER_OWN},
		{&side->pairs, (size_t)n_rows * k * sizeof(uint32_t), BUFFER_HOST},
	};
	int rc = ops->queue(side->backend, &limits, &side->q, err);
	for (size_t i = 0; rc == 0 && i < sizeof(all) / sizeof(all[0]); i++)
		rc = ops->alloc(side->backend, all[i].bytes, all[i].kind, all[i].to, err);
	if (rc == 0)
		rc = fill(side, err);
	return rc == 0 ? put_experts(side, err) : rc;
}

void price_side_close(struct price_side *side)
{
	struct buffer *const all[] = {
		&side->f32, &side->q8, &side->y, &side->pairs, &side->experts};

	if (side->q != NULL)
		side->q->ops->queue_free(side->q);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i]->backend != NULL)
			side->backend->ops->free(all[i]);
	*side = (struct price_side){0};
}

static void run_step(struct price_side *side, uint32_t n, bool copies)
{
	const struct expert_arena *arena = side->arena;
	uint32_t k = arena->geometry.n_experts_used;
	struct step_expert of[LIMIT_EXPERTS_USED];

	for (uint32_t i = 0; i < k; i++) {
		size_t at = (side->next + i) % arena->n * arena->expert_bytes;

		if (copies)
			side->q->ops->copy(side->q, (struct place){&side->experts, at},
				(struct place){&arena->memory, at}, arena->expert_bytes);
		of[i] = (struct step_expert){
			.gate = {&side->experts, at},
			.up = {&side->experts, at + device_part_at(arena->layer, EXPERT_UP)},
			.down = {&side->experts, at + device_part_at(arena->layer, EXPERT_DOWN)},
			.layout = LAYOUT_TILES,
			.gate_scale = 1,
			.up_scale = 1,
			.down_scale = 1,
			.first = i * n,
			.n = n,
		};
	}
	side->next = (side->next + k) % arena->n;
	const struct step_experts step = {
		.shape = {.gate = *part(side, EXPERT_GATE),
			.up = *part(side, EXPERT_UP),
			.down = *part(side, EXPERT_DOWN),
			.activation = arena->model->config.arch->activation},
		.of = of,
		.n = k,
		.n_used = k,
		.pairs = {&side->pairs, 0},
		.in = {.f32 = {&side->f32, 0, f32_bytes(side), n},
			.q8 = {&side->q8, 0, q8_bytes(side), n}},
		.y = {&side->y, 0, y_bytes(side), n * k},
	};
	side->q->ops->experts(side->q, &step);
}

int price_side_run(struct price_side *side, uint32_t n, bool copies, double *ns, struct error *err)
{
	uint32_t k = side->arena->geometry.n_experts_used;
	uint32_t steps = (side->arena->n + k - 1) / k;
	uint32_t *pairs = (uint32_t *)side->pairs.host;

	/* Every row chose the same k experts; the pairs are ordered by expert. */
	for (uint32_t i = 0; i < k; i++)
		for (uint32_t row = 0; row < n; row++)
			pairs[i * n + row] = row * k + i;
	uint64_t start = clock_ns();
	for (uint32_t i = 0; i < steps; i++)
		run_step(side, n, copies);
	int rc = gpu_finish(side->q, err);
	*ns = (double)(clock_ns() - start) / ((double)steps * k);
	return rc;
}
