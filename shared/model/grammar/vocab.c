#include "shared/model/grammar/vocab.h"

#include "kernels/sampler.h"
#include "shared/base/utf8.h"
#include "shared/model/grammar/matcher_private.h"

#include <stdlib.h>
#include <string.h>

/* The tree in preorder: the first child of a node comes next, and its tokens are those from `token`
 * to the next node's. */
struct trie_node {
	uint32_t after; /* the first node behind all that are below this one */
	uint32_t token; /* in the sorted list */
	uint16_t depth; /* of the root's children: 0 */
	uint8_t byte;
};

/* Most tokens are a few whole characters, none of which JSON escapes. Where a state accepts any
 * such text of a certain number of characters, as within a string, all tokens of these groups may
 * follow, and only the others have to be looked at. */
enum { GROUPS = 5, GROUP_REST = GROUPS - 1 };
static const uint32_t group_characters[GROUP_REST] = {4, 8, 16, 32};

struct group {
	uint32_t first_node, first_token; /* they end where the next group's begin */
	uint64_t *mask; /* of its tokens; NULL for the last group */
};

struct vocab {
	const struct tokenizer *tokenizer;
	uint32_t n_vocab, n_mask; /* tokens, and bits of a mask */
	/* [n_vocab] for control tokens: their text between marks; otherwise empty */
	struct gguf_string *control;
	struct trie_node *nodes; /* [n_nodes + 1] */
	uint32_t n_nodes, depth_max;
	int32_t *sorted; /* tokens by their groups, and there by their texts */
	uint32_t n_sorted;
	uint8_t *group; /* [n_vocab] of each token */
	struct group groups[GROUPS + 1];
	int32_t *ends; /* tokens that end the generation */
	uint32_t n_ends;
};

/* The positions where texts may be: a state, and a position within a character. */
struct place {
	uint32_t state, utf8;
};
enum { PLACES = 1024 };

struct places {
	struct place at[PLACES];
	uint32_t n;
};

struct masks {
	const struct vocab *vocab;
	struct matcher *matcher;
	uint64_t **masks; /* [most] each is allocated when it is first needed */
	uint32_t n, most;
	uint32_t *states; /* [depth_max + 1] along the path through the tree */
	struct places between, inside; /* positions between characters, and inside of one */
};

static struct gguf_string text_of(const struct vocab *vocab, int32_t token)
{
	struct gguf_string text = tokenizer_piece(vocab->tokenizer, token, false);

	if (text.bytes == 0 && token >= 0 && (uint32_t)token < vocab->n_vocab)
		return vocab->control[token];
	return text;
}

/* Writes the texts of control tokens between marks to the memory behind the list. */
static bool mark_controls(struct vocab *vocab)
{
	size_t bytes = 0;
	char *at;

	for (int32_t i = 0; i < (int32_t)vocab->n_vocab; i++)
		if (tokenizer_piece(vocab->tokenizer, i, false).bytes == 0)
			bytes += 2 + tokenizer_piece(vocab->tokenizer, i, true).bytes;
	vocab->control = calloc(1, (vocab->n_vocab + 1u) * sizeof(*vocab->control) + bytes);
	if (vocab->control == NULL)
		return false;
	at = (char *)(vocab->control + vocab->n_vocab + 1);
	for (int32_t i = 0; i < (int32_t)vocab->n_vocab; i++) {
		struct gguf_string text = tokenizer_piece(vocab->tokenizer, i, true);

		if (tokenizer_piece(vocab->tokenizer, i, false).bytes > 0 || text.bytes == 0)
			continue;
		vocab->control[i] = (struct gguf_string){at, text.bytes + 2};
		*at++ = (char)GRAMMAR_CONTROL;
		memcpy(at, text.data, text.bytes);
		at += text.bytes;
		*at++ = (char)GRAMMAR_CONTROL;
	}
	return true;
}

static uint32_t group_of(struct gguf_string text)
{
	uint32_t characters = 0, group = 0;

	for (size_t at = 0; at < text.bytes; characters++) {
		size_t n = utf8_sequence(text.data + at, text.bytes - at);

		if (n == 0 || (uint8_t)text.data[at] < ' ' || text.data[at] == '"' ||
			text.data[at] == '\\')
			return GROUP_REST;
		at += n;
	}
	while (group < GROUP_REST && characters > group_characters[group])
		group++;
	return group;
}

static int by_text(const void *a, const void *b, void *arg)
{
	int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
	const struct vocab *vocab = arg;
	struct gguf_string s = text_of(vocab, x), t = text_of(vocab, y);
	size_t n = s.bytes < t.bytes ? s.bytes : t.bytes;
	int order = (int)vocab->group[x] - (int)vocab->group[y];

	if (order == 0)
		order = memcmp(s.data, t.data, n);
	if (order != 0)
		return order;
	if (s.bytes != t.bytes)
		return s.bytes < t.bytes ? -1 : 1;
	return (x > y) - (x < y);
}

static size_t in_common(struct gguf_string s, struct gguf_string t)
{
	size_t i = 0;

	while (i < s.bytes && i < t.bytes && s.data[i] == t.data[i])
		i++;
	return i;
}

/* Makes the nodes of the sorted texts, a tree for each group; with nodes NULL only counts them. */
static uint32_t fill(struct vocab *vocab, struct trie_node *nodes, uint32_t *open)
{
	struct gguf_string before = {0};
	uint32_t n = 0, depth = 0, group = 0;

	for (uint32_t i = 0; i < vocab->n_sorted; i++) {
		struct gguf_string text = text_of(vocab, vocab->sorted[i]);
		size_t same = i == 0 ? 0 : in_common(before, text);

		for (; group < vocab->group[vocab->sorted[i]]; group++) {
			same = 0;
			vocab->groups[group + 1].first_token = i;
			vocab->groups[group + 1].first_node = n;
		}
		for (; nodes != NULL && depth > same; depth--)
			nodes[open[depth - 1]].after = n;
		depth = (uint32_t)same;
		for (; depth < text.bytes; depth++, n++) {
			if (nodes == NULL)
				continue;
			nodes[n] = (struct trie_node){.token = i,
				.depth = (uint16_t)depth,
				.byte = (uint8_t)text.data[depth]};
			open[depth] = n;
		}
		before = text;
	}
	for (; nodes != NULL && depth > 0; depth--)
		nodes[open[depth - 1]].after = n;
	for (; group < GROUPS; group++)
		vocab->groups[group + 1] =
			(struct group){.first_token = vocab->n_sorted, .first_node = n};
	if (nodes != NULL)
		nodes[n] = (struct trie_node){.token = vocab->n_sorted};
	return n;
}

static void allow(uint64_t *mask, int32_t token)
{
	mask[(uint32_t)token / 64] |= 1ull << ((uint32_t)token % 64);
}

static int make_tree(struct vocab *vocab)
{
	uint32_t *open = calloc(vocab->depth_max + 1u, sizeof(*open));

	vocab->n_nodes = fill(vocab, NULL, NULL);
	vocab->nodes = calloc(vocab->n_nodes + 1u, sizeof(*vocab->nodes));
	if (open == NULL || vocab->nodes == NULL) {
		free(open);
		return -ENOMEM;
	}
	fill(vocab, vocab->nodes, open);
	free(open);
	for (uint32_t g = 0; g < GROUP_REST; g++) {
		struct group *group = &vocab->groups[g];

		group->mask = calloc(SAMPLER_ALLOWED_WORDS(vocab->n_mask), sizeof(uint64_t));
		if (group->mask == NULL)
			return -ENOMEM;
		for (uint32_t i = group->first_token; i < group[1].first_token; i++)
			allow(group->mask, vocab->sorted[i]);
	}
	return 0;
}

int vocab_create(const struct tokenizer *tokenizer, uint32_t n_vocab, struct vocab **out)
{
	struct vocab *vocab = calloc(1, sizeof(*vocab));
	int rc = -ENOMEM;

	*out = vocab;
	if (vocab == NULL)
		return -ENOMEM;
	vocab->tokenizer = tokenizer;
	vocab->n_vocab = tokenizer_n_vocab(tokenizer);
	vocab->n_mask = n_vocab > vocab->n_vocab ? n_vocab : vocab->n_vocab;
	vocab->group = calloc(vocab->n_vocab + 1u, 1);
	vocab->sorted = malloc((vocab->n_vocab + 1u) * sizeof(*vocab->sorted));
	vocab->ends = malloc((vocab->n_vocab + 1u) * sizeof(*vocab->ends));
	if (vocab->group != NULL && vocab->sorted != NULL && vocab->ends != NULL &&
		mark_controls(vocab)) {
		for (int32_t i = 0; i < (int32_t)vocab->n_vocab; i++) {
			struct gguf_string text = text_of(vocab, i);

			if (tokenizer_is_eog(tokenizer, i)) {
				vocab->ends[vocab->n_ends++] = i;
			} else if (text.bytes > 0 && text.bytes <= LIMIT_TOKEN_BYTES) {
				vocab->group[i] = (uint8_t)group_of(text);
				vocab->sorted[vocab->n_sorted++] = i;
				if (text.bytes > vocab->depth_max)
					vocab->depth_max = (uint32_t)text.bytes;
			}
		}
		qsort_r(vocab->sorted, vocab->n_sorted, sizeof(*vocab->sorted), by_text, vocab);
		rc = make_tree(vocab);
	}
	if (rc != 0)
		vocab_free(out);
	return rc;
}

void vocab_free(struct vocab **vocab)
{
	if (*vocab == NULL)
		return;
	for (uint32_t g = 0; g < GROUPS; g++)
		free((*vocab)->groups[g].mask);
	free((*vocab)->nodes);
	free((*vocab)->control);
	free((*vocab)->group);
	free((*vocab)->sorted);
	free((*vocab)->ends);
	free(*vocab);
	*vocab = NULL;
}

uint32_t vocab_token(
	const struct vocab *vocab, struct matcher *matcher, uint32_t state, int32_t token)
{
	struct gguf_string text = text_of(vocab, token);

	if (text.bytes == 0 || tokenizer_is_eog(vocab->tokenizer, token))
		return MATCHER_DEAD;
	return matcher_text(matcher, state, text.data, text.bytes);
}

/* The longest token of a group with which the text begins, if it is longer than *taken bytes. */
static void longest(const struct vocab *vocab, uint32_t group, const uint8_t *text, size_t bytes,
	int32_t *token, size_t *taken)
{
	uint32_t at = vocab->groups[group].first_node, last = vocab->groups[group + 1].first_node;
	size_t depth = 0;

	while (at < last && depth < bytes) {
		const struct trie_node *node = &vocab->nodes[at];

		if (node->byte != text[depth]) {
			at = node->after;
			continue;
		}
		depth++;
		last = node->after;
		if (node[1].token > node->token && depth > *taken) {
			*token = vocab->sorted[node->token];
			*taken = depth;
		}
		at++;
	}
}

uint32_t vocab_split(
	const struct vocab *vocab, const uint8_t *text, size_t bytes, int32_t *out, uint32_t n)
{
	uint32_t count = 0;
	size_t taken;

	for (; count < n && bytes > 0; count++, text += taken, bytes -= taken) {
		taken = 0;
		for (uint32_t group = 0; group < GROUPS; group++)
			longest(vocab, group, text, bytes, &out[count], &taken);
		if (taken == 0)
			break;
	}
	return count;
}

int masks_create(
	const struct vocab *vocab, struct matcher *matcher, uint32_t most, struct masks **out)
{
	struct masks *masks = calloc(1, sizeof(*masks));

	*out = masks;
	if (masks == NULL)
		return -ENOMEM;
	masks->vocab = vocab;
	masks->matcher = matcher;
	masks->most = most;
	masks->masks = calloc(most, sizeof(*masks->masks));
	masks->states = calloc(vocab->depth_max + 1u, sizeof(*masks->states));
	if (masks->masks == NULL || masks->states == NULL) {
		masks_free(out);
		return -ENOMEM;
	}
	return 0;
}

void masks_free(struct masks **masks)
{
	if (*masks == NULL)
		return;
	for (uint32_t i = 0; (*masks)->masks != NULL && i < (*masks)->most; i++)
		free((*masks)->masks[i]);
	free((*masks)->masks);
	free((*masks)->states);
	free(*masks);
	*masks = NULL;
}

void masks_begin(struct masks *masks, uint32_t n)
{
	if (masks->n + n <= masks->most)
		return;
	masks->n = 0;
	for (uint32_t i = 0; i < masks->matcher->n_nodes; i++)
		masks->matcher->nodes[i].mask = ROW_NONE;
}

/* UTF-8 by what may follow (RFC 3629, section 4): state 0 is between characters. Control
 * characters, " and \ are left out. */
static const struct {
	uint8_t from, lo, hi, to;
} utf8_steps[] = {{0, 0x20, 0x21, 0}, {0, 0x23, 0x5B, 0}, {0, 0x5D, 0x7F, 0}, {0, 0xC2, 0xDF, 1},
	{0, 0xE0, 0xE0, 2}, {0, 0xE1, 0xEC, 3}, {0, 0xED, 0xED, 4}, {0, 0xEE, 0xEF, 3},
	{0, 0xF0, 0xF0, 5}, {0, 0xF1, 0xF3, 6}, {0, 0xF4, 0xF4, 7}, {1, 0x80, 0xBF, 0},
	{2, 0xA0, 0xBF, 1}, {3, 0x80, 0xBF, 1}, {4, 0x80, 0x9F, 1}, {5, 0x90, 0xBF, 3},
	{6, 0x80, 0xBF, 3}, {7, 0x80, 0x8F, 3}};

static bool places_add(struct places *places, uint32_t state, uint32_t utf8)
{
	for (uint32_t i = places->n; i-- > 0;)
		if (places->at[i].state == state && places->at[i].utf8 == utf8)
			return true;
	if (places->n == PLACES)
		return false;
	places->at[places->n++] = (struct place){state, utf8};
	return true;
}

/* Follows all bytes that may come next. False: one of them leads nowhere. */
static bool places_follow(
	struct matcher *m, struct place place, struct places *inside, struct places *between)
{
	const struct grammar *g = m->grammar;

	for (size_t i = 0; i < sizeof(utf8_steps) / sizeof(*utf8_steps); i++) {
		if (utf8_steps[i].from != place.utf8)
			continue;
		uint32_t last = g->class_of[utf8_steps[i].hi];
		for (uint32_t class = g->class_of[utf8_steps[i].lo]; class <= last; class ++) {
			uint32_t next = matcher_step(m, place.state, class), to = utf8_steps[i].to;

			if (next == MATCHER_DEAD || next == MATCHER_FULL ||
				!places_add(to == 0 ? between : inside, next, to))
				return false;
		}
	}
	return true;
}

/* How many characters, whichever they are, may follow the state: at most as many as the longest
 * group has. */
static uint32_t characters_that_pass(struct masks *masks, uint32_t state)
{
	struct places *between = &masks->between, *inside = &masks->inside;
	uint32_t n = 0, begin = 0;

	between->n = 0;
	places_add(between, state, 0);
	while (n < group_characters[GROUP_REST - 1] && begin < between->n) {
		uint32_t end = between->n;

		inside->n = 0;
		for (uint32_t i = begin; i < end; i++)
			if (!places_follow(masks->matcher, between->at[i], inside, between))
				return n;
		for (uint32_t i = 0; i < inside->n; i++)
			if (!places_follow(masks->matcher, inside->at[i], inside, between))
				return n;
		begin = end;
		n++;
	}
	/* No new position: more characters change nothing. */
	return group_characters[GROUP_REST - 1];
}

/* Looks at the tokens of a group one by one. False: the matcher has no room. */
static bool walk(const struct masks *masks, uint32_t group, uint32_t state, uint64_t *mask)
{
	const struct vocab *vocab = masks->vocab;
	struct matcher *m = masks->matcher;
	const uint8_t *class_of = m->grammar->class_of;
	uint32_t *states = masks->states, last = vocab->groups[group + 1].first_node;

	states[0] = state;
	for (uint32_t i = vocab->groups[group].first_node; i < last;) {
		const struct trie_node *node = &vocab->nodes[i];
		uint32_t next = matcher_step(m, states[node->depth], class_of[node->byte]);

		if (next == MATCHER_FULL)
			return false;
		if (next == MATCHER_DEAD) {
			i = node->after;
			continue;
		}
		states[node->depth + 1] = next;
		for (uint32_t t = node->token; t < node[1].token; t++)
			allow(mask, vocab->sorted[t]);
		i++;
	}
	return true;
}

static bool fill_mask(struct masks *masks, uint32_t state, uint64_t *mask)
{
	const struct vocab *vocab = masks->vocab;
	size_t words = SAMPLER_ALLOWED_WORDS(vocab->n_mask);
	uint32_t pass = characters_that_pass(masks, state);

	memset(mask, 0, words * sizeof(*mask));
	for (uint32_t group = 0; group < GROUPS; group++) {
		const uint64_t *all = vocab->groups[group].mask;

		if (all == NULL || pass < group_characters[group]) {
			if (!walk(masks, group, state, mask))
				return false;
		} else {
			for (size_t i = 0; i < words; i++)
				mask[i] |= all[i];
		}
	}
	for (uint32_t i = 0; i < vocab->n_ends && matcher_can_end(masks->matcher, state); i++)
		allow(mask, vocab->ends[i]);
	return true;
}

const uint64_t *masks_of(struct masks *masks, uint32_t state)
{
	struct matcher *m = masks->matcher;
	size_t words = SAMPLER_ALLOWED_WORDS(masks->vocab->n_mask);

	if (state == MATCHER_FULL)
		return NULL;
	if (m->nodes[state].mask != ROW_NONE)
		return masks->masks[m->nodes[state].mask];
	if (masks->n == masks->most)
		return NULL;
	if (masks->masks[masks->n] == NULL)
		masks->masks[masks->n] = malloc(words * sizeof(uint64_t));
	uint64_t *mask = masks->masks[masks->n];
	if (mask == NULL || !fill_mask(masks, state, mask))
		return NULL;
	m->nodes[state].mask = masks->n++;
	return mask;
}
