/* The 8-bit copies of routers: they rank experts as the routers do, and whatever the weights are, what is chosen is in range. */
#include "kernels/cpu/steps/backend_cpu.h"
#include "shared/model/pass/moe_router.h"
#include "shared/model/arch/router_copies.h"
#include "tests/model/rig.h"

#include <math.h>

/* A layer of Qwen3-30B-A3B. */
enum { EXPERTS = 128, USED = 8, EMBD = 2048, LAYERS = 3, STATES = 64 };

struct fixture {
	struct arch arch;
	struct layer layer[LAYERS]; /* the second without experts, the third quantised */
	struct model model;
	float *weights, *state; /* [EXPERTS][EMBD], [EMBD] */
	unsigned char *blocks; /* of the third */
	struct backend *backend;
	struct queue *q;
	struct buffer buffer; /* of state */
	struct router_copies copies;
	struct moe_router plain, coarse;
	uint64_t seed;
};

/* About normal, of deviation 1. */
static float normal(struct fixture *f)
{
	float sum = 0;
	for (int i = 0; i < 4; i++)
		sum += (float)(rig_random(&f->seed) >> 40) / (1 << 24) - 0.5f;
	return sum * 1.7320508f;
}

static void set_up(struct fixture *f)
{
	struct error err = {""};
	memset(f, 0, sizeof(*f));
	f->seed = 7;
	f->model.config = (struct model_config){.arch = &f->arch,
		.n_layers = LAYERS,
		.n_embd = EMBD,
		.n_experts = EXPERTS,
		.n_experts_used = USED,
		.routing = {
			.gating = GATING_SOFTMAX, .scale = 1, .n_groups = 1, .n_groups_used = 1}};
	f->model.layers = f->layer;
	f->weights = calloc((size_t)EXPERTS * EMBD, sizeof(*f->weights));
	f->state = calloc(EMBD, sizeof(*f->state));
	f->blocks = calloc(EXPERTS, kv_vector_bytes(KV_Q8_0, EMBD));
	for (size_t i = 0; i < (size_t)EXPERTS * EMBD; i++)
		f->weights[i] = 0.02f * normal(f);
	f->layer[0].moe = f->layer[2].moe = true;
	f->layer[0].router = (struct matrix){.type = TENSOR_F32,
		.rows = EXPERTS,
		.cols = EMBD,
		.row_bytes = EMBD * sizeof(float),
		.data = f->weights};
	f->layer[2].router = (struct matrix){.type = TENSOR_Q8_0,
		.rows = EXPERTS,
		.cols = EMBD,
		.row_bytes = kv_vector_bytes(KV_Q8_0, EMBD),
		.data = f->blocks};
	const struct backend_cpu_options options = {
		.kernels = kernels_select(NULL, &err), .threads = 1};
	const struct queue_limits limits = {.products = 1, .pairs = 1, .n_experts = EXPERTS};
	assert_int_equal(backend_cpu_create(&options, &f->backend, &err), 0);
	const struct backend_ops *ops = f->backend->ops;
	assert_int_equal(ops->queue(f->backend, &limits, &f->q, &err), 0);
	assert_int_equal(
		ops->wrap(f->backend, f->state, EMBD * sizeof(float), &f->buffer, &err), 0);
	assert_int_equal(moe_router_init(&f->plain, &f->model, f->backend, 1, &err), 0);
	assert_int_equal(moe_router_init(&f->coarse, &f->model, f->backend, 1, &err), 0);
	f->plain.q = f->coarse.q = f->q;
}

static struct rows state_rows(const struct fixture *f)
{
	return (struct rows){&f->buffer, 0, EMBD * sizeof(float), 1};
}

static void copy(struct fixture *f)
{
	struct error err = {""};
	assert_int_equal(router_copies_init(&f->copies, &f->model, f->backend, &err), 0);
	f->coarse.matrix = f->copies.matrix;
}

static void tear_down(struct fixture *f)
{
	moe_router_exit(&f->plain);
	moe_router_exit(&f->coarse);
	router_copies_exit(&f->copies);
	f->backend->ops->queue_free(f->q);
	f->backend->ops->destroy(f->backend);
	free(f->weights);
	free(f->state);
	free(f->blocks);
}

static void draw_state(struct fixture *f)
{
	for (uint32_t i = 0; i < EMBD; i++)
		f->state[i] = normal(f);
}

static bool chosen(const struct moe_router *router, uint32_t expert)
{
	for (uint32_t j = 0; j < USED; j++)
		if (router->chosen[j] == expert)
			return true;
	return false;
}

static void copies_choose_as_their_routers(void **state)
{
	struct fixture f;
	uint32_t found = 0;
	(void)state;
	set_up(&f);
	copy(&f);
	for (int s = 0; s < STATES; s++) {
		const struct rows hidden = state_rows(&f);
		draw_state(&f);
		moe_router_run(&f.plain, 0, &hidden);
		moe_router_run(&f.coarse, 0, &hidden);
		for (uint32_t j = 0; j < USED; j++)
			found += chosen(&f.coarse, f.plain.chosen[j]);
		/* What is foreseen most surely is never lost: the first choice is among those of the copy. */
		assert_true(chosen(&f.coarse, f.plain.chosen[0]));
	}
	assert_true(found > STATES * USED * 97 / 100);
	tear_down(&f);
}

static void a_copy_takes_little_and_what_is_quantised_none(void **state)
{
	struct fixture f;
	(void)state;
	set_up(&f);
	copy(&f);
	assert_int_equal(f.copies.bytes, EXPERTS * EMBD / 32 * 34);
	assert_int_equal(router_copies_bytes(&f.model), f.copies.bytes);
	assert_int_equal(f.copies.matrix[0].type, TENSOR_Q8_0);
	assert_null(f.copies.matrix[1].data);
	assert_ptr_equal(f.copies.matrix[2].data, f.blocks);
	tear_down(&f);
}

static void slices_give_what_the_whole_does(void **state)
{
	static const size_t slices[] = {1, 4096, 40000, 1 << 30};
	struct fixture f;
	(void)state;
	set_up(&f);
	copy(&f);
	const struct rows hidden = state_rows(&f);
	draw_state(&f);
	moe_router_run(&f.coarse, 0, &hidden);
	uint16_t whole[USED];
	float weights[USED];
	memcpy(whole, f.coarse.chosen, sizeof(whole));
	memcpy(weights, f.coarse.weights, sizeof(weights));
	for (size_t i = 0; i < sizeof(slices) / sizeof(slices[0]); i++) {
		uint32_t n = 1;
		memset(f.coarse.chosen, 0, sizeof(whole));
		moe_router_begin(&f.coarse, 0, &hidden);
		while (!moe_router_some(&f.coarse, slices[i]))
			n++;
		assert_memory_equal(f.coarse.chosen, whole, sizeof(whole));
		assert_memory_equal(f.coarse.weights, weights, sizeof(weights));
		assert_int_equal(n == 1, slices[i] == 1 << 30);
	}
	tear_down(&f);
}

/* Weights that a file may hold, and no router should. */
static const float odd[] = {INFINITY, -INFINITY, NAN, 3e38f, 1e-42f, 0};
enum { ODD = sizeof(odd) / sizeof(odd[0]) };

static void assert_distinct_experts_are_chosen(struct fixture *f)
{
	const struct rows hidden = state_rows(f);
	bool seen[EXPERTS] = {false};
	moe_router_run(&f->coarse, 0, &hidden);
	for (uint32_t j = 0; j < USED; j++) {
		assert_in_range(f->coarse.chosen[j], 0, EXPERTS - 1);
		assert_false(seen[f->coarse.chosen[j]]);
		seen[f->coarse.chosen[j]] = true;
	}
}

static void odd_weights_choose_distinct_experts_in_range(void **state)
{
	struct fixture f;
	(void)state;
	set_up(&f);
	for (size_t i = 0; i < (size_t)EXPERTS * EMBD; i += 37)
		f.weights[i] = odd[i % ODD];
	copy(&f);
	for (int s = 0; s < STATES; s++) {
		draw_state(&f);
		f.state[s] = odd[s % ODD];
		assert_distinct_experts_are_chosen(&f);
	}
	tear_down(&f);
}

/* Of one odd value, of two in turn, and all rows so. */
static void odd_rows_choose_distinct_experts_in_range(void **state)
{
	static const uint32_t rows[] = {1, 7, EXPERTS};
	(void)state;
	for (size_t i = 0; i < ODD * ODD * 3; i++) {
		struct fixture f;
		set_up(&f);
		for (size_t w = 0; w < (size_t)rows[i / ODD / ODD] * EMBD; w++)
			f.weights[w] = odd[(w % 2 ? i : i / ODD) % ODD];
		copy(&f);
		draw_state(&f);
		assert_distinct_experts_are_chosen(&f);
		tear_down(&f);
	}
}

/* The loader refuses them; nothing is read of them or held for them here either. Once they are lies, once the keys say the
 * same of more experts than there may be. */
static void a_router_of_another_shape_than_the_models_is_not_copied(void **state)
{
	static const struct {
		uint32_t rows, cols;
	} shapes[] = {{EXPERTS, 0}, {0, EMBD}, {0, 0}, {EXPERTS, EMBD - Q8_BLOCK},
		{EXPERTS, EMBD + Q8_BLOCK}, {EXPERTS + 1, EMBD}, {UINT32_MAX, EMBD},
		{EXPERTS, UINT32_MAX - 31}, {UINT32_MAX, UINT32_MAX - 31}};
	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int agrees = 0; agrees < 2; agrees++) {
			struct fixture f;
			set_up(&f);
			f.layer[0].router.rows = shapes[i].rows;
			f.layer[0].router.cols = shapes[i].cols;
			if (agrees && shapes[i].rows > LIMIT_EXPERTS)
				f.model.config.n_experts = shapes[i].rows;
			copy(&f);
			assert_int_equal(router_copies_bytes(&f.model), 0);
			assert_int_equal(f.copies.bytes, 0);
			assert_ptr_equal(f.copies.matrix[0].data, f.weights);
			tear_down(&f);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_choose_as_their_routers),
		cmocka_unit_test(a_copy_takes_little_and_what_is_quantised_none),
		cmocka_unit_test(slices_give_what_the_whole_does),
		cmocka_unit_test(odd_weights_choose_distinct_experts_in_range),
		cmocka_unit_test(odd_rows_choose_distinct_experts_in_range),
		cmocka_unit_test(a_router_of_another_shape_than_the_models_is_not_copied),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
