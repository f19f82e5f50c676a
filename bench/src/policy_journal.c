#include "bench/src/policy_sim.h"

#include "services/policy-controller/journal.h"
#include "shared/base/rand.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MIN = 16, TOKENS_MAX = 1 << 20, KNOT_PASSES = 8, DRAW_TOKEN = 0 };

/* Of the tokens before, in the acceptance of one that nobody drafted. */
#define NEAR_WEIGHT (1 / 16.0)

struct sim_journal {
	struct journal_entry *entries; /* by session, then oldest first; decode iterations alone */
	size_t n_entries;
	struct sim_recorded {
		size_t first, n;
		uint64_t number; /* of its first entry */
		uint32_t tokens;
	} * sessions;
	size_t n_sessions;
	double acceptance; /* of all drafted tokens that were reached, or would have been */
};

/* What is known of a token: whether the drafter has it right, and what a draft that was kept back, which was about some tokens
 * shortly before it, has shown. */
struct token {
	enum { TOKEN_UNKNOWN, TOKEN_RIGHT, TOKEN_WRONG } is;
	uint8_t compared, right;
};

static bool ends_in(const char *name, const char *end)
{
	size_t n = strlen(name), m = strlen(end);
	return n >= m && strcmp(name + n - m, end) == 0;
}

bool sim_is_journal(const char *name)
{
	return ends_in(name, ".journal");
}

static int by_session(const void *a, const void *b)
{
	const struct journal_entry *x = a, *y = b;
	if (x->session != y->session)
		return (x->session > y->session) - (x->session < y->session);
	return (x->number > y->number) - (x->number < y->number);
}

/* In the order in which they were served. */
static int by_number(const void *a, const void *b)
{
	const struct sim_recorded *x = a, *y = b;
	return (x->number > y->number) - (x->number < y->number);
}

/* How many tokens of the iteration's draft, or of one that was kept back, were compared with what came; *right: and were
 * right. */
static uint32_t compared(const struct journal_entry *e, uint32_t *right)
{
	uint32_t drafted = e->k > 0 ? e->drafted : e->foreseen_drafted;
	*right = e->k > 0 ? e->accepted : e->foreseen_right;
	return *right + (*right < drafted);
}

static void find_sessions(struct sim_journal *j)
{
	double tried = 0, accepted = 0;
	for (size_t i = 0; i < j->n_entries;) {
		struct sim_recorded s = {.first = i, .number = j->entries[i].number};
		uint64_t tokens = 0;
		for (; i < j->n_entries && j->entries[i].session == j->entries[s.first].session;
			i++) {
			const struct journal_entry *e = &j->entries[i];
			uint32_t right;
			tokens += e->emitted;
			tried += compared(e, &right);
			accepted += right;
		}
		s.n = i - s.first;
		s.tokens = (uint32_t)tokens;
		if (tokens >= TOKENS_MIN && tokens <= TOKENS_MAX)
			j->sessions[j->n_sessions++] = s;
	}
	qsort(j->sessions, j->n_sessions, sizeof(*j->sessions), by_number);
	j->acceptance = tried > 0 ? accepted / tried : 0;
}

int sim_journal_open(const char *path, struct sim_journal **out, struct error *err)
{
	struct sim_journal *j = calloc(1, sizeof(*j));
	*out = j;
	if (!j)
		return error_set(err, ENOMEM, "no memory for %s", path);
	int r = journal_load(path, &j->entries, &j->n_entries, err);
	size_t n = 0;
	for (size_t i = 0; r == 0 && i < j->n_entries; i++)
		if (j->entries[i].emitted > 0 && j->entries[i].prefill_tokens == 0)
			j->entries[n++] = j->entries[i];
	j->n_entries = n;
	if (r == 0 && n > 0)
		qsort(j->entries, n, sizeof(*j->entries), by_session);
	j->sessions = r == 0 ? calloc(n + 1, sizeof(*j->sessions)) : NULL;
	if (r == 0 && !j->sessions)
		r = error_set(err, ENOMEM, "no memory for %s", path);
	if (r == 0) {
		assert(j->sessions);
		find_sessions(j);
	}
	if (r == 0 && j->n_sessions == 0)
		r = error_set(err, EINVAL, "%s: no session of %d tokens or more", path, TOKENS_MIN);
	if (r < 0)
		sim_journal_close(out);
	return r;
}

void sim_journal_close(struct sim_journal **journal)
{
	if (*journal) {
		free((*journal)->entries);
		free((*journal)->sessions);
	}
	free(*journal);
	*journal = NULL;
}

/* An iteration at token x: the drafted tokens that were reached are known; a draft that was shorter than asked was all there
 * was. */
static void take_iteration(const struct journal_entry *e, uint32_t x, uint32_t n,
	struct token *tokens, uint8_t *available)
{
	uint32_t right;
	for (uint32_t i = 0; i < e->drafted && i <= e->accepted && x + i < n; i++)
		tokens[x + i].is = i < e->accepted ? TOKEN_RIGHT : TOKEN_WRONG;
	if (e->drafted < e->k)
		available[x] = e->drafted;
	if (e->k == 0 && x < n) {
		tokens[x].compared = (uint8_t)compared(e, &right);
		tokens[x].right = (uint8_t)right;
	}
}

/* Draws the tokens nobody drafted, near what the known ones before them were. */
static void fill(struct token *tokens, uint32_t n, double acceptance, uint64_t seed)
{
	double tried = 0, right = 0;
	for (uint32_t x = 0; x < n; x++) {
		tried += (tokens[x].is != TOKEN_UNKNOWN) + tokens[x].compared;
		right += (tokens[x].is == TOKEN_RIGHT) + tokens[x].right;
	}
	double near = tried > 0 ? right / tried : acceptance;
	for (uint32_t x = 0; x < n; x++) {
		for (uint32_t i = 0; i < tokens[x].compared; i++)
			near += NEAR_WEIGHT * ((i < tokens[x].right) - near);
		if (tokens[x].is != TOKEN_UNKNOWN)
			near += NEAR_WEIGHT * ((tokens[x].is == TOKEN_RIGHT) - near);
		else if (rand_uniform(seed, RAND_REPLAY, x, DRAW_TOKEN) < near)
			tokens[x].is = TOKEN_RIGHT;
	}
}

int sim_journal_text(const struct sim_journal *journal, uint64_t number, struct sim_text *text,
	struct error *err)
{
	const struct sim_recorded *s = &journal->sessions[number % journal->n_sessions];
	uint32_t n = s->tokens, total = n + LIMIT_DRAFT, x = 0;
	struct token *tokens = calloc(total, sizeof(*tokens));
	uint8_t *available = malloc(total);
	text->n = n;
	text->points = calloc(n, sizeof(*text->points));
	if (!tokens || !available || !text->points) {
		free(tokens);
		free(available);
		return error_set(err, ENOMEM, "no memory for a session of %u tokens", n);
	}
	memset(available, LIMIT_DRAFT, total);
	for (size_t i = 0; i < s->n; i++) {
		const struct journal_entry *e = &journal->entries[s->first + i];
		take_iteration(e, x, total, tokens, available);
		x += e->emitted;
	}
	fill(tokens, total, journal->acceptance, number);
	for (x = 0; x < n; x++) {
		struct sim_point *point = &text->points[x];
		point->available = available[x];
		while (point->run < point->available && tokens[x + point->run].is == TOKEN_RIGHT)
			point->run++;
		for (uint32_t i = 0; i < LIMIT_DRAFT; i++)
			point->confidence[i] = 1;
	}
	free(tokens);
	free(available);
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* The median time and mean experts of passes over n tokens of one session alone. False: too few. */
static bool measure(
	const struct sim_journal *j, uint32_t n, double *scratch, double *us, double *experts)
{
	size_t count = 0;
	*experts = 0;
	for (size_t i = 0; i < j->n_entries; i++) {
		const struct journal_entry *e = &j->entries[i];
		if (e->batch_sessions != 1 || e->batch_tokens != n ||
			e->iteration_us <= e->draft_us)
			continue;
		scratch[count++] = e->iteration_us - e->draft_us;
		*experts += e->unique_experts;
	}
	if (count < KNOT_PASSES)
		return false;
	qsort(scratch, count, sizeof(*scratch), by_value);
	*us = scratch[count / 2];
	*experts /= (double)count;
	return true;
}

/* draft_us = fixed + step * drafted, least squares, neither below 0; in units of base_us. */
static void fit_draft(const struct sim_journal *j, double base_us, struct sim_curve *out)
{
	double n = 0, x = 0, y = 0, xx = 0, xy = 0;
	for (size_t i = 0; i < j->n_entries; i++) {
		const struct journal_entry *e = &j->entries[i];
		if (e->k == 0)
			continue;
		n++;
		x += e->drafted;
		y += e->draft_us;
		xx += (double)e->drafted * e->drafted;
		xy += (double)e->drafted * e->draft_us;
	}
	double spread = n * xx - x * x;
	double step = spread > 0 ? fmax((n * xy - x * y) / spread, 0) : 0;
	out->draft_step = step / base_us;
	out->draft_fixed = n > 0 ? fmax((y - step * x) / n, 0) / base_us : 0;
}

int sim_journal_curve(const struct sim_journal *journal, struct sim_curve *out, struct error *err)
{
	double *scratch = calloc(journal->n_entries + 1, sizeof(*scratch)), us, experts, floor = 0;
	if (!scratch)
		return error_set(err, ENOMEM, "no memory for a curve");
	for (uint32_t n = 1; n <= 1 + LIMIT_DRAFT; n++) {
		if (!measure(journal, n, scratch, &us, &experts))
			continue;
		if (out->n_knots == 0)
			out->base_ms = us / 1e3;
		floor = fmax(floor, us / 1e3 / out->base_ms);
		out->knots[out->n_knots].n = n;
		out->knots[out->n_knots].experts = experts;
		out->knots[out->n_knots++].cost = floor;
	}
	free(scratch);
	if (out->n_knots < 2 || out->knots[0].n > 1)
		return error_set(err, EINVAL,
			"too few passes of one session alone: %d with one token "
			"and as many with another count are needed",
			KNOT_PASSES);
	fit_draft(journal, out->base_ms * 1e3, out);
	out->source = "measured: the journal of outrider-policy";
	return 0;
}
