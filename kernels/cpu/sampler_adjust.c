/* From a row of logits to z: biases, penalties, forbidden tokens, temperature. */
#include "kernels/cpu/sampler_internal.h"

#include <math.h>

static void change(void *arg, enum sampler_change what, uint32_t token, float operand)
{
	struct sampler *sampler = arg;
	sampler->logits[token] = sampler_changed(what, sampler->logits[token], operand);
}

/* Most words are all zeros or all ones. */
static void forbid(struct sampler *sampler, const uint64_t *allowed)
{
	for (uint32_t at = 0; at < sampler->n_vocab; at += 64) {
		uint32_t n = sampler->n_vocab - at < 64 ? sampler->n_vocab - at : 64;
		uint64_t word = allowed[at / 64];
		for (uint32_t i = 0; i < n && word != UINT64_MAX; i++)
			if ((word >> i & 1) == 0)
				sampler->logits[at + i] = -INFINITY;
	}
}

/* The first of the largest; 0 when all are -inf. */
static uint32_t first_greatest(const float *x, uint32_t n)
{
	uint32_t best = 0;
	for (uint32_t i = 1; i < n; i++)
		if (x[i] > x[best])
			best = i;
	return best;
}

uint32_t sampler_greatest(const struct sampler *sampler)
{
	uint32_t at =
		first_greatest(sampler->most, sampler_chunks(sampler->n_vocab)) * SAMPLE_CHUNK;
	uint32_t left = sampler->n_vocab - at;
	return at + first_greatest(sampler->logits + at, left < SAMPLE_CHUNK ? left : SAMPLE_CHUNK);
}

uint32_t sampler_adjust(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input, float divisor, bool *finite)
{
	const struct kernels *kernels = sampler->kernels;
	uint32_t n = sampler->n_vocab;
	if (sampler_adjusts_nothing(params, input)) {
		*finite = kernels->scale_logits(
			input->logits, n, divisor, sampler->logits, sampler->most);
	} else {
		*finite =
			kernels->scale_logits(input->logits, n, 1, sampler->logits, sampler->most);
		sampler_changes(&sampler->marks, params, input, change, sampler);
		if (input->allowed)
			forbid(sampler, input->allowed);
		kernels->scale_logits(sampler->logits, n, divisor, sampler->logits, sampler->most);
	}
	return sampler_greatest(sampler);
}
