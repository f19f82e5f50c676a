/* A vector of one cell, out of the turn in which it lies and back. */
#pragma once

#include "kernels/kv_format.h"

#include <stdbool.h>
#include <stdint.h>

/* How the vectors of a turn lie (kernels/kv_format.h); KV_VECTOR_PLAIN: one after the other. */
enum kv_vector_form { KV_VECTOR_PLAIN, KV_VECTOR_TURNED, KV_VECTOR_PAIRED };

struct kv_vector {
	enum kv_type type;
	uint32_t n; /* values */
	enum kv_vector_form form;
};

/* turn: its KV_TURN vectors. lane: which of them. row: kv_vector_bytes(type, n), as a plain vector. */
void kv_vector_read(const struct kv_vector *vector, const unsigned char *turn, uint32_t lane,
	unsigned char *row);
void kv_vector_write(const struct kv_vector *vector, unsigned char *turn, uint32_t lane,
	const unsigned char *row);
