/* A model's file with bfloat16 matrices, for tests. */
#pragma once

#include "kernels/kernels.h"
#include "shared/model/gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Narrows the float32 matrices of a copy. The new values lie in the first half of the old ones' room. */
static inline void narrow_file(const char *from, const char *to)
{
	const uint32_t type = TENSOR_BF16;
	struct gguf *gguf;
	struct error err;
	if (gguf_open(from, &gguf, &err) < 0)
		fail_msg("%s", err.text);
	const unsigned char *data = gguf_data(gguf);
	size_t bytes = gguf_bytes(gguf);
	unsigned char *copy = malloc(bytes);
	assert_non_null(copy);
	memcpy(copy, data, bytes);
	for (size_t i = 0; i < gguf_n_tensors(gguf); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(gguf, i);
		if (t->type != TENSOR_F32 || t->n_dims < 2)
			continue;
		/* A tensor's record: name, number of dimensions, dimensions, type, offset. */
		size_t name = (size_t)((const unsigned char *)t->name.data - data);
		memcpy(copy + name + t->name.bytes + 4 + t->n_dims * sizeof(uint64_t), &type,
			sizeof(type));
		for (size_t k = 0; k < t->bytes / sizeof(float); k++)
			memcpy(copy + t->offset + k * 2, data + t->offset + k * 4 + 2, 2);
	}
	gguf_close(&gguf);
	FILE *file = fopen(to, "w");
	assert_non_null(file);
	assert_int_equal(fwrite(copy, 1, bytes, file), bytes);
	assert_int_equal(fclose(file), 0);
	free(copy);
}
