/*
 * SP-MoE (arXiv 2510.10302). Takes the hints of the drafting stage: the draft model's attention
 * output of layer l through the target's router of layer l. Prefetches them for the layers below
 * the cutoff layer, which section 3.2's solver finds from measured times (cutoff.h). Evicts the
 * least recently used expert (section 4.4). The experts of one layer are issued one after the
 * other, and the layers in order (section 3.3, batched I/O: with as many evictions). The transfer
 * worker is the paper's prefetcher thread; the ring of hints is its task queue, whose publication
 * is the checkpoint of algorithm 2.
 *
 * Our choices where the paper is silent. N_l, the number of experts of layer l that must be loaded,
 * is a running mean over drafting stages: experts that hints asked for and that were not resident.
 * L is solved anew when an input has changed by a tenth. A prefetch that was not issued when its
 * layer is verified is obsolete. Nothing is held back until the times are known.
 *
 * k is the router's own. So it is in the paper, except for Mixtral 8x7B, where the paper takes one
 * of the two experts: "we get high accuracy in critical expert predictions with k = 1, and the size
 * of one expert in Mixtral 8x7B (336 MB) is far larger than that in other models (150 MB in Phi-MoE
 * and 16 MB in Deepseek), resulting in significantly higher costs when prefetching errors" (section
 * 3.2). We do not follow this. It is a finding for one model, not a rule for others, and its reason
 * does not hold here: quantised (Q4_0) such an expert has 99 MB, less than Phi-MoE's, for which the
 * paper keeps k; and what an expert takes on the link in use is measured (t_io) and lowers the
 * cutoff. Besides, hints do not tell which expert was a token's first choice: they are made for
 * every policy alike, each expert once per pass, and the second choice of one token may be the
 * first of the next.
 */
#include "services/expert-cache/policies/published/cutoff.h"
#include "services/expert-cache/policies/published/lru.h"

#include <math.h>
#include <stdlib.h>

/* Weight of a verification in the running mean of N_l. */
#define SMOOTHING 0.125
#define DRIFT 0.1

struct sp_moe {
	struct lru lru; /* first: its functions take it for the policy */
	uint32_t n_layers, cutoff;
	uint64_t iteration;
	uint32_t layer; /* the layer that runs */
	bool running;
	struct cache_measures now, solved; /* solved: what the cutoff was found from */
	double solved_experts; /* the sum of N_l then */
	uint32_t *asked; /* [n_layers] since the last verification */
	double *new_experts; /* [n_layers] N_l */
};

static int sp_moe_create(const struct cache_policy_shape *shape, void **out, struct error *err)
{
	struct sp_moe *sp = calloc(1, sizeof(*sp));
	if (sp == NULL)
		return error_set(err, ENOMEM, "no memory for a cache policy");
	sp->n_layers = sp->cutoff = shape->n_layers;
	sp->now.n_slots = sp->solved.n_slots = shape->n_slots;
	sp->asked = calloc(shape->n_layers, sizeof(*sp->asked));
	sp->new_experts = calloc(shape->n_layers, sizeof(*sp->new_experts));
	int status = sp->asked != NULL && sp->new_experts != NULL
			     ? lru_init(&sp->lru, shape, err)
			     : error_set(err, ENOMEM, "no memory for %u layers", shape->n_layers);
	if (status != 0) {
		free(sp->asked);
		free(sp->new_experts);
		free(sp);
		return status;
	}
	*out = sp;
	return 0;
}

static void sp_moe_destroy(void *policy)
{
	struct sp_moe *sp = policy;
	lru_exit(&sp->lru);
	free(sp->asked);
	free(sp->new_experts);
	free(sp);
}

static bool moved(double from, double to)
{
	return fabs(to - from) > DRIFT * fabs(from);
}

static void solve(struct sp_moe *sp)
{
	double experts = 0;
	for (uint32_t l = 0; l < sp->n_layers; l++)
		experts += sp->new_experts[l];
	const struct cache_measures *now = &sp->now, *solved = &sp->solved;
	if (now->n_slots == solved->n_slots && now->draft_tokens == solved->draft_tokens &&
		!moved(solved->draft_layer_ns, now->draft_layer_ns) &&
		!moved(solved->load_ns, now->load_ns) && !moved(sp->solved_experts, experts))
		return;
	struct cutoff_inputs inputs = {.n_layers = sp->n_layers,
		.n_slots = now->n_slots,
		.draft_tokens = now->draft_tokens,
		.draft_layer_ns = now->draft_layer_ns,
		.load_ns = now->load_ns,
		.new_experts = sp->new_experts};
	sp->cutoff = cutoff_solve(&inputs);
	sp->solved = *now;
	sp->solved_experts = experts;
}

static void sp_moe_measure(void *policy, const struct cache_measures *measures)
{
	struct sp_moe *sp = policy;
	sp->now = *measures;
	solve(sp);
}

/* A verification begins: the drafting stage before it is over. */
static void end_drafting(struct sp_moe *sp)
{
	double asked = 0;
	for (uint32_t l = 0; l < sp->n_layers; l++)
		asked += sp->asked[l];
	if (asked == 0)
		return;
	for (uint32_t l = 0; l < sp->n_layers; l++) {
		sp->new_experts[l] += SMOOTHING * (sp->asked[l] - sp->new_experts[l]);
		sp->asked[l] = 0;
	}
	solve(sp);
}

static void begin_layer(struct sp_moe *sp, const struct cache_use *use)
{
	if (sp->running && use->iteration == sp->iteration)
		return;
	if (!sp->running || use->layer <= sp->layer)
		end_drafting(sp);
	sp->running = true;
	sp->iteration = use->iteration;
	sp->layer = use->layer;
	prefetch_queue_passed(&sp->lru.queue, use->layer);
}

static void sp_moe_use(void *policy, const struct cache_use *use)
{
	begin_layer(policy, use);
	lru_use(policy, use);
}

/* Earlier layers come first; within a layer the score decides. Scores are probabilities, or are
 * made to look like them. */
static float rank(const struct sp_moe *sp, uint32_t layer, float score)
{
	float within = score > 0 ? score / (1 + score) : 0;
	return (float)(sp->n_layers - layer) + within;
}

static void sp_moe_hint(void *policy, const struct cache_hint *hint, uint32_t slot)
{
	struct sp_moe *sp = policy;
	if (hint->source != HINT_DRAFT || hint->coming)
		return;
	if (slot != SLOT_NONE) {
		lru_touch(&sp->lru, slot);
		return;
	}
	if (!prefetch_queue_has(&sp->lru.queue, hint->layer, hint->expert))
		sp->asked[hint->layer]++;
	if (hint->layer >= sp->cutoff)
		return;
	struct cache_prefetch prefetch = {.layer = hint->layer,
		.expert = hint->expert,
		.score = rank(sp, hint->layer, hint->score),
		.needed_by_ns = hint->needed_by_ns};
	prefetch_queue_add(&sp->lru.queue, &prefetch);
}

const struct cache_policy_ops policy_sp_moe = {
	.name = "sp-moe",
	.help = "draft-stage hints up to the cutoff layer (SP-MoE); LRU",
	.hint_sources = 1u << HINT_DRAFT,
	.create = sp_moe_create,
	.destroy = sp_moe_destroy,
	.on_load = lru_load,
	.on_evict = lru_evict,
	.on_demand = lru_demand,
	.on_activation = sp_moe_use,
	.on_hint = sp_moe_hint,
	.on_measure = sp_moe_measure,
	.next = lru_next,
	.put_back = lru_put_back,
	.queued = lru_queued,
	.victim = lru_victim,
};
