/* Log probabilities in the model's own distribution. */
#include "kernels/cpu/sampler_internal.h"

#include <assert.h>

/* Whether a token enters a row's list of the likeliest: the list is not full, or its last entry is
 * less likely. */
static bool enters(const struct token_logprob *top, uint32_t n, uint32_t n_top, float x)
{
	return n < n_top || x > top[n_top - 1].logprob;
}

/* Puts a token behind those that are as likely, so that these come by rising id. Returns the number
 * of entries. */
static uint32_t enter(struct token_logprob *top, uint32_t n, uint32_t n_top, int32_t token, float x)
{
	uint32_t at = n < n_top ? n : n_top - 1;
	for (; at > 0 && top[at - 1].logprob < x; at--)
		top[at] = top[at - 1];
	top[at] = (struct token_logprob){token, x};
	return n < n_top ? n + 1 : n;
}

/* Fills top with the likeliest tokens, for the time being with their logits. */
static uint32_t find_top(const struct sampler *sampler, struct token_logprob *top, uint32_t n_top)
{
	uint32_t n = 0;
	for (uint32_t c = 0; c < sampler_chunks(sampler->n_vocab) && n_top > 0; c++) {
		uint32_t first = c * SAMPLE_CHUNK, left = sampler->n_vocab - first;
		if (!enters(top, n, n_top, sampler->most[c]))
			continue;
		for (uint32_t i = 0; i < SAMPLE_CHUNK && i < left; i++) {
			float x = sampler->logits[first + i];
			if (enters(top, n, n_top, x))
				n = enter(top, n, n_top, (int32_t)(first + i), x);
		}
	}
	return n;
}

float sampler_logprob(float logit, double log_sum)
{
	return sampler_logprob_of(logit, log_sum);
}

double sampler_score(
	struct sampler *sampler, const float *logits, struct token_logprob *top, uint32_t n_top)
{
	assert(n_top <= sampler->n_vocab);
	sampler->kernels->scale_logits(logits, sampler->n_vocab, 1, sampler->logits, sampler->most);
	float z_max = sampler->logits[sampler_greatest(sampler)];
	double log_sum = (double)z_max + sampler_log(sampler_exp_sum(sampler, z_max));
	uint32_t n = find_top(sampler, top, n_top);
	for (uint32_t i = 0; i < n; i++)
		top[i].logprob = sampler_logprob(top[i].logprob, log_sum);
	return log_sum;
}
