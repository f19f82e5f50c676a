#include "kernels/sampler.h"
#include "kernels/kernels.h"
#include "kernels/cpu/sampler_internal.h"
#include "shared/base/rand.h"
#include "shared/base/sampling.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void sampler_params_default(struct sampler_params *params)
{
	memset(params, 0, sizeof(*params));
	params->top_p = 1;
	params->repeat_penalty = 1;
	params->dry_base = SAMPLER_DRY_BASE;
	params->dry_allowed_length = SAMPLER_DRY_ALLOWED_LENGTH;
	memcpy(params->dry_breakers, SAMPLER_DRY_BREAKERS, sizeof(SAMPLER_DRY_BREAKERS));
	params->xtc_threshold = SAMPLER_XTC_THRESHOLD;
}

int sampler_params_check(const struct sampler_params *params, uint32_t n_vocab, struct error *err)
{
	const struct {
		enum sampling_value what;
		double value;
	} values[] = {
		{SAMPLING_TEMPERATURE, (double)params->temperature},
		{SAMPLING_TOP_K, params->top_k},
		{SAMPLING_TOP_P, (double)params->top_p},
		{SAMPLING_MIN_P, (double)params->min_p},
		{SAMPLING_REPEAT_PENALTY, (double)params->repeat_penalty},
		{SAMPLING_REPEAT_WINDOW, params->repeat_window},
		{SAMPLING_PRESENCE_PENALTY, (double)params->presence_penalty},
		{SAMPLING_FREQUENCY_PENALTY, (double)params->frequency_penalty},
		{SAMPLING_DRY_MULTIPLIER, (double)params->dry_multiplier},
		{SAMPLING_DRY_BASE, (double)params->dry_base},
		{SAMPLING_DRY_ALLOWED_LENGTH, params->dry_allowed_length},
		{SAMPLING_DRY_WINDOW, params->dry_window},
		{SAMPLING_TOP_N_SIGMA, (double)params->top_n_sigma},
		{SAMPLING_XTC_PROBABILITY, (double)params->xtc_probability},
		{SAMPLING_XTC_THRESHOLD, (double)params->xtc_threshold},
	};
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		if (sampling_check(values[i].what, values[i].value, err))
			return -EINVAL;
	if (params->coupling != COUPLING_GUMBEL && params->coupling != COUPLING_MAXIMAL)
		return error_set(err, EINVAL,
			"coupling is %u, allowed are 0 (gumbel) and 1 (maximal)", params->coupling);
	if (params->dry_breakers[LIMIT_DRY_BREAKER_BYTES - 1] ||
		params->dry_breakers[LIMIT_DRY_BREAKER_BYTES - 2])
		return error_set(err, EINVAL, "dry breakers have more than %d bytes",
			LIMIT_DRY_BREAKER_BYTES - 2);
	if (params->n_biases > LIMIT_LOGIT_BIASES)
		return error_set(err, EINVAL, "%u logit biases, allowed are at most %d",
			params->n_biases, LIMIT_LOGIT_BIASES);
	for (uint32_t i = 0; i < params->n_biases; i++) {
		if (params->biases[i].token < 0 || (uint32_t)params->biases[i].token >= n_vocab)
			return error_set(err, EINVAL, "logit bias for token %d, allowed are 0..%u",
				params->biases[i].token, n_vocab - 1);
		if (sampling_check(SAMPLING_LOGIT_BIAS, (double)params->biases[i].bias, err))
			return error_prefix(err, -EINVAL, "token %d", params->biases[i].token);
	}
	return 0;
}

size_t sampler_bytes(uint32_t n_vocab)
{
	struct sampler *sampler = NULL;

	return sampler_chunks(n_vocab) * sizeof(*sampler->most) +
	       n_vocab * (sizeof(*sampler->logits) + sizeof(*sampler->dist) +
				 sizeof(*sampler->marks.seen) + sizeof(*sampler->marks.times));
}

int sampler_init(struct sampler *sampler, uint32_t n_vocab)
{
	memset(sampler, 0, sizeof(*sampler));
	if (n_vocab == 0 || n_vocab > LIMIT_VOCAB)
		return -EINVAL;
	sampler->logits = malloc(n_vocab * sizeof(*sampler->logits));
	sampler->most = malloc(sampler_chunks(n_vocab) * sizeof(*sampler->most));
	sampler->dist = malloc(n_vocab * sizeof(*sampler->dist));
	sampler->n_vocab = n_vocab;
	/* Any kernels will do: all give the same bits. */
	sampler->kernels = kernels_select("auto", NULL);
	if (sampler_marks_init(&sampler->marks, n_vocab) < 0 || !sampler->logits ||
		!sampler->most || !sampler->dist) {
		sampler_exit(sampler);
		return -ENOMEM;
	}
	return 0;
}

void sampler_exit(struct sampler *sampler)
{
	free(sampler->logits);
	free(sampler->most);
	free(sampler->dist);
	sampler_marks_exit(&sampler->marks);
	memset(sampler, 0, sizeof(*sampler));
}

bool sampler_finite(const float *logits, uint32_t n)
{
	uint32_t bad = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, &logits[i], sizeof(bits));
		/* An exponent of all ones. Without a branch, because most rows are finite. */
		bad |= (bits & 0x7f800000u) == 0x7f800000u;
	}
	return bad == 0;
}

/* Chunks share a partial sum when their numbers differ by a multiple of this (kernels/numerics.md,
 * EXP SUM). */
#define EXP_PARTIALS 64

/* The sum of exp(z[i] - z_max). */
double sampler_exp_sum(const struct sampler *sampler, float z_max)
{
	const uint32_t n = sampler->n_vocab, step = EXP_PARTIALS * SAMPLE_CHUNK;
	double sum[EXP_PARTIALS] = {0};
	float chunk[EXP_PARTIALS];
	for (uint32_t at = 0; at < n; at += step) {
		uint32_t some = n - at < step ? n - at : step;
		sampler->kernels->exp_sums(sampler->logits + at, some, z_max, chunk);
		for (uint32_t c = 0; c < sampler_chunks(some); c++)
			sum[c] += (double)chunk[c];
	}
	for (uint32_t half = EXP_PARTIALS / 2; half > 0; half /= 2)
		for (uint32_t c = 0; c < half; c++)
			sum[c] += sum[c + half];
	return sum[0];
}

void sampler_distribution(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input)
{
	bool finite;
	assert(params->temperature > 0);
	uint32_t top = sampler_adjust(sampler, params, input, params->temperature, &finite);
	if (sampler->logits[top] == -INFINITY) {
		sampler->dist[0] = (struct token_prob){0, 1};
		sampler->n_dist = 1;
		return;
	}
	if (params->top_n_sigma > 0)
		sampler_cut_sigma(sampler, params->top_n_sigma, top);
	double sum = sampler_keep(sampler, params, top);
	if (sampler_xtc_acts(params, (uint64_t)input->n_history + input->n_tail))
		sum = sampler_xtc_kept(sampler, params, sum);
	for (uint32_t i = 0; i < sampler->n_dist; i++)
		sampler->dist[i].p = (float)((double)sampler->dist[i].p / sum);
}

double sampler_gumbel(uint64_t seed, uint64_t position, uint32_t token)
{
	return sampler_gumbel_of(rand_uniform(seed, RAND_GUMBEL, position, token));
}

struct race {
	double best, z_max; /* z_max: no token that enters has a larger z */
	double margin; /* far larger than the rounding error of a score */
	double hopeless; /* a draw up to this loses with any z of the row */
	uint32_t token;
};

static struct race race_begin(float z_max)
{
	return (struct race){.best = -INFINITY,
		.z_max = (double)z_max,
		.margin = sampler_margin((double)z_max),
		.token = UINT32_MAX};
}

/* Enters a token that has drawn u into the argmax of z + G. Where the logits are flat, most tokens
 * need no logarithm: a token loses if it drew less than a loser that would have lost even with the
 * largest z. */
static inline void race_run(struct race *race, uint32_t token, float z, double u)
{
	if (u <= race->hopeless)
		return;
	double noise = sampler_gumbel_of(u), score = (double)z + noise;
	if (score > race->best || (score == race->best && token < race->token)) {
		race->best = score;
		race->token = token;
	} else if (race->z_max + noise + race->margin < race->best) {
		race->hopeless = u;
	}
}

/* Whether a token with this z could win with the largest G. */
static inline bool race_open(const struct race *race, float z)
{
	return (double)z + SAMPLER_GUMBEL_MAX >= race->best;
}

static inline void race_enter(struct race *race, const struct sampler_params *params,
	uint64_t position, uint32_t token, float z)
{
	if (race_open(race, z))
		race_run(race, token, z, rand_uniform(params->seed, RAND_GUMBEL, position, token));
}

/* A chunk's tokens draw together. Tokens are looked at only if the chunk's greatest z could win
 * with one of the draws. */
static void race_chunk(struct race *race, const struct sampler *sampler,
	const struct sampler_params *params, uint64_t position, uint32_t chunk)
{
	uint32_t draw[SAMPLE_CHUNK], first = chunk * SAMPLE_CHUNK;
	uint32_t left = sampler->n_vocab - first;
	uint32_t least =
		sampler_least_draw((double)sampler->most[chunk] - race->best + race->margin);
	sampler->kernels->draws(params->seed, RAND_GUMBEL, position, first, draw);
	if (!sampler_any_at_least(draw, least))
		return;
	for (uint32_t i = 0; i < SAMPLE_CHUNK && i < left; i++) {
		float z = sampler->logits[first + i];
		if (draw[i] >= least && z != -INFINITY && race_open(race, z))
			race_run(race, first + i, z, rand_uniform_of(draw[i]));
	}
}

/* The token that wins among the whole vocabulary, without sorting. */
static uint32_t race_all(struct sampler *sampler, const struct sampler_params *params, uint32_t top,
	uint64_t position)
{
	const float *z = sampler->logits;
	struct race race = race_begin(z[top]);
	race_enter(&race, params, position, top, z[top]);
	for (uint32_t c = 0; c < sampler_chunks(sampler->n_vocab); c++)
		if (race_open(&race, sampler->most[c]))
			race_chunk(&race, sampler, params, position, c);
	return race.token;
}

/* The token that wins among those that the filters kept, which are in sampler->dist. */
static uint32_t race_kept(const struct sampler *sampler, const struct sampler_params *params,
	uint32_t top, uint64_t position)
{
	struct race race = race_begin(sampler->logits[top]);
	for (uint32_t i = 0; i < sampler->n_dist; i++) {
		uint32_t token = (uint32_t)sampler->dist[i].token;
		race_enter(&race, params, position, token, sampler->logits[token]);
	}
	return race.token;
}

/* Lists the first n of dist, whose weights are unnormalised and have this sum. */
static uint32_t list_best(
	const struct sampler *sampler, double sum, struct token_prob *best, uint32_t n)
{
	if (n > sampler->n_dist)
		n = sampler->n_dist;
	for (uint32_t i = 0; i < n; i++)
		best[i] = (struct token_prob){
			sampler->dist[i].token, (float)((double)sampler->dist[i].p / sum)};
	return n;
}

static struct sampler_choice choose_unfiltered(struct sampler *sampler,
	const struct sampler_params *params, uint32_t top, uint64_t position, bool want_p,
	struct token_prob *best, uint32_t n_best)
{
	const float *z = sampler->logits;
	struct sampler_choice choice = {.token = (int32_t)top};
	double sum = want_p || n_best > 0 ? sampler_exp_sum(sampler, z[top]) : 0;
	if (params->temperature > 0)
		choice.token = (int32_t)race_all(sampler, params, top, position);
	if (want_p)
		choice.p = (float)((double)kernels_exp(z[choice.token] - z[top]) / sum);
	if (n_best > 0) {
		const struct sampler_params all = {.top_k = n_best, .top_p = 1};
		sampler_keep(sampler, &all, top);
		choice.n_best = list_best(sampler, sum, best, n_best);
	}
	return choice;
}

static struct sampler_choice choose_filtered(struct sampler *sampler,
	const struct sampler_params *params, uint32_t top, uint64_t position,
	struct token_prob *best, uint32_t n_best)
{
	double sum = sampler_keep(sampler, params, top);
	if (sampler_xtc_acts(params, position))
		sum = sampler_xtc_kept(sampler, params, sum);
	uint32_t token = race_kept(sampler, params, top, position);
	const float *z = sampler->logits;
	return (struct sampler_choice){
		.token = (int32_t)token,
		.p = (float)((double)kernels_exp(z[token] - z[top]) / sum),
		.n_best = list_best(sampler, sum, best, n_best),
	};
}

/* sampler_choose for adjusted logits in sampler->logits, the largest at top. */
static struct sampler_choice choose(struct sampler *sampler, const struct sampler_params *params,
	uint32_t top, uint64_t position, bool want_p, struct token_prob *best, uint32_t n_best)
{
	if (sampler->logits[top] == -INFINITY)
		return (struct sampler_choice){.p = 1, .none = true};
	if (params->temperature == 0)
		return choose_unfiltered(sampler, params, top, position, want_p, best, n_best);
	if (params->top_n_sigma > 0)
		sampler_cut_sigma(sampler, params->top_n_sigma, top);
	if (sampler_filters(sampler, params))
		return choose_filtered(sampler, params, top, position, best, n_best);
	if (sampler_xtc_acts(params, position))
		top = sampler_xtc_all(sampler, params, top);
	return choose_unfiltered(sampler, params, top, position, want_p, best, n_best);
}

struct sampler_choice sampler_choose(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input, uint64_t position, bool want_p, struct token_prob *best,
	uint32_t n_best)
{
	bool greedy = params->temperature == 0, finite;
	if (greedy && sampler_adjusts_nothing(params, input) && !want_p && n_best == 0) {
		/* The case of most rows: read once, and nothing is written. */
		uint32_t top = sampler->kernels->greatest(input->logits, sampler->n_vocab);
		if (top != UINT32_MAX)
			return (struct sampler_choice){.token = (int32_t)top, .finite = true};
	}
	uint32_t top =
		sampler_adjust(sampler, params, input, greedy ? 1 : params->temperature, &finite);
	struct sampler_choice choice = choose(sampler, params, top, position, want_p, best, n_best);
	choice.finite = finite;
	return choice;
}

int32_t sampler_pick(struct sampler *sampler, const struct sampler_params *params,
	const float *logits, const int32_t *history, uint32_t n_history, uint64_t position,
	float *confidence)
{
	const struct sampler_input input = {
		.logits = logits, .history = history, .n_history = n_history};
	struct sampler_choice choice =
		sampler_choose(sampler, params, &input, position, confidence != NULL, NULL, 0);
	if (confidence)
		*confidence = choice.p;
	return choice.token;
}
