#include "client/model/commands.h"
#include "client/model/engine.h"

#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

/* [layer][token][n_experts_used]; first: the chunk's first token. */
struct routes {
	uint16_t *experts;
	float *weights;
	uint32_t n_tokens, k, first;
};

static void record(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct routes *routes = arg;
	(void)hidden;
	if (!experts)
		return;
	size_t at = ((size_t)layer * routes->n_tokens + routes->first) * routes->k;
	memcpy(routes->experts + at, experts, (size_t)n_tokens * routes->k * sizeof(*experts));
	memcpy(routes->weights + at, weights, (size_t)n_tokens * routes->k * sizeof(*weights));
}

/* Every position of a chunk is reported after its layers, so the next chunk begins behind it. */
static void advance(void *arg, uint32_t position, const float *logits)
{
	struct routes *routes = arg;
	(void)logits;
	routes->first = position + 1;
}

static void print_layer(const struct routes *routes, uint32_t layer, bool json)
{
	for (uint32_t t = 0; t < routes->n_tokens; t++) {
		size_t at = ((size_t)layer * routes->n_tokens + t) * routes->k;
		printf(json ? "%s[" : "%slayer %u token %u:", json && t ? ", " : "", layer, t);
		for (uint32_t j = 0; j < routes->k; j++)
			printf(json ? "%s%u" : "%s %u", json && j ? ", " : "",
				routes->experts[at + j]);
		fputs(json ? "]" : "\n", stdout);
	}
}

static void print_weights(const struct routes *routes, uint32_t layer)
{
	for (uint32_t t = 0; t < routes->n_tokens; t++) {
		size_t at = ((size_t)layer * routes->n_tokens + t) * routes->k;
		fputs(t ? ", [" : "[", stdout);
		for (uint32_t j = 0; j < routes->k; j++)
			printf("%s%.9g", j ? ", " : "", (double)routes->weights[at + j]);
		putchar(']');
	}
}

static void print_routes(const struct engine *e, const struct routes *routes)
{
	bool json = engine_json(e), first = true;
	fputs(json ? "{\"routes\": [" : "", stdout);
	for (uint32_t layer = 0; layer < e->model->config.n_layers; layer++) {
		if (!e->model->layers[layer].moe)
			continue;
		if (json)
			printf("%s{\"layer\": %u, \"experts\": [", first ? "" : ", ", layer);
		first = false;
		print_layer(routes, layer, json);
		if (json) {
			fputs("], \"weights\": [", stdout);
			print_weights(routes, layer);
			fputs("]}", stdout);
		}
	}
	fputs(json ? "]}\n" : "", stdout);
}

static int run(struct engine *e, struct routes *routes, struct error *err)
{
	int rc = engine_open(e, false, err);
	if (rc < 0)
		return rc;
	if (e->model->config.n_experts == 0)
		return error_set(err, EINVAL, "%s has no experts", e->options.model);
	rc = engine_start(e, 0, true, err);
	if (rc < 0)
		return rc;
	routes->k = e->model->config.n_experts_used;
	routes->n_tokens = e->n_prompt;
	size_t n = (size_t)e->model->config.n_layers * routes->n_tokens * routes->k;
	routes->experts = calloc(n, sizeof(*routes->experts));
	routes->weights = calloc(n, sizeof(*routes->weights));
	if (!routes->experts || !routes->weights)
		return error_set(err, ENOMEM, "no memory for %zu routes", n);
	forward_set_hooks(e->forward, &(struct forward_hooks){.layer = record, .arg = routes});
	rc = engine_prefill(e, true, advance, routes, err);
	if (rc == 0)
		print_routes(e, routes);
	return rc;
}

int command_routes(int argc, char **argv)
{
	struct engine e = {0};
	struct routes routes = {0};
	struct error err = {""};
	bool help = false;
	const struct arg args[] = {
		PROMPT_ARGS(&e.options) ENGINE_ARGS(&e.options, PROMPT_CONTEXT){
			"help", ARG_FLAG, &help, 0, 0, NULL, "print this text"},
		{.name = NULL},
	};
	if (args_parse(argc, argv, args, &err) < 0)
		return engine_usage(&err);
	if (help) {
		puts("usage: outrider-model routes --model FILE (--tokens IDS | --prompt TEXT) "
		     "[OPTIONS]\n");
		args_help(args, stdout);
		return EX_OK;
	}
	if (engine_check_options(&e.options, &err) < 0)
		return engine_usage(&err);
	int rc = run(&e, &routes, &err);
	free(routes.experts);
	free(routes.weights);
	engine_close(&e);
	return rc < 0 ? engine_fail(rc, &err) : EX_OK;
}
