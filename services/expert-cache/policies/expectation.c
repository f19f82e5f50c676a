#include "services/expert-cache/policies/expectation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rates of the moving shares, per run of a layer. On the demo model's traces neither doubling nor
 * halving any of them changes the bytes that policy outrider reads by 2 %. */
#define FAST (1. / 5)
#define SLOW (1. / 128)
#define SESSION (1. / 32) /* at first a plain mean */
#define SESSION_PRIOR 3 /* runs that the long-run share counts as */
#define EVER (1. / 2048) /* at first a plain mean */
/* Tokens of a prompt that say as much as one run about what its answer will use, up to as many as
 * the session remembers: the question is known before anything has been answered. On the demo
 * model's traces, 1 to 10 instead of 4 read up to 0.4 % more. A prompt that counts as one run reads
 * 2 % more and waits 1.5 % longer, up to 6 % and 4 % with room for half of the experts. */
#define PROMPT_TOKENS 4
/* At most this part of a share may be new at once; and the decay factor does not fall below
 * LEAST_KEPT before it is multiplied out. */
#define MOST_NEW 0.95
#define LEAST_KEPT 1e-6f
/* Runs that a profile counts as. With Zipf's routing, 24 layers of 128 experts, room for 50 %, and
 * 256 passes, a right profile saves 9 % of the bytes and a wrong one costs 6 %; with 64 runs it is
 * 6 % and 5 %. */
#define PROFILE_RUNS 256
#define NO_PROFILE_RUNS 8

/* Divided by the experts of a layer, because a run takes one step for each of them from the same
 * weights. z then moves by less than twice its error, even if every input is at its bound and every
 * p is a half. A fixed rate that suits 32 experts diverges with 128, where policy outrider read up
 * to a third more than with this one. On the demo model's traces it reads 0.3 % more or less with a
 * third of this rate, 0.5 to 1 % more with four times, and 2 % more with ten times as much. */
#define LEARNING_RATE 0.16
/* Shares count as no nearer to 0 and 1 than this: one surprise must not outweigh everything else.
 */
#define LEAST_SHARE 0.002
/* Counts of evidence are halved from here on, because sources change with the text, and drafters
 * with the session. */
#define COUNT_MAX 8192u

enum {
	BIAS,
	IN_SHARES,
	IN_LAST = IN_SHARES + EXPECTATION_SHARES,
	IN_HINTS = EXPECTATION_BASE_INPUTS,
};

int expectation_init(
	struct expectation *x, const struct cache_policy_shape *shape, struct error *err)
{
	size_t n_ids = (size_t)shape->n_layers * shape->n_experts;
	*x = (struct expectation){.n_layers = shape->n_layers,
		.n_experts = shape->n_experts,
		.n_experts_used = shape->n_experts_used};
	x->of = calloc(n_ids, sizeof(*x->of));
	x->layer = calloc(shape->n_layers, sizeof(*x->layer));
	x->tokens = calloc(shape->n_experts, sizeof(*x->tokens));
	x->used = calloc(shape->n_experts, sizeof(*x->used));
	x->far = calloc(n_ids, sizeof(*x->far));
	if (!(x->of && x->layer && x->tokens && x->used && x->far)) {
		expectation_exit(x);
		return error_set(
			err, ENOMEM, "no memory for what %zu experts are expected to do", n_ids);
	}
	/* Initial weights. On text the session counts most in the end; with routing that does not
	 * change, all runs do; hints count as much as they are worth. */
	x->weight[IN_SHARES + SHARE_FAST] = 0.1;
	x->weight[IN_SHARES + SHARE_SLOW] = 0.1;
	x->weight[IN_SHARES + SHARE_SESSION] = 0.4;
	x->weight[IN_SHARES + SHARE_EVER] = 0.4;
	for (int s = 0; s < HINT_SOURCES; s++)
		x->weight[IN_HINTS + s] = 1;
	memcpy(x->base_weight, x->weight, sizeof(x->base_weight));
	memcpy(x->far_weight, x->weight, sizeof(x->far_weight));
	for (uint32_t l = 0; l < x->n_layers; l++) {
		uint64_t most = 0;
		x->layer[l].ever_runs = shape->profile ? PROFILE_RUNS : NO_PROFILE_RUNS;
		for (int i = 0; i < EXPECTATION_SHARES; i++)
			x->layer[l].kept[i] = 1;
		const uint64_t *uses =
			shape->profile ? shape->profile + (size_t)l * x->n_experts : NULL;
		for (uint32_t e = 0; uses && e < x->n_experts; e++)
			most += uses[e];
		for (uint32_t e = 0; e < x->n_experts; e++) {
			struct expectation_state *state = &x->of[(size_t)l * x->n_experts + e];
			double share = (double)x->n_experts_used / x->n_experts;
			if (most > 0)
				share *= (double)uses[e] / (double)most * x->n_experts;
			for (int i = 0; i < EXPECTATION_SHARES; i++)
				state->share[i] = (float)(share < 1 ? share : 1);
		}
		expectation_refresh(x, l);
	}
	return 0;
}

void expectation_exit(struct expectation *x)
{
	free(x->of);
	free(x->layer);
	free(x->tokens);
	free(x->used);
	free(x->far);
	*x = (struct expectation){0};
}

static float log_odds(double p)
{
	p = fmin(fmax(p, LEAST_SHARE), 1 - LEAST_SHARE);
	return (float)log(p / (1 - p));
}

/* The step of a score. Scores are shares of a token's weight, or probabilities, which some sources
 * sum over tokens; steps are finer where scores are small. */
static uint8_t step_of(float score)
{
	if (!(score > 0))
		return 1;
	double root = sqrt((double)score);
	return root >= 1 ? EXPECTATION_STEPS - 1 : (uint8_t)(1 + root * (EXPECTATION_STEPS - 2));
}

static float sigmoid_of(const double *weight, const float *input, int n)
{
	double z = 0;
	for (int i = 0; i < n; i++)
		z += weight[i] * (double)input[i];
	return (float)(1 / (1 + exp(-z)));
}

/* True when a source has hinted that is combined with others; HINT_GATE_FAR is used alone. */
static bool any_near(const struct expectation_layer *of)
{
	return of->hinted[HINT_DRAFT] || of->hinted[HINT_GATE] || of->hinted[HINT_HISTORY];
}

static bool far_alone(const struct expectation_layer *of, const struct expectation_state *state)
{
	return state->step[HINT_GATE_FAR] > 0 && !of->hinted[HINT_GATE];
}

static void estimate(struct expectation *x, uint32_t layer, struct expectation_state *state)
{
	const struct expectation_layer *of = &x->layer[layer];
	bool far = far_alone(of, state);
	for (int s = 0; s < HINT_SOURCES; s++)
		state->input[IN_HINTS + s] = of->hinted[s] ? of->evidence[s][state->step[s]] : 0;
	if (!far)
		state->input[IN_HINTS + HINT_GATE_FAR] = 0;
	state->base = sigmoid_of(x->base_weight, state->input, EXPECTATION_BASE_INPUTS);
	if (far || any_near(of))
		state->p = sigmoid_of(
			far ? x->far_weight : x->weight, state->input, EXPECTATION_INPUTS);
	else
		state->p = state->base;
}

void expectation_refresh(struct expectation *x, uint32_t layer)
{
	struct expectation_layer *of = &x->layer[layer];
	for (uint32_t e = 0; e < x->n_experts; e++) {
		struct expectation_state *state = &x->of[(size_t)layer * x->n_experts + e];
		state->input[BIAS] = 1;
		for (int i = 0; i < EXPECTATION_SHARES; i++) {
			state->share[i] *= of->kept[i];
			state->input[IN_SHARES + i] = log_odds((double)state->share[i]);
		}
		state->input[IN_LAST] = state->last;
		estimate(x, layer, state);
	}
	for (int i = 0; i < EXPECTATION_SHARES; i++)
		of->kept[i] = 1;
	of->runs = 0;
}

void expectation_use(struct expectation *x, const struct cache_use *use)
{
	/* The verifier's number: it may wrap. */
	if (x->tokens[use->expert] == 0 && use->tokens > 0 && x->n_used < x->n_experts)
		x->used[x->n_used++] = (uint16_t)use->expert;
	x->tokens[use->expert] += use->tokens;
	x->n_tokens += use->tokens;
}

static void weigh_evidence(struct expectation_layer *layer, int source)
{
	uint32_t(*count)[2] = layer->count[source];
	uint32_t sum[2] = {0, 0};
	for (int i = 0; i < EXPECTATION_STEPS; i++)
		for (int used = 0; used < 2; used++)
			sum[used] += count[i][used];
	bool full = sum[0] + sum[1] > COUNT_MAX;
	for (int i = 0; i < EXPECTATION_STEPS; i++) {
		/* Adds half a sighting of each, so that a step never seen says little. */
		double with = (count[i][1] + 0.5) / (sum[1] + 0.5 * EXPECTATION_STEPS);
		double without = (count[i][0] + 0.5) / (sum[0] + 0.5 * EXPECTATION_STEPS);
		layer->evidence[source][i] = (float)log(with / without);
		for (int used = 0; full && used < 2; used++)
			count[i][used] /= 2;
	}
}

/* One step down the gradient. by: (outcome - expectation) * rate. */
static void correct(double *weight, const float *input, int n, double by)
{
	for (int i = 0; i < n; i++)
		weight[i] += by * (double)input[i] / (1 + fabs((double)input[i]));
}

/* Learns from what was expected of the experts that the last far prediction named, before there was
 * anything nearer. */
static void learn_far(struct expectation *x, uint32_t layer)
{
	const struct expectation_layer *of = &x->layer[layer];
	const uint16_t *far = x->far + (size_t)layer * x->n_experts;
	for (uint32_t i = 0; i < of->n_far; i++) {
		const struct expectation_state *state =
			&x->of[(size_t)layer * x->n_experts + far[i]];
		float input[EXPECTATION_INPUTS];
		memcpy(input, state->input, sizeof(input));
		input[IN_HINTS + HINT_GATE] = 0;
		input[IN_HINTS + HINT_GATE_FAR] =
			of->evidence[HINT_GATE_FAR][state->step[HINT_GATE_FAR]];
		float p = sigmoid_of(x->far_weight, input, EXPECTATION_INPUTS);
		correct(x->far_weight, input, EXPECTATION_INPUTS,
			LEARNING_RATE / of->n_far * ((x->tokens[far[i]] > 0) - (double)p));
	}
}

/* What the other sources said about it is learnt from all the same. */
static void learn_without_far(
	struct expectation *x, const struct expectation_state *state, double rate, bool used)
{
	float input[EXPECTATION_INPUTS];
	memcpy(input, state->input, sizeof(input));
	input[IN_HINTS + HINT_GATE_FAR] = 0;
	float p = sigmoid_of(x->weight, input, EXPECTATION_INPUTS);
	correct(x->weight, input, EXPECTATION_INPUTS, rate * (used - (double)p));
}

/* Learns from the estimates with which the run began. */
static void learn(struct expectation *x, uint32_t layer)
{
	struct expectation_layer *of = &x->layer[layer];
	const double rate = LEARNING_RATE / x->n_experts;
	const bool near = any_near(of);
	learn_far(x, layer);
	for (uint32_t e = 0; e < x->n_experts; e++) {
		struct expectation_state *state = &x->of[(size_t)layer * x->n_experts + e];
		bool used = x->tokens[e] > 0;
		if (near && far_alone(of, state))
			learn_without_far(x, state, rate, used);
		else if (near)
			correct(x->weight, state->input, EXPECTATION_INPUTS,
				rate * (used - (double)state->p));
		correct(x->base_weight, state->input, EXPECTATION_BASE_INPUTS,
			rate * (used - (double)state->base));
		for (int s = 0; s < HINT_SOURCES; s++)
			if (of->hinted[s])
				of->count[s][state->step[s]][used]++;
	}
	for (int s = 0; s < HINT_SOURCES; s++)
		if (of->hinted[s])
			weigh_evidence(of, s);
}

/* The run is over: its hints are dropped, and those for the run after it now count. */
static void turn_hints(struct expectation *x, uint32_t layer, uint64_t iteration)
{
	struct expectation_layer *of = &x->layer[layer];
	/* Another verifier, which counts from below: its iterations do not reach those that its
	 * predecessor's hints were for. */
	bool fell = iteration < of->ran;
	of->ran = iteration;
	for (int s = 0; s < HINT_SOURCES; s++) {
		bool over = of->hinted[s] && (of->until[s] <= iteration || fell);
		bool due = of->hinted_later[s] && !fell;
		if (!over && !of->hinted_later[s])
			continue;
		if (over && s == HINT_GATE_FAR)
			of->n_far = 0;
		for (uint32_t e = 0; e < x->n_experts; e++) {
			struct expectation_state *state = &x->of[(size_t)layer * x->n_experts + e];
			if (over)
				state->step[s] = 0;
			if (due && state->later[s] > state->step[s])
				state->step[s] = state->later[s];
			state->later[s] = 0;
		}
		/* If hints are over, `until` means nothing: a verifier that is gone may have set
		 * it. */
		bool hold = of->hinted[s] && !over;
		if (due && (!hold || of->until_later[s] > of->until[s]))
			of->until[s] = of->until_later[s];
		of->hinted[s] = hold || due;
		of->hinted_later[s] = false;
	}
}

/* The rate of a moving share for several runs in a row. */
static double by_runs(double by, double runs)
{
	return runs > 1 ? 1 - pow(1 - by, runs) : by;
}

static void multiply_out(struct expectation *x, uint32_t layer, int which)
{
	float *kept = &x->layer[layer].kept[which];
	for (uint32_t e = 0; e < x->n_experts; e++)
		x->of[(size_t)layer * x->n_experts + e].share[which] *= *kept;
	*kept = 1;
}

/* Updates the shares of the run's layer; a prompt counts with its tokens' shares. */
static void move_shares(struct expectation *x, uint32_t layer, double tokens, bool prompt)
{
	struct expectation_layer *of = &x->layer[layer];
	uint32_t before = of->session_runs;
	double runs = prompt ? fmin(fmax(tokens / PROMPT_TOKENS, 1), 1 / SESSION) : 1;
	if (before < 1 / SESSION)
		of->session_runs += (uint32_t)runs;
	of->ever_runs += of->ever_runs < 1 / EVER;
	const double by[EXPECTATION_SHARES] = {[SHARE_FAST] = by_runs(FAST, runs),
		[SHARE_SLOW] = by_runs(SLOW, runs),
		[SHARE_SESSION] =
			fmax(by_runs(SESSION, runs), runs / (before + runs - 1 + SESSION_PRIOR)),
		[SHARE_EVER] = 1. / of->ever_runs};
	double gain[EXPECTATION_SHARES];
	for (int i = 0; i < EXPECTATION_SHARES; i++) {
		double new = fmin(by[i], MOST_NEW);
		of->kept[i] *= (float)(1 - new);
		if (of->kept[i] < LEAST_KEPT)
			multiply_out(x, layer, i);
		gain[i] = new / (double)of->kept[i];
	}
	for (uint32_t u = 0; u < x->n_used; u++) {
		uint32_t e = x->used[u];
		double to = prompt ? x->tokens[e] / tokens : 1;
		float *share = x->of[(size_t)layer * x->n_experts + e].share;
		for (int i = 0; i < EXPECTATION_SHARES; i++)
			share[i] += (float)(gain[i] * to);
	}
}

static bool any_hint(const struct expectation_layer *of)
{
	bool any = false;
	for (int s = 0; s < HINT_SOURCES; s++)
		any |= of->hinted[s] || of->hinted_later[s];
	return any;
}

static void begin_run(struct expectation *x)
{
	for (uint32_t u = 0; u < x->n_used; u++)
		x->tokens[x->used[u]] = 0;
	x->n_tokens = x->n_used = 0;
}

bool expectation_end(struct expectation *x, uint32_t layer, uint64_t iteration, bool coarse)
{
	struct expectation_layer *of = &x->layer[layer];
	double tokens = (double)x->n_tokens / x->n_experts_used;
	/* A prompt's tokens use nearly everything. Their shares are worth knowing, but nothing is
	 * learnt from them about other runs. */
	bool prompt = tokens > LIMIT_DRAFT_SHARE + 1;
	/* Estimates older than the previous run are not learnt from. */
	if (!prompt && of->runs == 0)
		learn(x, layer);
	move_shares(x, layer, tokens, prompt);
	bool estimates = !coarse || any_hint(of) || ++of->runs == EXPECTATION_COARSE;
	for (uint32_t e = 0; estimates && e < x->n_experts; e++)
		x->of[(size_t)layer * x->n_experts + e].last =
			(float)(tokens > 0 ? x->tokens[e] / tokens : 0);
	begin_run(x);
	if (!estimates)
		return false;
	turn_hints(x, layer, iteration);
	expectation_refresh(x, layer);
	return true;
}

void expectation_session(struct expectation *x, uint64_t session)
{
	if (session == x->session)
		return;
	x->session = session;
	for (uint32_t l = 0; l < x->n_layers; l++) {
		struct expectation_layer *of = &x->layer[l];
		of->session_runs = 0;
		of->kept[SHARE_SESSION] = of->kept[SHARE_SLOW];
		for (uint32_t e = 0; e < x->n_experts; e++) {
			float *share = x->of[(size_t)l * x->n_experts + e].share;
			share[SHARE_SESSION] = share[SHARE_SLOW];
		}
	}
}

bool expectation_is_far(const struct expectation *x, uint32_t layer, uint32_t expert)
{
	return far_alone(&x->layer[layer], &x->of[(size_t)layer * x->n_experts + expert]);
}

double expectation_without_far(const struct expectation *x, uint32_t layer, uint32_t expert)
{
	const struct expectation_state *state = &x->of[(size_t)layer * x->n_experts + expert];
	float input[EXPECTATION_INPUTS];
	if (!any_near(&x->layer[layer]))
		return (double)state->base;
	memcpy(input, state->input, sizeof(input));
	input[IN_HINTS + HINT_GATE_FAR] = 0;
	return (double)sigmoid_of(x->weight, input, EXPECTATION_INPUTS);
}

uint32_t expectation_supersede(
	struct expectation *x, const struct cache_hint *hint, const uint16_t **experts)
{
	struct expectation_layer *of = &x->layer[hint->layer];
	uint32_t n = of->n_far;
	*experts = x->far + (size_t)hint->layer * x->n_experts;
	if (hint->source != HINT_GATE_FAR || hint->made_ns == of->far_made_ns)
		return 0;
	of->far_made_ns = hint->made_ns;
	of->n_far = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct expectation_state *state =
			&x->of[(size_t)hint->layer * x->n_experts + (*experts)[i]];
		state->step[HINT_GATE_FAR] = 0;
		estimate(x, hint->layer, state);
	}
	return n;
}

void expectation_hint(struct expectation *x, const struct cache_hint *hint)
{
	struct expectation_layer *of = &x->layer[hint->layer];
	struct expectation_state *state = &x->of[(size_t)hint->layer * x->n_experts + hint->expert];
	uint8_t step = step_of(hint->score);
	if (!of->hinted[hint->source] || hint->iteration > of->until[hint->source])
		of->until[hint->source] = hint->iteration;
	of->hinted[hint->source] = true;
	if (hint->source == HINT_GATE_FAR && state->step[HINT_GATE_FAR] == 0)
		x->far[(size_t)hint->layer * x->n_experts + of->n_far++] = (uint16_t)hint->expert;
	if (step > state->step[hint->source])
		state->step[hint->source] = step;
	estimate(x, hint->layer, state);
}

void expectation_hint_later(struct expectation *x, const struct cache_hint *hint)
{
	struct expectation_layer *of = &x->layer[hint->layer];
	uint8_t *later =
		&x->of[(size_t)hint->layer * x->n_experts + hint->expert].later[hint->source];
	uint8_t step = step_of(hint->score);
	if (!of->hinted_later[hint->source] || hint->iteration > of->until_later[hint->source])
		of->until_later[hint->source] = hint->iteration;
	of->hinted_later[hint->source] = true;
	*later = step > *later ? step : *later;
}
