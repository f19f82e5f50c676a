/*
 * From logits to a token. A token depends on the logits, the history, the parameters, the seed and
 * its position. There is no hidden state, so a restarted process goes on with the same tokens, and
 * a drafter that calls sampler_choose with its own logits and the same parameters draws with the
 * same noise. Biases for tokens outside of the sampler's vocabulary are ignored.
 *
 * The order of operations (described to users in outrider(1), SAMPLING):
 *
 * 1. Adjusted logits, in float32: a NaN counts as -inf, +inf as the largest float. Biases are
 *    added. The repetition penalty is applied, then the frequency and the presence penalty (for
 *    output tokens only: x - (times * frequency + presence) for a token that occurred `times`
 *    times), then DRY. A token that is not allowed gets -inf.
 *    DRY: where the last n tokens, of which none has a breaker, occurred before in its window, the
 *    token that followed them there loses multiplier * base^(n - allowed length), if n is at least
 *    the allowed length. The largest n counts, at most SAMPLER_DRY_LONGEST.
 * 2. At temperature 0 (greedy) the token is the largest adjusted logit, ties to the smaller id.
 *    When every adjusted logit is -inf, the token is 0.
 * 3. Otherwise z = adjusted / temperature. Filters leave a set of tokens: top-n-sigma (arXiv
 *    2411.07641: those within n standard deviations of the largest z), top-k (largest z, ties to
 *    the smaller id), top-p (the shortest prefix by falling p whose sum reaches top_p), min-p (p >=
 *    min_p * the largest p), and XTC (at a position whose draw (seed, RAND_XTC, position, 0) is
 *    below xtc_probability: all tokens whose p reaches xtc_threshold are removed, except the least
 *    probable of them).
 * 4. The token is argmax of (double)z + G over that set, ties to the smaller id, with G = -log(-log
 *    u), u = rand_uniform(seed, RAND_GUMBEL, position, token), in double: a draw from softmax(z)
 *    over the set (Gumbel-max; arXiv 2408.07978, section 3).
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

enum coupling {
	COUPLING_GUMBEL = 0, /* drafter-invariant (arXiv 2408.07978): path-exact */
	COUPLING_MAXIMAL = 1, /* rejection sampling with the true q: distribution-exact */
};

/* For requests that set none; llama.cpp's defaults. */
#define SAMPLER_DRY_BASE 1.75f
#define SAMPLER_DRY_ALLOWED_LENGTH 2
#define SAMPLER_DRY_BREAKERS "\n\0:\0\"\0*\0"
enum { SAMPLER_DRY_LONGEST = 512 };
#define SAMPLER_XTC_THRESHOLD 0.1f /* where a request sets none; llama.cpp's default */

struct logit_bias {
	int32_t token;
	float bias;
};

/* Plain data, as it is in the session page. shared/base/sampling.h has the ranges. */
struct sampler_params {
	float temperature; /* 0 = greedy */
	float top_p; /* 1 = off */
	float min_p; /* 0 = off */
	uint32_t top_k; /* 0 = off */
	/* 1 = off: logits of tokens in the window are divided (> 0) or multiplied (< 0) by it */
	float repeat_penalty;
	uint32_t repeat_window; /* last tokens of prompt and output that count; 0 = all */
	float presence_penalty, frequency_penalty; /* 0 = off */
	float dry_multiplier; /* 0 = off */
	float dry_base;
	uint32_t dry_allowed_length;
	uint32_t dry_window; /* last tokens of prompt and output that count; 0 = all */
	/* One text behind the other, each with its NUL; an empty one is behind the last. */
	char dry_breakers[LIMIT_DRY_BREAKER_BYTES];
	float top_n_sigma; /* 0 = off */
	float xtc_probability; /* 0 = off */
	uint64_t seed;
	float xtc_threshold;
	uint32_t coupling; /* enum coupling */
	uint32_t n_biases;
	struct logit_bias biases[LIMIT_LOGIT_BIASES];
};

void sampler_params_default(struct sampler_params *params);
/* -EINVAL names the parameter and its allowed range. */
int sampler_params_check(const struct sampler_params *params, uint32_t n_vocab, struct error *err);

struct kernels;

struct token_prob {
	int32_t token;
	float p;
};

/* Marks of tokens, for what depends on the tokens before: a token is marked if seen[token] is
 * epoch. */
struct sampler_marks {
	uint32_t n_vocab, epoch;
	uint32_t *seen, *times; /* [n_vocab] each; times: how often a marked token occurred */
};
/* Allocates the arrays. -ENOMEM. */
int sampler_marks_init(struct sampler_marks *marks, uint32_t n_vocab);
void sampler_marks_exit(struct sampler_marks *marks);

/* Scratch memory of one thread, allocated once for a vocabulary; the functions below allocate
 * nothing. */
struct sampler {
	const struct kernels *kernels;
	uint32_t n_vocab;
	/* [n_vocab] adjusted; shared/spec/accept.c uses this memory for other data too */
	float *logits;
	float *most; /* the greatest of each SAMPLE_CHUNK of logits */
	struct token_prob *dist; /* [n_vocab] of the last sampler_distribution, by falling p */
	uint32_t n_dist;
	struct sampler_marks marks;
};
/* Allocates the arrays. -EINVAL: n_vocab is 0 or above LIMIT_VOCAB. -ENOMEM. */
int sampler_init(struct sampler *sampler, uint32_t n_vocab);
/* Bytes that sampler_init allocates. */
size_t sampler_bytes(uint32_t n_vocab);
void sampler_exit(struct sampler *sampler);

/* True when none is a NaN or infinite; otherwise a token that is chosen from them has no meaning.
 */
bool sampler_finite(const float *logits, uint32_t n);

/* What a token is chosen from. The tokens before its position are the history and then the tail.
 * For a position behind drafted tokens these are in a place of their own, the tail. */
struct sampler_input {
	const float *logits; /* [n_vocab] */
	/* [n_history], [n_tail]; ids that are not in the vocabulary are ignored. */
	const int32_t *history, *tail;
	uint32_t n_history, n_tail;
	uint32_t n_prompt; /* how many of the history's first tokens are prompt, not output */
	/* How many of the last tokens have no breaker of DRY (shared/model/text/breakers.h). */
	uint32_t dry_reach;
	/* [SAMPLER_ALLOWED_WORDS(n_vocab)] or NULL: all tokens are allowed */
	const uint64_t *allowed;
};
/* Bit t % 64 of word t / 64: token t is allowed. Bits beyond the vocabulary do not count. */
#define SAMPLER_ALLOWED_WORDS(n_vocab) (((size_t)(n_vocab) + 63) / 64)

/* p after all filters: fills dist and n_dist with the kept set, by falling p, ties by rising id;
 * the sum is 1 up to rounding. The position is the one behind history and tail. Not for temperature
 * 0. */
void sampler_distribution(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input);

/* A chosen token. */
struct sampler_choice {
	int32_t token;
	float p; /* its probability in the distribution that it was chosen from */
	bool none; /* every adjusted logit is -inf, so the token is 0, and p is 1 */
	bool finite; /* all logits are finite before they are adjusted */
	uint32_t n_best; /* tokens written to best[] */
};

/* The token at `position` (its index in prompt + output): argmax(log p + G), or the greedy one. Its
 * distribution, to which p and best refer, is the softmax of z over the kept set; for the greedy
 * token, the softmax of all adjusted logits at temperature 1. best[0..n_best-1] (NULL if n_best is
 * 0): its likeliest tokens, by falling z, ties by rising id; fewer if fewer have weight. want_p
 * false: p may be 0, where it would cost a sum over the vocabulary. */
struct sampler_choice sampler_choose(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input, uint64_t position, bool want_p, struct token_prob *best,
	uint32_t n_best);

/* For who drafts: the tokens that a target would choose at `position` if its logits were like these,
 * likeliest first, with their chances; best[0] is the token of sampler_choose, except with maximal
 * coupling. Returns their number, at most n; n <= SAMPLER_RANK_MAX. 0: no token can be chosen.
 *
 * Greedy, and maximal coupling: by p, the chance. Otherwise by z + G with the noise of this position,
 * which the target has too: the chance is the softmax of that over the best SAMPLER_RANK_MAX. It
 * would be exact if the target's z differed from these by Gumbel noise of scale 1. */
enum { SAMPLER_RANK_MAX = 32 };
uint32_t sampler_rank(struct sampler *sampler, const struct sampler_params *params,
	const struct sampler_input *input, uint64_t position, struct token_prob *best, uint32_t n);

/* sampler_choose among all tokens after this history, all of which counts as output; *confidence
 * (may be NULL) is p. */
int32_t sampler_pick(struct sampler *sampler, const struct sampler_params *params,
	const float *logits, const int32_t *history, uint32_t n_history, uint64_t position,
	float *confidence);

/* A token's log probability in the model's own distribution, from the logits before any adjustment:
 * the log of the softmax, in double, rounded to float; numerics.md, Sampling. */
struct token_logprob {
	int32_t token;
	float logprob;
};

/* Fills top[0..n_top-1], n_top <= n_vocab, with the likeliest tokens by falling probability, ties
 * by rising id. Returns the row's log_sum for sampler_logprob. */
double sampler_score(
	struct sampler *sampler, const float *logits, struct token_logprob *top, uint32_t n_top);
/* The log probability of a token with this logit. */
float sampler_logprob(float logit, double log_sum);

/* G of (position, token) under a seed, between -2.86 and 17.33. */
double sampler_gumbel(uint64_t seed, uint64_t position, uint32_t token);
