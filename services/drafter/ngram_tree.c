/*
 * Trees from n-grams: the places where the last tokens occurred before, and what followed there. The
 * first place is the one of a chain, the latest occurrence of the longest suffix; the others follow
 * by the length of their match, the latest first.
 *
 * A node knows in its mark which places lead through it. Its children are the different tokens that
 * these places have next. Their chances by the rule of succession (ngram.h): the first place goes on
 * being right with probability (L + 1) / (L + 2); what it leaves is the second place's in the same
 * manner, and so on. Places that agree add up.
 */
#include "services/drafter/draft.h"
#include "services/drafter/tree.h"

/* Places that count, and among how many they are looked for. */
enum { PLACES = 32, PLACES_SEEN = 128 };
static_assert(PLACES == 32, "the places of a node are the bits of its mark");

struct places {
	uint32_t n;
	uint32_t from[PLACES]; /* index of the token that followed */
	uint32_t match[PLACES]; /* length of the match before it */
};

/* Adds a place behind all whose match is as long, but never before the first. */
static void add_place(struct places *places, uint32_t from, uint32_t match)
{
	uint32_t at = places->n;
	while (at > 1 && places->match[at - 1] < match)
		at--;
	if (at == PLACES)
		return;
	if (places->n < PLACES)
		places->n++;
	for (uint32_t i = places->n - 1; i > at; i--) {
		places->from[i] = places->from[i - 1];
		places->match[i] = places->match[i - 1];
	}
	places->from[at] = from;
	places->match[at] = match;
}

static void find_places(const struct draft_session *s, struct places *places)
{
	uint32_t seen[PLACES_SEEN], length, first;
	places->n = 0;
	first = ngram_find(&s->ngram, s->tokens, s->n, &length);
	if (first == NGRAM_NONE)
		return;
	add_place(places, first, ngram_match(s->tokens, s->n, first));
	uint32_t n = ngram_places(&s->ngram, s->tokens, s->n, seen, PLACES_SEEN);
	for (uint32_t i = 0; i < n; i++)
		if (seen[i] != first)
			add_place(places, seen[i], ngram_match(s->tokens, s->n, seen[i]));
}

/* What may follow a node. */
struct children {
	uint32_t n;
	int32_t token[TREE_WIDTH];
	float chance[TREE_WIDTH];
	uint32_t through[TREE_WIDTH]; /* the places that lead there */
};

static uint32_t find_child(const struct children *children, int32_t token)
{
	uint32_t i = 0;
	while (i < children->n && children->token[i] != token)
		i++;
	return i;
}

/* The continuations of the places in `through` behind a path of n tokens, as far as the session's
 * grammar allows them. path has room for one more token. */
static void find_children(const struct draft_session *s, const struct places *places,
	uint32_t through, int32_t *path, uint32_t n, struct children *out)
{
	float left = 1;
	out->n = 0;
	for (uint32_t i = 0; i < places->n; i++) {
		if (!(through >> i & 1))
			continue;
		/* Where the text ends, the continuation goes on with its own tokens, as in a loop. */
		uint32_t at = places->from[i] + n;
		path[n] = at < s->n ? s->tokens[at] : path[at - s->n];
		float chance = left * ngram_confidence(places->match[i], n);
		uint32_t child = find_child(out, path[n]);
		if (child == TREE_WIDTH)
			continue;
		if (child == out->n) {
			if (s->constraint && constraint_allows(s->constraint, path, n + 1) <= n)
				continue;
			out->token[child] = path[n];
			out->chance[child] = 0;
			out->through[child] = 0;
			out->n++;
		}
		out->chance[child] += chance;
		out->through[child] |= 1u << i;
		left -= chance;
	}
}

/* Adds the likeliest continuations behind a node, as many as the tree takes. */
static void expand(struct tree *tree, const struct draft_session *s, const struct places *places,
	int node, uint32_t through)
{
	int32_t path[LIMIT_DRAFT_DEPTH + 1];
	struct children children;
	find_children(s, places, through, path, tree_path(tree, node, path), &children);
	for (uint32_t added = 0; added < tree_width(tree) && added < children.n; added++) {
		uint32_t best = 0;
		for (uint32_t i = 1; i < children.n; i++)
			if (children.chance[i] > children.chance[best])
				best = i;
		int child = tree_add(tree, node, children.token[best], children.chance[best]);
		if (child >= 0)
			tree->node[child].mark = children.through[best];
		children.chance[best] = -1;
	}
}

void ngram_tree(struct draft_context *context, const struct draft_item *item)
{
	const struct draft_session *s = item->session;
	struct tree *tree = context->tree;
	struct places places;
	int16_t beam[TREE_BEAM];
	uint32_t n;
	find_places(s, &places);
	tree_begin(tree, item->budget);
	if (places.n > 0)
		expand(tree, s, &places, -1, UINT32_MAX);
	while ((n = tree_next(tree, beam, TREE_BEAM)) > 0)
		for (uint32_t i = 0; i < n; i++)
			expand(tree, s, &places, beam[i], tree->node[beam[i]].mark);
	tree_answer(tree, item->reply);
}
