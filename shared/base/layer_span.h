/*
 * Layers as settings name them: LAYER, FIRST-LAST, or FIRST- for all from there on. What a model has is
 * checked by the caller. Any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct layer_span {
	uint32_t first, last;
	bool open; /* FIRST-: last is first */
};

/* Both read at *at, and move it behind what they read. digits: the most of a number, 1 to 9; a
 * further one stays. False: there is no number. */
bool layer_number_read(const char **at, int digits, uint32_t *out);
bool layer_span_read(const char **at, int digits, struct layer_span *out);
