/*
 * Looking for weights that are NaN or infinite: in a plain type every value, in a quantised one the scales and minimums
 * of every block, from which nothing else can become so. It reads the whole tensor, 18 GB of a large model; so loading
 * scans norms, biases and other vectors always, the rest only of models that are read in a moment (GGUF_SCAN_BYTES),
 * and `outrider-model check` scans everything.
 */
#pragma once

#include "shared/model/gguf/gguf.h"

/* Loading scans the whole of a model up to this size: a quarter of a second when it is read for the first time, and it
 * will be read anyway. */
#define GGUF_SCAN_BYTES ((uint64_t)256 << 20)

struct gguf_scan {
	uint64_t n; /* values or scales that are not finite; 0: the rest is not set */
	uint64_t row,
		column; /* of the first: its row and, of a scale, the first weight it is for */
	const char *what; /* "the weight", "the scale" or "the minimum" */
	const char *value; /* "nan" or "inf" */
};

/* Scans the tensor; first_only: ends at the first. False for a type whose scales are not known here (IQ1_M). */
bool gguf_scan_tensor(const struct gguf *gguf, const struct gguf_tensor *tensor, bool first_only,
	struct gguf_scan *out);
/* The same of rows of ne weights that lie one after the other. */
bool gguf_scan_rows(uint32_t type, uint64_t ne, const unsigned char *data, uint64_t rows,
	bool first_only, struct gguf_scan *out);
/* All tensors of a model up to GGUF_SCAN_BYTES, until the first that is not finite: -EINVAL, named. 0 for larger ones. */
int gguf_scan_small(const struct gguf *gguf, struct error *err);
