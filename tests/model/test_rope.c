/* The frequencies of rope under every scaling, against the formulas of their papers and modelling code with libm. */
#include "shared/model/pass/forward_internal.h"
#include "tests/model/rig.h"

#include <math.h>

#define PAIRS 32

struct fixture {
	struct arch arch;
	struct model model;
	struct forward f;
	double frequency[PAIRS];
};

static void set_up(struct fixture *x, enum rope_scaling scaling, uint32_t n_context)
{
	memset(x, 0, sizeof(*x));
	x->model.config.arch = &x->arch;
	x->model.config.n_rot = 2 * PAIRS;
	x->model.config.rope = (struct rope_config){.scaling = scaling,
		.base = 150000,
		.factor = 1,
		.original_context = 4096,
		.beta_fast = 32,
		.beta_slow = 1,
		.attn_factor = 1};
	x->f.model = &x->model;
	x->f.limits.n_context = n_context;
	x->f.frequency = x->frequency;
}

static void assert_near(double got, double expected)
{
	if (!(fabs(got - expected) <= 1e-11 * fabs(expected)))
		fail_msg("%.17g instead of %.17g", got, expected);
}

static double plain(const struct fixture *x, uint32_t i)
{
	return pow(x->model.config.rope.base, -(double)i / PAIRS);
}

static void linear_scaling_divides(void **state)
{
	struct fixture x;
	float factors[PAIRS];
	(void)state;
	set_up(&x, ROPE_LINEAR, 100);
	x.model.config.rope.factor = 4;
	for (uint32_t i = 0; i < PAIRS; i++)
		factors[i] = 1 + (float)i / 4;
	for (int llama3 = 0; llama3 < 2; llama3++) {
		x.model.config.rope.factors = llama3 ? factors : NULL;
		forward_rope_init(&x.f);
		assert_true(x.f.rope_magnitude == 1);
		for (uint32_t i = 0; i < PAIRS; i++)
			assert_near(x.frequency[i],
				plain(&x, i) / 4 / (llama3 ? (double)factors[i] : 1));
	}
}

static void yarn_interpolates_what_turns_seldom(void **state)
{
	struct fixture x;
	(void)state;
	for (int exact = 0; exact < 2; exact++) {
		const double n = 2 * PAIRS, base = 150000;
		double low = n * log(4096 / (32 * 2 * M_PI)) / (2 * log(base));
		double high = n * log(4096 / (1 * 2 * M_PI)) / (2 * log(base));
		uint32_t kept = 0, scaled = 0;
		set_up(&x, ROPE_YARN, 100);
		x.arch.yarn_exact = exact;
		x.model.config.rope.factor = 8;
		x.model.config.rope.attn_factor = 1.5;
		if (!exact) {
			low = floor(low);
			high = ceil(high);
		}
		forward_rope_init(&x.f);
		assert_near(x.f.rope_magnitude, 1.5 * (1 + 0.1 * log(8)));
		for (uint32_t i = 0; i < PAIRS; i++) {
			double ramp = fmin(1, fmax(0, (i - low) / (high - low)));
			assert_near(x.frequency[i],
				plain(&x, i) * (1 - ramp) + plain(&x, i) / 8 * ramp);
			kept += ramp == 0;
			scaled += ramp == 1;
		}
		assert_true(kept > 3 && scaled > 3 && kept + scaled < PAIRS);
		/* DeepSeek's log multiplier: the scores are scaled, not sine and cosine. */
		x.model.config.rope.yarn_log_multiplier = 0.0707;
		forward_rope_init(&x.f);
		assert_true(x.f.rope_magnitude == 1.5);
		/* A temperature of the file's own takes the place of the paper's. */
		x.model.config.rope.yarn_attn_factor = 0.75;
		forward_rope_init(&x.f);
		assert_true(x.f.rope_magnitude == 1.5 * 0.75);
	}
}

static void longrope_factors_follow_the_context(void **state)
{
	struct fixture x;
	float factors_short[PAIRS], factors_long[PAIRS];
	(void)state;
	for (uint32_t i = 0; i < PAIRS; i++) {
		factors_short[i] = 1 + (float)i / 8;
		factors_long[i] = 2 + (float)i;
	}
	for (uint32_t n_context = 4095; n_context <= 4097; n_context++) {
		const float *used = n_context > 4096 ? factors_long : factors_short;
		set_up(&x, ROPE_LONG, n_context);
		x.model.config.rope.factors_short = factors_short;
		x.model.config.rope.factors_long = factors_long;
		x.model.config.rope.attn_factor = 1.25;
		forward_rope_init(&x.f);
		assert_true(x.f.rope_magnitude == 1.25);
		for (uint32_t i = 0; i < PAIRS; i++)
			assert_near(x.frequency[i], plain(&x, i) / (double)used[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(linear_scaling_divides),
		cmocka_unit_test(yarn_interpolates_what_turns_seldom),
		cmocka_unit_test(longrope_factors_follow_the_context),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
