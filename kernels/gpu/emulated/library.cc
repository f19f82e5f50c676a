/*
 * A stand-in for a device's library. Like one, it sums in an order that nobody has defined: the order
 * here depends on the number of rows and on each row's place among them, so that a test sees when rows
 * are multiplied at another place or in another company. OUTRIDER_SIMT_LIBRARY=missing: there is none;
 * broken: it cannot be used.
 */
#include "kernels/gpu/library.h"

#include "simt.h"

#include <cstdio>

extern "C" {
#include "kernels/tensor.h"
}

enum { STAND_IN_THREADS = 64 };

struct library {
	struct stream *stream;
};

static bool is_set(const char *what)
{
	const char *text = getenv("OUTRIDER_SIMT_LIBRARY");

	return text && strcmp(text, what) == 0;
}

int library_load(struct runtime *rt, char name[BACKEND_FAST_NAME], struct error *err)
{
	(void)rt;
	if (is_set("missing"))
		return error_set(err, ENOENT, "the library of the emulated GPU is missing");
	snprintf(name, BACKEND_FAST_NAME, "the emulated GPU's library, 1");
	return 0;
}

size_t library_bytes(void)
{
	return 0;
}

int library_open(struct runtime *rt, struct stream *stream, void *memory, struct library **out,
	struct error *err)
{
	struct library *l = static_cast<struct library *>(calloc(1, sizeof(*l)));

	(void)rt;
	(void)memory;
	if (!l || is_set("broken")) {
		free(l);
		return error_set(err, EIO, "the library of the emulated GPU cannot be used");
	}
	l->stream = stream;
	*out = l;
	return 0;
}

void library_close(struct library *l)
{
	free(l);
}

DEV float value_of(const struct library_product &p, uint16_t bits)
{
	return p.type == TENSOR_F16 ? float_of_half(bits) : float_of_bfloat(bits);
}

/* A thread has one result. Pieces of a row are summed on their own, and then added; which piece comes
 * first is another one for each row of x. */
KERNEL stand_in(struct library_product p)
{
	uint32_t row = blockIdx.x * STAND_IN_THREADS + threadIdx.x, token = blockIdx.y;

	if (row >= p.rows)
		return;
	const uint16_t *w = static_cast<const uint16_t *>(p.w) + (size_t)row * p.cols;
	const uint16_t *x = p.x + (size_t)token * p.cols;
	uint32_t piece = 24 + p.n % 9, n = blocks_of(p.cols, piece);
	float total = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t first = (i + token) % n * piece;
		uint32_t end = first + piece < p.cols ? first + piece : p.cols;
		float sum = 0;

		for (uint32_t k = first; k < end; k++)
			sum = f_fma(value_of(p, w[k]), value_of(p, x[k]), sum);
		total = f_add(total, sum);
	}
	p.y[(size_t)token * p.rows + row] = f_mul(total, p.scale);
}

void library_multiply(struct library *l, const struct library_product *p)
{
	LAUNCH(l->stream, stand_in, (simt_dim{blocks_of(p->rows, STAND_IN_THREADS), p->n, 1}),
		STAND_IN_THREADS, 0, *p);
}
