/*
 * A limit for each layer of a model, as people write it: for expert budgets, how many experts of
 * a layer may be used.
 *
 *     all             no layer has a limit
 *     12              12 in every layer
 *     0-3:16,7:4,9-:8 16 in layers 0 to 3, 4 in layer 7, 8 from layer 9 on; none in the others
 *
 * Limits are 1 to the experts of a layer, which is none. Any thread; errors are -EINVAL, and name
 * layer and value.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LAYER_LIMITS_TEXT = 3072 }; /* bytes of the longest text, with its NUL */

/* Checks only how the text is written, not the numbers in it: no model is needed. name: of the
 * setting, for messages. */
int layer_limits_form(const char *name, const char *text, struct error *err);
/* out: [LIMIT_LAYERS]; 0: no limit. It is unchanged when the text is refused. n_layers, n_experts:
 * of the model and of a layer, at least 1. */
int layer_limits_read(const char *name, const char *text, uint32_t n_layers, uint32_t n_experts,
	uint16_t *out, struct error *err);
/* Whether one of the first n_layers has a limit. */
bool layer_limits_any(const uint16_t *limits, uint32_t n_layers);
/* Writes what layer_limits_read reads; returns out. */
const char *layer_limits_text(
	const uint16_t *limits, uint32_t n_layers, char out[LAYER_LIMITS_TEXT]);
