/* outrider-bench budget: one layer under every budget (budget.h). */
#include "bench/src/budget.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory. ---- */

/* Lays out the arrays behind each other; with memory NULL only their size is wanted. */
static size_t lay_out(struct budget_layers *b, unsigned char *memory)
{
	const struct model_config *c = &b->model->config;
	size_t n = b->room, k = c->n_experts_used, E = c->n_experts, D = c->n_embd, at = 0;
	struct {
		void *to;
		size_t bytes;
	} const parts[] = {
		{&b->outputs, n * E * D * sizeof(float)},
		{&b->rest, n * D * sizeof(float)},
		{&b->y, n * k * D * sizeof(float)},
		{&b->weights, n * k * sizeof(float)},
		{&b->scores, n * E * sizeof(float)},
		{&b->chosen, n * k * sizeof(uint16_t)},
		{&b->list, E * sizeof(uint16_t)},
		{&b->affected, n * sizeof(uint32_t)},
		{&b->pairs, n * k * sizeof(uint32_t)},
		{&b->n_order, sizeof(uint32_t)},
		{&b->order, E * sizeof(struct expert_use)},
	};

	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		void *place = memory ? memory + at : NULL;

		memcpy(parts[i].to, &place, sizeof(place));
		at += (parts[i].bytes + 63) / 64 * 64;
	}
	return at;
}

int budget_layers_init(struct budget_layers *b, const struct budget_options *options,
	const struct engine *engine, const uint64_t *uses, uint32_t rows, struct error *err)
{
	const struct model_config *c = &engine->model->config;

	*b = (struct budget_layers){.options = options,
		.model = engine->model,
		.queue = forward_queue(engine->forward),
		.uses = uses,
		.room = rows};
	size_t bytes = lay_out(b, NULL);
	b->memory = aligned_alloc(64, bytes);
	b->places = calloc(c->n_experts, sizeof(*b->places));
	b->gold = calloc((size_t)rows * c->n_embd, sizeof(*b->gold));
	b->row = calloc(c->n_embd, sizeof(*b->row));
	if (!b->memory || !b->places || !b->gold || !b->row)
		return error_set(
			err, ENOMEM, "no memory for the results of %u experts", c->n_experts);
	memset(b->memory, 0, bytes);
	(void)lay_out(b, b->memory);
	return engine->backend->ops->wrap(engine->backend, b->memory, bytes, &b->buffer, err);
}

void budget_layers_exit(struct budget_layers *b)
{
	free(b->memory);
	free(b->places);
	free(b->gold);
	free(b->row);
}

/* ---- The step. ---- */

static struct place place_of(const struct budget_layers *b, const void *at)
{
	return (struct place){
		&b->buffer, (size_t)((const unsigned char *)at - (unsigned char *)b->memory)};
}

static struct rows rows_of(const struct budget_layers *b, const void *at, size_t stride, uint32_t n)
{
	struct place place = place_of(b, at);

	return (struct rows){place.buffer, place.offset, stride, n};
}

static const void *host_of(const struct rows *rows)
{
	return rows->buffer->host + rows->offset;
}

static const float *bias_of(const struct budget_layers *b, uint32_t layer, uint32_t expert)
{
	const struct expert_bias *bias = &b->model->layers[layer].down_bias;

	return bias->rows ? bias->rows + expert * bias->stride : NULL;
}

/* What the router of the layer chose, and with a budget chooses: to b->chosen and b->weights. The list
 * of experts goes to b->list. */
static void choose(struct budget_layers *b, uint32_t layer, const struct step_route *route,
	const struct budget_group *of)
{
	const struct model_config *c = &b->model->config;
	uint32_t n = route->chosen.n, k = route->n_used;
	struct budget_group group = *of;

	group.n = n;
	group.list = place_of(b, b->list);
	group.outputs = rows_of(b, b->outputs, c->n_embd * sizeof(float), n * c->n_experts);
	group.rest = rows_of(b, b->rest, c->n_embd * sizeof(float), n);
	memcpy(b->chosen, host_of(&route->chosen), (size_t)n * k * sizeof(*b->chosen));
	memcpy(b->weights, host_of(&route->weights), (size_t)n * k * sizeof(*b->weights));
	memcpy(b->scores, host_of(&route->scores), (size_t)n * c->n_experts * sizeof(*b->scores));
	struct step_budget step = {
		.route = *route,
		.of = &group,
		.n = 1,
		.width = c->n_embd,
		.bias = bias_of(b, layer, 0),
		.bias_stride = b->model->layers[layer].down_bias.stride,
		.affected = rows_of(b, b->affected, sizeof(*b->affected), n),
		.y = rows_of(b, b->y, c->n_embd * sizeof(float), n * k),
	};
	step.route.scores = rows_of(b, b->scores, c->n_experts * sizeof(float), n);
	step.route.chosen = rows_of(b, b->chosen, k * sizeof(*b->chosen), n);
	step.route.weights = rows_of(b, b->weights, k * sizeof(*b->weights), n);
	step.route.order = (struct expert_order){
		place_of(b, b->pairs), place_of(b, b->order), place_of(b, b->n_order)};
	b->queue->ops->budget(b->queue, &step);
	(void)b->queue->ops->wait(b->queue, b->queue->ops->ticket(b->queue));
}

/* ---- Sums. ---- */

/* Adds weight * result of an expert for token t to sum. */
static void add_output(const struct budget_layers *b, uint32_t layer, const struct rows *outputs,
	uint32_t t, uint32_t expert, float weight, double *sum)
{
	const struct model_config *c = &b->model->config;
	const float *y =
		(const float *)host_of(outputs) + ((size_t)t * c->n_experts + expert) * c->n_embd;
	const float *bias = bias_of(b, layer, expert);

	for (uint32_t i = 0; i < c->n_embd; i++)
		sum[i] += (double)weight * ((double)y[i] + (bias ? (double)bias[i] : 0));
}

/* The exact results of all tokens, to b->gold. Returns the sum of their squares. */
static double take_gold(struct budget_layers *b, uint32_t layer, const struct step_route *route,
	const struct rows *outputs)
{
	const uint16_t *chosen = host_of(&route->chosen);
	const float *weights = host_of(&route->weights);
	size_t n = (size_t)route->chosen.n * b->model->config.n_embd;
	uint32_t k = route->n_used;
	double squares = 0;

	memset(b->gold, 0, n * sizeof(*b->gold));
	for (uint32_t i = 0; i < route->chosen.n * k; i++)
		add_output(b, layer, outputs, i / k, chosen[i], weights[i],
			b->gold + (size_t)(i / k) * b->model->config.n_embd);
	for (size_t i = 0; i < n; i++)
		squares += b->gold[i] * b->gold[i];
	return squares;
}

/* How far the results of the choice in b->chosen are from the exact ones. Equations 7 and 8. */
static double distance(const struct budget_layers *b, uint32_t layer,
	const struct step_route *route, const struct rows *outputs)
{
	uint32_t k = route->n_used, width = b->model->config.n_embd;
	double *row = b->row, squares = 0;

	for (uint32_t t = 0; t < route->chosen.n; t++) {
		const double *gold = b->gold + (size_t)t * width;

		memset(row, 0, width * sizeof(*row));
		for (uint32_t j = t * k; j < (t + 1) * k; j++)
			if (b->weights[j] != 0)
				add_output(b, layer, outputs, t, b->chosen[j], b->weights[j], row);
		for (uint32_t i = 0; i < width; i++)
			squares += (row[i] - gold[i]) * (row[i] - gold[i]);
	}
	return squares;
}

/* The sum of the tokens' scores of an expert, as the ranking router has it; where the rule makes no
 * scores of all experts, of the softmax of their products. */
static void sum_scores(const struct step_route *route, double *sum)
{
	const float *scores = host_of(&route->scores);
	uint32_t n = route->n_experts;
	bool made = route->rule.gating == GATING_SOFTMAX || route->rule.gating == GATING_SIGMOID;

	memset(sum, 0, n * sizeof(*sum));
	for (uint32_t t = 0; t < route->scores.n; t++) {
		const float *of = scores + (size_t)t * n;
		double greatest = -INFINITY, total = 0;

		for (uint32_t e = 0; e < n; e++)
			greatest = fmax(greatest, (double)of[e]);
		for (uint32_t e = 0; e < n; e++)
			total += exp((double)of[e] - greatest);
		for (uint32_t e = 0; e < n; e++)
			sum[e] += made ? (double)of[e] : exp((double)of[e] - greatest) / total;
	}
}

static double share_of(const struct budget_layers *b, const double *sum, uint32_t experts)
{
	double all = 0, listed = 0;

	for (uint32_t e = 0; e < b->model->config.n_experts; e++)
		all += sum[e];
	for (uint32_t i = 0; i < experts; i++)
		listed += sum[b->list[i]];
	return all > 0 ? listed / all : 0;
}

static uint32_t count_used(const struct step_route *route)
{
	const uint16_t *chosen = host_of(&route->chosen);
	bool used[LIMIT_EXPERTS] = {false};
	uint32_t n = 0;

	for (uint32_t i = 0; i < route->chosen.n * route->n_used; i++)
		used[chosen[i]] = true;
	for (uint32_t e = 0; e < route->n_experts; e++)
		n += used[e];
	return n;
}

/* ---- A layer. ---- */

/* The order in which equation 6 takes all experts, as uses. With it a shorter list of the oracle's is
 * one of the ranking static: the first experts do not depend on how many follow. */
static void rank_by_oracle(struct budget_layers *b, uint32_t layer, const struct step_route *route,
	const struct rows *outputs)
{
	const struct model_config *c = &b->model->config;
	const struct budget_group all = {.experts = c->n_experts, .ranking = BUDGET_ORACLE};

	memcpy(b->outputs, host_of(outputs),
		(size_t)route->chosen.n * c->n_experts * c->n_embd * sizeof(float));
	choose(b, layer, route, &all);
	for (uint32_t i = 0; i < c->n_experts; i++)
		b->places[b->list[i]] = c->n_experts - i;
}

static void take_ranking(struct budget_layers *b, uint32_t layer, const struct step_route *route,
	const struct rows *outputs, uint32_t ranking, const double *sum, double squares)
{
	struct budget_sums *to = &b->sums;
	bool router = ranking == BUDGET_ROUTER;
	uint32_t n_experts = b->model->config.n_experts;

	for (uint32_t i = 0; i < b->options->n_points; i++)
		for (uint32_t coverage = 0; coverage < BUDGET_COVERAGES; coverage++) {
			struct budget_group group = {.experts = b->options->experts[i],
				.ranking = router ? BUDGET_ROUTER : BUDGET_STATIC,
				.coverage = (enum budget_coverage)coverage,
				.uses = ranking == BUDGET_ORACLE ? b->places
					: router		 ? NULL
						 : b->uses + (size_t)layer * n_experts};
			choose(b, layer, route, &group);
			to->error[i][ranking][coverage] +=
				distance(b, layer, route, outputs) / squares;
			to->share[i][ranking] +=
				coverage == 0 ? share_of(b, sum, group.experts) : 0;
		}
}

void budget_layers_take(
	void *arg, uint32_t layer, const struct step_route *route, const struct rows *outputs)
{
	struct budget_layers *b = arg;
	double sum[LIMIT_EXPERTS], squares = take_gold(b, layer, route, outputs);

	/* Nothing can be said about the error of zeros. */
	if (!(squares > 0))
		return;
	sum_scores(route, sum);
	rank_by_oracle(b, layer, route, outputs);
	for (uint32_t ranking = 0; ranking < BUDGET_RANKINGS; ranking++)
		if (ranking != BUDGET_STATIC || b->uses)
			take_ranking(b, layer, route, outputs, ranking, sum, squares);
	b->sums.n++;
	b->sums.rows += route->chosen.n;
	b->sums.used += count_used(route);
}
