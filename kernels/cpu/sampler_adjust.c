/* From a row of logits to z: biases, penalties, forbidden tokens, temperature. */
#include "kernels/cpu/sampler_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

float sampler_sane(float x)
{
	if (isnan(x))
		return -INFINITY;
	return x > FLT_MAX ? FLT_MAX : x;
}

static void bias(struct sampler *sampler, const struct sampler_params *params)
{
	for (uint32_t i = 0; i < params->n_biases; i++) {
		/* A drafter may have fewer tokens than the target, for which the biases were
		 * checked. */
		if ((uint32_t)params->biases[i].token >= sampler->n_vocab)
			continue;
		float *x = &sampler->logits[params->biases[i].token];
		*x = sampler_sane(*x + params->biases[i].bias);
	}
}

void sampler_forget_marks(struct sampler *sampler)
{
	if (++sampler->epoch == 0) {
		memset(sampler->seen, 0, sampler->n_vocab * sizeof(*sampler->seen));
		sampler->epoch = 1;
	}
}

bool sampler_mark(struct sampler *sampler, uint32_t token)
{
	if (token >= sampler->n_vocab || sampler->seen[token] == sampler->epoch)
		return false;
	sampler->seen[token] = sampler->epoch;
	return true;
}

bool sampler_unmark(struct sampler *sampler, uint32_t token)
{
	if (token >= sampler->n_vocab || sampler->seen[token] != sampler->epoch)
		return false;
	sampler->seen[token] = 0;
	return true;
}

static void penalise_tokens(struct sampler *sampler, const struct sampler_params *params,
	const int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = (uint32_t)tokens[i];
		if (!sampler_mark(sampler, token))
			continue;
		float x = sampler->logits[token];
		x = x > 0 ? x / params->repeat_penalty : x * params->repeat_penalty;
		sampler->logits[token] = sampler_sane(x);
	}
}

/* Each token is penalised only once, so the order does not matter. */
static void penalise(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input)
{
	uint32_t window = params->repeat_window ? params->repeat_window : UINT32_MAX;
	uint32_t tail = input->n_tail < window ? input->n_tail : window;
	uint32_t history = input->n_history < window - tail ? input->n_history : window - tail;
	sampler_forget_marks(sampler);
	if (tail > 0)
		penalise_tokens(sampler, params, input->tail + (input->n_tail - tail), tail);
	if (history > 0)
		penalise_tokens(
			sampler, params, input->history + (input->n_history - history), history);
}

static void count_tokens(struct sampler *sampler, const int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = (uint32_t)tokens[i];
		if (sampler_mark(sampler, token))
			sampler->times[token] = 0;
		if (token < sampler->n_vocab)
			sampler->times[token]++;
	}
}

static void penalise_counted(struct sampler *sampler, const struct sampler_params *params,
	const int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t token = (uint32_t)tokens[i];
		if (!sampler_mark(sampler, token))
			continue;
		float penalty = (float)sampler->times[token] * params->frequency_penalty +
				params->presence_penalty;
		sampler->logits[token] = sampler_sane(sampler->logits[token] - penalty);
	}
}

/* OpenAI's penalties: only the output counts, not the prompt. */
static void penalise_output(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input)
{
	uint32_t prompt = input->n_prompt < input->n_history ? input->n_prompt : input->n_history;
	const int32_t *output = input->n_history > prompt ? input->history + prompt : NULL;
	uint32_t n = input->n_history - prompt;
	sampler_forget_marks(sampler);
	count_tokens(sampler, output, n);
	count_tokens(sampler, input->tail, input->n_tail);
	sampler_forget_marks(sampler);
	penalise_counted(sampler, params, output, n);
	penalise_counted(sampler, params, input->tail, input->n_tail);
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

static bool penalises_output(const struct sampler_params *params)
{
	return params->presence_penalty != 0 || params->frequency_penalty != 0;
}

bool sampler_adjusts_nothing(const struct sampler_params *params, const struct sampler_input *input)
{
	return params->n_biases == 0 && params->repeat_penalty == 1 && !input->allowed &&
	       !penalises_output(params) && params->dry_multiplier == 0;
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
		bias(sampler, params);
		if (params->repeat_penalty != 1)
			penalise(sampler, params, input);
		if (penalises_output(params))
			penalise_output(sampler, params, input);
		if (params->dry_multiplier > 0)
			sampler_dry(sampler, params, input);
		if (input->allowed)
			forbid(sampler, input->allowed);
		kernels->scale_logits(sampler->logits, n, divisor, sampler->logits, sampler->most);
	}
	return sampler_greatest(sampler);
}
