/*
 * The device's library for products, which computes in an arithmetic of its own: cuBLAS on a device,
 * which is loaded when it is asked for, and a stand-in in the emulation. kernels/gpu/device/library.cc
 * and kernels/gpu/emulated/library.cc implement it.
 *
 * The same product gives the same bits each time, with one version of the library on one kind of
 * device. A product of another shape, or at addresses that are aligned otherwise, may sum in another
 * order.
 */
#pragma once

#include "kernels/gpu/runtime.h"

/* Of one stream. */
struct library;

struct library_product {
	const void *w; /* [rows][cols] of `type`, row after row */
	const uint16_t *x; /* [n][cols] of the same type */
	float *y; /* [n][rows] out */
	uint32_t rows, cols, n;
	uint32_t type; /* TENSOR_F16 or TENSOR_BF16 */
	float scale; /* of every result */
	float unused; /* no gap: the emulation looks at all bytes of arguments */
};

/* As backend_ops.fast. */
int library_load(struct runtime *rt, char name[BACKEND_FAST_NAME], struct error *err);
/* Memory of the device that the products of a stream take. */
size_t library_bytes(void);
/* After library_load. memory: library_bytes of the device, at a multiple of 256; borrowed. */
int library_open(struct runtime *rt, struct stream *stream, void *memory, struct library **out,
	struct error *err);
/* Before the stream is destroyed. */
void library_close(struct library *library);
/* Queues a product. A failure is one of the stream's. */
void library_multiply(struct library *library, const struct library_product *product);
