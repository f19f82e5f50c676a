/* The steps of gated adapters on the emulated GPU, against the scalar CPU: additions to products, the
 * sampler's norm, and the embeddings of masks. */
#include "tests/gpu/rig.h"

RIG_STEP(adapt)
RIG_STEP(silu_norm)
RIG_STEP(embed)

enum { ROWS = 80, RANK = 256, ADDITIONS = 4 };
static const struct queue_limits limits = {
	.products = STEP_NEXT, .pairs = ADDITIONS * ROWS, .adapt_rank = RANK};

static uint32_t below(struct rig *rig, uint32_t n)
{
	return rig_random(rig) % n;
}

/* n_of additions to products of `n` rows, of which some take them. */
static void check_adapt(struct rig *rig, uint32_t n_of, uint32_t n, uint32_t rank)
{
	struct step_adapt_one of[ADDITIONS];
	struct step_adapt step = {.of = of, .n = n_of};
	uint32_t which[ROWS] = {0}, n_which = 0;
	char what[96];

	for (uint32_t t = 0; t < n; t++)
		if (below(rig, 3) > 0)
			which[n_which++] = t;
	step.which = (struct rows){&rig->memory, rig_place(rig, ROWS * sizeof(*which)).offset,
		sizeof(*which), n_which};
	memcpy(rig_row(rig, &step.which, 0), which, n_which * sizeof(*which));
	for (uint32_t i = 0; i < n_of; i++) {
		uint32_t inputs = 1 + below(rig, 300), outputs = 1 + below(rig, 150);

		of[i].w = rig_low_rank(rig, rig_types[i % 3], outputs, inputs,
			i == 0 ? rank : 1 + below(rig, rank));
		of[i].x = rig_floats(rig, n, inputs, 2);
		of[i].y = rig_floats(rig, n, outputs, 2);
	}
	snprintf(what, sizeof(what), "%u additions to %u of %u rows, rank %u", n_of, n_which, n,
		rank);
	rig_check(rig, what, run_adapt, &step);
	rig_clear(rig);
}

static void additions_to_products_are_the_cpus(void **state)
{
	static const uint32_t ranks[] = {1, 4, 15, 16, 17, 64, RANK};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 1);
	for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
		for (uint32_t n = 1; n < ROWS; n += 1 + 7 * n)
			check_adapt(&rig, 1 + below(&rig, ADDITIONS), n, ranks[i]);
	rig_close(&rig);
}

static void check_silu_norm(struct rig *rig, uint32_t width, uint32_t n, uint32_t parts)
{
	struct step_silu_norm step = {.width = width, .eps = 1e-6f, .skip = 0.7f};
	char what[96];

	step.y = rig_floats(rig, n, width, 4);
	step.w = rig_vector(rig, width, 1);
	if (parts & 1)
		step.add = rig_floats(rig, n, width, 3);
	if (parts & 2)
		step.z = rig_floats(rig, n, width, 3);
	step.out = rig_rows(rig, n, width * sizeof(float));
	snprintf(what, sizeof(what), "silu_norm of %u rows of %u, parts %u", n, width, parts);
	rig_check(rig, what, run_silu_norm, &step);
	rig_clear(rig);
}

static void norms_of_the_sampler_are_the_cpus(void **state)
{
	static const uint32_t widths[] = {1, 17, 64, 256, 257, 1000};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 2);
	for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
		for (uint32_t parts = 0; parts < 4; parts++)
			check_silu_norm(&rig, widths[i], 1 + below(&rig, 4), parts);
	rig_close(&rig);
}

/* Tokens and masks. shared: all masks have the same embedding. */
static void check_masks(struct rig *rig, enum tensor_type type, bool shared)
{
	enum { VOCAB = 37, MASKS = 3, TOKENS = 9 };
	const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
	uint32_t cols = info->block_weights >= 32 ? info->block_weights : 70;
	struct step_embed step = {.magnitude = 1};
	char what[96];

	step.tokens = rig_rows(rig, TOKENS, sizeof(struct step_token));
	for (uint32_t t = 0; t < TOKENS; t++)
		*(struct step_token *)rig_row(rig, &step.tokens, t) =
			(struct step_token){.id = t % 2 ? VOCAB + t / 2 % MASKS : VOCAB - 1 - t};
	step.table = rig_matrix(rig, type, VOCAB, cols, LAYOUT_TILES);
	step.masks = rig_vector(rig, (size_t)MASKS * cols, 2);
	step.mask_stride = shared ? 0 : cols;
	step.x = rig_rows(rig, TOKENS, cols * sizeof(float));
	snprintf(what, sizeof(what), "masks in a table of %s, shared %d", info->name, shared);
	rig_check(rig, what, run_embed, &step);
	rig_clear(rig);
}

static void embeddings_of_masks_are_the_cpus(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 3);
	for (size_t i = 0; i < RIG_TYPES; i++)
		check_masks(&rig, rig_types[i], i % 2);
	check_masks(&rig, TENSOR_F32, true);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(additions_to_products_are_the_cpus),
		cmocka_unit_test(norms_of_the_sampler_are_the_cpus),
		cmocka_unit_test(embeddings_of_masks_are_the_cpus),
	};

	return cmocka_run_group_tests_name("gpu adapters", tests, NULL, NULL);
}
