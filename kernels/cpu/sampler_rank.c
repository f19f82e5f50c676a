/* The tokens that a target is likely to choose, for trees of drafts. */
#include "kernels/cpu/sampler_internal.h"
#include "kernels/kernels.h"
#include "shared/base/rand.h"

#include <assert.h>
#include <math.h>

/* The best tokens by z + G, best first, ties by rising id. */
struct ranking {
	double score[SAMPLER_RANK_MAX];
	uint32_t token[SAMPLER_RANK_MAX];
	uint32_t n;
	double margin; /* far larger than the rounding error of a score */
};

/* What a token has to reach to enter. */
static double least_score(const struct ranking *ranking)
{
	return ranking->n < SAMPLER_RANK_MAX ? -INFINITY : ranking->score[SAMPLER_RANK_MAX - 1];
}

static void enter(struct ranking *ranking, uint32_t token, double score)
{
	uint32_t at = ranking->n;
	while (at > 0 &&
		(ranking->score[at - 1] < score ||
			(ranking->score[at - 1] == score && ranking->token[at - 1] > token)))
		at--;
	if (at == SAMPLER_RANK_MAX)
		return;
	if (ranking->n < SAMPLER_RANK_MAX)
		ranking->n++;
	for (uint32_t i = ranking->n - 1; i > at; i--) {
		ranking->score[i] = ranking->score[i - 1];
		ranking->token[i] = ranking->token[i - 1];
	}
	ranking->score[at] = score;
	ranking->token[at] = token;
}

static void enter_chunk(struct ranking *ranking, const struct sampler *sampler,
	const struct sampler_params *params, uint64_t position, uint32_t chunk)
{
	uint32_t draw[SAMPLE_CHUNK], first = chunk * SAMPLE_CHUNK;
	uint32_t left = sampler->n_vocab - first;
	uint32_t least = sampler_least_draw(
		(double)sampler->most[chunk] - least_score(ranking) + ranking->margin);
	sampler->kernels->draws(params->seed, RAND_GUMBEL, position, first, draw);
	if (!sampler_any_at_least(draw, least))
		return;
	for (uint32_t i = 0; i < SAMPLE_CHUNK && i < left; i++) {
		float z = sampler->logits[first + i];
		if (draw[i] >= least && z != -INFINITY)
			enter(ranking, first + i,
				(double)z + sampler_gumbel_of(rand_uniform_of(draw[i])));
	}
}

static void rank_all(struct ranking *ranking, const struct sampler *sampler,
	const struct sampler_params *params, uint64_t position)
{
	for (uint32_t c = 0; c < sampler_chunks(sampler->n_vocab); c++)
		if ((double)sampler->most[c] + SAMPLER_GUMBEL_MAX >= least_score(ranking))
			enter_chunk(ranking, sampler, params, position, c);
}

/* Among the tokens that the filters kept, which are in sampler->dist. */
static void rank_kept(struct ranking *ranking, const struct sampler *sampler,
	const struct sampler_params *params, uint64_t position)
{
	for (uint32_t i = 0; i < sampler->n_dist; i++) {
		uint32_t token = (uint32_t)sampler->dist[i].token;
		double z = (double)sampler->logits[token];
		if (z + SAMPLER_GUMBEL_MAX >= least_score(ranking))
			enter(ranking, token, z + sampler_gumbel(params->seed, position, token));
	}
}

/* By z + G. top: where the largest of the adjusted logits is. */
static void rank(struct ranking *ranking, struct sampler *sampler,
	const struct sampler_params *params, uint32_t top, uint64_t position)
{
	if (params->top_n_sigma > 0)
		sampler_cut_sigma(sampler, params->top_n_sigma, top);
	ranking->n = 0;
	ranking->margin = 1e-9 * (1 + fabs((double)sampler->logits[top]));
	if (sampler_filters(sampler, params)) {
		double sum = sampler_keep(sampler, params, top);
		if (sampler_xtc_acts(params, position))
			sampler_xtc_kept(sampler, params, sum);
		rank_kept(ranking, sampler, params, position);
		return;
	}
	if (sampler_xtc_acts(params, position))
		sampler_xtc_all(sampler, params, top);
	rank_all(ranking, sampler, params, position);
}

static uint32_t list(const struct ranking *ranking, struct token_prob *best, uint32_t n)
{
	float weight[SAMPLER_RANK_MAX], sum = 0;
	for (uint32_t i = 0; i < ranking->n; i++) {
		weight[i] = kernels_exp((float)(ranking->score[i] - ranking->score[0]));
		sum += weight[i];
	}
	if (n > ranking->n)
		n = ranking->n;
	for (uint32_t i = 0; i < n; i++)
		/* cppcheck-suppress uninitvar ; the first ranking->n are set */
		best[i] = (struct token_prob){(int32_t)ranking->token[i], weight[i] / sum};
	return n;
}

uint32_t sampler_rank(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input, uint64_t position, struct token_prob *best, uint32_t n)
{
	struct ranking ranking;
	bool finite;
	assert(n <= SAMPLER_RANK_MAX);
	if (params->temperature == 0) {
		struct sampler_choice choice =
			sampler_choose(sampler, params, input, position, true, best, n);
		return choice.none ? 0 : choice.n_best;
	}
	uint32_t top = sampler_adjust(sampler, params, input, params->temperature, &finite);
	if (sampler->logits[top] == -INFINITY)
		return 0;
	if (params->coupling == COUPLING_MAXIMAL) {
		sampler_distribution(sampler, params, input);
		uint32_t kept = 0;
		for (; kept < n && kept < sampler->n_dist && sampler->dist[kept].p > 0; kept++)
			best[kept] = sampler->dist[kept];
		return kept;
	}
	rank(&ranking, sampler, params, top, position);
	return list(&ranking, best, n);
}
