/*
 * The search for weights that are NaN or infinite: in a plain type it looks at every value, in a
 * quantised one at the scales and minimums of every block, as nothing else in a block can make a
 * weight so. It reads the whole tensor, which is 18 GB for a large model. So loading always scans
 * norms, biases and other vectors, but the rest only for models that are read quickly
 * (GGUF_SCAN_BYTES); `outrider-model check` scans everything.
 */
#pragma once

#include "shared/model/gguf/gguf.h"

/* Loading scans the whole of a model up to this size. That takes a quarter of a second when it is
 * read for the first time, and it will be read in any case. */
#define GGUF_SCAN_BYTES ((uint64_t)256 << 20)

struct gguf_scan {
	uint64_t n; /* values or scales that are not finite; when 0, the fields below are not set */
	/* of the first one: its row, and the weight's column or, for a scale, that of the first
	 * weight that it scales */
	uint64_t row, column;
	const char *what; /* "the weight", "the scale" or "the minimum" */
	const char *value; /* "nan" or "inf" */
};

/* Scans the tensor; first_only: ends at the first that is not finite. False for a type whose scales
 * are not known here (IQ1_M). */
bool gguf_scan_tensor(const struct gguf *gguf, const struct gguf_tensor *tensor, bool first_only,
	struct gguf_scan *out);
/* The same for rows of ne weights each, one after the other. */
bool gguf_scan_rows(uint32_t type, uint64_t ne, const unsigned char *data, uint64_t rows,
	bool first_only, struct gguf_scan *out);
/* Scans all tensors of a model of up to GGUF_SCAN_BYTES. -EINVAL names the first value that is not
 * finite. 0 for larger models. */
int gguf_scan_small(const struct gguf *gguf, struct error *err);
