/*
 * Drafts from a recording that the request brings, with as many errors as it asks for: the drafts of
 * a drafter of any quality, for experiments. The recording is indexed by the output's position, so
 * it is right again after a deliberate error was rejected.
 *
 * A chain has the recorded token with probability 1 - error at each position. In a tree the recorded
 * token is the r-th sibling (from 0) with probability (1 - error) (error / 2)^r, and otherwise
 * absent; the confidences of the siblings are these probabilities. With an error of 0 it is at a
 * random place. All other tokens are wrong. A tree of fixed shape is filled with wrong tokens; any
 * other one grows behind the recorded token alone, and has one wrong child elsewhere, which must not
 * be accepted there.
 */
#include "services/drafter/draft.h"

#include "shared/base/rand.h"

/* A random token that differs from `token` and is certainly in the vocabulary, as it is smaller (or
 * 1). */
static int32_t wrong_token(uint64_t seed, uint64_t position, uint32_t which, int32_t token)
{
	if (token <= 0)
		return 1;
	return (int32_t)(rand_uniform(seed, RAND_REPLAY, position, which) * token);
}

/* The tokens below `token`, which differ from it, or the token 1 where there are none. */
static uint32_t n_wrong(int32_t token)
{
	return token > 0 ? (uint32_t)token : 1;
}

/* The probability that the recorded token is the sibling number `rank`. */
static float chance_of(float error, uint32_t rank)
{
	float chance = 1 - error;
	for (uint32_t i = 0; i < rank; i++)
		chance *= error / 2;
	return chance;
}

/* The place of the recorded token among n siblings; n: it is not among them. */
static uint32_t place_of(uint64_t seed, uint64_t position, uint32_t n, float error)
{
	double left = rand_uniform(seed, RAND_REPLAY, position, 0);
	uint32_t at = 0;
	if (!(error > 0))
		return (uint32_t)(rand_uniform(seed, RAND_REPLAY, position, 2) * n);
	for (; at < n; at++) {
		left -= (double)chance_of(error, at);
		if (left < 0)
			break;
	}
	return at;
}

/* Adds n siblings, or as many as there are different tokens. `at`: the place of the recorded token
 * among them; above that they are all wrong. */
static void add_siblings(struct draft_reply *reply, const struct draft_session *s, int32_t recorded,
	uint64_t position, int parent, uint32_t n, uint32_t at)
{
	float error = s->request.replay_error;
	uint32_t wrong = (uint32_t)wrong_token(
		s->request.sampling.seed, position, 3 + 2 * (uint32_t)(parent + 1), recorded);
	for (uint32_t i = 0; i < n && i < 1 + n_wrong(recorded); i++) {
		if (i != at && i >= n_wrong(recorded) + (at <= i))
			return;
		draft_add(reply, parent, i == at ? recorded : (int32_t)wrong, chance_of(error, i));
		if (i != at && recorded > 0)
			wrong = (wrong + 1) % (uint32_t)recorded;
	}
}

static bool is_recorded(const struct draft_session *s, uint64_t position)
{
	return s->n >= s->n_prompt && position - s->n_prompt < s->request.n_replay;
}

/* A full tree: every node of a level has as many children as the shape says. */
static void replay_shape(const struct draft_session *s, const int32_t *recorded,
	const struct draft_budget *budget, struct draft_reply *reply)
{
	int first = -1, last = -1,
	    right = -1; /* the level before, and its recorded token; -2: none */
	for (uint32_t depth = 0; depth < budget->depth; depth++) {
		uint64_t position = s->n + depth;
		uint32_t n = draft_width_at(budget, depth);
		int begin = (int)reply->n, next = -2;
		if (n == 0 || !is_recorded(s, position))
			return;
		for (int parent = first; parent <= last; parent++) {
			int32_t token = recorded[position - s->n_prompt];
			uint32_t at = parent == right ? place_of(s->request.sampling.seed, position,
								n, s->request.replay_error)
						      : n;
			if (n > budget->nodes - reply->n)
				return;
			if (at < n)
				next = (int)(reply->n + at);
			add_siblings(reply, s, token, position, parent, n, at);
		}
		first = begin;
		last = (int)reply->n - 1;
		right = next;
	}
}

/* Adds one level behind `parent`, and behind *astray a wrong one's child. Returns the node that the
 * tree grows behind: the recorded token's, or the first. */
static int add_level(struct draft_reply *reply, const struct draft_session *s, int32_t recorded,
	uint64_t position, int parent, int *astray, const struct draft_budget *budget)
{
	uint64_t seed = s->request.sampling.seed;
	uint32_t left = budget->nodes - reply->n, n = left < budget->width ? left : budget->width;
	int first = (int)reply->n;
	if (n > 1 + n_wrong(recorded))
		n = 1 + n_wrong(recorded);
	uint32_t at = place_of(seed, position, n, s->request.replay_error);
	add_siblings(reply, s, recorded, position, parent, n, at);
	if (*astray >= 0 && reply->n < budget->nodes)
		draft_add(reply, *astray, recorded, chance_of(s->request.replay_error, 0));
	uint32_t on = at < n ? at : 0;
	*astray = n < 2 ? -1 : on > 0 ? first : first + 1;
	return first + (int)on;
}

static void replay(const struct draft_session *s, const int32_t *recorded,
	const struct draft_budget *budget, struct draft_reply *reply)
{
	int main = -1, astray = -1;
	if (budget->shape[0] > 0) {
		replay_shape(s, recorded, budget, reply);
		return;
	}
	for (uint64_t position = s->n; position - s->n < budget->depth && reply->n < budget->nodes;
		position++) {
		if (!is_recorded(s, position))
			return;
		int32_t token = recorded[position - s->n_prompt];
		main = add_level(reply, s, token, position, main, &astray, budget);
	}
}

static void by_replay(struct draft_context *context, struct draft_item *items, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct draft_session *s = items[i].session;
		items[i].reply->method = DRAFT_REPLAY;
		replay(s,
			session_replay(
				&context->view->header, session_view_page(context->view, s->page)),
			&items[i].budget, items[i].reply);
	}
}

const struct draft_ops draft_replay = {
	.name = "replay", .method = DRAFT_REPLAY, .draft = by_replay};
