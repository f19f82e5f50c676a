#include "shared/base/layer_limits.h"

#include "shared/base/layer_span.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static_assert(LAYER_LIMITS_TEXT > LIMIT_LAYERS * sizeof("255:1024,"), "each layer has its own");
static_assert(
	LIMIT_LAYERS <= 256 && LIMIT_EXPERTS <= 9999, "the digits that the text has room for");

enum { DIGITS = 9 }; /* of a number */

struct reading {
	const char *name, *text, *at;
	uint32_t n_layers, n_experts; /* 0: any */
	uint16_t limits[LIMIT_LAYERS];
	struct error *err;
};

static int refuse_form(const struct reading *r)
{
	return error_set(r->err, EINVAL,
		"%s \"%.64s\": expected all, a number of experts, or a list of LAYERS:NUMBER, such "
		"as 0-3:16,4-:8",
		r->name, r->text);
}

static int refuse_limit(const struct reading *r, uint32_t first, uint32_t last, uint32_t limit)
{
	char layers[64];

	if (first == last)
		snprintf(layers, sizeof(layers), "layer %u", first);
	else
		snprintf(layers, sizeof(layers), "layers %u to %u", first, last);
	return error_set(r->err, EINVAL, "%s, %s: %u is not 1..%u, the experts of a layer", r->name,
		layers, limit, r->n_experts);
}

/* LAYER:NUMBER, FIRST-LAST:NUMBER or FIRST-:NUMBER. */
static int read_one(struct reading *r)
{
	struct layer_span span;
	uint32_t limit;

	if (!layer_span_read(&r->at, DIGITS, &span) || *r->at++ != ':' ||
		!layer_number_read(&r->at, DIGITS, &limit))
		return refuse_form(r);
	uint32_t first = span.first;
	uint32_t last = span.open && first < r->n_layers ? r->n_layers - 1 : span.last;
	if (first > last)
		return error_set(r->err, EINVAL,
			"%s: layers %u to %u: the first is behind the last", r->name, first, last);
	if (r->n_experts == 0)
		return 0;
	if (last >= r->n_layers)
		return error_set(r->err, EINVAL, "%s: layer %u does not exist: layers are 0..%u",
			r->name, last, r->n_layers - 1);
	if (limit == 0 || limit > r->n_experts)
		return refuse_limit(r, first, last, limit);
	for (uint32_t layer = first; layer <= last; layer++) {
		if (r->limits[layer] > 0)
			return error_set(r->err, EINVAL,
				"%s: layer %u is named twice, with %u and %u", r->name, layer,
				r->limits[layer], limit);
		r->limits[layer] = (uint16_t)limit;
	}
	return 0;
}

/* NUMBER alone: for every layer. */
static int read_every(struct reading *r, uint32_t limit)
{
	if (r->n_experts == 0)
		return 0;
	if (limit == 0 || limit > r->n_experts)
		return error_set(r->err, EINVAL, "%s: %u is not 1..%u, the experts of a layer",
			r->name, limit, r->n_experts);
	for (uint32_t layer = 0; layer < r->n_layers; layer++)
		r->limits[layer] = (uint16_t)limit;
	return 0;
}

static int read_all(struct reading *r)
{
	uint32_t limit;
	int rc;

	if (strcmp(r->text, "all") == 0)
		return 0;
	if (layer_number_read(&r->at, DIGITS, &limit) && *r->at == '\0')
		return read_every(r, limit);
	r->at = r->text;
	for (;;) {
		rc = read_one(r);
		if (rc < 0 || *r->at == '\0')
			return rc;
		if (*r->at++ != ',')
			return refuse_form(r);
	}
}

int layer_limits_form(const char *name, const char *text, struct error *err)
{
	struct reading r = {.name = name, .text = text, .at = text, .err = err};

	return read_all(&r);
}

int layer_limits_read(const char *name, const char *text, uint32_t n_layers, uint32_t n_experts,
	uint16_t *out, struct error *err)
{
	struct reading r = {
		.name = name,
		.text = text,
		.at = text,
		.n_layers = n_layers,
		.n_experts = n_experts,
		.err = err,
	};
	int rc = read_all(&r);

	if (rc < 0)
		return rc;
	for (uint32_t layer = 0; layer < LIMIT_LAYERS; layer++)
		out[layer] = r.limits[layer] < r.n_experts ? r.limits[layer] : 0;
	return 0;
}

bool layer_limits_any(const uint16_t *limits, uint32_t n_layers)
{
	uint16_t any = 0;

	for (uint32_t layer = 0; layer < n_layers; layer++)
		any |= limits[layer];
	return any != 0;
}

const char *layer_limits_text(
	const uint16_t *limits, uint32_t n_layers, char out[LAYER_LIMITS_TEXT])
{
	size_t n = 0;
	uint32_t last;

	for (uint32_t first = 0; first < n_layers; first = last + 1) {
		for (last = first; last + 1 < n_layers && limits[last + 1] == limits[first];)
			last++;
		if (limits[first] == 0)
			continue;
		char layers[32];
		if (first == 0 && last + 1 == n_layers)
			layers[0] = '\0';
		else if (first == last)
			snprintf(layers, sizeof(layers), "%u:", first);
		else if (last + 1 == n_layers)
			snprintf(layers, sizeof(layers), "%u-:", first);
		else
			snprintf(layers, sizeof(layers), "%u-%u:", first, last);
		n += (size_t)snprintf(out + n, LAYER_LIMITS_TEXT - n, "%s%s%u", n > 0 ? "," : "",
			layers, limits[first]);
	}
	if (n == 0)
		snprintf(out, LAYER_LIMITS_TEXT, "all");
	return out;
}
