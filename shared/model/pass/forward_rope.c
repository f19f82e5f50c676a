/* The frequencies of rope, and what scaling does to them. Computed once, in double and without
 * libm. */
#include "shared/model/pass/forward_internal.h"

#include "kernels/kernels.h"

#define EULER 2.718281828459045
#define TWO_PI 6.283185307179586

/* kernels_log is within 2^-24 of ln x; one step of Newton's method squares that. */
static double natural_log(double x)
{
	double y = (double)kernels_log((float)x);
	return y + (x * kernels_pow(EULER, -y) - 1);
}

static double round_down(double x)
{
	double whole = (double)(int64_t)x;
	return whole > x ? whole - 1 : whole;
}

/* The (fractional) index of the pair that turns `rotations` times in the original context (YaRN,
 * arXiv 2309.00071, eq. 17 with its r, solved for d). */
static double pair_turning(const struct rope_config *rope, uint32_t n_rot, double rotations)
{
	return n_rot * natural_log(rope->original_context / (rotations * TWO_PI)) /
	       (2 * natural_log(rope->base));
}

/* YaRN, section 3.2: pairs that turn often keep their frequency, those that hardly turn are
 * interpolated, with a ramp in between. Ranges outside the pairs are limited as in the models' own
 * code. */
static void apply_yarn(struct forward *f, const struct rope_config *rope)
{
	uint32_t n_rot = f->model->config.n_rot;
	double low = pair_turning(rope, n_rot, rope->beta_fast);
	double high = pair_turning(rope, n_rot, rope->beta_slow);
	if (!f->model->config.arch->yarn_exact) {
		low = round_down(low);
		high = -round_down(-high);
	}
	low = low < 0 ? 0 : low;
	high = high > n_rot - 1 ? n_rot - 1 : high;
	if (low == high)
		high += 0.001;
	for (uint32_t i = 0; i < n_rot / 2; i++) {
		double ramp = (i - low) / (high - low);
		ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
		f->frequency[i] =
			f->frequency[i] / rope->factor * ramp + f->frequency[i] * (1 - ramp);
	}
	/* The temperature of section 3.4, 1 + 0.1 ln(factor), or the file's own. If the file has a
	 * log multiplier, the scale of the scores includes it instead. */
	if (rope->yarn_attn_factor > 0)
		f->rope_magnitude *= rope->yarn_attn_factor;
	else if (rope->factor > 1 && rope->yarn_log_multiplier == 0)
		f->rope_magnitude *= 1 + 0.1 * natural_log(rope->factor);
}

/* theta_i = base^(-2i / n_rot), divided by the file's factors (llama3, longrope), and scaled. */
void forward_rope_init(struct forward *f)
{
	const struct model_config *config = &f->model->config;
	const struct rope_config *rope = &config->rope;
	const float *by_context = f->limits.n_context > rope->original_context
					  ? rope->factors_long
					  : rope->factors_short;
	for (uint32_t i = 0; i < config->n_rot / 2; i++) {
		f->frequency[i] = kernels_pow(rope->base, -2.0 * (double)i / (double)config->n_rot);
		if (rope->factors)
			f->frequency[i] /= (double)rope->factors[i];
		if (rope->scaling == ROPE_LONG)
			f->frequency[i] /= (double)by_context[i];
		if (rope->scaling == ROPE_LINEAR)
			f->frequency[i] /= rope->factor;
	}
	f->rope_magnitude = rope->attn_factor;
	if (rope->scaling == ROPE_YARN)
		apply_yarn(f, rope);
}
