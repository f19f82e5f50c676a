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

/* out: [LIMIT_LAYERS]; 0: no limit. name: of the setting, for messages. It is unchanged when the
 * text is refused. n_layers 0 or n_experts 0: any that a model may have. */
int layer_limits_read(const char *name, const char *text, uint32_t n_layers, uint32_t n_experts,
	uint16_t *out, struct error *err);
/* Whether one of the first n_layers has a limit. */
bool layer_limits_any(const uint16_t *limits, uint32_t n_layers);
/* Writes what layer_limits_read reads; returns out. */
const char *layer_limits_text(
	const uint16_t *limits, uint32_t n_layers, char out[LAYER_LIMITS_TEXT]);
