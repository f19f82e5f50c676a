#include "shared/spec/accept.h"
#include "shared/base/rand.h"

#include <math.h>
#include <string.h>

/* A walk from the root; node is the draft index that it has reached, -1 for the committed tokens.
 */
struct walk {
	struct sampler *sampler;
	const struct accept_input *input;
	struct accept_output *out;
	int node;
};

static uint64_t walk_position(const struct walk *walk)
{
	return (uint64_t)walk->input->n_history + walk->out->n_accepted;
}

static void walk_accept(struct walk *walk, uint32_t child)
{
	struct accept_output *out = walk->out;
	out->token[out->n_accepted] = walk->input->draft->node[child].token;
	out->node[out->n_accepted++] = (int16_t)child;
	walk->node = (int)child;
}

/* The target's own choice at this position; it ends the walk unless a child carries it. */
static int32_t walk_pick(const struct walk *walk)
{
	return walk->input->picks[walk->node + 1].token;
}

/* Children come after their parent, so the walk reads the draft once. */
static int32_t walk_gumbel(struct walk *walk)
{
	const struct draft_reply *draft = walk->input->draft;
	for (uint32_t child = 0; child < draft->n; child++)
		if (draft->node[child].parent == walk->node &&
			draft->node[child].token == walk_pick(walk))
			walk_accept(walk, child);
	return walk_pick(walk);
}

/* What remains of p after refused children, for the ids in sampler->dist: r[id] >= 0, and their
 * sum. */
struct residual {
	/* [n_vocab], in the memory of sampler->logits, which is free because dist holds p */
	float *r;
	double sum;
};

static void residual_sum(const struct sampler *sampler, struct residual *residual)
{
	residual->sum = 0;
	for (uint32_t i = 0; i < sampler->n_dist; i++)
		residual->sum += (double)residual->r[sampler->dist[i].token];
}

static void residual_begin(struct sampler *sampler, struct residual *residual)
{
	residual->r = sampler->logits;
	memset(residual->r, 0, sampler->n_vocab * sizeof(*residual->r));
	for (uint32_t i = 0; i < sampler->n_dist; i++)
		residual->r[sampler->dist[i].token] = sampler->dist[i].p;
	residual_sum(sampler, residual);
}

/* The drafter sampled in proportion to the p that it lists, so q is p over their sum. */
static double support_sum(const struct draft_choice *choice, uint32_t n)
{
	double sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += (double)choice[i].p;
	return sum;
}

/* q of the child's own token; without a support the proposal was certain. */
static double support_q(const struct draft_reply *draft, uint32_t child)
{
	uint32_t n;
	const struct draft_choice *choice = draft_support(draft, child, &n);
	if (n == 0)
		return 1;
	double q = 0;
	for (uint32_t i = 0; i < n; i++)
		if (choice[i].token == draft->node[child].token)
			q += (double)choice[i].p;
	return q / support_sum(choice, n);
}

/* Call when the child was refused: replaces r by (r / sum - q)+ (2211.17192, section 2.3; for trees
 * 2305.09781, section 4.3). */
static void residual_subtract(const struct sampler *sampler, struct residual *residual,
	const struct draft_reply *draft, uint32_t child)
{
	uint32_t n;
	const struct draft_choice *choice = draft_support(draft, child, &n);
	double q_sum = support_sum(choice, n);
	if (n == 0)
		residual->r[draft->node[child].token] = 0;
	for (uint32_t i = 0; i < n; i++) {
		float *r = &residual->r[choice[i].token];
		double q = (double)choice[i].p / q_sum;
		double left = (double)*r - q * residual->sum;
		*r = left > 0 ? (float)left : 0;
	}
	residual_sum(sampler, residual);
}

/* A draw from r, or -1 when rounding has left nothing of it. */
static int32_t residual_draw(const struct sampler *sampler, const struct residual *residual,
	uint64_t seed, uint64_t position)
{
	double u = rand_uniform(seed, RAND_RESIDUAL, position, 0) * residual->sum, sum = 0;
	int32_t last = -1;
	for (uint32_t i = 0; i < sampler->n_dist; i++) {
		int32_t token = sampler->dist[i].token;
		if (residual->r[token] <= 0)
			continue;
		last = token;
		sum += (double)residual->r[token];
		if (u < sum)
			break;
	}
	return last;
}

/* p at the node that was reached, which has children. */
static void walk_distribution(const struct walk *walk)
{
	const struct accept_input *input = walk->input;
	sampler_distribution(walk->sampler, input->params,
		&(struct sampler_input){
			.logits = input->logits(input->arg, walk->node),
			.history = input->history,
			.n_history = input->n_history,
			.n_prompt = input->n_prompt,
			.dry_reach = input->rows ? input->rows[walk->node + 1].dry_reach : 0,
			.tail = walk->out->token,
			.n_tail = walk->out->n_accepted,
		});
}

/* Tries the children of the node in order. Returns the accepted one; or -1, and in *token the one
 * to emit instead. */
static int walk_children(struct walk *walk, int32_t *token)
{
	const struct accept_input *input = walk->input;
	const struct draft_reply *draft = input->draft;
	struct sampler *sampler = walk->sampler;
	uint64_t position = walk_position(walk), seed = input->params->seed;
	struct residual residual = {0};
	for (uint32_t child = (uint32_t)(walk->node + 1); child < draft->n; child++) {
		if (draft->node[child].parent != walk->node)
			continue;
		if (!residual.r) {
			walk_distribution(walk);
			residual_begin(sampler, &residual);
		}
		/* Accept with min(1, r(x) / q(x)), r normalised. Without a division: u q sum < r.
		 */
		double u = rand_uniform(seed, RAND_ACCEPT, position, child);
		if (u * support_q(draft, child) * residual.sum <
			(double)residual.r[draft->node[child].token])
			return (int)child;
		residual_subtract(sampler, &residual, draft, child);
	}
	*token = residual.r ? residual_draw(sampler, &residual, seed, position) : -1;
	/* There is no child, or rounding has emptied the residual (p and q agree to the last bit):
	 * p itself. */
	if (*token < 0)
		*token = walk_pick(walk);
	return -1;
}

static int32_t walk_maximal(struct walk *walk)
{
	for (;;) {
		int32_t token = 0;
		int child = walk_children(walk, &token);
		if (child < 0)
			return token;
		walk_accept(walk, (uint32_t)child);
	}
}

bool accept_wants_logits(const struct sampler_params *params)
{
	return params->coupling == COUPLING_MAXIMAL && params->temperature > 0;
}

void accept_draft(
	struct sampler *sampler, const struct accept_input *input, struct accept_output *out)
{
	struct walk walk = {sampler, input, out, -1};
	out->n_accepted = 0;
	int32_t last =
		accept_wants_logits(input->params) ? walk_maximal(&walk) : walk_gumbel(&walk);
	out->token[out->n_accepted] = last;
	out->n_tokens = out->n_accepted + 1;
}

static int check_support(
	const struct draft_reply *reply, uint32_t i, uint32_t n_vocab, struct error *err)
{
	uint32_t n;
	const struct draft_choice *choice = draft_support(reply, i, &n);
	double sum = 0;
	bool own = n == 0;
	if (n > LIMIT_DRAFT_SUPPORT)
		return error_set(err, EPROTO,
			"draft token %u has a support of %u, allowed are 0..%d", i, n,
			LIMIT_DRAFT_SUPPORT);
	for (uint32_t j = 0; j < n; j++) {
		int32_t token = choice[j].token;
		float p = choice[j].p;
		if (token < 0 || (uint32_t)token >= n_vocab)
			return error_set(err, EPROTO,
				"support %u of draft token %u is token %d, allowed are 0..%u", j, i,
				token, n_vocab - 1);
		/* Written so that a NaN fails. */
		if (!(p > 0 && p <= 1.001f))
			return error_set(err, EPROTO,
				"support %u of draft token %u has p = %g, allowed is more than 0, "
				"up to 1",
				j, i, (double)p);
		sum += (double)p;
		own = own || token == reply->node[i].token;
	}
	if (n > 0 && !(sum >= 0.999 && sum <= 1.001))
		return error_set(err, EPROTO,
			"the support of draft token %u sums to %g instead of 1", i, sum);
	if (!own)
		return error_set(err, EPROTO, "draft token %u (%d) is not in its own support", i,
			reply->node[i].token);
	return 0;
}

/* What check_node needs to know of earlier nodes. */
struct check {
	uint8_t depth[LIMIT_DRAFT_NODES + 1]; /* [0]: the committed tokens; of node i at [i + 1] */
	uint16_t children[LIMIT_DRAFT_NODES + 1]; /* counted so far, with the same indices */
};

/* Whether an earlier child of the same node has the token. */
static bool repeats(const struct draft_reply *reply, uint32_t i)
{
	const struct draft_node *node = &reply->node[i];
	for (uint32_t j = (uint32_t)(node->parent + 1); j < i; j++)
		if (reply->node[j].parent == node->parent && reply->node[j].token == node->token)
			return true;
	return false;
}

static int check_node(const struct draft_reply *reply, uint32_t i, uint32_t n_vocab,
	struct draft_budget budget, struct check *check, struct error *err)
{
	const struct draft_node *node = &reply->node[i];
	if (node->token < 0 || (uint32_t)node->token >= n_vocab)
		return error_set(err, EPROTO, "draft token %u is %d, allowed are 0..%u", i,
			node->token, n_vocab - 1);
	if (node->parent < -1 || node->parent >= (int)i)
		return error_set(err, EPROTO, "draft token %u has parent %d, allowed are -1..%d", i,
			node->parent, (int)i - 1);
	uint32_t before = (uint32_t)(node->parent + 1);
	check->depth[i + 1] = (uint8_t)(check->depth[before] + 1);
	check->children[i + 1] = 0;
	if (check->depth[i + 1] > budget.depth)
		return error_set(err, EPROTO,
			"draft token %u is number %u of its path, %u were asked for", i,
			check->depth[i + 1], budget.depth);
	if (++check->children[before] > budget.width)
		return error_set(err, EPROTO,
			"draft token %u is child %u of its parent, %u were asked for", i,
			check->children[before], budget.width);
	if (check->children[before] > 1 && repeats(reply, i))
		return error_set(err, EPROTO,
			"draft token %u (%d) is among the children of its parent already", i,
			node->token);
	return reply->support ? check_support(reply, i, n_vocab, err) : 0;
}

int accept_check_draft(const struct draft_reply *reply, uint32_t n_vocab,
	struct draft_budget budget, struct error *err)
{
	uint32_t n_max = budget.nodes < LIMIT_DRAFT_NODES ? budget.nodes : LIMIT_DRAFT_NODES;
	struct check check;
	if (budget.depth > LIMIT_DRAFT_DEPTH)
		budget.depth = LIMIT_DRAFT_DEPTH;
	if (reply->n > n_max)
		return error_set(
			err, EPROTO, "a draft of %u tokens, %u were asked for", reply->n, n_max);
	check.depth[0] = 0;
	check.children[0] = 0;
	for (uint32_t i = 0; i < reply->n; i++) {
		int rc = check_node(reply, i, n_vocab, budget, &check, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}
