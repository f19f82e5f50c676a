/*
 * From logits to a token. A token depends on the logits, the history, the parameters, the seed and its position:
 * there is no hidden state, so a restarted process goes on with the same tokens, and a drafter that calls
 * sampler_choose with its own logits and the same parameters draws with the same noise. Biases for tokens that the
 * sampler's vocabulary does not have are ignored.
 *
 * The order, which outrider(1), SAMPLING, tells those who use it. Adjusted logits, in float32: a NaN counts as -inf, +inf as the largest
 * float; then the biases are added; then the repetition penalty; then the frequency and the presence penalty (of the output alone,
 * x - (times * frequency + presence) for a token that came `times` times); then a token that is not allowed gets -inf. Greedy is
 * temperature 0: the largest adjusted logit, ties to the smaller id. When every adjusted logit is -inf the token is 0.
 * Otherwise z = adjusted / temperature. Top-n-sigma (arXiv 2411.07641) leaves those within n standard deviations of the largest z.
 * Of them the kept set is made by top-k (largest z, ties to the smaller id), then
 * top-p (the shortest prefix by falling p whose sum reaches top_p), then min-p (p >= min_p * the largest p), then XTC: at a position
 * whose draw (seed, RAND_XTC, position, 0) is below its probability, all tokens whose p reaches its threshold go, but the least of them.
 * The token at a position is argmax of (double)z + G over the kept set, ties to the smaller id, with
 * G = -log(-log u), u = rand_uniform(seed, RAND_GUMBEL, position, token), in double: a draw from softmax(z) over that set
 * (Gumbel-max; arXiv 2408.07978, section 3).
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

enum coupling {
	COUPLING_GUMBEL = 0, /* drafter-invariant (arXiv 2408.07978): path-exact */
	COUPLING_MAXIMAL = 1, /* rejection sampling with the true q: distribution-exact */
};

#define SAMPLER_XTC_THRESHOLD 0.1f /* where a request names none; llama.cpp's */

struct logit_bias {
	int32_t token;
	float bias;
};

/* Plain data: lies in the session page. The ranges are those of shared/base/sampling.h. */
struct sampler_params {
	float temperature; /* 0 = greedy */
	float top_p; /* 1 = off */
	float min_p; /* 0 = off */
	uint32_t top_k; /* 0 = off */
	float repeat_penalty; /* 1 = off: logits of tokens seen are divided (> 0) or multiplied (< 0) */
	uint32_t repeat_window; /* last tokens of prompt and output that count; 0 = all */
	float presence_penalty, frequency_penalty; /* 0 = off */
	float top_n_sigma; /* 0 = off */
	float xtc_probability; /* 0 = off */
	uint64_t seed;
	float xtc_threshold;
	uint32_t coupling; /* enum coupling */
	uint32_t n_biases;
	struct logit_bias biases[LIMIT_LOGIT_BIASES];
};

void sampler_params_default(struct sampler_params *params);
/* Names the parameter and its allowed range. */
int sampler_params_check(const struct sampler_params *params, uint32_t n_vocab, struct error *err);

struct kernels;

struct token_prob {
	int32_t token;
	float p;
};

/* Scratch of one thread: allocated once for a vocabulary; the functions below allocate nothing. */
struct sampler {
	const struct kernels *kernels;
	uint32_t n_vocab;
	float *logits; /* [n_vocab] adjusted; shared/spec/accept.c leaves other things here */
	float *most; /* of each SAMPLE_CHUNK of logits the greatest */
	struct token_prob *dist; /* [n_vocab] of the last sampler_distribution, by falling p */
	uint32_t n_dist;
	uint32_t *seen; /* marks for the penalties */
	uint32_t *times; /* how often a token came, if it is marked */
	uint32_t epoch;
};
int sampler_init(struct sampler *sampler, uint32_t n_vocab);
void sampler_exit(struct sampler *sampler);

/* Whether all are numbers, and none infinite: else what is chosen among them says nothing. */
bool sampler_finite(const float *logits, uint32_t n);

/* What a token is chosen from. The tokens before its position are the history and then the tail, for a position behind
 * drafted tokens, which lie elsewhere. */
struct sampler_input {
	const float *logits; /* [n_vocab] */
	/* [n_history], [n_tail]; ids that are not in the vocabulary are ignored. */
	const int32_t *history, *tail;
	uint32_t n_history, n_tail;
	uint32_t n_prompt; /* the first tokens of the history, which are no output */
	const uint64_t
		*allowed; /* [SAMPLER_ALLOWED_WORDS(n_vocab)] or NULL: all tokens are allowed */
};
/* Token t is allowed if bit t % 64 of word t / 64 is set. Bits beyond the vocabulary do not count. */
#define SAMPLER_ALLOWED_WORDS(n_vocab) (((size_t)(n_vocab) + 63) / 64)

/* p after all filters: fills dist, n_dist with the kept set, by falling p, ties by rising id; the sum is 1 up to rounding. The
 * position is the one behind history and tail. Not for greedy. */
void sampler_distribution(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input);

/* A chosen token. */
struct sampler_choice {
	int32_t token;
	float p; /* its probability in the distribution that it was chosen from */
	bool none; /* every adjusted logit is -inf: the token is 0 for want of another, and p is 1 */
	bool finite; /* all logits are, before they are adjusted */
	uint32_t n_best; /* tokens written to best[] */
};

/* The token at `position` (= index in prompt + output): argmax(log p + G), or the greedy one. Its distribution, which p and
 * best are about, is the softmax of z over the kept set; the greedy token's is the softmax of all adjusted logits, at
 * temperature 1. best[0..n_best-1] (NULL if n_best is 0): the most likely tokens of it, by falling z, ties by rising id; fewer
 * if fewer have weight. want_p false: p may stay 0, where it would cost a sum over the vocabulary. */
struct sampler_choice sampler_choose(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input, uint64_t position, bool want_p, struct token_prob *best,
	uint32_t n_best);

/* sampler_choose after this history, all of it output, among all tokens; *confidence (may be NULL) receives p. */
int32_t sampler_pick(struct sampler *sampler, const struct sampler_params *params,
	const float *logits, const int32_t *history, uint32_t n_history, uint64_t position,
	float *confidence);

/* A token's log probability as the model has it: of its logits as they are, before anything is adjusted. The log of the softmax, in
 * double, rounded to float; numerics.md, Sampling. */
struct token_logprob {
	int32_t token;
	float logprob;
};

/* Fills top[0..n_top-1], n_top <= n_vocab, with the most likely tokens, the first the most likely, ties to the smaller id. Returns
 * what sampler_logprob needs of the row. */
double sampler_score(
	struct sampler *sampler, const float *logits, struct token_logprob *top, uint32_t n_top);
/* Of a token with this logit. */
float sampler_logprob(float logit, double log_sum);

/* G of (position, token) under a seed. In -2.86..17.33. */
double sampler_gumbel(uint64_t seed, uint64_t position, uint32_t token);
