/* Texts: which drafts there are at each position and how many of their tokens are right. */
#include "bench/src/policy_sim.h"

#include "services/drafter/ngram.h"
#include "shared/base/rand.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Draws of a text; streams of their own are not needed, the seed is. */
enum { DRAW_STATE, DRAW_LENGTH, DRAW_ACCEPT, DRAW_CHANCE, DRAW_MATCH, DRAW_SHAPE = 16 };

/*
 * Phases that give the published tokens per iteration (ETR) of n-gram drafts on Mixtral. Code: 3.2
 * at K = 7 (Cascade, section 2.3), 1.39 times T(4) at K = 3 (2.5). Math: 1.3 at K = 1 (7.3), 1.6 at
 * K = 7 (2.3), 1.54 times slower at K = 3 (2.5). Extraction: slower at every K (2.3). How long
 * phases last is read off figures 6 and 7: some windows of 16 iterations.
 */
const struct sim_process sim_processes[] = {
	{"ngram-code", "Cascade 2.3, 2.5", 2, {{0.88, 200}, {0.3, 100}}, 1, 0, false, 1, NULL,
		NULL},
	{"ngram-math", "Cascade 2.3, 2.5, 7.3", 2, {{0.85, 100}, {0.26, 560}}, 1, 0, false, 1, NULL,
		NULL},
	{"ngram-extract", "Cascade 2.3", 2, {{0.85, 100}, {0.34, 200}}, 1, 0, false, 1, NULL, NULL},
	{"ngram-phi-math", "Cascade 2.5, 7.3", 2, {{0.85, 100}, {0.26, 560}}, 1, 0, false, 1, NULL,
		NULL},
	{"ngram-phi-extract", "Cascade 2.5, figure 6: late in a request it pays", 2,
		{{0.9, 200}, {0.3, 100}}, 1, 0, false, 1, NULL, NULL},
	{"eagle-math", "Cascade 7.3: ETR 1.7 at K = 1", 1, {{0.7, 256}}, 1, 0.5, true, 1.3, NULL,
		NULL},
	{"code", "this repository's demo model and n-gram drafter", 0, {{0, 0}}, 1, 0, true, 1,
		"code", NULL},
	{"math", "this repository's demo model and n-gram drafter", 0, {{0, 0}}, 1, 0, true, 1,
		"math", NULL},
	{"extract", "this repository's demo model and n-gram drafter", 0, {{0, 0}}, 1, 0, true, 1,
		"extract", NULL},
	{"prose", "this repository's demo model and n-gram drafter", 0, {{0, 0}}, 1, 0, true, 1,
		"prose", NULL},
	{.name = ""},
};

const struct sim_process *sim_process_find(const char *name)
{
	for (const struct sim_process *p = sim_processes; *p->name; p++)
		if (strcmp(p->name, name) == 0)
			return p;
	return NULL;
}

void sim_process_list(char *out, size_t bytes)
{
	size_t used = 0;
	for (const struct sim_process *p = sim_processes; *p->name && used < bytes; p++)
		used += (size_t)snprintf(
			out + used, bytes - used, "%s%s", used ? ", " : "", p->name);
}

void sim_process_random(uint64_t seed, struct sim_process *out)
{
	double u[DRAW_SHAPE];
	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < DRAW_SHAPE; i++)
		u[i] = rand_uniform(seed, RAND_REPLAY, i, 77);
	snprintf(out->name, sizeof(out->name), "random");
	out->source = "drawn: 1 to 4 phases of 20 to 400 tokens, acceptance 0.02 to 0.98";
	out->n_states = 1 + (uint32_t)(u[0] * SIM_STATES);
	for (uint32_t i = 0; i < out->n_states; i++) {
		out->states[i].acceptance = 0.02 + 0.96 * u[1 + i];
		out->states[i].tokens = 20 * pow(20, u[5 + i]);
	}
	out->match = u[9] < 0.5 ? 1 : 0.3 + 0.7 * u[10];
	out->spread = u[11] < 0.3 ? 0 : 0.8 * u[12];
	out->informed = u[13] < 0.5;
	out->distortion = 0.5 + 1.5 * u[14];
}

/* Two-point spread around the mean: with chance `mean` a token that is surely right, else one
 * surely wrong, mixed with the mean itself; keeps the mean, and is all the confidence has to tell.
 */
static double chance_of(const struct sim_process *p, double mean, uint64_t seed, uint32_t x)
{
	double sure = rand_uniform(seed, RAND_REPLAY, x, DRAW_CHANCE) < mean ? 1 : 0;
	return mean + p->spread * (sure - mean);
}

static float confidence_of(const struct sim_process *p, double chance)
{
	if (!p->informed)
		return 1;
	double odds = pow(fmax(chance, 1e-3) / fmax(1 - chance, 1e-3), p->distortion);
	return (float)(odds / (1 + odds));
}

static void synthesise(struct sim_text *text, const struct sim_process *p, uint64_t seed)
{
	uint32_t n = text->n, state = 0, total = n + LIMIT_DRAFT_DEPTH;
	double sum = 0, at = 0, u = rand_uniform(seed, RAND_REPLAY, 0, DRAW_STATE);
	float *confidence = calloc(total, sizeof(*confidence));
	bool *right = calloc(total, sizeof(*right));
	assert(p->n_states > 0); /* a process is a journal, recorded, or has phases */
	for (uint32_t i = 0; i < p->n_states; i++)
		sum += p->states[i].tokens;
	while (state + 1 < p->n_states && (at += p->states[state].tokens) < u * sum)
		state++;
	for (uint32_t x = 0; confidence && right && x < total; x++) {
		if (rand_uniform(seed, RAND_REPLAY, x, DRAW_LENGTH) * p->states[state].tokens < 1)
			state = (state + 1) % p->n_states;
		double chance = chance_of(p, p->states[state].acceptance, seed, x);
		right[x] = rand_uniform(seed, RAND_REPLAY, x, DRAW_ACCEPT) < chance;
		confidence[x] = confidence_of(p, chance);
	}
	for (uint32_t x = 0; confidence && right && x < n; x++) {
		struct sim_point *point = &text->points[x];
		bool has = rand_uniform(seed, RAND_REPLAY, x, DRAW_MATCH) < p->match;
		point->available = has ? LIMIT_DRAFT_DEPTH : 0;
		while (point->run < point->available && right[x + point->run])
			point->run++;
		memcpy(point->confidence, confidence + x, sizeof(point->confidence));
	}
	free(confidence);
	free(right);
}

/* The n-gram drafter on a recorded answer, at every position. */
static int draft_recorded(struct sim_text *text, const int32_t *tokens, uint32_t n_prompt)
{
	struct ngram ngram;
	uint32_t total = n_prompt + text->n;
	int r = ngram_init(&ngram, 2, 8, total, 1);
	for (uint32_t x = 0; r == 0 && x < text->n; x++) {
		struct sim_point *point = &text->points[x];
		int32_t draft[LIMIT_DRAFT_DEPTH];
		uint32_t length, n = n_prompt + x, from;
		ngram_update(&ngram, tokens, n);
		from = ngram_find(&ngram, tokens, n, &length);
		if (from == NGRAM_NONE)
			continue;
		ngram_propose(tokens, n, from, LIMIT_DRAFT_DEPTH, draft);
		point->available = LIMIT_DRAFT_DEPTH;
		while (point->run < LIMIT_DRAFT_DEPTH && n + point->run < total &&
			draft[point->run] == tokens[n + point->run])
			point->run++;
		uint32_t match = ngram_match(tokens, n, from);
		for (uint32_t i = 0; i < LIMIT_DRAFT_DEPTH; i++)
			point->confidence[i] = ngram_confidence(match, i);
	}
	if (r == 0)
		ngram_exit(&ngram);
	return r;
}

static int take_line(struct sim_text *text, const json_t *line, struct error *err)
{
	const json_t *input = json_object_get(line, "input_ids");
	const json_t *output = json_object_get(line, "output_ids");
	uint32_t n_prompt = (uint32_t)json_array_size(input), i = 0;
	text->n = (uint32_t)json_array_size(output);
	int32_t *tokens = calloc((size_t)n_prompt + text->n + 1, sizeof(*tokens));
	text->points = calloc((size_t)text->n + 1, sizeof(*text->points));
	if (!tokens || !text->points || n_prompt == 0 || text->n == 0) {
		free(tokens);
		return error_set(err, EINVAL, "a recorded output without tokens");
	}
	for (; i < n_prompt; i++)
		tokens[i] = (int32_t)json_integer_value(json_array_get(input, i));
	for (; i < n_prompt + text->n; i++)
		tokens[i] = (int32_t)json_integer_value(json_array_get(output, i - n_prompt));
	int r = draft_recorded(text, tokens, n_prompt);
	free(tokens);
	return r < 0 ? error_set(err, -r, "a recorded output cannot be drafted for") : 0;
}

/* A line whose id begins as wanted: the seed-th, counting on from the first after the last. */
static int from_file(struct sim_text *text, const struct sim_process *p, const char *file,
	uint64_t seed, struct error *err)
{
	FILE *in = fopen(file, "re");
	char *line = NULL;
	size_t capacity = 0, matching = 0;
	int r = 1;
	if (!in)
		return error_set(err, errno, "%s: %s", file, strerror(errno));
	for (int pass = 0; pass < 2 && r == 1; pass++) {
		size_t wanted = matching ? seed % matching : 0, seen = 0;
		rewind(in);
		while (r == 1 && getline(&line, &capacity, in) > 0) {
			json_t *json = json_loads(line, 0, NULL);
			const char *id = json_string_value(json_object_get(json, "id"));
			bool ours = id && strncmp(id, p->recorded, strlen(p->recorded)) == 0;
			if (ours && pass == 1 && seen == wanted)
				r = take_line(text, json, err);
			seen += ours;
			json_decref(json);
		}
		matching = seen;
	}
	free(line);
	fclose(in);
	return r == 1 ? error_set(err, ENOENT, "%s has no output of %s", file, p->recorded) : r;
}

int sim_text_make(struct sim_text *text, const struct sim_process *process, const char *file,
	uint32_t n, uint64_t seed, struct error *err)
{
	memset(text, 0, sizeof(*text));
	if (process->journal)
		return sim_journal_text(process->journal, seed, text, err);
	if (process->recorded)
		return from_file(text, process, file, seed, err);
	text->n = n;
	text->points = calloc(n, sizeof(*text->points));
	if (!text->points)
		return error_set(err, ENOMEM, "no memory for a text of %u tokens", n);
	synthesise(text, process, seed);
	return 0;
}

void sim_text_exit(struct sim_text *text)
{
	free(text->points);
	memset(text, 0, sizeof(*text));
}
