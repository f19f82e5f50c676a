/*
 * How probable it is that each expert is used the next time its layer runs: from how often it was used lately, in the long
 * run, since the start and by the session under way, and from hints, each source trusted as far as it was right before. Part
 * of a policy; nothing is allocated after expectation_init.
 *
 *   p = sigmoid(sum of w_i x_i)
 *
 * x: 1, the log odds of four moving shares of the layer's runs that used the expert (over some 5, some 128, those of the
 * session, and all up to some 2048, before which a profile counts as 256 runs; a prompt is many runs), the share of the last
 * run's tokens that chose it, and per source of hints the logarithm of how much more often what was hinted for so was used than not: log P(hint | used) / P(hint | not used), counted per source, layer and step of
 * the score; no hint is a step too, once a source has hinted for the layer at all. A prior with evidence added to it,
 * as naive Bayes would; but sources agree and shares overlap, so the weights w are learnt, by one step down the gradient
 * of the log loss after each run of a layer (Bottou, Stochastic gradient descent tricks, 2012). What is expected without hints
 * has weights of its own, learnt from the same runs: beside hints the shares are worth less than alone. It is what is expected
 * as long as nobody has hinted for the layer.
 *
 * A run teaches by what was hinted for it, and by nothing that came later: a drafter hints for the next pass while the last
 * layer of the one before counts as running, or while that pass runs.
 *
 * Hints of HINT_GATE_FAR come in predictions, each superseding the one before for its layer, and all of them superseded by
 * HINT_GATE's. So they have weights of their own, too, learnt from the experts that they named in the last prediction: what
 * they are worth for as long as there is nothing nearer, with what has not been fetched as it is. What they leave out stays
 * as it was.
 *
 * While every expert is resident nobody asks, and a small model runs a hundred thousand layers a second: then the shares
 * follow every run all the same, at the price of what it used, and all else is done for one run in EXPECTATION_COARSE.
 */
#pragma once

#include "services/expert-cache/policies/policy.h"

enum {
	EXPECTATION_STEPS = 9, /* of scores: 0 = not hinted for */
	EXPECTATION_BASE_INPUTS = 6, /* those that are no hints */
	EXPECTATION_INPUTS = EXPECTATION_BASE_INPUTS + HINT_SOURCES,
	EXPECTATION_COARSE = 256, /* runs between new estimates where nobody asks for them */
};

/* Moving shares of the runs that used an expert. */
enum expectation_share { SHARE_FAST, SHARE_SLOW, SHARE_SESSION, SHARE_EVER, EXPECTATION_SHARES };

struct expectation {
	uint32_t n_layers, n_experts, n_experts_used;
	struct expectation_state {
		float share[EXPECTATION_SHARES]; /* each divided by its layer's kept */
		float last; /* of the last run's tokens */
		uint8_t step[HINT_SOURCES]; /* of the hints for the run to come */
		uint8_t later[HINT_SOURCES]; /* of those for the run after it */
		float input[EXPECTATION_INPUTS];
		float p;
		float base; /* of the same inputs without the hints */
	} * of; /* [n_layers][n_experts] */
	/* Of the run to come, and of the one after it: until: iteration up to which the hints of a source that hinted hold. */
	struct expectation_layer {
		bool hinted[HINT_SOURCES], hinted_later[HINT_SOURCES];
		uint64_t until[HINT_SOURCES], until_later[HINT_SOURCES];
		uint64_t ran; /* iteration of the last estimates */
		uint32_t session_runs; /* of the session under way, while it is new */
		uint32_t ever_runs; /* that its share ever is of, what it began with included */
		/* What a share keeps of its value at the last estimates: all experts of a layer lose alike, so that a run changes
		 * only what it used. */
		float kept[EXPECTATION_SHARES];
		uint32_t runs; /* since the last estimates */
		float evidence[HINT_SOURCES][EXPECTATION_STEPS]; /* the logarithms, of count */
		uint32_t count[HINT_SOURCES][EXPECTATION_STEPS][2]; /* not used, used */
		uint64_t far_made_ns; /* the last prediction of HINT_GATE_FAR for the run to come */
		uint32_t n_far; /* and how many experts it names */
	} * layer; /* [n_layers] */
	uint16_t *far; /* [n_layers][n_experts] the first n_far of a layer are those */
	double weight[EXPECTATION_INPUTS];
	double base_weight[EXPECTATION_BASE_INPUTS]; /* of base */
	double far_weight[EXPECTATION_INPUTS]; /* of p where HINT_GATE_FAR is what there is */
	uint64_t session;
	/* The run under way. */
	uint32_t *tokens; /* [n_experts] */
	uint32_t n_tokens; /* chosen, over all experts */
	uint32_t n_used;
	uint16_t *used; /* [n_experts] the first n_used are those with tokens */
};

int expectation_init(
	struct expectation *expectation, const struct cache_policy_shape *shape, struct error *err);
void expectation_exit(struct expectation *expectation);

static inline double expectation_of(const struct expectation *expectation, uint32_t id)
{
	return (double)expectation->of[id].p;
}
/* The same for the run after the next, which no hint is about. */
static inline double expectation_later(const struct expectation *expectation, uint32_t id)
{
	return (double)expectation->of[id].base;
}
/* The layer that runs uses this expert. */
void expectation_use(struct expectation *expectation, const struct cache_use *use);
/* All uses of that run have been told: learns from it. True: every estimate of the layer is a new one, of its next run.
 * coarse: every expert is resident, so that older estimates will do; what hints are about is not put off. */
bool expectation_end(
	struct expectation *expectation, uint32_t layer, uint64_t iteration, bool coarse);
/* Another session (0: several) from now on. */
void expectation_session(struct expectation *expectation, uint64_t session);
/* Whether what is expected of the expert rests on a hint of HINT_GATE_FAR. */
bool expectation_is_far(const struct expectation *expectation, uint32_t layer, uint32_t expert);
/* What would be expected of it without those. */
double expectation_without_far(
	const struct expectation *expectation, uint32_t layer, uint32_t expert);
/* To be called before expectation_hint: a hint of HINT_GATE_FAR of another prediction than the layer's last withdraws that.
 * How many estimates changed thereby, and whose: (*experts)[0..n-1], valid until the next call of any of these. */
uint32_t expectation_supersede(
	struct expectation *expectation, const struct cache_hint *hint, const uint16_t **experts);
/* The expert's estimate is a new one; the others' of its layer are not, until expectation_refresh. */
void expectation_hint(struct expectation *expectation, const struct cache_hint *hint);
/* The same of a run after the next, which the next one must neither be met with nor teach by: it counts when that is over. */
void expectation_hint_later(struct expectation *expectation, const struct cache_hint *hint);
/* All hints for the layer's run are there: what they leave out becomes less likely. */
void expectation_refresh(struct expectation *expectation, uint32_t layer);
