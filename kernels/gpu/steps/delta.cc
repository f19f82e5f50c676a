/* The steps `delta` and `replay`. */
#include "kernels/gpu/steps/attention.h"

#include "kernels/gpu/kernels/delta.cuh"

static delta_args args_of(struct gpu_queue *q, const struct step_delta *s)
{
	size_t channels = delta_channels(s->n_k_heads, s->d_k, s->n_v_heads, s->d_v);
	delta_args a = {};

	assert(channels <= q->limits.delta_channels && s->d_k <= q->limits.delta_d_k);
	a.n_k_heads = s->n_k_heads;
	a.n_v_heads = s->n_v_heads;
	a.d_k = s->d_k;
	a.d_v = s->d_v;
	a.taps = s->taps;
	a.tiled = s->tiled;
	a.n_lanes = s->n_lanes;
	a.window_floats = (uint32_t)s->window_floats;
	a.eps = s->eps;
	a.q_scale = s->q_scale;
	a.tokens = dev_rows(&s->tokens);
	a.lanes = dev_array<const struct state_lane>(s->lanes);
	a.states = dev_place(s->states);
	a.conv = dev_array<const float>(s->conv);
	a.a = dev_floats(q, s->a, s->n_v_heads);
	a.dt = dev_floats(q, s->dt, s->n_v_heads);
	a.norm = dev_floats(q, s->norm, s->d_v);
	a.in = dev_rows(&s->in);
	a.kept = dev_rows(&s->kept);
	a.keep = dev_array<const uint32_t>(s->keep);
	a.mixed = dev_rows(&s->mixed);
	a.ba = dev_rows(&s->ba);
	a.alpha_beta = dev_rows(&s->alpha_beta);
	a.z = dev_rows(&s->z);
	a.qkv = dev_rows(&s->qkv);
	a.out = dev_rows(&s->out);
	return a;
}

static void launch_convolve(struct gpu_queue *q, const delta_args *a, uint32_t n)
{
	size_t shared = (LIMIT_CONV_TAPS + 1) * sizeof(float *) + a->d_k * sizeof(float);

	LAUNCH(q->stream, delta_convolve, (simt_dim{2 * a->n_k_heads + a->n_v_heads, n, 1}),
		DELTA_THREADS, shared, *a);
}

/* rows: of a thread's part of a column, in registers; 0: in shared memory. */
template <int ROWS>
static void launch_rows(struct gpu_queue *q, const delta_args *a, uint32_t n_lanes)
{
	uint32_t columns = ROWS ? DELTA_THREADS / 4 : (uint32_t)DELTA_SHARED_COLUMNS;
	uint32_t units = blocks_of(a->d_v, columns), rows = ROWS ? 0 : (a->d_k + 3) / 4;
	size_t floats = 2 * a->d_k + rows * 4 * columns + q->limits.delta_drafts + 1;

	LAUNCH(q->stream, (delta_states<ROWS>), (simt_dim{units, a->n_v_heads, n_lanes}),
		4 * columns, floats * sizeof(float), *a);
}

static void launch_states(struct gpu_queue *q, const delta_args *a, uint32_t n_lanes)
{
	if (a->d_k <= 64)
		launch_rows<16>(q, a, n_lanes);
	else if (a->d_k <= 128)
		launch_rows<32>(q, a, n_lanes);
	else if (a->d_k <= 256)
		launch_rows<64>(q, a, n_lanes);
	else
		launch_rows<0>(q, a, n_lanes);
}

void gpu_delta(struct queue *queue, const struct step_delta *s)
{
	struct gpu_queue *q = gpu_queue(queue);
	delta_args a = args_of(q, s);
	uint32_t n = s->tokens.n;
	bool blocks = s->d_v % Q8_BLOCK == 0;

	if (n == 0)
		return;
	if (s->out_q8.buffer && blocks)
		a.q8 = dev_rows(&s->out_q8);
	LAUNCH(q->stream, delta_inputs, (simt_dim{n, 1, 1}), DELTA_THREADS, 0, a);
	launch_convolve(q, &a, n);
	launch_states(q, &a, s->n_lanes);
	LAUNCH(q->stream, delta_outputs, (simt_dim{s->n_v_heads, n, 1}), DELTA_THREADS,
		(s->d_v + 1) * sizeof(float), a);
	if (s->out_q8.buffer && !blocks)
		gpu_quantise_rows(q, a.out, dev_rows(&s->out_q8), s->n_v_heads * s->d_v, n);
}

void gpu_replay(struct queue *queue, const struct step_replay *r)
{
	struct gpu_queue *q = gpu_queue(queue);
	delta_args a = args_of(q, &r->delta);

	a.accepted = dev_array<const uint32_t>(r->accepted);
	a.replayed = dev_array<const uint32_t>(r->lanes);
	if (r->n_accepted)
		launch_convolve(q, &a, r->n_accepted);
	if (r->n_lanes)
		launch_states(q, &a, r->n_lanes);
}
