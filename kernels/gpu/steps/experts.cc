/*
 * Feed-forwards: the one of a dense layer, which every row takes; those of a layer's experts; and
 * the sum of their results. All experts of a step run in the same launches: two of them, or four
 * where gate and up cannot end in one block (experts.cuh), or where rows have additions of an adapter.
 */
#include "kernels/gpu/kernels/combine.cuh"
#include "kernels/gpu/steps/adapt.h"
#include "kernels/gpu/steps/experts_launch.h"
#include "kernels/gpu/steps/steps.h"

extern "C" {
#include "kernels/tiles.h"
#include "shared/base/limits.h"
}

/* The arrays of one step, for as many experts as a layer may have. */
static_assert(LIMIT_EXPERTS * (sizeof(expert_one) + 3 * sizeof(addition)) <= STREAM_ARGS_BYTES,
	"a step of experts with additions");

/* The memory of q->ffn: for limits.ffn_pairs pairs, limits.ffn_width wide. */
struct ffn_memory {
	float *hidden[2];
	struct q8_block *hidden_q8;
	expert_one *known; /* [limits.n_known] */
	expert_one *found; /* [limits.n_experts] those of a step that names none */
};

static struct ffn_memory ffn_memory_at(const struct queue_limits *limits, struct gpu_carve *c)
{
	size_t values = (size_t)limits->ffn_pairs * limits->ffn_width;
	struct ffn_memory m = {};

	for (unsigned i = 0; i < 2; i++)
		m.hidden[i] = (float *)gpu_carve(c, values * sizeof(float));
	m.hidden_q8 = (struct q8_block *)gpu_carve(c, values / Q8_BLOCK * sizeof(struct q8_block));
	m.known = (expert_one *)gpu_carve(c, limits->n_known * sizeof(expert_one));
	m.found = (expert_one *)gpu_carve(
		c, limits->n_known ? limits->n_experts * sizeof(expert_one) : 0);
	return m;
}

void gpu_ffn_layout(struct gpu_queue *q, struct gpu_carve *c)
{
	unsigned char *base = gpu_carve(c, 0);

	ffn_memory_at(&q->limits, c);
	q->ffn = base;
}

static experts_shape shape_of(const struct matrix *w)
{
	experts_shape shape = {w->rows, w->cols, w->row_bytes, tiles_possible(w), w->scaled};

	return shape;
}

/* All but the experts, the pairs and y. */
static experts_args args_of(
	const struct gpu_queue *q, const struct ffn *ffn, const struct inputs *in)
{
	struct gpu_carve c = {q->ffn, 0};
	struct ffn_memory memory = ffn_memory_at(&q->limits, &c);
	experts_args a = {};

	a.shape[EXPERT_GATE] = shape_of(&ffn->gate);
	a.shape[EXPERT_UP] = shape_of(&ffn->up);
	a.shape[EXPERT_DOWN] = shape_of(&ffn->down);
	a.oai = ffn->activation == ACTIVATION_SWIGLU_OAI;
	a.x = dev_rows(&in->f32);
	a.x_q8 = dev_rows(&in->q8);
	a.hidden[0] = memory.hidden[0];
	a.hidden[1] = memory.hidden[1];
	a.hidden_q8 = matrix_quantised(&ffn->down) ? memory.hidden_q8 : nullptr;
	a.width = q->limits.ffn_width;
	a.n_used = 1;
	return a;
}

static void product(struct gpu_queue *q, const experts_args *a, const struct matrix *w,
	unsigned matrix, unsigned n, unsigned most)
{
	if (matrix_quantised(w))
		experts_launch_one(q->stream, w->type, a, matrix, n, most);
	else
		experts_launch_plain(q->stream, w->type, a, matrix, n, most);
}

/* The additions that rows with masks take. */
struct ffn_additions {
	const struct ffn_adapt *const *of; /* [n] of each expert, or null */
	const uint8_t *gated; /* by row of the inputs: nonzero: it takes them */
};

/* One expert's addition to a product: of the inputs, or of the hidden values. */
static void add_addition(struct gpu_queue *q, struct additions *to, const experts_args *a,
	const expert_one *e, const uint8_t *gated, const struct low_rank *w, unsigned matrix)
{
	const addition_index inputs = {a->pairs, e->first, a->n_used}, hidden = {nullptr, e->at, 1};
	const struct dev_rows hidden_rows = {
		(unsigned char *)a->hidden[matrix == EXPERT_UP], a->width * sizeof(float), 0};
	bool down = matrix == EXPERT_DOWN;
	struct addition *add = additions_add(q, to, w, e->n);

	if (!add)
		return;
	add->gated = gated;
	add->gate = inputs;
	add->x = down ? hidden_rows : a->x;
	add->from = down ? hidden : inputs;
	add->y = down ? a->y : hidden_rows;
	add->to = down ? addition_index{a->pairs, e->first, 1} : hidden;
}

/* Those to gate and up, or those to down, of n experts. */
static void run_additions(struct gpu_queue *q, const experts_args *a,
	const struct ffn_additions *adds, unsigned n, bool down)
{
	struct additions all = additions_begin(q, down ? n : 2 * n);

	for (unsigned i = 0; i < n; i++) {
		const struct ffn_adapt *w = adds->of[i];
		const expert_one *e = &a->of[i];

		if (w && down) {
			add_addition(q, &all, a, e, adds->gated, &w->down, EXPERT_DOWN);
		} else if (w) {
			add_addition(q, &all, a, e, adds->gated, &w->gate, EXPERT_GATE);
			add_addition(q, &all, a, e, adds->gated, &w->up, EXPERT_UP);
		}
	}
	additions_run(q, &all);
}

/* Runs n experts, of which none has more than `most` pairs. adds: or null. */
static void run_experts(struct gpu_queue *q, experts_args *a, const struct ffn *ffn,
	const struct ffn_additions *adds, unsigned n, unsigned most)
{
	bool fused = !adds && ffn->gate.type == ffn->up.type && matrix_quantised(&ffn->gate) &&
		     ffn->gate.rows % EXPERTS_ROWS == 0;

	if (n == 0 || most == 0)
		return;
	if (fused) {
		experts_launch_in(q->stream, ffn->gate.type, a, n, most);
	} else {
		product(q, a, &ffn->gate, EXPERT_GATE, n, most);
		product(q, a, &ffn->up, EXPERT_UP, n, most);
		if (adds)
			run_additions(q, a, adds, n, false);
		a->hidden_too = adds != nullptr;
		experts_launch_activate(q->stream, a, n, most);
	}
	product(q, a, &ffn->down, EXPERT_DOWN, n, most);
	if (adds)
		run_additions(q, a, adds, n, true);
}

/* A product of a feed-forward that every row goes through, for rows that are fast: `one` has them. */
static void fast_product(
	struct gpu_queue *q, const experts_args *a, const struct matrix *w, unsigned matrix)
{
	const expert_one *e = a->of;
	const struct step_run run = {e->first, e->n};
	const struct dev_rows hidden = {
		(unsigned char *)a->hidden[matrix == EXPERT_UP], a->width * sizeof(float), 0};
	bool down = matrix == EXPERT_DOWN;

	if (!matrix_fast(w)) {
		product(q, a, w, matrix, 1, e->n);
		return;
	}
	const struct matrix seen = dev_matrix(q, w);
	gpu_fast_product(q, &seen, dev_piece(down ? hidden : a->x, run),
		dev_piece(down ? a->y : hidden, run));
}

static void run_fast(struct gpu_queue *q, const experts_args *a, const struct ffn *ffn)
{
	fast_product(q, a, &ffn->gate, EXPERT_GATE);
	fast_product(q, a, &ffn->up, EXPERT_UP);
	experts_launch_activate(q->stream, a, 1, a->of->n);
	fast_product(q, a, &ffn->down, EXPERT_DOWN);
}

/* A feed-forward some of whose rows are fast. `one`: what is the same for all. */
static void run_in_pieces(struct gpu_queue *q, const experts_args *all, const expert_one *one,
	const struct step_dense_ffn *step)
{
	const struct ffn_additions adds = {&step->adapt, dev_array<const uint8_t>(step->gated)};

	gpu_each_piece(&step->fast, step->y.n, [&](struct step_run run, bool is_fast) {
		experts_args a = *all;
		expert_one *piece = stream_array<expert_one>(q->stream, 1);

		*piece = *one;
		piece->first = piece->at = run.first;
		piece->n = run.n;
		a.of = piece;
		if (is_fast)
			run_fast(q, &a, &step->ffn);
		else
			run_experts(q, &a, &step->ffn, step->adapt ? &adds : nullptr, 1, run.n);
	});
}

static const unsigned char *weights_of(const struct gpu_queue *q, const struct matrix *w)
{
	return (const unsigned char *)dev_matrix(q, w).data;
}

void gpu_dense_ffn(struct queue *queue, const struct step_dense_ffn *step)
{
	struct gpu_queue *q = gpu_queue(queue);
	const struct ffn *ffn = &step->ffn;
	const struct matrix *w[3] = {&ffn->gate, &ffn->up, &ffn->down};
	const float *bias[2] = {ffn->gate_bias, ffn->up_bias};
	experts_args a = args_of(q, ffn, &step->in);
	expert_one *one = stream_array<expert_one>(q->stream, 1);

	assert(step->y.n <= q->limits.ffn_pairs);
	*one = expert_one{};
	for (unsigned m = 0; m < 3; m++) {
		one->w[m] = weights_of(q, w[m]);
		one->scale[m] = w[m]->scale;
		/* The layouts of one feed-forward may differ. */
		a.shape[m].tiles = w[m]->layout == LAYOUT_TILES;
	}
	for (unsigned m = 0; m < 2; m++)
		one->bias[m] = dev_floats(q, bias[m], w[m]->rows);
	one->tiles = true;
	one->n = step->y.n;
	a.of = one;
	a.y = dev_rows(&step->y);
	const struct ffn_additions adds = {&step->adapt, dev_array<const uint8_t>(step->gated)};
	if (step->fast.n > 0 && (matrix_fast(w[0]) || matrix_fast(w[1]) || matrix_fast(w[2])))
		run_in_pieces(q, &a, one, step);
	else
		run_experts(q, &a, ffn, step->adapt ? &adds : nullptr, 1, step->y.n);
	if (step->x.buffer && step->y.n > 0) {
		residual_args r = {ffn->down.rows, a.y, dev_rows(&step->x),
			dev_floats(q, step->bias, ffn->down.rows)};

		LAUNCH(q->stream, residual,
			(simt_dim{blocks_of(r.width, COMBINE_THREADS), step->y.n, 1}),
			COMBINE_THREADS, 0, r);
	}
}

static void take_expert(const struct gpu_queue *q, const struct ffn *shape,
	const struct step_expert *e, expert_one *to)
{
	*to = expert_one{};
	to->w[EXPERT_GATE] = dev_place(e->gate);
	to->w[EXPERT_UP] = dev_place(e->up);
	to->w[EXPERT_DOWN] = dev_place(e->down);
	to->scale[EXPERT_GATE] = e->gate_scale;
	to->scale[EXPERT_UP] = e->up_scale;
	to->scale[EXPERT_DOWN] = e->down_scale;
	to->bias[EXPERT_GATE] = dev_floats(q, e->gate_bias, shape->gate.rows);
	to->bias[EXPERT_UP] = dev_floats(q, e->up_bias, shape->up.rows);
	to->tiles = e->layout == LAYOUT_TILES;
	to->first = e->first;
	to->n = e->n;
}

static struct ffn_memory memory_of(const struct gpu_queue *q)
{
	struct gpu_carve c = {q->ffn, 0};

	return ffn_memory_at(&q->limits, &c);
}

void gpu_know_experts(struct queue *queue, const struct ffn *shape, const struct step_expert *of,
	uint32_t first, uint32_t n)
{
	struct gpu_queue *q = gpu_queue(queue);
	expert_one *all = stream_array<expert_one>(q->stream, n);

	assert(!q->in_graph && first + n <= q->limits.n_known);
	for (uint32_t i = 0; i < n; i++)
		take_expert(q, shape, &of[i], &all[i]);
	stream_copy(q->stream, memory_of(q).known + first, all, n * sizeof(*all));
}

/* The experts that the rows chose: as many launches serve as there could be. */
static void chosen_experts(struct gpu_queue *q, const struct step_experts *step, experts_args *a)
{
	struct ffn_memory memory = memory_of(q);
	uint32_t rows = step->y.n / step->n_used;
	find_args find = {};

	find.known = memory.known + step->known;
	find.uses = dev_array<const struct expert_use>(step->order.uses);
	find.n_uses = dev_array<const uint32_t>(step->order.n_uses);
	find.of = memory.found;
	find.n = step->y.n < q->limits.n_experts ? step->y.n : q->limits.n_experts;
	find.n_chosen = dev_array<uint32_t>(step->n_chosen);
	assert(q->limits.n_known > 0 && step->y.n <= q->limits.ffn_pairs);
	experts_launch_find(q->stream, &find);
	a->of = find.of;
	run_experts(q, a, &step->shape, nullptr, find.n, rows);
}

void gpu_experts(struct queue *queue, const struct step_experts *step)
{
	struct gpu_queue *q = gpu_queue(queue);
	experts_args a = args_of(q, &step->shape, &step->in);

	a.pairs = dev_array<const uint32_t>(step->pairs);
	a.n_used = step->n_used;
	a.y = dev_rows(&step->y);
	if (!step->of) {
		chosen_experts(q, step, &a);
		return;
	}
	expert_one *of = stream_array<expert_one>(q->stream, step->n);
	const struct ffn_adapt *adapt[LIMIT_EXPERTS];
	uint32_t at = 0, most = 0;
	bool adapts = false;

	for (uint32_t i = 0; i < step->n; i++) {
		take_expert(q, &step->shape, &step->of[i], &of[i]);
		adapt[i] = step->of[i].adapt;
		adapts |= adapt[i] != nullptr;
		of[i].at = at;
		at += of[i].n;
		most = of[i].n > most ? of[i].n : most;
	}
	assert(at <= q->limits.ffn_pairs);
	a.of = of;
	const struct ffn_additions adds = {adapt, dev_array<const uint8_t>(step->gated)};
	run_experts(q, &a, &step->shape, adapts ? &adds : nullptr, step->n, most);
}

void gpu_combine(struct queue *queue, const struct step_combine *step)
{
	struct gpu_queue *q = gpu_queue(queue);
	combine_args a = {};

	a.width = step->width;
	a.n_used = step->n_used;
	a.chosen = dev_rows(&step->chosen);
	a.weights = dev_rows(&step->weights);
	a.y = dev_rows(&step->y);
	a.shared = dev_rows(&step->shared);
	a.shared_weight = dev_rows(&step->shared_weight);
	a.x = dev_rows(&step->x);
	a.bias = dev_floats(q, step->bias, step->width);
	a.bias_stride = step->bias_stride;
	a.shared_bias = dev_floats(q, step->shared_bias, step->width);
	if (step->x.n > 0)
		LAUNCH(q->stream, combine,
			(simt_dim{blocks_of(step->width, COMBINE_THREADS), step->x.n, 1}),
			COMBINE_THREADS, 0, a);
}
