/*
 * What the tests against the golden models share: the JSON beside them, prompts with what a hook
 * saw of the routing, and comparison with the numbers of the reference
 * (tests/data/golden/README.md).
 */
#pragma once

#include "tests/model/rig.h"

#include <jansson.h>
#include <math.h>

static inline json_t *load_json(const char *path)
{
	json_error_t error;
	json_t *json = json_load_file(path, 0, &error);
	if (!json)
		fail_msg("%s: %s", path, error.text);
	return json;
}

/* The target of a draft head, as the head's JSON names it, in its folder. */
static inline void head_target(const char *folder, const json_t *golden, char *path, size_t bytes)
{
	const json_t *of = json_object_get(golden, "target");
	if (!of)
		of = json_object_get(golden, "model");
	if (json_is_object(of))
		of = json_object_get(of, "file");
	snprintf(path, bytes, "%s/%s", folder, json_string_value(of));
}

static inline uint32_t read_ids(const json_t *array, int32_t *ids)
{
	size_t i;
	json_t *value;
	assert_true(json_array_size(array) <= RIG_CONTEXT);
	json_array_foreach(array, i, value) ids[i] = (int32_t)json_integer_value(value);
	return (uint32_t)json_array_size(array);
}

/* What the hook saw: [layer][token][k]. */
struct routes {
	uint16_t experts[16][RIG_CONTEXT][8];
	float weights[16][RIG_CONTEXT][8];
	uint32_t k, first;
	float hidden
		[17]
		/* [layer]: the last token's residual stream before it; behind the last layer too */
		[1024];
	uint32_t n_embd;
};

static inline void record(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct routes *routes = arg;
	(void)hidden;
	for (uint32_t i = 0; i < n_tokens * routes->k && experts; i++) {
		uint32_t token = routes->first + i / routes->k;
		routes->experts[layer][token][i % routes->k] = experts[i];
		routes->weights[layer][token][i % routes->k] = weights[i];
	}
}

static inline void record_residual(
	void *arg, uint32_t layer, uint32_t n_tokens, const struct rows *x)
{
	struct routes *routes = arg;
	assert_true(layer < 17 && routes->n_embd <= 1024);
	memcpy(routes->hidden[layer], x->buffer->host + x->offset + (n_tokens - 1) * x->stride,
		routes->n_embd * sizeof(float));
}

static struct routes routes;

/* The prompt in chunks of RIG_BATCH, with logits of all positions and routes. */
static inline float *run_prompt(struct rig *rig, struct kv_seq *seq, const int32_t *ids, uint32_t n)
{
	float *logits = malloc((size_t)n * rig->n_vocab * sizeof(*logits));
	assert_non_null(logits);
	routes.k = rig->model->config.n_experts_used;
	routes.n_embd = rig->model->config.n_embd;
	forward_set_hooks(rig->forward,
		&(struct forward_hooks){
			.layer = record, .residual = record_residual, .arg = &routes});
	for (uint32_t first = 0; first < n; first += RIG_BATCH) {
		uint32_t m = n - first < RIG_BATCH ? n - first : RIG_BATCH;
		routes.first = first;
		rig_chain(
			rig, seq, ids + first, m, RIG_BATCH, logits + (size_t)first * rig->n_vocab);
	}
	forward_set_hooks(rig->forward, NULL);
	return logits;
}

static inline uint32_t best(const float *x, uint32_t n)
{
	uint32_t at = 0;
	for (uint32_t i = 1; i < n; i++)
		at = x[i] > x[at] ? i : at;
	return at;
}

struct difference {
	double rms, max, reference_rms;
};

static inline struct difference compare(const float *got, const json_t *expected, uint32_t n)
{
	double square = 0, reference = 0, max = 0;
	assert_int_equal(json_array_size(expected), n);
	for (uint32_t i = 0; i < n; i++) {
		double r = json_number_value(json_array_get(expected, i)), d = (double)got[i] - r;
		square += d * d;
		reference += r * r;
		max = fabs(d) > max ? fabs(d) : max;
	}
	return (struct difference){sqrt(square / n), max, sqrt(reference / n)};
}

static inline void check_greedy(
	struct rig *rig, struct kv_seq *seq, const float *last, const json_t *greedy)
{
	size_t i;
	json_t *id;
	float *logits = malloc(rig->n_vocab * sizeof(*logits));
	memcpy(logits, last, rig->n_vocab * sizeof(*logits));
	json_array_foreach(greedy, i, id)
	{
		int32_t token = (int32_t)best(logits, rig->n_vocab);
		if (token != json_integer_value(id))
			fail_msg("greedy token %zu is %d instead of %d", i, token,
				(int)json_integer_value(id));
		rig_chain(rig, seq, &token, 1, 1, logits);
	}
	free(logits);
}

static inline bool was_chosen(json_int_t layer, size_t token, json_int_t expert)
{
	bool found = false;
	for (uint32_t j = 0; j < routes.k; j++)
		found |= routes.experts[layer][token][j] == expert;
	return found;
}

/* exact: the order and the weights too. The margins only speak of who is chosen, so 8-bit
 * activations may swap two that both are. */
static inline void check_routing(const json_t *routing, bool exact)
{
	size_t l, t, j;
	json_t *layer, *token, *value;
	json_array_foreach(routing, l, layer)
	{
		json_int_t index = json_integer_value(json_object_get(layer, "layer"));
		json_array_foreach(json_object_get(layer, "experts"), t, token)
			json_array_foreach(token, j, value)
		{
			json_int_t expert = json_integer_value(value);
			assert_true(was_chosen(index, t, expert));
			if (exact)
				assert_int_equal(routes.experts[index][t][j], expert);
		}
		if (!exact)
			continue;
		json_array_foreach(json_object_get(layer, "weights"), t, token)
			json_array_foreach(token, j, value)
				assert_true(fabs(json_number_value(value) -
						    (double)routes.weights[index][t][j]) <= 1e-5);
	}
}

/* A folder with all golden data, of which tests/data/golden has the small part. */
static inline const char *complete_golden(void)
{
	const char *path = getenv("OUTRIDER_GOLDEN");
	return path ? path : "../shared/golden";
}
