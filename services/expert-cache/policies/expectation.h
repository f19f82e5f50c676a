/*
 * The probability that each expert is used the next time its layer runs. It is estimated from how
 * often the expert was used recently, in the long run, since the start, and by the present session,
 * and from hints, where each source is trusted as far as it was right before. Part of a policy,
 * used by its thread; nothing is allocated after expectation_init.
 *
 *   p = sigmoid(sum of w_i x_i)
 *
 * The inputs x are: 1; the log odds of four moving shares of the layer's runs that used the expert
 * (over about 5 runs, over about 128, over those of the session, and over all up to about 2048,
 * before which a profile counts as 256 runs; a prompt is many runs); the share of the last run's
 * tokens that chose it; and for each source of hints the logarithm of how much more often experts
 * with such a hint were used than not: log P(hint | used) / P(hint | not used), counted for each
 * source, layer and step of the score. No hint is a step as well, once a source has hinted for the
 * layer at all. This is a prior with evidence added to it, as in naive Bayes. But sources agree and
 * shares overlap, so the weights w are learnt, by one step down the gradient of the log loss after
 * each run of a layer (Bottou, Stochastic gradient descent tricks, 2012). The expectation without
 * hints has weights of its own, learnt from the same runs, because beside hints the shares are
 * worth less than alone. It applies while nobody has hinted for the layer.
 *
 * A run is learnt from with the hints that were for it, and with nothing that came later: a drafter
 * hints for the next pass while the last layer of the present one counts as running, or while that
 * pass runs.
 *
 * Hints of HINT_GATE_FAR come in predictions. Each supersedes the previous one for its layer, and
 * HINT_GATE's hints supersede all of them. So they too have weights of their own, learnt from the
 * experts that the last prediction named: their worth as long as there is nothing nearer, with
 * other inputs as they are. Experts that they do not name keep their estimates.
 *
 * While every expert is resident nobody asks, and a small model runs a hundred thousand layers a
 * second. Then the shares still follow every run, at a cost proportional to what it used, and
 * everything else is done for one run in EXPECTATION_COARSE.
 */
#pragma once

#include "services/expert-cache/policies/policy.h"

enum {
	EXPECTATION_STEPS = 9, /* steps of scores; 0: no hint */
	EXPECTATION_BASE_INPUTS = 6, /* inputs that are no hints */
	EXPECTATION_INPUTS = EXPECTATION_BASE_INPUTS + HINT_SOURCES,
	EXPECTATION_COARSE = 256, /* runs between new estimates while nobody asks for them */
};

/* Moving shares of the runs that used an expert. */
enum expectation_share { SHARE_FAST, SHARE_SLOW, SHARE_SESSION, SHARE_EVER, EXPECTATION_SHARES };

struct expectation {
	uint32_t n_layers, n_experts, n_experts_used;
	struct expectation_state {
		float share[EXPECTATION_SHARES]; /* each divided by its layer's `kept` */
		float last; /* share of the last run's tokens */
		uint8_t step[HINT_SOURCES]; /* of the hints for the next run */
		uint8_t later[HINT_SOURCES]; /* of the hints for the run after that */
		float input[EXPECTATION_INPUTS];
		float p;
		float base; /* p without the hints */
	} * of; /* [n_layers][n_experts] */
	/* For the next run, and the one after it. until: the iteration up to which a source's hints
	 * are valid. */
	struct expectation_layer {
		bool hinted[HINT_SOURCES], hinted_later[HINT_SOURCES];
		uint64_t until[HINT_SOURCES], until_later[HINT_SOURCES];
		uint64_t ran; /* iteration of the last estimates */
		uint32_t session_runs; /* runs of the present session, while it is new */
		uint32_t ever_runs; /* runs that SHARE_EVER covers, including those it began with */
		/* The factor by which each share has decayed since the last estimates. All experts
		 * of a layer decay alike, so a run changes only the experts that it used. */
		float kept[EXPECTATION_SHARES];
		uint32_t runs; /* runs since the last estimates */
		float evidence[HINT_SOURCES][EXPECTATION_STEPS]; /* the logarithms, from count */
		uint32_t count[HINT_SOURCES][EXPECTATION_STEPS][2]; /* [0]: not used, [1]: used */
		/* made_ns of the last prediction of HINT_GATE_FAR for the next run */
		uint64_t far_made_ns;
		uint32_t n_far; /* number of experts that it names */
	} * layer; /* [n_layers] */
	/* [n_layers][n_experts]; the first n_far entries of a layer are these experts */
	uint16_t *far;
	double weight[EXPECTATION_INPUTS];
	double base_weight[EXPECTATION_BASE_INPUTS]; /* weights for base */
	/* weights for p while only HINT_GATE_FAR has hinted */
	double far_weight[EXPECTATION_INPUTS];
	uint64_t session;
	/* The present run: */
	uint32_t *tokens; /* [n_experts] */
	uint32_t n_tokens; /* choices, summed over all experts */
	uint32_t n_used;
	uint16_t *used; /* [n_experts]; the first n_used entries are the experts with tokens */
};

int expectation_init(
	struct expectation *expectation, const struct cache_policy_shape *shape, struct error *err);
void expectation_exit(struct expectation *expectation);

static inline double expectation_of(const struct expectation *expectation, uint32_t id)
{
	return (double)expectation->of[id].p;
}
/* The same for the run after the next, for which there are no hints. */
static inline double expectation_later(const struct expectation *expectation, uint32_t id)
{
	return (double)expectation->of[id].base;
}
/* Call when the layer that runs uses this expert. */
void expectation_use(struct expectation *expectation, const struct cache_use *use);
/* Call when all uses of that run have been reported: learns from it. True: all estimates of the
 * layer are new, for its next run. coarse: every expert is resident, so older estimates suffice;
 * work that concerns hints is not put off. */
bool expectation_end(
	struct expectation *expectation, uint32_t layer, uint64_t iteration, bool coarse);
/* Call when another session runs (0: several). */
void expectation_session(struct expectation *expectation, uint64_t session);
/* True when the expert's estimate rests on a hint of HINT_GATE_FAR. */
bool expectation_is_far(const struct expectation *expectation, uint32_t layer, uint32_t expert);
/* What would be expected without such hints. */
double expectation_without_far(
	const struct expectation *expectation, uint32_t layer, uint32_t expert);
/* Call before expectation_hint: if a hint of HINT_GATE_FAR belongs to another prediction than the
 * layer's last, that one is withdrawn. Returns how many estimates changed; (*experts)[0..n-1] are
 * their experts, valid until the next call of any function here. */
uint32_t expectation_supersede(
	struct expectation *expectation, const struct cache_hint *hint, const uint16_t **experts);
/* Adds a hint. The expert's estimate is new; the estimates of other experts of its layer are
 * updated by expectation_refresh. */
void expectation_hint(struct expectation *expectation, const struct cache_hint *hint);
/* The same for the run after the next. It must affect neither the next run's estimates nor what is
 * learnt from it, and counts when that run is over. */
void expectation_hint_later(struct expectation *expectation, const struct cache_hint *hint);
/* Call when all hints for the layer's run are there: experts without a hint become less likely. */
void expectation_refresh(struct expectation *expectation, uint32_t layer);
