#include "bench/src/policy_sim.h"

#include "services/policy-controller/journal.h"
#include "shared/base/rand.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MIN = 16, TOKENS_MAX = 1 << 20, KNOT_PASSES = 8, NEAR_TOKENS = 16 };
enum { DRAW_TOKEN, DRAW_CONFIDENCE }; /* draws of a token */

/* Weight of the tokens before it in the acceptance of a token for which there was no draft. */
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
	/* Over all drafted tokens that were reached, or would have been, wrong and right ones
	 * separately: their number and their confidences. */
	uint32_t seen[2], confidences[2][POLICY_CONFIDENCE + 1];
};

/* What is known of a token: whether the drafter has it right, and its confidence; and the result of
 * a foresight draft about some tokens shortly before it. */
struct token {
	enum { TOKEN_UNKNOWN, TOKEN_RIGHT, TOKEN_WRONG } is;
	uint8_t confidence;
	uint8_t compared, right;
	const uint8_t *kept_back; /* confidences of the compared tokens; borrowed */
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

/* Orders entries as they were served. */
static int by_number(const void *a, const void *b)
{
	const struct sim_recorded *x = a, *y = b;
	return (x->number > y->number) - (x->number < y->number);
}

/* How many tokens of the iteration's draft, or of a foresight draft, were compared with the output;
 * *right: and were right. */
static uint32_t compared(const struct journal_entry *e, uint32_t *right)
{
	uint32_t drafted = e->k > 0 ? e->depth : e->foreseen_drafted;
	*right = e->k > 0 ? e->accepted : e->foreseen_right;
	return *right + (*right < drafted);
}

static void find_sessions(struct sim_journal *j)
{
	for (size_t i = 0; i < j->n_entries;) {
		struct sim_recorded s = {.first = i, .number = j->entries[i].number};
		uint64_t tokens = 0;
		for (; i < j->n_entries && j->entries[i].session == j->entries[s.first].session;
			i++) {
			const struct journal_entry *e = &j->entries[i];
			uint32_t right, tried = compared(e, &right);
			tokens += e->emitted;
			for (uint32_t t = 0; t < tried; t++) {
				j->seen[t < right]++;
				j->confidences[t < right][e->confidence[t]]++;
			}
		}
		s.n = i - s.first;
		s.tokens = (uint32_t)tokens;
		if (tokens >= TOKENS_MIN && tokens <= TOKENS_MAX)
			j->sessions[j->n_sessions++] = s;
	}
	qsort(j->sessions, j->n_sessions, sizeof(*j->sessions), by_number);
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

/* An iteration at token x: the drafted tokens that were reached are known; a draft that was shorter
 * than asked was all there was, and its confidences are the point's as far as it went, those behind
 * a wrong token too. */
static void take_iteration(const struct journal_entry *e, uint32_t x, uint32_t n,
	struct token *tokens, struct sim_point *point)
{
	uint32_t right;
	for (uint32_t i = 0; i < e->depth && i <= e->accepted && x + i < n; i++) {
		tokens[x + i].is = i < e->accepted ? TOKEN_RIGHT : TOKEN_WRONG;
		tokens[x + i].confidence = e->confidence[i];
	}
	for (uint32_t i = 0; i < e->depth; i++)
		point->confidence[i] = (float)e->confidence[i] / POLICY_CONFIDENCE;
	if (e->depth < e->k)
		point->available = e->depth;
	if (e->k == 0 && x < n) {
		tokens[x].compared = (uint8_t)compared(e, &right);
		tokens[x].right = (uint8_t)right;
		tokens[x].kept_back = e->confidence;
	}
}

/* The confidences of the last known tokens, wrong and right ones separately. */
struct lately {
	uint32_t n[2]; /* count on */
	uint8_t confidence[2][NEAR_TOKENS];
};

static void learn(struct lately *lately, bool right, uint8_t confidence)
{
	lately->confidence[right][lately->n[right]++ % NEAR_TOKENS] = confidence;
}

/* The confidence for a token for which there was no draft: that of a recent token which was right,
 * or wrong, like this one; or else of one in the whole journal. So confidence means the same for
 * drawn tokens as for known ones. */
static uint8_t draw_confidence(
	const struct sim_journal *j, const struct lately *lately, bool right, double u)
{
	uint32_t n = lately->n[right] < NEAR_TOKENS ? lately->n[right] : NEAR_TOKENS;
	if (n > 0)
		return lately->confidence[right][(uint32_t)(u * n)];
	uint32_t left = (uint32_t)(u * j->seen[right]), c = 0;
	while (c < POLICY_CONFIDENCE && left >= j->confidences[right][c])
		left -= j->confidences[right][c++];
	return (uint8_t)c;
}

/* Draws the tokens for which there was no draft, similar to the known ones before them. */
static void fill(const struct sim_journal *j, struct token *tokens, uint32_t n, uint64_t seed)
{
	struct lately lately = {.n = {0}};
	double all = (double)j->seen[0] + j->seen[1], tried = 0, right = 0;
	for (uint32_t x = 0; x < n; x++) {
		tried += (tokens[x].is != TOKEN_UNKNOWN) + tokens[x].compared;
		right += (tokens[x].is == TOKEN_RIGHT) + tokens[x].right;
	}
	double near = tried > 0 ? right / tried : all > 0 ? j->seen[1] / all : 0;
	for (uint32_t x = 0; x < n; x++) {
		struct token *token = &tokens[x];
		for (uint32_t i = 0; i < token->compared; i++) {
			near += NEAR_WEIGHT * ((i < token->right) - near);
			learn(&lately, i < token->right, token->kept_back[i]);
		}
		if (token->is != TOKEN_UNKNOWN) {
			near += NEAR_WEIGHT * ((token->is == TOKEN_RIGHT) - near);
			learn(&lately, token->is == TOKEN_RIGHT, token->confidence);
			continue;
		}
		if (rand_uniform(seed, RAND_REPLAY, x, DRAW_TOKEN) < near)
			token->is = TOKEN_RIGHT;
		token->confidence = draw_confidence(j, &lately, token->is == TOKEN_RIGHT,
			rand_uniform(seed, RAND_REPLAY, x, DRAW_CONFIDENCE));
	}
}

/* What a draft from the point of tokens[0] on would be, behind the tokens that were drafted there.
 */
static void finish_point(struct sim_point *point, const struct token *tokens, uint32_t drafted)
{
	while (point->run < point->available && tokens[point->run].is == TOKEN_RIGHT)
		point->run++;
	for (uint32_t i = drafted; i < LIMIT_DRAFT_DEPTH; i++)
		point->confidence[i] = (float)tokens[i].confidence / POLICY_CONFIDENCE;
}

int sim_journal_text(const struct sim_journal *journal, uint64_t number, struct sim_text *text,
	struct error *err)
{
	const struct sim_recorded *s = &journal->sessions[number % journal->n_sessions];
	uint32_t n = s->tokens, total = n + LIMIT_DRAFT_DEPTH, x = 0;
	struct token *tokens = calloc(total, sizeof(*tokens));
	uint8_t *drafted = calloc(n, sizeof(*drafted));
	text->n = n;
	text->points = calloc(n, sizeof(*text->points));
	if (!tokens || !drafted || !text->points) {
		free(tokens);
		free(drafted);
		return error_set(err, ENOMEM, "no memory for a session of %u tokens", n);
	}
	for (uint32_t i = 0; i < n; i++)
		text->points[i].available = LIMIT_DRAFT_DEPTH;
	for (size_t i = 0; i < s->n; i++) {
		const struct journal_entry *e = &journal->entries[s->first + i];
		take_iteration(e, x, total, tokens, &text->points[x]);
		drafted[x] = e->depth;
		x += e->emitted;
	}
	fill(journal, tokens, total, number);
	for (x = 0; x < n; x++)
		finish_point(&text->points[x], tokens + x, drafted[x]);
	free(tokens);
	free(drafted);
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

/* draft_us = fixed + step * depth, least squares, neither below 0; in units of base_us. */
static void fit_draft(const struct sim_journal *j, double base_us, struct sim_curve *out)
{
	double n = 0, x = 0, y = 0, xx = 0, xy = 0;
	for (size_t i = 0; i < j->n_entries; i++) {
		const struct journal_entry *e = &j->entries[i];
		if (e->k == 0)
			continue;
		n++;
		x += e->depth;
		y += e->draft_us;
		xx += (double)e->depth * e->depth;
		xy += (double)e->depth * e->draft_us;
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
	for (uint32_t n = 1; n <= 1 + LIMIT_DRAFT_DEPTH; n++) {
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
			"too few passes with a single session: %d with one token and as many with "
			"another count are needed",
			KNOT_PASSES);
	fit_draft(journal, out->base_ms * 1e3, out);
	out->source = "measured: the journal of outrider-policy";
	return 0;
}
