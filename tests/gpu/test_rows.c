/* The steps embed and norm on the emulated GPU, against the scalar CPU. */
#include "tests/gpu/rig.h"

RIG_STEP(norm)
RIG_STEP(embed)

static const uint32_t widths[] = {1, 15, 16, 17, 32, 64, 96, 256, 257, 320, 1000, 2080};

/* All parts of the step, present or not, as the bits of `parts` say. */
static void check_norm(struct rig *rig, uint32_t width, uint32_t n, uint32_t parts)
{
	struct step_norm step = {.width = width, .eps = 1e-5f};
	char what[96];

	step.x = rig_floats(rig, n, width, 3);
	if (parts & 1)
		step.add = rig_floats(rig, n, width, 3);
	if (parts & 2)
		step.add_bias = rig_vector(rig, width, 1);
	if (parts & 4)
		step.w = rig_vector(rig, width, 1);
	if ((parts & 12) == 12)
		step.bias = rig_vector(rig, width, 1);
	if (parts & 4)
		step.y = parts & 16 ? step.x : rig_rows(rig, n, width * sizeof(float));
	if (parts & 32 && width % Q8_BLOCK == 0)
		step.y_q8 = rig_q8_rows(rig, n, width);
	snprintf(what, sizeof(what), "norm of %u rows of %u, parts %u", n, width, parts);
	rig_check(rig, what, run_norm, &step);
	rig_clear(rig);
}

static void norms_are_the_cpus(void **state)
{
	const struct queue_limits limits = {.products = 1, .pairs = 1};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 1);
	for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
		for (uint32_t parts = 0; parts < 64; parts++)
			check_norm(&rig, widths[i], 1 + rig_random(&rig) % 3, parts);
	check_norm(&rig, 64, 70, 4 + 32);
	rig_close(&rig);
}

static void odd_values_go_through_norms(void **state)
{
	const struct queue_limits limits = {.products = 1, .pairs = 1};
	const uint32_t odd[] = {0, 0x80000000, 1, 0x7f800000, 0xff800000, 0x7fc00000, 0x00800000,
		0x08000000, 0x7f7fffff};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 2);
	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		struct step_norm step = {.width = 64, .eps = 1e-5f};

		step.x = rig_floats(&rig, 2, 64, 1e-30f);
		for (uint32_t k = 0; k < 64; k++)
			if (k == 5 || i == 0)
				memcpy((float *)rig_row(&rig, &step.x, 1) + k, &odd[i], 4);
		step.y_q8 = rig_q8_rows(&rig, 2, 64);
		rig_check(&rig, "quantised rows with an odd value", run_norm, &step);
		step.w = rig_vector(&rig, 64, 1);
		step.y = rig_rows(&rig, 2, 64 * sizeof(float));
		rig_check(&rig, "normed rows with an odd value", run_norm, &step);
		rig_clear(&rig);
	}
	rig_close(&rig);
}

static void check_embed(struct rig *rig, enum tensor_type type, uint32_t n, uint32_t n_rot)
{
	enum { VOCAB = 37 };
	struct step_embed step = {.n_rot = n_rot, .magnitude = 1.25};
	const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
	uint32_t cols = info->block_weights >= 32 ? 2 * info->block_weights : 70;
	double *frequency = rig_keep(rig, (n_rot + 2) * sizeof(*frequency));
	char what[96];

	for (uint32_t i = 0; i < n_rot / 2; i++)
		frequency[i] = 1.0 / (1 << i % 16);
	step.frequency = frequency;
	step.tokens = rig_rows(rig, n, sizeof(struct step_token));
	for (uint32_t t = 0; t < n; t++)
		*(struct step_token *)rig_row(rig, &step.tokens, t) =
			(struct step_token){.id = t == 0 ? VOCAB - 1 : rig_random(rig) % VOCAB,
				.position = rig_random(rig) % 100000};
	step.table = rig_matrix(rig, type, VOCAB, cols, n % 2 ? LAYOUT_TILES : LAYOUT_ROWS);
	step.table.scaled = n % 3 == 0;
	step.table.scale = 0.7f;
	step.x = rig_rows(rig, n, cols * sizeof(float));
	step.cos_sin = rig_rows(rig, n, n_rot * sizeof(float));
	snprintf(what, sizeof(what), "embed of %u tokens, %s, %u values rotated", n, info->name,
		n_rot);
	rig_check(rig, what, run_embed, &step);
	rig_clear(rig);
}

static void embeddings_are_the_cpus(void **state)
{
	const struct queue_limits limits = {.products = 1, .pairs = 1};
	struct rig rig;

	(void)state;
	rig_open(&rig, &limits, 3);
	for (size_t i = 0; i < RIG_TYPES; i++)
		for (uint32_t n = 1; n <= 4; n++)
			check_embed(&rig, rig_types[i], n, 64 * (n % 3));
	check_embed(&rig, TENSOR_F32, 70, 6);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(norms_are_the_cpus),
		cmocka_unit_test(odd_values_go_through_norms),
		cmocka_unit_test(embeddings_are_the_cpus),
	};

	return cmocka_run_group_tests_name("gpu rows", tests, NULL, NULL);
}
