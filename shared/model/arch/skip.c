#include "shared/model/arch/skip.h"

#include "shared/base/layer_span.h"
#include "shared/model/arch/model_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static_assert(LIMIT_LAYERS == 256, "the message below says so");

enum { DIGITS = 4 }; /* of a number */

static int refuse(const char *text, struct error *err)
{
	return error_set(err, EINVAL,
		"\"%.80s\" is not allowed; layers to skip are auto, auto:N, or layers and ranges "
		"of "
		"layers from 0 to 255, such as 4-8,11",
		text);
}

int skip_parse(const char *text, struct skip *out, struct error *err)
{
	const char *at = text;
	memset(out, 0, sizeof(*out));
	if (strncmp(at, "auto", 4) == 0) {
		at += 4;
		out->automatic = true;
		if (*at == '\0')
			return 0;
		if (*at++ != ':' || !layer_number_read(&at, DIGITS, &out->n) || *at != '\0' ||
			out->n == 0 || out->n >= LIMIT_LAYERS)
			return refuse(text, err);
		return 0;
	}
	for (;;) {
		struct layer_span span;
		if (!layer_span_read(&at, DIGITS, &span) || span.open || span.last < span.first ||
			span.last >= LIMIT_LAYERS)
			return refuse(text, err);
		for (uint32_t i = span.first; i <= span.last; i++)
			out->layer[i] = true;
		if (*at == '\0')
			return 0;
		if (*at++ != ',')
			return refuse(text, err);
	}
}

/* n layers, evenly between the first and the last. */
static int choose_evenly(uint32_t n, uint32_t n_layers, bool *layer, struct error *err)
{
	uint32_t between = n_layers > 2 ? n_layers - 2 : 0;
	if (n == 0)
		n = n_layers / 2 < between ? n_layers / 2 : between;
	if (n == 0 || n > between)
		return error_set(err, ENOTSUP,
			n_layers > 2 ? "the model has %u layers, and %u of them can be skipped "
				       "automatically: the first and the last stay"
				     : "the model has %u layers, and auto skips none but those "
				       "between the first and the last",
			n_layers, between);
	for (uint32_t i = 0; i < n; i++)
		layer[1 + (2 * i + 1) * between / (2 * n)] = true;
	return 0;
}

int skip_choose(
	const struct skip *skip, const struct model_config *config, bool *layer, struct error *err)
{
	uint32_t n_layers = config->n_layers, kept = 0, with_keys = 0;
	memset(layer, 0, n_layers * sizeof(*layer));
	for (uint32_t i = n_layers; !skip->automatic && i < LIMIT_LAYERS; i++)
		if (skip->layer[i])
			return error_set(err, ENOTSUP,
				"layer %u cannot be skipped: the model has layers 0 to %u", i,
				n_layers - 1);
	if (skip->automatic) {
		int rc = choose_evenly(skip->n, n_layers, layer, err);
		if (rc < 0)
			return rc;
	} else {
		memcpy(layer, skip->layer, n_layers * sizeof(*layer));
	}
	for (uint32_t i = 0; i < n_layers; i++) {
		kept += !layer[i];
		with_keys += !layer[i] && !config->delta.layer[i];
	}
	if (kept == 0)
		return error_set(err, ENOTSUP,
			"all %u layers of the model would be skipped; at least one stays",
			n_layers);
	if (with_keys == 0)
		return error_set(err, ENOTSUP,
			"no layer with attention would stay of the model's %u layers, only ones "
			"with a recurrent state",
			n_layers);
	return 0;
}

int model_skip(const struct model *whole, const bool *layer, struct model **out, uint16_t *kept,
	struct error *err)
{
	struct model *m = malloc(sizeof(*m));
	struct layer *layers = calloc(whole->config.n_layers, sizeof(*layers));
	if (!m || !layers) {
		free(m);
		free(layers);
		return error_set(err, ENOMEM, "no memory for a model without some layers");
	}
	*m = *whole;
	struct model_config *c = &m->config;
	m->layers = layers;
	m->n_drafting = 0;
	m->head = NULL;
	m->memory = NULL;
	m->memory_bytes = 0;
	c->n_layers = c->n_blocks = 0;
	c->delta.n_layers = 0;
	memset(c->delta.layer, 0, sizeof(c->delta.layer));
	for (uint32_t i = 0; i < whole->config.n_layers; i++) {
		uint32_t at = c->n_layers;
		if (layer[i])
			continue;
		layers[at] = whole->layers[i];
		c->dense_ff[at] = whole->config.dense_ff[i];
		c->delta.layer[at] = whole->config.delta.layer[i];
		if (c->delta.layer[at])
			layers[at].delta.index = c->delta.n_layers++;
		kept[at] = (uint16_t)i;
		c->n_layers++;
	}
	c->n_blocks = c->n_layers;
	c->n_kv_layers = c->n_layers - c->delta.n_layers;
	model_number_kv_layers(m);
	*out = m;
	return 0;
}

void model_skip_free(struct model **model)
{
	if (*model)
		free((*model)->layers);
	free(*model);
	*model = NULL;
}
