#include "shared/model/grammar/matcher_private.h"

#include <stdlib.h>
#include <string.h>

#define LINK_NONE UINT32_MAX

/* A pointer of any type. */
typedef void *any_array __attribute__((may_alias));

static bool grow(struct matcher *m, void *array, uint32_t *capacity, uint32_t n, size_t each)
{
	any_array *at = array;

	if (n < *capacity)
		return true;
	uint32_t want = *capacity < 64 ? 64 : *capacity;
	while (want <= n)
		want *= 2;
	void *more = (size_t)want * each > m->bytes_max * 2 ? NULL : realloc(*at, want * each);
	if (more == NULL) {
		m->full = true;
		return false;
	}
	*at = more;
	*capacity = want;
	return true;
}

size_t matcher_bytes(const struct matcher *m)
{
	return m->n_frames * sizeof(*m->frames) + m->n_nodes * sizeof(*m->nodes) +
	       (size_t)m->n_rows * m->grammar->n_classes * sizeof(*m->rows);
}

static int by_state(const void *a, const void *b)
{
	const struct frame *x = a, *y = b;

	if (x->state != y->state)
		return x->state < y->state ? -1 : 1;
	return (x->then > y->then) - (x->then < y->then);
}

static uint32_t hash_of(const struct frame *frames, uint32_t n)
{
	uint64_t hash = n;

	for (uint32_t i = 0; i < n; i++) {
		hash = (hash ^ frames[i].state) * 0x9E3779B97F4A7C15u;
		hash = (hash ^ (hash >> 29) ^ frames[i].then) * 0xBF58476D1CE4E5B9u;
	}
	return (uint32_t)(hash >> 32);
}

static bool grow_table(struct matcher *m)
{
	uint32_t slots = m->n_slots == 0 ? 256 : m->n_slots * 2;
	uint32_t *table = malloc(slots * sizeof(*table));

	if (table == NULL) {
		m->full = true;
		return false;
	}
	memset(table, 0, slots * sizeof(*table));
	for (uint32_t i = 1; i < m->n_nodes; i++) {
		struct node *node = &m->nodes[i];
		uint32_t slot = hash_of(m->frames + node->first, node->n) & (slots - 1);

		node->next = table[slot];
		table[slot] = i;
	}
	free(m->table);
	m->table = table;
	m->n_slots = slots;
	return true;
}

/* The node for the frames in m->gather, which it sorts. */
static uint32_t intern(struct matcher *m)
{
	uint32_t n = 0, depth = 0;

	if (m->full || m->n_gather == 0)
		return MATCHER_DEAD;
	if (m->n_gather > 1)
		qsort(m->gather, m->n_gather, sizeof(*m->gather), by_state);
	for (uint32_t i = 0; i < m->n_gather; i++) {
		const struct frame *f = &m->gather[i];

		if (n > 0 && f->state == m->gather[n - 1].state && f->then == m->gather[n - 1].then)
			continue;
		if (m->nodes[f->then].depth >= depth)
			depth = m->nodes[f->then].depth + 1;
		m->gather[n++] = *f;
	}
	if (n > GRAMMAR_FRAMES_MAX || depth > GRAMMAR_DEPTH_MAX) {
		m->hopeless = true;
		return MATCHER_DEAD;
	}
	uint32_t hash = hash_of(m->gather, n);
	for (uint32_t i = m->table[hash & (m->n_slots - 1)]; i != 0; i = m->nodes[i].next)
		if (m->nodes[i].n == n && memcmp(m->frames + m->nodes[i].first, m->gather,
						  n * sizeof(*m->gather)) == 0)
			return i;
	m->full = m->full || matcher_bytes(m) + n * sizeof(*m->frames) > m->bytes_max;
	if (m->full ||
		!grow(m, &m->frames, &m->frames_capacity, m->n_frames + n, sizeof(*m->frames)) ||
		!grow(m, &m->nodes, &m->nodes_capacity, m->n_nodes, sizeof(*m->nodes)) ||
		(m->n_nodes >= m->n_slots && !grow_table(m)))
		return MATCHER_DEAD;
	uint32_t *slot = &m->table[hash & (m->n_slots - 1)];
	memcpy(m->frames + m->n_frames, m->gather, n * sizeof(*m->gather));
	m->nodes[m->n_nodes] = (struct node){.first = m->n_frames,
		.n = n,
		.next = *slot,
		.depth = depth,
		.row = ROW_NONE,
		.mask = ROW_NONE};
	m->n_frames += n;
	*slot = m->n_nodes;
	return m->n_nodes++;
}

static void gather(struct matcher *m, struct frame frame)
{
	if (grow(m, &m->gather, &m->gather_capacity, m->n_gather, sizeof(*m->gather)))
		m->gather[m->n_gather++] = frame;
}

/* The text may be at the state, with `then` to follow. If the rule can end there, what follows the
 * rule is reached too. */
static void reach(struct matcher *m, uint32_t state, uint32_t then)
{
	uint32_t *list = &m->at_state[state];

	for (uint32_t i = *list; i != LINK_NONE; i = m->links[i].next)
		/* A list begins as LINK_NONE, and has nothing but what was added to it. */
		/* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
		if (m->links[i].value == then)
			return;
	if (!grow(m, &m->links, &m->links_capacity, m->n_links, sizeof(*m->links)))
		return;
	if (*list == LINK_NONE)
		m->touched[m->n_touched++] = state;
	m->links[m->n_links] = (struct link){.value = then, .state = state, .next = *list};
	*list = m->n_links++;
}

/* Goes through all states that are reached, and those that follow rules which can end there; links
 * are appended in the meantime. */
static void end_rules(struct matcher *m)
{
	const struct automaton *a = &m->grammar->automaton;

	for (uint32_t i = 0; i < m->n_links && !m->full && !m->hopeless; i++) {
		struct link link = m->links[i];

		if (!a->states[link.state].final)
			continue;
		const struct node node = m->nodes[link.value];
		for (uint32_t f = 0; f < node.n; f++)
			reach(m, m->frames[node.first + f].state, m->frames[node.first + f].then);
		m->hopeless = m->hopeless || m->n_links > 16 * GRAMMAR_FRAMES_MAX;
	}
}

/* A rule is called; the text then goes on at `then_state` of the caller, after which `then`
 * follows. */
static void call(struct matcher *m, uint32_t rule, uint32_t state, uint32_t then)
{
	uint32_t rank = m->grammar->rules[rule].rank;

	if (!grow(m, &m->links, &m->links_capacity, m->n_links, sizeof(*m->links)))
		return;
	m->called[rank / 64] |= 1ull << (rank % 64);
	m->links[m->n_links] =
		(struct link){.value = then, .state = state, .next = m->at_rule[rule]};
	m->at_rule[rule] = m->n_links++;
}

static void call_all(struct matcher *m, uint32_t state, uint32_t then)
{
	const struct automaton *a = &m->grammar->automaton;

	for (uint32_t i = a->states[state].first_call; i < a->states[state + 1].first_call; i++)
		call(m, a->calls[i].rule, a->calls[i].to, then);
}

/* Adds what follows the call to m->gather. If the call is the last part of its rule, that is what
 * follows the rule. */
static void gather_call(struct matcher *m, uint32_t state, uint32_t then)
{
	if (!state_is_last(&m->grammar->automaton, state)) {
		gather(m, (struct frame){state, then});
		return;
	}
	const struct node node = m->nodes[then];
	for (uint32_t f = 0; f < node.n; f++)
		gather(m, m->frames[node.first + f]);
}

/* The node of what follows a state; several such nodes may have been found. */
static uint32_t merge(struct matcher *m, uint32_t list)
{
	if (m->links[list].next == LINK_NONE)
		return m->links[list].value;
	m->n_gather = 0;
	for (uint32_t i = list; i != LINK_NONE; i = m->links[i].next) {
		const struct node node = m->nodes[m->links[i].value];

		for (uint32_t f = 0; f < node.n; f++)
			gather(m, m->frames[node.first + f]);
	}
	return intern(m);
}

static bool has_bytes(const struct automaton *a, uint32_t state)
{
	return a->states[state].first_bytes != a->states[state + 1].first_bytes;
}

/* Begins a rule, all of whose callers are known. */
static void begin_rule(struct matcher *m, uint32_t rule)
{
	uint32_t start = m->grammar->rules[rule].start;

	m->n_gather = 0;
	for (uint32_t i = m->at_rule[rule]; i != LINK_NONE && !m->full; i = m->links[i].next)
		gather_call(m, m->links[i].state, m->links[i].value);
	m->at_rule[rule] = LINK_NONE;
	if (m->full)
		return;
	/* No edge leads to the state where a rule begins, so it was not reached before. */
	m->at_state[start] = intern(m);
	m->touched[m->n_touched++] = start;
	call_all(m, start, m->at_state[start]);
}

/* Makes a state of the matcher from what was reached: calls the rules that begin, callers first,
 * and keeps the states that wait for a byte. */
static uint32_t settle(struct matcher *m)
{
	const struct grammar *g = m->grammar;
	const struct automaton *a = &g->automaton;

	/* The last time that the links are read: each state gets one node. */
	for (uint32_t i = 0; i < m->n_touched && !m->full; i++)
		m->at_state[m->touched[i]] = merge(m, m->at_state[m->touched[i]]);
	for (uint32_t i = 0; i < m->n_touched && !m->full; i++)
		call_all(m, m->touched[i], m->at_state[m->touched[i]]);
	/* A rule calls only rules of higher ranks, so all callers of a rule are known when its turn
	 * comes. */
	for (uint32_t word = 0; word * 64 < g->n_rules; word++)
		while (m->called[word] != 0) {
			uint32_t bit = (uint32_t)__builtin_ctzll(m->called[word]);

			m->called[word] &= m->called[word] - 1;
			begin_rule(m, g->by_rank[word * 64 + bit]);
		}
	m->n_gather = 0;
	for (uint32_t i = 0; i < m->n_touched; i++) {
		uint32_t state = m->touched[i];

		if (state == STATE_END || has_bytes(a, state))
			gather(m, (struct frame){state, m->at_state[state]});
		m->at_state[state] = LINK_NONE;
	}
	m->n_touched = m->n_links = 0;
	uint32_t node = intern(m);
	return m->full ? MATCHER_FULL : m->hopeless ? MATCHER_DEAD : node;
}

static uint32_t compute(struct matcher *m, uint32_t state, uint32_t class)
{
	const struct automaton *a = &m->grammar->automaton;
	const struct node node = m->nodes[state];

	m->full = m->hopeless = false;
	for (uint32_t f = 0; f < node.n; f++) {
		const struct frame frame = m->frames[node.first + f];

		for (uint32_t i = a->states[frame.state].first_bytes;
			i < a->states[frame.state + 1].first_bytes; i++)
			if (a->bytes[i].lo <= class && class <= a->bytes[i].hi)
				reach(m, a->bytes[i].to, frame.then);
	}
	end_rules(m);
	return settle(m);
}

uint32_t matcher_step(struct matcher *m, uint32_t state, uint32_t class)
{
	uint32_t n = m->grammar->n_classes, next;

	if (state == MATCHER_DEAD || state == MATCHER_FULL)
		return state;
	if (m->nodes[state].row == ROW_NONE) {
		if (matcher_bytes(m) + n * sizeof(*m->rows) > m->bytes_max ||
			!grow(m, &m->rows, &m->rows_capacity, (m->n_rows + 1) * n,
				sizeof(*m->rows)))
			return MATCHER_FULL;
		for (uint32_t i = 0; i < n; i++)
			m->rows[m->n_rows * n + i] = STEP_UNKNOWN;
		m->nodes[state].row = m->n_rows++;
	}
	next = m->rows[m->nodes[state].row * n + class];
	if (next != STEP_UNKNOWN)
		return next;
	next = compute(m, state, class);
	if (next != MATCHER_FULL)
		m->rows[m->nodes[state].row * n + class] = next;
	return next;
}

uint32_t matcher_byte(struct matcher *m, uint32_t state, uint8_t byte)
{
	return matcher_step(m, state, m->grammar->class_of[byte]);
}

uint32_t matcher_text(struct matcher *m, uint32_t state, const void *text, size_t bytes)
{
	for (size_t i = 0; i < bytes && state != MATCHER_DEAD; i++)
		state = matcher_byte(m, state, ((const uint8_t *)text)[i]);
	return state;
}

uint32_t matcher_start(struct matcher *m)
{
	return m->start;
}

const struct grammar *matcher_grammar(const struct matcher *m)
{
	return m->grammar;
}

/* The end is the smallest state, and therefore the first frame. */
bool matcher_can_end(const struct matcher *m, uint32_t state)
{
	return state != MATCHER_DEAD && state != MATCHER_FULL &&
	       m->frames[m->nodes[state].first].state == STATE_END;
}

bool matcher_must_end(const struct matcher *m, uint32_t state)
{
	return matcher_can_end(m, state) && m->nodes[state].n == 1;
}

size_t matcher_forced(struct matcher *m, uint32_t state, uint8_t *out, size_t n, uint32_t *after)
{
	const struct grammar *g = m->grammar;
	const struct automaton *a = &g->automaton;
	size_t length = 0;

	while (length < n && state != MATCHER_DEAD && state != MATCHER_FULL &&
		!matcher_can_end(m, state)) {
		const struct node node = m->nodes[state];
		uint32_t class = UINT32_MAX;
		bool one = true;

		for (uint32_t f = 0; f < node.n && one; f++) {
			uint32_t s = m->frames[node.first + f].state;

			for (uint32_t i = a->states[s].first_bytes;
				i < a->states[s + 1].first_bytes && one; i++) {
				one = a->bytes[i].lo == a->bytes[i].hi &&
				      (class == UINT32_MAX || class == a->bytes[i].lo);
				class = a->bytes[i].lo;
			}
		}
		/* Only if the class has a single byte. */
		if (!one || class >= g->n_classes ||
			g->class_of[(uint8_t)(g->first_of[class] + 1)] == class)
			break;
		uint32_t next = matcher_step(m, state, class);
		if (next == MATCHER_DEAD || next == MATCHER_FULL)
			break;
		out[length++] = g->first_of[class];
		state = next;
	}
	*after = state;
	return length;
}

bool matcher_wants_compact(const struct matcher *m)
{
	return matcher_bytes(m) > m->bytes_max / 2;
}

/* Marks in at[] what the marked nodes need. A node is made after those that it names. */
static void mark(const struct matcher *m, uint32_t *at)
{
	for (uint32_t i = m->n_nodes; i-- > 1;)
		for (uint32_t f = 0; f < m->nodes[i].n && at[i] != 0; f++)
			at[m->frames[m->nodes[i].first + f].then] = 1;
}

int matcher_compact(struct matcher *m, uint32_t *const *states, uint32_t n)
{
	uint32_t *at = calloc(m->n_nodes, sizeof(*at)), kept = 1, n_frames = 0;

	if (at == NULL)
		return -ENOMEM;
	at[m->start] = 1;
	for (uint32_t i = 0; i < n; i++)
		if (*states[i] != MATCHER_FULL)
			at[*states[i]] = 1;
	mark(m, at);
	at[0] = 0;
	for (uint32_t i = 1; i < m->n_nodes; i++) {
		struct node node = m->nodes[i];

		if (at[i] == 0)
			continue;
		for (uint32_t f = 0; f < node.n; f++) {
			struct frame frame = m->frames[node.first + f];

			m->frames[n_frames + f] = (struct frame){frame.state, at[frame.then]};
		}
		node.first = n_frames;
		node.row = ROW_NONE;
		n_frames += node.n;
		m->nodes[kept] = node;
		at[i] = kept++;
	}
	for (uint32_t i = 0; i < n; i++)
		if (*states[i] != MATCHER_FULL)
			*states[i] = at[*states[i]];
	m->start = at[m->start];
	m->n_nodes = kept;
	m->n_frames = n_frames;
	m->n_rows = 0;
	memset(m->table, 0, m->n_slots * sizeof(*m->table));
	for (uint32_t i = 1; i < kept; i++) {
		uint32_t *slot = &m->table[hash_of(m->frames + m->nodes[i].first, m->nodes[i].n) &
					   (m->n_slots - 1)];

		m->nodes[i].next = *slot;
		*slot = i;
	}
	free(at);
	return 0;
}

int matcher_create(const struct grammar *grammar, size_t bytes_max, struct matcher **out)
{
	uint32_t n_states = grammar->automaton.n_states, n_words = grammar->n_rules / 64 + 1;
	struct matcher *m = calloc(1, sizeof(*m));

	*out = m;
	if (m == NULL)
		return -ENOMEM;
	m->grammar = grammar;
	m->bytes_max = bytes_max;
	m->at_state = malloc(n_states * sizeof(*m->at_state));
	m->touched = malloc(n_states * sizeof(*m->touched));
	m->at_rule = malloc(grammar->n_rules * sizeof(*m->at_rule));
	m->called = calloc(n_words, sizeof(*m->called));
	if (m->at_state == NULL || m->touched == NULL || m->at_rule == NULL || m->called == NULL ||
		!grow_table(m) || !grow(m, &m->nodes, &m->nodes_capacity, 0, sizeof(*m->nodes)) ||
		!grow(m, &m->frames, &m->frames_capacity, 0, sizeof(*m->frames)) ||
		!grow(m, &m->links, &m->links_capacity, 0, sizeof(*m->links))) {
		matcher_free(out);
		return -ENOMEM;
	}
	memset(m->at_state, 0xFF, n_states * sizeof(*m->at_state));
	memset(m->at_rule, 0xFF, grammar->n_rules * sizeof(*m->at_rule));
	m->nodes[0] = (struct node){.row = ROW_NONE, .mask = ROW_NONE};
	m->n_nodes = 1;
	/* As if the end had called the root. */
	if (grammar->automaton.states[grammar->rules[0].start].final)
		reach(m, STATE_END, MATCHER_DEAD);
	call(m, 0, STATE_END, MATCHER_DEAD);
	m->start = settle(m);
	if (m->start == MATCHER_FULL || m->start == MATCHER_DEAD) {
		int rc = m->hopeless ? -E2BIG : -ENOMEM;

		matcher_free(out);
		return rc;
	}
	return 0;
}

void matcher_free(struct matcher **matcher)
{
	struct matcher *m = *matcher;

	if (m == NULL)
		return;
	free(m->frames);
	free(m->nodes);
	free(m->rows);
	free(m->table);
	free(m->at_state);
	free(m->touched);
	free(m->at_rule);
	free(m->called);
	free(m->links);
	free(m->gather);
	free(m);
	*matcher = NULL;
}
