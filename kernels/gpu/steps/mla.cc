/* The step `mla`. Blocks of tokens are mapped to the latent space, attend there, and are mapped back
 * (kernels/cpu/steps/mla.c has the mathematics). */
#include "kernels/gpu/steps/attention.h"

#include "kernels/gpu/kernels/mla.cuh"

struct mla {
	struct gpu_queue *q;
	const struct step_mla *step;
	struct gpu_attention m;
	struct gpu_cells cells;
	struct dev_rows queries, out; /* of the block's first token */
	uint32_t first, n; /* the block */
};

static struct dev_rows rows_from(struct dev_rows rows, uint32_t first, uint32_t n)
{
	return {rows.at + first * rows.stride, rows.stride, n};
}

/* n rows of `width` values of `bytes` bytes, from value `at` of each on. */
static struct dev_rows part_of_rows(void *first, size_t width, size_t bytes, size_t at, uint32_t n)
{
	return {static_cast<unsigned char *>(first) + at * bytes, width * bytes, n};
}

static struct matrix of_head(const struct matrix *first, size_t head_bytes, uint32_t head)
{
	struct matrix m = *first;

	m.data = static_cast<const unsigned char *>(first->data) + head_bytes * head;
	return m;
}

static void launch_heads(
	struct gpu_queue *q, const struct step_mla *s, const struct gpu_cells *cells)
{
	mla_args a = {};
	uint32_t n = s->batch.tokens.n, wide = s->nope > s->kv_rank ? s->nope : s->kv_rank;

	a.cells = *cells;
	a.type = s->cells.type;
	a.n_heads = s->n_heads;
	a.nope = s->nope;
	a.rope = s->rope;
	a.kv_rank = s->kv_rank;
	a.q_bias = dev_floats(q, s->q_bias, (size_t)s->n_heads * (s->nope + s->rope));
	a.kv_bias = dev_floats(q, s->kv_bias, s->kv_rank + s->rope);
	a.kv_norm = dev_floats(q, s->kv_norm, s->kv_rank);
	a.eps = s->eps;
	a.q = dev_rows(&s->q);
	a.kv = dev_rows(&s->kv);
	a.cos_sin = dev_rows(&s->batch.cos_sin);
	LAUNCH(q->stream, mla_heads, (simt_dim{(s->n_heads + MLA_WARPS) / MLA_WARPS, n, 1}),
		32 * MLA_WARPS, MLA_WARPS * (wide + s->rope) * sizeof(float), a);
}

void gpu_mla_open(struct gpu_queue *q)
{
	uint32_t n = q->limits.k_dim ? q->limits.mla_nope : 0;

	if (n == 0)
		return;
	struct step_token *rows = stream_array<struct step_token>(q->stream, n);
	for (uint32_t i = 0; i < n; i++) {
		rows[i] = {};
		rows[i].id = i;
	}
	stream_copy(q->stream, gpu_attention_of(q).numbers, rows, n * sizeof(*rows));
}

/* The values of one head's matrix as float32, in the queue's memory: rows of an embedding. */
static const float *head_values(struct mla *m, const struct matrix *k_b)
{
	const struct step_mla *s = m->step;
	struct buffer memory = {}, values = {};
	struct step_embed embed = {};

	memory.host = memory.device = (unsigned char *)(void *)m->m.numbers;
	values.device = (unsigned char *)(void *)m->m.matrix;
	embed.tokens = {&memory, 0, sizeof(*m->m.numbers), s->nope};
	embed.table = *k_b;
	embed.x = {&values, 0, s->kv_rank * sizeof(float), s->nope};
	gpu_embed(&m->q->queue, &embed);
	return m->m.matrix;
}

static void launch_queries(struct mla *m)
{
	const struct step_mla *s = m->step;
	mla_block_args a = {};

	a.n_heads = s->n_heads;
	a.nope = s->nope;
	a.rope = s->rope;
	a.kv_rank = s->kv_rank;
	a.q = m->queries;
	a.latent_q = part_of_rows(
		m->m.latent_q, (size_t)s->n_heads * (s->kv_rank + s->rope), sizeof(float), 0, m->n);
	if (!s->k_b_transposed && matrix_quantised(&s->k_b))
		a.q8 = part_of_rows(m->m.q8, (size_t)s->n_heads * (s->nope / Q8_BLOCK),
			sizeof(struct q8_block), 0, m->n);
	LAUNCH(m->q->stream, mla_queries, (simt_dim{s->n_heads, m->n, 1}), MLA_THREADS, 0, a);
}

/* Maps one head's queries of the block to the latent space. */
static void absorb(struct mla *m, uint32_t head)
{
	const struct step_mla *s = m->step;
	struct matrix k_b = of_head(&s->k_b, s->k_b_head_bytes, head);
	size_t latent = s->kv_rank + s->rope, blocks = s->nope / Q8_BLOCK;
	struct dev_rows q = m->queries;
	struct dev_rows y = part_of_rows(
		m->m.latent_q, s->n_heads * latent, sizeof(float), head * latent, m->n);

	q.at += (size_t)head * (s->nope + s->rope) * sizeof(float);
	if (s->k_b_transposed) {
		mla_absorb_args a = {s->nope, s->kv_rank, head_values(m, &k_b), q, y};

		LAUNCH(m->q->stream, mla_absorb,
			(simt_dim{blocks_of(s->kv_rank, MLA_THREADS), m->n, 1}), MLA_THREADS, 0, a);
		return;
	}
	struct product_call call = {};

	call.w = k_b;
	call.x.f32 = q;
	call.x.q8 = part_of_rows(
		m->m.q8, s->n_heads * blocks, sizeof(struct q8_block), head * blocks, m->n);
	call.y = y;
	gpu_product(m->q, &call);
}

/* Attends for the tokens of the block. */
static void attend(struct mla *m)
{
	const struct step_mla *s = m->step;
	struct attention_shape shape = {};

	shape.batch = &s->batch;
	shape.cells = m->cells;
	shape.type = s->cells.type;
	shape.first = m->first;
	shape.n = m->n;
	shape.n_kv_heads = 1;
	shape.n_heads = s->n_heads;
	shape.k_dim = s->kv_rank + s->rope;
	shape.v_dim = s->kv_rank;
	shape.q = part_of_rows(
		m->m.latent_q, (size_t)s->n_heads * shape.k_dim, sizeof(float), 0, m->n);
	shape.q_stride = shape.k_dim;
	shape.scale = s->scale;
	shape.out =
		part_of_rows(m->m.latent, (size_t)s->n_heads * s->kv_rank, sizeof(float), 0, m->n);
	if (matrix_quantised(&s->v_b))
		shape.q8 = part_of_rows(m->m.q8, (size_t)s->n_heads * (s->kv_rank / Q8_BLOCK),
			sizeof(struct q8_block), 0, m->n);
	gpu_attention_run(m->q, &shape);
}

/* Maps one head's results of the block from the latent space to values. */
static void take_back(struct mla *m, uint32_t head)
{
	const struct step_mla *s = m->step;
	size_t blocks = s->kv_rank / Q8_BLOCK;
	struct product_call call = {};

	call.w = of_head(&s->v_b, s->v_b_head_bytes, head);
	call.x.f32 = part_of_rows(m->m.latent, (size_t)s->n_heads * s->kv_rank, sizeof(float),
		(size_t)head * s->kv_rank, m->n);
	call.x.q8 = part_of_rows(
		m->m.q8, s->n_heads * blocks, sizeof(struct q8_block), head * blocks, m->n);
	call.y = m->out;
	call.y.at += (size_t)head * s->v * sizeof(float);
	gpu_product(m->q, &call);
}

void gpu_mla(struct queue *queue, const struct step_mla *s)
{
	struct gpu_queue *q = gpu_queue(queue);
	uint32_t n = s->batch.tokens.n;
	struct mla m = {};

	if (n == 0)
		return;
	m.q = q;
	m.step = s;
	m.m = gpu_attention_of(q);
	m.cells = gpu_cells_of(q, &s->batch, &s->cells);
	launch_heads(q, s, &m.cells);
	for (; m.first < n; m.first += m.n) {
		m.n = n - m.first < GPU_MLA_TOKENS ? n - m.first : (uint32_t)GPU_MLA_TOKENS;
		m.queries = rows_from(dev_rows(&s->q), m.first, m.n);
		m.out = rows_from(dev_rows(&s->out), m.first, m.n);
		launch_queries(&m);
		for (uint32_t head = 0; head < s->n_heads; head++)
			absorb(&m, head);
		attend(&m);
		for (uint32_t head = 0; head < s->n_heads; head++)
			take_back(&m, head);
	}
	if (s->out_q8.buffer)
		gpu_quantise_rows(q, dev_rows(&s->out), dev_rows(&s->out_q8), s->n_heads * s->v, n);
}
