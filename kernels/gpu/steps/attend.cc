/* The step `attend`, and the launches of attention that mla.cc uses as well. */
#include "kernels/gpu/steps/attention.h"

#include "kernels/gpu/kernels/attend.cuh"
#include "kernels/gpu/kernels/heads.cuh"
#include "kernels/gpu/kernels/join.cuh"

enum { BANK_BYTES = 48 << 10 }; /* shared memory that every device gives a CTA */

static size_t query_bytes(int type, uint32_t rows, uint32_t k_dim)
{
	if (type == KV_F32 || type == KV_F16)
		return (size_t)rows * k_dim * sizeof(float);
	size_t blocks = (k_dim + Q8_BLOCK - 1) / Q8_BLOCK;

	return rows * (2 * (blocks * Q8_BLOCK + 16) + blocks * sizeof(float));
}

template <int TYPE, int R>
static void launch_rows(struct gpu_queue *q, const attend_args *a, uint32_t splits)
{
	uint32_t spans = blocks_of(a->n_tokens, a->span);
	size_t shared = sizeof(attend_shared<R>) + query_bytes(TYPE, R, a->k_dim);
	uint32_t units = spans * a->n_kv_heads * a->head_blocks;

	LAUNCH(q->stream, (attend<TYPE, R>), (simt_dim{units, splits, 1}), ATTEND_THREADS, shared,
		*a);
}

template <int TYPE>
static void launch_attend(struct gpu_queue *q, const attend_args *args, uint32_t splits)
{
	attend_args a = *args;
	bool wide = (size_t)a.n_tokens * a.n_heads > 8 &&
		    sizeof(attend_shared<16>) + query_bytes(TYPE, 16, a.k_dim) <= BANK_BYTES;
	uint32_t rows = wide ? 16 : 8;

	a.block_heads = a.n_heads < rows ? a.n_heads : rows;
	a.head_blocks = blocks_of(a.n_heads, a.block_heads);
	a.group = rows / a.block_heads;
	/* Many tokens are those of prompts, whose groups are whole. With few, each may be a
	 * sequence or a branch, and its CTA is its own. */
	a.span = a.n_tokens < 4 * a.group ? 1 : a.group;
	if (wide)
		launch_rows<TYPE, 16>(q, &a, splits);
	else
		launch_rows<TYPE, 8>(q, &a, splits);
}

static const struct step_token *token_at(const struct batch_cells *batch, uint32_t t)
{
	const struct rows *rows = &batch->tokens;

	return (const struct step_token *)(const void *)(rows->buffer->host + rows->offset +
							 t * rows->stride);
}

/* The sequences' maps as kernels see them. */
static const uint32_t *const *maps_of(struct gpu_queue *q, const struct batch_cells *batch)
{
	uint32_t n = 0;

	for (uint32_t t = 0; t < batch->tokens.n; t++)
		n = token_at(batch, t)->map >= n ? token_at(batch, t)->map + 1 : n;
	const uint32_t **maps = stream_array<const uint32_t *>(q->stream, n);
	for (uint32_t i = 0; i < n; i++)
		maps[i] = (const uint32_t *)(const void *)batch->maps[i]->device;
	return maps;
}

struct gpu_cells gpu_cells_of(
	struct gpu_queue *q, const struct batch_cells *batch, const struct kv_cells *kv)
{
	struct gpu_cells c = {};

	c.tokens = dev_rows(&batch->tokens);
	c.maps = batch->map_addresses.buffer
			 ? dev_array<const uint32_t *const>(batch->map_addresses)
			 : maps_of(q, batch);
	c.window = batch->window;
	c.of = dev_array<const uint32_t>(kv->of);
	c.k = kv->buffer->device + kv->k;
	c.v = kv->buffer->device + kv->v;
	c.k_head_bytes = kv->k_head_bytes;
	c.v_head_bytes = kv->v_head_bytes;
	c.k_bytes = kv->k_bytes;
	c.v_bytes = kv->v_bytes;
	c.turned = kv->k_turned;
	c.paired = kv->v_paired;
	return c;
}

/* ---- Memory. ---- */

/* Splits of one token for whose results there is room: 128k positions. */
static const uint32_t PARTS_SPLITS = 512;

/* With base null only counts. */
static size_t attention_layout(
	const struct queue_limits *limits, unsigned char *base, struct gpu_attention *a)
{
	struct gpu_carve c = {base, 0};
	size_t heads = (size_t)limits->n_kv_heads * limits->n_heads;
	size_t parts = 2 * limits->n_tokens > PARTS_SPLITS ? 2 * limits->n_tokens : PARTS_SPLITS;
	size_t wide = limits->mla_nope > limits->v_dim ? limits->mla_nope : limits->v_dim;
	size_t block = limits->mla_nope ? GPU_MLA_TOKENS * heads : 0;

	a->parts_floats = parts * heads * (limits->v_dim + 2);
	a->parts = (float *)(void *)gpu_carve(&c, a->parts_floats * sizeof(float));
	a->most = (float *)(void *)gpu_carve(&c, limits->n_tokens * heads * sizeof(float));
	a->sum = (float *)(void *)gpu_carve(&c, limits->n_tokens * heads * sizeof(float));
	a->latent_q = (float *)(void *)gpu_carve(&c, block * limits->k_dim * sizeof(float));
	a->latent = (float *)(void *)gpu_carve(&c, block * limits->v_dim * sizeof(float));
	a->matrix = (float *)(void *)gpu_carve(
		&c, (size_t)limits->mla_nope * limits->v_dim * sizeof(float));
	a->numbers = (struct step_token *)(void *)gpu_carve(
		&c, limits->mla_nope * sizeof(struct step_token));
	a->q8 = (struct q8_block *)(void *)gpu_carve(
		&c, block * (wide / Q8_BLOCK) * sizeof(struct q8_block));
	return c.used;
}

struct gpu_attention gpu_attention_of(const struct gpu_queue *q)
{
	struct gpu_attention a;

	attention_layout(&q->limits, (unsigned char *)q->attention, &a);
	return a;
}

void gpu_attend_layout(struct gpu_queue *q, struct gpu_carve *c)
{
	struct gpu_attention a;
	size_t bytes = q->limits.k_dim ? attention_layout(&q->limits, nullptr, &a) : 0;

	q->attention = gpu_carve(c, bytes);
}

/* ---- Attention. ---- */

/* The splits that tokens attend to: first..end-1. The tokens' numbers are the host's as well. In a
 * graph all splits below its reach: CTAs and joins leave out those that nobody attends to. */
static void split_range(
	const struct gpu_queue *q, const struct attention_shape *s, uint32_t *first, uint32_t *end)
{
	uint32_t window = s->batch->window, most = 0;

	for (uint32_t i = s->first; q->in_graph && i < s->first + s->n; i++)
		most = token_at(s->batch, i)->position > most ? token_at(s->batch, i)->position
							      : most;
	if (q->in_graph) {
		*first = 0;
		*end = graph_reach(most) / GPU_SPLIT;
		return;
	}
	*first = UINT32_MAX;
	*end = 0;
	for (uint32_t i = s->first; i < s->first + s->n; i++) {
		uint32_t last = token_at(s->batch, i)->position + 1;
		uint32_t from = window && last > window ? (last - window) / GPU_SPLIT : 0;

		*first = from < *first ? from : *first;
		last = blocks_of(last, GPU_SPLIT);
		*end = last > *end ? last : *end;
	}
}

void gpu_attention_run(struct gpu_queue *q, const struct attention_shape *s)
{
	uint32_t heads = s->n_kv_heads * s->n_heads, first, end;
	struct gpu_attention m = gpu_attention_of(q);
	size_t room = m.parts_floats / ((size_t)s->v_dim + 2) / s->n / heads;
	attend_args a = {};
	join_args j = {};

	split_range(q, s, &first, &end);
	assert(room > 0);
	a.cells = s->cells;
	a.first_token = s->first;
	a.n_tokens = s->n;
	a.n_heads = s->n_heads;
	a.n_kv_heads = s->n_kv_heads;
	a.k_dim = s->k_dim;
	a.v_dim = s->v_dim;
	a.q = s->q;
	a.q_stride = s->q_stride;
	a.scale = s->scale;
	j.cells = a.cells;
	j.first_token = s->first;
	j.n_tokens = s->n;
	j.all_heads = heads;
	j.v_dim = s->v_dim;
	j.sinks = s->sinks;
	j.most = m.most;
	j.sum = m.sum;
	j.out = s->out;
	j.gate = s->gate;
	j.gate_stride = s->gate_stride;
	j.q8 = s->q8;
	for (uint32_t at = first; at < end; at += (uint32_t)room) {
		uint32_t n = end - at < room ? end - at : (uint32_t)room;
		size_t parts = (size_t)n * s->n * heads;

		a.first_split = j.first_split = at;
		j.part_out = a.part_out = m.parts;
		j.part_most = a.part_most = a.part_out + parts * s->v_dim;
		j.part_sum = a.part_sum = a.part_most + parts;
		j.n_splits = n;
		j.begins = at == first;
		j.ends = at + n == end;
		if (s->type == KV_F32)
			launch_attend<KV_F32>(q, &a, n);
		else if (s->type == KV_F16)
			launch_attend<KV_F16>(q, &a, n);
		else if (s->type == KV_Q8_0)
			launch_attend<KV_Q8_0>(q, &a, n);
		else
			launch_attend<KV_Q16_0>(q, &a, n);
		LAUNCH(q->stream, attend_join, (simt_dim{heads, s->n, 1}), JOIN_THREADS, 0, j);
	}
}

void gpu_quantise_rows(
	struct gpu_queue *q, struct dev_rows x, struct dev_rows q8, uint32_t width, uint32_t n)
{
	quantise_args a = {x, q8, width};

	LAUNCH(q->stream, quantise_rows, (simt_dim{blocks_of(width / Q8_BLOCK, 4), n, 1}), 128, 0,
		a);
}

static void launch_heads(
	struct gpu_queue *q, const struct step_attend *s, const struct gpu_cells *cells)
{
	heads_args a = {};
	uint32_t all = s->n_heads + 2 * s->n_kv_heads, n = s->batch.tokens.n;

	a.cells = *cells;
	a.type = s->cells.type;
	a.n_tokens = n;
	a.n_heads = s->n_heads;
	a.n_kv_heads = s->n_kv_heads;
	a.dim = s->dim;
	a.n_rot = s->batch.n_rot;
	a.q_stride = s->gated ? 2 * s->dim : s->dim;
	a.neox = s->rope_neox;
	a.norm_vectors = s->norm_vectors;
	a.q_bias = dev_floats(q, s->q_bias, (size_t)s->n_heads * a.q_stride);
	a.k_bias = dev_floats(q, s->k_bias, (size_t)s->n_kv_heads * s->dim);
	a.v_bias = dev_floats(q, s->v_bias, (size_t)s->n_kv_heads * s->dim);
	a.q_norm = dev_floats(
		q, s->q_norm, s->norm_vectors ? (size_t)s->n_heads * a.q_stride : s->dim);
	a.k_norm =
		dev_floats(q, s->k_norm, s->norm_vectors ? (size_t)s->n_kv_heads * s->dim : s->dim);
	a.eps = s->eps;
	a.q = dev_rows(&s->q);
	a.k = dev_rows(&s->k);
	a.v = dev_rows(&s->v);
	a.cos_sin = dev_rows(&s->batch.cos_sin);
	if (s->norm_vectors)
		LAUNCH(q->stream, norm_heads, (simt_dim{2, n, 1}), 256, 256 * sizeof(float), a);
	LAUNCH(q->stream, finish_heads, (simt_dim{blocks_of(all, HEADS_WARPS), n, 1}),
		32 * HEADS_WARPS, HEADS_WARPS * a.q_stride * sizeof(float), a);
}

void gpu_attend(struct queue *queue, const struct step_attend *s)
{
	struct gpu_queue *q = gpu_queue(queue);
	struct attention_shape shape = {};
	bool blocks = s->dim % Q8_BLOCK == 0;

	if (s->batch.tokens.n == 0)
		return;
	shape.batch = &s->batch;
	shape.cells = gpu_cells_of(q, &s->batch, &s->cells);
	shape.type = s->cells.type;
	launch_heads(q, s, &shape.cells);
	shape.n = s->batch.tokens.n;
	shape.n_kv_heads = s->n_kv_heads;
	shape.n_heads = s->n_heads / s->n_kv_heads;
	shape.k_dim = shape.v_dim = s->dim;
	shape.q = dev_rows(&s->q);
	shape.q_stride = s->gated ? 2 * s->dim : s->dim;
	shape.scale = s->scale;
	shape.sinks = dev_floats(q, s->sinks, s->n_heads);
	shape.out = dev_rows(&s->out);
	if (s->gated) {
		shape.gate = shape.q;
		shape.gate.at += s->dim * sizeof(float);
		shape.gate_stride = shape.q_stride;
	}
	if (s->out_q8.buffer && blocks)
		shape.q8 = dev_rows(&s->out_q8);
	gpu_attention_run(q, &shape);
	if (s->out_q8.buffer && !blocks)
		gpu_quantise_rows(q, shape.out, dev_rows(&s->out_q8), s->n_heads * s->dim, shape.n);
}
