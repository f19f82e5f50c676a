/* Gated delta nets of the GPU's back end: random batches of lanes with certain tokens and trees of
 * drafts, and the replay of accepted drafts, whose bytes must be the scalar CPU's.
 * OUTRIDER_TEST_SEED repeats other batches, OUTRIDER_TEST_ROUNDS makes more. */
#include "tests/gpu/rig.h"

#include <math.h>

enum { LANES = 3, TOKENS = 96, DRAFTS = 8, CHANNELS = 4096, D_K = 300 };

struct batch {
	struct step_delta s;
	struct step_replay r;
	/* Of the replay, which follows between two passes: the lanes and tokens are others then. */
	struct state_lane lanes[LANES];
	struct state_token tokens[TOKENS];
	struct place lanes_then;
	struct rows tokens_then;
	uint32_t n, n_kept;
};

static uint32_t upto(struct rig *rig, uint32_t n)
{
	return rig_random(rig) % n;
}

static void run_delta(const struct backend_ops *ops, struct queue *q, const void *arg)
{
	const struct batch *b = arg;

	ops->delta(q, &b->s);
	if (b->r.n_lanes)
		ops->replay(q, &b->r);
}

/* A lane's tokens: certain ones, then a tree of drafts. */
static void make_lane(struct rig *rig, struct batch *b, uint32_t l, uint32_t certain,
	uint32_t drafts, uint32_t *keep, size_t state_bytes)
{
	struct state_lane *lane = &b->lanes[l];

	*lane = (struct state_lane){.first = b->n,
		.last_certain = certain ? (int32_t)(b->n + certain) - 1 : -1,
		.current = 2 * l * state_bytes,
		.next = (2 * l + 1) * state_bytes,
		.begins = upto(rig, 3) == 0};
	for (uint32_t i = 0; i < certain + drafts; i++, b->n++) {
		uint32_t branch = i < certain	 ? 0
				  : upto(rig, 2) ? i - certain
						 : upto(rig, i - certain + 1);
		struct state_token *t = &b->tokens[b->n];

		*t = (struct state_token){.lane = l,
			.next = i + 1 == certain + drafts ? UINT32_MAX : b->n + 1,
			.writes_window = i + 1 == certain};
		t->before = i < certain ? (i ? (int32_t)b->n - 1 : -1)
			    : branch	? (int32_t)(lane->first + certain + branch) - 1
					: lane->last_certain;
		keep[b->n] = i < certain ? UINT32_MAX : b->n_kept++;
	}
}

/* Accepts a path of a lane's drafts. */
static void accept_lane(
	struct rig *rig, struct batch *b, uint32_t l, const uint32_t *keep, uint32_t *accepted)
{
	struct state_lane *lane = rig_at(rig, b->lanes_then);
	uint32_t *lanes = rig_at(rig, b->r.lanes), last = 0;
	int32_t at = b->lanes[l].last_certain;
	uint32_t first = b->r.n_accepted;

	lane += l;
	*lane = b->lanes[l];
	lane->accepted_first = first;
	if (lane->last_certain >= 0) {
		lane->current = b->lanes[l].next;
		lane->next = b->lanes[l].current;
		lane->begins = 0;
	}
	for (uint32_t t = lane->first; t < b->n && b->tokens[t].lane == l; t++)
		if (keep[t] != UINT32_MAX && b->tokens[t].before == at && upto(rig, 4)) {
			struct state_token *then = rig_row(rig, &b->tokens_then, t);

			if (b->r.n_accepted == first)
				then->before = -1;
			accepted[b->r.n_accepted++] = last = t;
			at = (int32_t)t;
		}
	lane->n_accepted = b->r.n_accepted - first;
	if (lane->n_accepted == 0)
		return;
	((struct state_token *)rig_row(rig, &b->tokens_then, last))->writes_window = 1;
	lanes[b->r.n_lanes++] = l;
}

static void make_replay(struct rig *rig, struct batch *b, const uint32_t *keep)
{
	uint32_t *accepted;

	b->tokens_then = rig_rows(rig, b->n, sizeof(struct state_token));
	b->lanes_then = rig_place(rig, sizeof(b->lanes));
	b->r.lanes = rig_place(rig, LANES * sizeof(uint32_t));
	b->r.accepted = rig_place(rig, TOKENS * sizeof(uint32_t));
	accepted = rig_at(rig, b->r.accepted);
	for (uint32_t t = 0; t < b->n; t++) {
		struct state_token *then = rig_row(rig, &b->tokens_then, t);

		*then = b->tokens[t];
		then->writes_window = 0;
	}
	for (uint32_t l = 0; l < b->s.n_lanes; l++)
		accept_lane(rig, b, l, keep, accepted);
	b->r.delta = b->s;
	b->r.delta.tokens = b->tokens_then;
	b->r.delta.lanes = b->lanes_then;
}

static void make_lanes(struct rig *rig, struct batch *b, uint32_t round, size_t state_bytes)
{
	struct step_delta *s = &b->s;
	uint32_t *keep = rig_keep(rig, TOKENS * sizeof(*keep));

	s->n_lanes = 1 + upto(rig, LANES);
	for (uint32_t l = 0; l < s->n_lanes; l++) {
		uint32_t certain = round % 4 == 3 && l == 0 ? 66 : upto(rig, 4);
		uint32_t drafts = upto(rig, 6);

		make_lane(rig, b, l, certain, certain + drafts ? drafts : 1, keep, state_bytes);
	}
	s->tokens = rig_rows(rig, b->n, sizeof(struct state_token));
	for (uint32_t t = 0; t < b->n; t++)
		memcpy(rig_row(rig, &s->tokens, t), &b->tokens[t], sizeof(b->tokens[t]));
	s->lanes = rig_place(rig, sizeof(b->lanes));
	memcpy(rig_at(rig, s->lanes), b->lanes, sizeof(b->lanes));
	s->keep = rig_place(rig, b->n * sizeof(*keep));
	memcpy(rig_at(rig, s->keep), keep, b->n * sizeof(*keep));
}

static void make_values(struct rig *rig, struct batch *b, bool mixed, bool ba)
{
	struct step_delta *s = &b->s;
	uint32_t channels = delta_channels(s->n_k_heads, s->d_k, s->n_v_heads, s->d_v);
	uint32_t K = s->n_k_heads * s->d_k, V = s->n_v_heads * s->d_v, n = b->n;

	s->conv = (struct place){&rig->memory, rig_floats(rig, 1, s->taps * channels, 1).offset};
	s->a = rig_vector(rig, s->n_v_heads, 3);
	s->dt = rig_vector(rig, s->n_v_heads, 25);
	s->norm = rig_vector(rig, s->d_v, 2);
	s->eps = 1e-6f;
	s->q_scale = 1 / sqrtf((float)s->d_k);
	s->in = rig_floats(rig, n, channels + 2 * s->n_v_heads, 2);
	s->kept = rig_floats(rig, b->n_kept + 1, channels + 2 * s->n_v_heads, 2);
	if (mixed)
		s->mixed = rig_floats(rig, n, 2 * K + 2 * V, 2);
	if (ba)
		s->ba = rig_floats(rig, n, 2 * s->n_v_heads, 4);
	s->alpha_beta = rig_floats(rig, n, 2 * s->n_v_heads, 4);
	rig_ignore(rig, &s->alpha_beta, 2 * s->n_v_heads * sizeof(float));
	s->z = rig_floats(rig, n, V, 3);
	s->qkv = rig_rows(rig, n, channels * sizeof(float));
	s->out = rig_rows(rig, n, V * sizeof(float));
	if (V % Q8_BLOCK == 0)
		s->out_q8 = rig_q8_rows(rig, n, V);
}

static void check_batch(struct rig *rig, uint32_t round)
{
	static const uint32_t dims[] = {16, 64, 33, 128, 100, 256, D_K, 7};
	struct batch *b = rig_keep(rig, sizeof(*b));
	char what[160];

	*b = (struct batch){.n = 0};
	struct step_delta *s = &b->s;
	s->n_k_heads = 1 + upto(rig, 3);
	s->n_v_heads = s->n_k_heads * (1 + upto(rig, 3));
	s->d_k = dims[round % 8];
	s->d_v = upto(rig, 2) ? 32 * (1 + upto(rig, 2)) : 8 * (1 + upto(rig, 5));
	s->taps = 1 + upto(rig, 5);
	s->tiled = upto(rig, 2);
	uint32_t channels = delta_channels(s->n_k_heads, s->d_k, s->n_v_heads, s->d_v);
	s->window_floats = (s->taps - 1) * channels + upto(rig, 3);
	size_t floats = s->window_floats + (size_t)s->n_v_heads * s->d_k * s->d_v;
	s->states = (struct place){
		&rig->memory, rig_floats(rig, 1, (uint32_t)(2 * LANES * floats), 1).offset};
	make_lanes(rig, b, round, floats * sizeof(float));
	make_values(rig, b, !s->tiled && upto(rig, 2), upto(rig, 2));
	make_replay(rig, b, rig_at(rig, s->keep));
	snprintf(what, sizeof(what),
		"round %u, %u and %u heads of %u and %u, %u taps, %u lanes, %u tokens, %u drafts",
		round, s->n_k_heads, s->n_v_heads, s->d_k, s->d_v, s->taps, s->n_lanes, b->n,
		b->n_kept);
	rig_check(rig, what, run_delta, b);
	rig_clear(rig);
}

static uint32_t number_of(const char *name, uint32_t otherwise)
{
	const char *text = getenv(name);

	return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static void delta_nets_and_their_replay_are_the_cpus(void **state)
{
	const struct queue_limits limits = {.products = 1,
		.pairs = 1,
		.delta_channels = CHANNELS,
		.delta_d_k = D_K,
		.delta_drafts = DRAFTS};
	uint32_t rounds = number_of("OUTRIDER_TEST_ROUNDS", 24);
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, number_of("OUTRIDER_TEST_SEED", 1));
	for (uint32_t i = 0; i < rounds; i++)
		check_batch(&rig, i);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(delta_nets_and_their_replay_are_the_cpus),
	};

	return cmocka_run_group_tests_name("gpu delta", tests, NULL, NULL);
}
