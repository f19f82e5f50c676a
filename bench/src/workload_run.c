#include "bench/src/workload.h"

#include "shared/base/median.h"

#include "shared/base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)

static int fail(int code, const char *what)
{
	fprintf(stderr, "outrider-bench workload: %s: %s\n", what, outrider_error());
	return code;
}

static int set_up(const struct workload_options *options, struct outrider_request *request)
{
	int r = outrider_request_set_draft_method(request, options->drafter);
	if (r == 0)
		r = outrider_request_set_temperature(request, options->temperature);
	if (options->max_tokens)
		outrider_request_set_max_tokens(request, options->max_tokens);
	outrider_request_set_ignore_eos(request, options->ignore_eos);
	return r;
}

static int prompts_read(const struct workload_options *options, struct workload_prompts *prompts)
{
	struct error err = {""};
	int r = workload_prompts_read(options->file, options->limit, prompts, &err);
	if (r < 0) {
		fprintf(stderr, "outrider-bench workload: %s\n", err.text);
		return r;
	}
	for (size_t i = 0; r == 0 && i < prompts->n; i++)
		r = set_up(options, prompts->request[i]);
	return r < 0 ? fail(r, options->file) : 0;
}

void workload_totals_take(struct workload_totals *totals, const struct outrider_usage *usage)
{
	totals->tokens += usage->output_tokens;
	totals->iterations += usage->iterations;
	totals->drafted += usage->drafted;
	totals->accepted += usage->accepted;
	totals->unique_experts += usage->unique_experts;
	totals->hits += usage->expert_hits;
	totals->misses += usage->expert_misses;
	totals->decode_ns += usage->decode_ns;
	totals->draft_ns += usage->draft_ns;
	totals->verify_ns += usage->verify_ns;
	totals->sample_ns += usage->sample_ns;
	for (size_t k = 0; k < usage->n_k_used; k++)
		totals->k_sum += k * usage->k_used[k];
	for (size_t i = 0; i < usage->n_drafted_at && i < LIMIT_DRAFT_DEPTH; i++)
		totals->drafted_at[i] += usage->drafted_at[i];
	for (size_t i = 0; i < usage->n_accepted_at && i < LIMIT_DRAFT_DEPTH; i++)
		totals->accepted_at[i] += usage->accepted_at[i];
}

void workload_totals_add(struct workload_totals *totals, const struct workload_totals *more)
{
	const uint64_t *from = (const uint64_t *)more;
	uint64_t *to = (uint64_t *)totals;
	for (size_t i = 0; i < sizeof(*more) / sizeof(uint64_t); i++)
		to[i] += from[i];
}

/* One pass over the prompts, with up to LIMIT_SESSIONS streams at a time. */
struct round {
	struct outrider *client;
	const struct workload_prompts *prompts;
	struct outrider_stream *stream[LIMIT_SESSIONS];
	size_t n_slots, next, ended;
	struct workload_totals totals;
};

/* Takes the events that have arrived for a slot. */
static int slot_poll(struct round *round, size_t slot, int timeout_ms)
{
	const struct outrider_event *event;
	int r;
	while ((r = outrider_next(round->stream[slot], timeout_ms, &event)) == 0) {
		timeout_ms = 0;
		if (event->type != OUTRIDER_EVENT_DONE)
			continue;
		if (event->end == OUTRIDER_END_ERROR) {
			fprintf(stderr, "outrider-bench workload: %s\n", event->message);
			return -EREMOTEIO;
		}
		struct outrider_usage usage;
		if ((r = outrider_usage(round->stream[slot], &usage)) < 0)
			return fail(r, "usage");
		workload_totals_take(&round->totals, &usage);
		outrider_stream_free(&round->stream[slot]);
		round->ended++;
		return 0;
	}
	return r == -EAGAIN ? 0 : fail(r, "answer");
}

static int round_step(struct round *round)
{
	for (size_t i = 0; i < round->n_slots; i++) {
		if (!round->stream[i] && round->next < round->prompts->n) {
			int r = outrider_start(round->client, round->prompts->request[round->next],
				&round->stream[i]);
			if (r < 0)
				return fail(r, "start");
			round->next++;
		}
		/* Waits for a moment on one stream; events of the others are kept for them. */
		if (round->stream[i]) {
			int r = slot_poll(round, i, round->n_slots == 1 ? 100 : 2);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

static double tokens_per_s(const struct workload_totals *totals, uint64_t ns)
{
	return ns ? (double)totals->tokens * 1e9 / (double)ns : 0;
}

/* *per_s: output tokens per second: while decoding (without prefill) for one session at a time, by
 * the wall clock for several. */
static int run_round(struct outrider *client, const struct workload_prompts *prompts,
	const struct workload_options *options, int k, struct workload_totals *totals,
	double *per_s)
{
	struct round round = {.client = client, .prompts = prompts, .n_slots = options->sessions};
	for (size_t i = 0; i < prompts->n; i++)
		outrider_request_set_k(prompts->request[i], k);
	uint64_t start_ns = clock_ns();
	int r = 0;
	while (r == 0 && round.ended < prompts->n)
		r = round_step(&round);
	uint64_t wall_ns = clock_ns() - start_ns;
	for (size_t i = 0; i < round.n_slots; i++)
		outrider_stream_free(&round.stream[i]);
	if (r < 0)
		return r;
	*per_s = tokens_per_s(
		&round.totals, options->sessions == 1 ? round.totals.decode_ns : wall_ns);
	workload_totals_add(totals, &round.totals);
	return 0;
}

static void row_finish(struct workload_row *row)
{
	double sorted[WORKLOAD_ROUNDS];
	memcpy(sorted, row->tokens_per_s, row->n_rounds * sizeof(double));
	row->median = median(sorted, row->n_rounds);
	row->low = sorted[0];
	row->high = sorted[row->n_rounds - 1];
}

static void progress(const struct workload_options *options, size_t round, size_t k)
{
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\rround %zu of %zu, K %zu of %zu ", round + 1, options->rounds,
			k + 1, options->n_ks);
}

/* Runs all prompts with one K after the other. */
static int run_in_turn(struct outrider *client, const struct workload_prompts *prompts,
	const struct workload_options *options, size_t round, struct workload_row *rows)
{
	int r = 0;
	for (size_t k = 0; r == 0 && k < options->n_ks; k++) {
		struct workload_row *row = &rows[k];
		progress(options, round, k);
		r = run_round(client, prompts, options, row->k, &row->totals,
			&row->tokens_per_s[row->n_rounds++]);
	}
	return r;
}

/* Runs every prompt with all values of K, each time beginning with another one. So neither a
 * machine that becomes faster nor a cache that is warm from the last request favours any K. */
static int run_alternating(struct outrider *client, const struct workload_prompts *prompts,
	const struct workload_options *options, size_t round, struct workload_row *rows)
{
	struct workload_totals totals[WORKLOAD_KS] = {0};
	double ignored;
	int r = 0;
	for (size_t i = 0; r == 0 && i < prompts->n * options->n_ks; i++) {
		struct workload_prompts one = {
			.request = &prompts->request[i / options->n_ks], .n = 1};
		size_t k = (i + i / options->n_ks + round) % options->n_ks;
		progress(options, round, k);
		r = run_round(client, &one, options, rows[k].k, &totals[k], &ignored);
	}
	for (size_t k = 0; r == 0 && k < options->n_ks; k++) {
		rows[k].tokens_per_s[rows[k].n_rounds++] =
			tokens_per_s(&totals[k], totals[k].decode_ns);
		workload_totals_add(&rows[k].totals, &totals[k]);
	}
	return r;
}

static int run_rounds(struct outrider *client, const struct workload_prompts *prompts,
	const struct workload_options *options, struct workload_row *rows)
{
	struct workload_totals ignored = {0};
	double per_s;
	for (size_t k = 0; k < options->n_ks; k++)
		rows[k].k = options->ks[k];
	int r = run_round(
		client, prompts, options, 0, &ignored, &per_s); /* warms caches and the drafter */
	uint64_t end_ns = options->seconds ? clock_ns() + options->seconds * SECOND_NS : UINT64_MAX;
	for (size_t round = 0;
		r == 0 && round < options->rounds && (round == 0 || clock_ns() < end_ns); round++)
		r = options->sessions == 1 ? run_alternating(client, prompts, options, round, rows)
					   : run_in_turn(client, prompts, options, round, rows);
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	for (size_t k = 0; r == 0 && k < options->n_ks; k++)
		row_finish(&rows[k]);
	return r;
}

/* With a service, to which it connects once the requests are known. */
static int ask(const struct workload_prompts *prompts, const struct workload_options *options,
	struct workload_row *rows)
{
	struct outrider *client;
	int r = outrider_connect(options->runtime_dir, &client);
	if (r < 0)
		return fail(r, "connect");
	r = run_rounds(client, prompts, options, rows);
	outrider_close(&client);
	return r;
}

int workload_run(const struct workload_options *options, struct workload_row *rows)
{
	struct workload_prompts prompts = {0};
	int r = prompts_read(options, &prompts);
	if (r == 0)
		r = ask(&prompts, options, rows);
	workload_prompts_free(&prompts);
	return r;
}
