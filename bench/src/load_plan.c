#include "bench/src/load_plan.h"

#include "shared/base/rand.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of draws, so that none is used twice for one request. */
enum { DRAW_TRIES = 50, DRAW_PROMPT = 3 * DRAW_TRIES, DRAW_OUTPUT, DRAW_BOOST };

/* Set in the numbers of pieces that are not a trace's blocks. */
#define OWN_PIECE (UINT64_C(1) << 62)
#define SHARED_PIECE (UINT64_C(1) << 63)

static double uniform(uint64_t seed, uint64_t position, uint32_t index)
{
	return rand_uniform(seed, RAND_REPLAY, position, index);
}

static bool number(const char *text, char **end, double low, double high, double *out)
{
	*out = strtod(text, end);
	return *end != text && *out >= low && *out <= high;
}

int load_arrivals_parse(const char *text, struct load_arrivals *out, struct error *err)
{
	char *end = NULL;

	*out = (struct load_arrivals){.process = LOAD_POISSON, .shape = 1};
	if (strcmp(text, "poisson") == 0)
		return 0;
	if (strcmp(text, "closed") == 0) {
		out->process = LOAD_CLOSED;
		return 0;
	}
	if (strncmp(text, "gamma:", 6) == 0 && number(text + 6, &end, 0.01, 100, &out->shape) &&
		*end == '\0') {
		out->process = LOAD_GAMMA;
		return 0;
	}
	if (strncmp(text, "bursts:", 7) == 0 && number(text + 7, &end, 0.001, 86400, &out->on_s) &&
		*end == ',' && number(end + 1, &end, 0, 86400, &out->off_s) && *end == '\0') {
		out->process = LOAD_BURSTS;
		return 0;
	}
	return error_set(err, EINVAL,
		"--arrivals %s: takes poisson, gamma:SHAPE with a shape of 0.01 to 100, "
		"bursts:ON,OFF in seconds, or closed",
		text);
}

/* One draw of the gamma distribution of this shape and of mean 1 (Marsaglia and Tsang, "A simple
 * method for generating gamma variables", 2000; shapes below 1 by their section 6). */
static double gamma_draw(double shape, uint64_t seed, uint64_t i)
{
	double k = shape < 1 ? shape + 1 : shape;
	double d = k - 1.0 / 3, c = 1 / sqrt(9 * d), v = 1;

	for (uint32_t t = 0; t < DRAW_TRIES; t++) {
		double radius = sqrt(-2 * log(uniform(seed, i, 3 * t)));
		double x = radius * cos(2 * M_PI * uniform(seed, i, 3 * t + 1));
		double u = uniform(seed, i, 3 * t + 2);

		v = pow(1 + c * x, 3);
		if (1 + c * x > 0 && log(u) < 0.5 * x * x + d - d * v + d * log(v))
			break;
		v = 1;
	}
	double boost = shape < 1 ? pow(uniform(seed, i, DRAW_BOOST), 1 / shape) : 1;

	return d * v * boost / shape;
}

/* The time between two requests, in units of the mean. */
static double gap_of(const struct load_arrivals *arrivals, uint64_t seed, uint64_t i)
{
	if (arrivals->process == LOAD_GAMMA)
		return gamma_draw(arrivals->shape, seed, i);
	return -log(uniform(seed, i, 0));
}

/* The time at which a burst has been on for `on` seconds in all. */
static double within_bursts(const struct load_arrivals *arrivals, double on)
{
	return on + floor(on / arrivals->on_s) * arrivals->off_s;
}

static uint32_t draw_length(struct load_range range, uint64_t seed, uint64_t i, uint32_t draw)
{
	double n = (double)range.high - range.low + 1;

	return range.low + (uint32_t)(uniform(seed, i, draw) * n);
}

int load_plan_add(struct load_plan *plan, const struct load_arrival *arrival,
	const uint64_t *blocks, uint32_t n_blocks)
{
	if (plan->n == plan->capacity) {
		size_t more = plan->capacity ? 2 * plan->capacity : 256;
		void *grown = reallocarray(plan->arrivals, more, sizeof *plan->arrivals);

		if (!grown)
			return -ENOMEM;
		plan->arrivals = grown;
		plan->capacity = more;
	}
	if (plan->n_blocks + n_blocks > plan->blocks_capacity) {
		size_t more = 2 * plan->blocks_capacity + n_blocks;
		void *grown = reallocarray(plan->blocks, more, sizeof *plan->blocks);

		if (!grown)
			return -ENOMEM;
		plan->blocks = grown;
		plan->blocks_capacity = more;
	}
	if (n_blocks > 0)
		memcpy(plan->blocks + plan->n_blocks, blocks, n_blocks * sizeof *blocks);
	plan->arrivals[plan->n] = *arrival;
	plan->arrivals[plan->n].block = plan->n_blocks;
	plan->arrivals[plan->n++].n_blocks = n_blocks;
	plan->n_blocks += n_blocks;
	return 0;
}

int load_plan_random(struct load_plan *plan, const struct load_arrivals *arrivals, double rate,
	size_t n, double seconds, struct load_range prompt, struct load_range output, uint64_t seed,
	struct error *err)
{
	double at = 0;

	plan->closed = arrivals->process == LOAD_CLOSED;
	for (uint64_t i = 0; n == 0 || i < n; i++) {
		struct load_arrival arrival = {
			.prompt_tokens = draw_length(prompt, seed, i, DRAW_PROMPT),
			.output_tokens = draw_length(output, seed, i, DRAW_OUTPUT)};

		if (arrivals->process == LOAD_BURSTS) {
			double share = arrivals->on_s / (arrivals->on_s + arrivals->off_s);

			at += gap_of(arrivals, seed, i) * share / rate;
			arrival.due_s = within_bursts(arrivals, at);
		} else if (!plan->closed) {
			at += gap_of(arrivals, seed, i) / rate;
			arrival.due_s = at;
		}
		if (seconds > 0 && arrival.due_s >= seconds)
			break;
		if (load_plan_add(plan, &arrival, NULL, 0) < 0)
			return error_set(err, ENOMEM, "no memory for the requests");
	}
	return 0;
}

void load_plan_free(struct load_plan *plan)
{
	free(plan->arrivals);
	free(plan->blocks);
	*plan = (struct load_plan){0};
}

/* Token k of a piece. */
static int32_t token_of(const struct load_prompts *p, uint64_t piece, uint32_t k)
{
	if (p->corpus) {
		double begin = uniform(p->seed, piece, DRAW_PROMPT) * (double)p->n_corpus;

		return p->corpus[((size_t)begin + k) % p->n_corpus];
	}
	int32_t token = (int32_t)(uniform(p->seed, piece, k) * p->vocabulary);

	for (size_t i = 0; i < p->n_avoid; i++)
		if (token == p->avoid[i]) {
			token = (token + 1) % (int32_t)p->vocabulary;
			i = SIZE_MAX; /* looks at all of them again */
		}
	return token;
}

void load_prompt(const struct load_prompts *prompts, const struct load_plan *plan, size_t index,
	int32_t *out)
{
	const struct load_arrival *a = &plan->arrivals[index];
	uint64_t group = prompts->groups > 0 ? index % prompts->groups : 0;

	for (uint32_t t = 0; t < a->prompt_tokens; t++) {
		size_t block = plan->block_tokens > 0 ? (size_t)(t / plan->block_tokens) : 0;

		if (block < a->n_blocks) {
			double begin = ceil((double)block * plan->block_tokens);

			out[t] = token_of(
				prompts, plan->blocks[a->block + block], t - (uint32_t)begin);
		} else if (t < prompts->shared) {
			out[t] = token_of(prompts, SHARED_PIECE | group, t);
		} else {
			out[t] = token_of(prompts, OWN_PIECE | index, t);
		}
	}
	if (prompts->first >= 0 && a->prompt_tokens > 0)
		out[0] = prompts->first;
}
