/* outrider-bench spec: asks the service (spec.h). */
#include "bench/src/spec.h"

#include "shared/base/clock.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)

struct text {
	int32_t *tokens;
	char *bytes; /* ends with a NUL */
	size_t n, n_bytes, room, room_bytes;
};

struct run {
	const struct spec_options *options;
	struct outrider *client;
	struct workload_prompts prompts;
	struct text *exact; /* [prompts.n] the answers of K = 0 */
	struct text now;
};

static int fail(int code, const char *what)
{
	fprintf(stderr, "outrider-bench spec: %s: %s\n", what, outrider_error());
	return code;
}

static int grow(void **at, size_t *room, size_t need, size_t item)
{
	if (need <= *room)
		return 0;
	size_t more = need > 2 * *room ? need : 2 * *room;
	void *grown = realloc(*at, more * item);

	if (grown == NULL)
		return -ENOMEM;
	*at = grown;
	*room = more;
	return 0;
}

static int text_add(struct text *text, const struct outrider_event *event)
{
	if (grow((void **)&text->tokens, &text->room, text->n + event->n_tokens,
		    sizeof(*text->tokens)) < 0 ||
		grow((void **)&text->bytes, &text->room_bytes,
			text->n_bytes + event->text_bytes + 1, 1) < 0)
		return -ENOMEM;
	if (event->n_tokens > 0)
		memcpy(text->tokens + text->n, event->tokens,
			event->n_tokens * sizeof(*text->tokens));
	if (event->text_bytes > 0)
		memcpy(text->bytes + text->n_bytes, event->text, event->text_bytes);
	text->n += event->n_tokens;
	text->n_bytes += event->text_bytes;
	text->bytes[text->n_bytes] = '\0';
	return 0;
}

static void text_free(struct text *text)
{
	free(text->tokens);
	free(text->bytes);
	*text = (struct text){0};
}

/* Takes the events of a stream up to its end; adds what an audit says to *audit. */
static int take(struct outrider_stream *stream, struct text *text, struct spec_totals *audit)
{
	const struct outrider_event *event;
	int r = 0;

	while (r == 0 && (r = outrider_next(stream, -1, &event)) == 0) {
		r = text_add(text, event);
		for (size_t i = 0; audit != NULL && i < event->n_tokens; i++) {
			audit->audited++;
			audit->log_loss -= (double)event->logprobs[i * event->n_logprobs].logprob;
			audit->other += event->picked[i] != event->tokens[i];
		}
		if (event->type != OUTRIDER_EVENT_DONE)
			continue;
		if (event->end != OUTRIDER_END_ERROR)
			return r;
		fprintf(stderr, "outrider-bench spec: %s\n", event->message);
		return -EREMOTEIO;
	}
	return fail(r, "answer");
}

static int ask(struct run *run, const struct outrider_request *request, struct text *text,
	struct spec_totals *audit, struct outrider_usage *usage)
{
	struct outrider_stream *stream;
	int r = outrider_start(run->client, request, &stream);

	text->n = text->n_bytes = 0;
	if (r < 0)
		return fail(r, "start");
	r = take(stream, text, audit);
	if (r == 0 && outrider_usage(stream, usage) < 0)
		r = fail(-EPROTO, "usage");
	outrider_stream_free(&stream);
	return r;
}

/* What the model itself says to the tokens of an answer. */
static int audit(struct run *run, struct outrider_request *request, const struct text *answer,
	struct spec_totals *totals)
{
	struct outrider_usage usage;
	struct text unused = {0};

	if (answer->n == 0)
		return 0;
	int r = outrider_request_set_audit(request, answer->tokens, answer->n);
	if (r == 0)
		r = outrider_request_set_logprobs(request, 0);
	if (r == 0)
		r = outrider_request_set_budget(request, "all", NULL, NULL);
	r = r == 0 ? ask(run, request, &unused, totals, &usage) : fail(r, "audit");
	text_free(&unused);
	if (outrider_request_set_audit(request, NULL, 0) < 0 ||
		outrider_request_set_logprobs(request, -1) < 0)
		return fail(-EINVAL, "audit");
	return r;
}

/* The last number of a text; returns its digits. */
static size_t last_number(const char *text, const char **begin)
{
	const char *end = text + strlen(text);

	while (end > text && !isdigit((unsigned char)end[-1]))
		end--;
	for (*begin = end; *begin > text && isdigit((unsigned char)(*begin)[-1]);)
		--*begin;
	return (size_t)(end - *begin);
}

static bool ends_alike(const char *text, const char *other)
{
	const char *a, *b;
	size_t n = last_number(text, &a);

	return n == last_number(other, &b) && memcmp(a, b, n) == 0;
}

static uint64_t differing(const struct text *a, const struct text *b)
{
	size_t least = a->n < b->n ? a->n : b->n;
	uint64_t n = a->n + b->n - 2 * least;

	for (size_t i = 0; i < least; i++)
		n += a->tokens[i] != b->tokens[i];
	return n;
}

/* K = 0, with all experts. */
static int set_plain(struct outrider_request *request)
{
	int r = outrider_request_set_k(request, 0);

	if (r == 0)
		r = outrider_request_set_budget(request, "all", NULL, NULL);
	return r < 0 ? fail(r, "request") : 0;
}

static int set_cell(
	struct outrider_request *request, const struct spec_cell *cell, const struct text *exact)
{
	const struct spec_budget *budget = cell->budget;

	if (cell->method == NULL)
		return set_plain(request);
	bool limited = budget->experts[0];
	int r = outrider_request_set_k(request, (int)cell->depth);
	if (r == 0)
		r = outrider_request_set_budget(request, limited ? budget->experts : "all",
			limited && budget->ranking[0] ? budget->ranking : NULL,
			limited && budget->coverage[0] ? budget->coverage : NULL);
	if (r == 0)
		r = outrider_request_set_draft_method(request, cell->method->method);
	if (r == 0)
		r = outrider_request_set_draft_tree(request, cell->nodes, cell->width);
	if (r == 0 && strcmp(cell->method->method, "replay") == 0)
		r = outrider_request_set_replay(
			request, exact->tokens, exact->n, cell->method->error);
	return r < 0 ? fail(r, "request") : 0;
}

/* Answers prompt i in the way of a cell. */
static int answer(
	struct run *run, size_t i, const struct spec_cell *cell, struct spec_totals *totals)
{
	struct outrider_request *request = run->prompts.request[i];
	const struct text *exact = &run->exact[i];
	bool limited = cell->method != NULL && cell->budget->experts[0];
	struct outrider_usage usage;
	int r = set_cell(request, cell, exact);

	if (r == 0)
		r = ask(run, request, &run->now, NULL, &usage);
	if (r != 0)
		return r;
	uint64_t changed = differing(&run->now, exact);

	workload_totals_take(&totals->usage, &usage);
	totals->decoded += usage.output_tokens > 0 ? usage.output_tokens - 1 : 0;
	totals->changed += changed;
	if (run->prompts.answer[i] != NULL) {
		totals->asked++;
		totals->right += ends_alike(run->now.bytes, run->prompts.answer[i]);
		totals->same += ends_alike(run->now.bytes, exact->bytes);
	}
	if (limited)
		return audit(run, request, &run->now, totals);
	if (changed == 0)
		return 0;
	fprintf(stderr,
		"outrider-bench spec: prompt %zu, %s, depth %u, %u tokens: the answer differs from "
		"the one without drafts\n",
		i + 1, cell->method ? cell->method->name : "K = 0", cell->depth, cell->nodes);
	return -EBADMSG;
}

static double per_s(const struct spec_totals *totals)
{
	uint64_t ns = totals->usage.decode_ns;

	return ns ? (double)totals->decoded * 1e9 / (double)ns : 0;
}

static void totals_add(struct spec_totals *totals, const struct spec_totals *more)
{
	workload_totals_add(&totals->usage, &more->usage);
	totals->decoded += more->decoded;
	totals->changed += more->changed;
	totals->audited += more->audited;
	totals->other += more->other;
	totals->asked += more->asked;
	totals->right += more->right;
	totals->same += more->same;
	totals->log_loss += more->log_loss;
}

static int run_round(
	struct run *run, struct spec_cell *cells, size_t n, size_t round, struct spec_totals *sums)
{
	int r = 0;

	memset(sums, 0, n * sizeof(*sums));
	for (size_t i = 0; r == 0 && i < run->prompts.n; i++)
		for (size_t c = 0; r == 0 && c < n; c++) {
			size_t at = (c + i + round) % n;

			/* Every other time the other way round, so that no cell always follows the
			 * same one, which leaves the cache as it likes. */
			at = (i + round) % 2 ? n - 1 - at : at;
			if (isatty(STDERR_FILENO))
				fprintf(stderr, "\rround %zu, prompt %zu, way %zu of %zu ",
					round + 1, i + 1, c + 1, n);
			r = answer(run, i, &cells[at], &sums[at]);
		}
	for (size_t c = 0; r == 0 && c < n; c++) {
		struct spec_cell *cell = &cells[c];

		cell->per_s[cell->n_rounds] = per_s(&sums[c]);
		cell->ratio[cell->n_rounds++] = per_s(&sums[c]) / per_s(&sums[0]);
		totals_add(&cell->totals, &sums[c]);
	}
	return r;
}

/* The answers of K = 0, and what the model says to them. */
static int learn(struct run *run, struct spec_cell *plain)
{
	struct outrider_usage usage;
	int r = 0;

	for (size_t i = 0; r == 0 && i < run->prompts.n; i++) {
		struct outrider_request *request = run->prompts.request[i];

		outrider_request_set_ignore_eos(request, run->options->ignore_eos);
		if (run->options->max_tokens > 0)
			outrider_request_set_max_tokens(request, run->options->max_tokens);
		r = set_plain(request);
		if (r == 0)
			r = ask(run, request, &run->exact[i], NULL, &usage);
		if (r == 0)
			r = audit(run, request, &run->exact[i], &plain->totals);
	}
	return r;
}

static int run_rounds(struct run *run, struct spec_cell *cells, size_t n)
{
	const struct spec_options *o = run->options;
	struct spec_totals *sums = calloc(n, sizeof(*sums));
	uint64_t end_ns = o->seconds ? clock_ns() + o->seconds * SECOND_NS : UINT64_MAX;

	if (sums == NULL)
		return -ENOMEM;
	int r = learn(run, &cells[0]);
	for (size_t i = 0; r == 0 && i < o->rounds && (i == 0 || clock_ns() < end_ns); i++)
		r = run_round(run, cells, n, i, sums);
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	free(sums);
	return r;
}

int spec_run(const struct spec_options *options, struct spec_cell *cells, size_t n)
{
	struct run run = {.options = options};
	struct error err = {""};
	int r = workload_prompts_read(options->file, options->limit, &run.prompts, &err);

	if (r < 0)
		fprintf(stderr, "outrider-bench spec: %s\n", err.text);
	if (r == 0 && (run.exact = calloc(run.prompts.n, sizeof(*run.exact))) == NULL)
		r = -ENOMEM;
	if (r == 0 && (r = outrider_connect(options->runtime_dir, &run.client)) < 0)
		(void)fail(r, "connect");
	if (r == 0)
		r = run_rounds(&run, cells, n);
	for (size_t i = 0; run.exact != NULL && i < run.prompts.n; i++)
		text_free(&run.exact[i]);
	free(run.exact);
	text_free(&run.now);
	outrider_close(&run.client);
	workload_prompts_free(&run.prompts);
	return r;
}
