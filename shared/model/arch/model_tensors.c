/* Loads one tensor at a time: finds it, and checks its type, shape, alignment and values before
 * anything points into it. */
#include "kernels/cpu/half.h"
#include "shared/model/arch/model_internal.h"
#include "shared/model/arch/pack.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *name_tensor(struct loader *l, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(l->name, sizeof(l->name), format,
		args); // NOLINT(clang-analyzer-valist.Uninitialized)
	va_end(args);
	return l->name;
}

bool has_tensor(const struct loader *l)
{
	return gguf_tensor_find(l->gguf, l->name) != NULL;
}

const struct gguf_tensor *find_tensor(struct loader *l)
{
	const struct gguf_tensor *t = gguf_tensor_find(l->gguf, l->name);
	if (t)
		l->used[t - gguf_tensor_at(l->gguf, 0)] = true;
	return t;
}

int missing_tensor(struct loader *l)
{
	if (l->other_forms[0])
		return error_set(l->err, EINVAL, "tensor %s is missing (also looked for: %s)",
			l->name, l->other_forms);
	return error_set(l->err, EINVAL, "tensor %s is missing", l->name);
}

void *keep(struct loader *l, size_t n, size_t element_bytes)
{
	size_t bytes = n * element_bytes;
	struct model_memory *memory = calloc(1, sizeof(*memory) + bytes);
	if (!memory) {
		error_set(l->err, ENOMEM, "tensor %s: no memory for %zu bytes", l->name, bytes);
		return NULL;
	}
	memory->next = l->model->memory;
	l->model->memory = memory;
	l->model->memory_bytes += bytes;
	return memory->data;
}

/* {a, b, c}: fastest dimension first, as in GGUF; trailing ones are not dimensions. */
static int check_shape(
	struct loader *l, const struct gguf_tensor *t, uint64_t a, uint64_t b, uint64_t c)
{
	if (t->ne[0] == a && t->ne[1] == b && t->ne[2] == c && t->ne[3] == 1)
		return 0;
	return error_set(l->err, EINVAL,
		"tensor %s has shape {%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
		"}; the metadata make it {%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", 1}",
		l->name, t->ne[0], t->ne[1], t->ne[2], t->ne[3], a, b, c);
}

static int check_aligned(struct loader *l, const struct gguf_tensor *t, uint64_t alignment)
{
	if (t->offset % alignment == 0)
		return 0;
	return error_set(l->err, EINVAL,
		"tensor %s lies at offset %" PRIu64 ", which is not aligned to its %" PRIu64
		"-byte elements",
		l->name, t->offset, alignment);
}

/* Widens the n values of a tensor of 16-bit numbers. NULL: no memory. */
static const float *widen(struct loader *l, const struct gguf_tensor *t, size_t n)
{
	const unsigned char *from = gguf_tensor_data(l->gguf, t);
	float *to = keep(l, n, sizeof(*to));
	for (size_t i = 0; to && i < n; i++) {
		uint16_t bits = load_u16(from + 2 * i);
		to[i] = t->type == TENSOR_F16 ? float_of_half(bits) : float_of_bfloat(bits);
	}
	return to;
}

/* Reads the vectors of l->name, {n, rows}. */
static int read_table(struct loader *l, uint32_t rows, uint32_t n, const float **out)
{
	const struct gguf_tensor *t = find_tensor(l);
	if (!t)
		return missing_tensor(l);
	if (t->type != TENSOR_F32 && t->type != TENSOR_F16 && t->type != TENSOR_BF16)
		return error_set(l->err, ENOTSUP,
			"tensor %s is of type %s; a vector of this kind must be F32, F16 or BF16",
			l->name, gguf_tensor_type_name(t->type));
	int rc = check_shape(l, t, n, rows, 1);
	if (!rc)
		rc = check_aligned(l, t, tensor_type_info(t->type)->block_bytes);
	if (rc)
		return rc;
	const float *x = t->type == TENSOR_F32 ? gguf_tensor_data(l->gguf, t)
					       : widen(l, t, (size_t)rows * n);
	if (!x)
		return -ENOMEM;
	for (uint64_t i = 0; i < (uint64_t)rows * n; i++) {
		if (!isfinite(x[i]))
			return error_set(l->err, EINVAL, "tensor %s: element %" PRIu64 " is %g",
				l->name, i, (double)x[i]);
	}
	*out = x;
	return 0;
}

int load_table(struct loader *l, uint32_t rows, uint32_t n, const float **out)
{
	int rc = read_table(l, rows, n, out);
	if (!rc)
		return 0;
	rc = gguf_problem(l->gguf, rc, l->err);
	if (rc)
		return rc;
	/* A file that is only checked is not run, so placeholder values do, and the rest can be
	 * checked. */
	size_t values = (size_t)rows * n;
	float *ones = keep(l, values, sizeof(*ones));
	if (!ones)
		return -ENOMEM;
	for (size_t i = 0; i < values; i++)
		ones[i] = 1;
	*out = ones;
	return 0;
}

int load_vector(struct loader *l, uint32_t n, const float **out)
{
	return load_table(l, 1, n, out);
}

int load_part(struct loader *l, enum part part, uint32_t n, const float **out)
{
	*out = NULL;
	if (part == PART_NONE || (part == PART_OPTIONAL && !has_tensor(l)))
		return 0;
	return load_vector(l, n, out);
}

int load_norm(struct loader *l, uint32_t layer, const char *name, const float **weight,
	const float **bias)
{
	const struct model_config *c = &l->model->config;
	name_tensor(l, "blk.%u.%s.weight", layer, name);
	int rc = load_vector(l, c->n_embd, weight);
	name_tensor(l, "blk.%u.%s.bias", layer, name);
	return rc ? rc
		  : load_part(l, c->arch->layer_norm ? PART_NEEDED : PART_NONE, c->n_embd, bias);
}

/* The type of this GGUF id if the engine computes with it; otherwise NULL, with the message in
 * l->err. */
static const struct tensor_type_info *known_type(struct loader *l, uint32_t id)
{
	const struct tensor_type_info *type = tensor_type_info(id);
	if (type)
		return type;
	const char *name = gguf_tensor_type_name(id);
	char names[TENSOR_TYPE_NAMES];
	tensor_type_names(names, sizeof(names));
	error_set(l->err, ENOTSUP,
		"tensor %s is of type %s, which the engine does not compute with; supported are %s",
		l->name, name ? name : "unknown", names);
	return NULL;
}

static int read_matrices(
	struct loader *l, uint32_t rows, uint32_t cols, uint32_t n, struct matrix *out)
{
	const struct gguf_tensor *t = find_tensor(l);
	if (!t)
		return missing_tensor(l);
	const struct tensor_type_info *type = known_type(l, t->type);
	if (!type)
		return -ENOTSUP;
	int rc = check_shape(l, t, cols, rows, n);
	if (!rc && !type->quantised)
		rc = check_aligned(l, t, type->block_bytes);
	if (rc)
		return rc;
	*out = (struct matrix){
		.type = type->type,
		.rows = rows,
		.cols = cols,
		.row_bytes = (size_t)(cols / type->block_weights) * type->block_bytes,
		.data = gguf_tensor_data(l->gguf, t),
	};
	return 0;
}

int load_matrices(struct loader *l, uint32_t rows, uint32_t cols, uint32_t n, struct matrix *out)
{
	int rc = read_matrices(l, rows, cols, n, out);
	return rc ? gguf_problem(l->gguf, rc, l->err) : 0;
}

int load_matrix(struct loader *l, uint32_t rows, uint32_t cols, struct matrix *out)
{
	return load_matrices(l, rows, cols, 1, out);
}

int load_linear(struct loader *l, uint32_t layer, const char *name, uint32_t rows, uint32_t cols,
	struct matrix *weight, const float **bias)
{
	name_tensor(l, "blk.%u.%s.weight", layer, name);
	int rc = load_matrix(l, rows, cols, weight);
	name_tensor(l, "blk.%u.%s.bias", layer, name);
	return rc ? rc : load_part(l, PART_OPTIONAL, rows, bias);
}

/* The shape of one expert's matrix in the packed tensor l->name, without data. */
static int packed_shape(struct loader *l, uint32_t layer, int part, uint32_t rows, uint32_t cols,
	struct matrix *out)
{
	const struct tensor_type_info *type = known_type(l, pack_type(l->gguf, layer, part));
	if (!type)
		return -ENOTSUP;
	if (cols % type->block_weights)
		return error_set(l->err, EINVAL,
			"tensor %s: rows of %u weights are no whole blocks of type %s", l->name,
			cols, gguf_tensor_type_name((uint32_t)type->type));
	*out = (struct matrix){
		.type = type->type,
		.rows = rows,
		.cols = cols,
		.row_bytes = (size_t)(cols / type->block_weights) * type->block_bytes,
	};
	return 0;
}

static int read_packed(struct loader *l, uint32_t i, struct layer *layer)
{
	const struct model_config *c = &l->model->config;
	const uint32_t d = c->n_embd, f = c->n_expert_ff, n = c->n_experts;
	struct expert_tensor *parts[PACK_PARTS] = {&layer->gate, &layer->up, &layer->down};
	struct matrix shapes[PACK_PARTS] = {0};
	const struct gguf_tensor *t = find_tensor(l);
	if (!t)
		return missing_tensor(l);
	int rc = 0;
	for (int p = 0; !rc && p < PACK_PARTS; p++)
		rc = packed_shape(
			l, i, p, p == PACK_DOWN ? d : f, p == PACK_DOWN ? f : d, &shapes[p]);
	if (rc)
		return rc;
	if (t->type != PACK_TENSOR_TYPE)
		return error_set(l->err, EINVAL, "tensor %s is of type %s; I8 is wanted", l->name,
			gguf_tensor_type_name(t->type));
	struct pack_layout layout = pack_layout_of(shapes);
	rc = check_shape(l, t, layout.stride, n, 1);
	if (!rc)
		rc = check_aligned(l, t, PACK_PAGE);
	for (int p = 0; !rc && p < PACK_PARTS; p++) {
		shapes[p].data = (const unsigned char *)gguf_tensor_data(l->gguf, t) + layout.at[p];
		*parts[p] = (struct expert_tensor){
			.shape = shapes[p],
			.file_offset = t->offset + layout.at[p],
			.expert_bytes = layout.bytes[p],
			.expert_stride = layout.stride,
		};
		l->model->expert_bytes_total += layout.bytes[p] * n;
	}
	return rc;
}

int load_packed_experts(struct loader *l, uint32_t i, struct layer *layer)
{
	name_tensor(l, PACK_TENSOR, i);
	int rc = read_packed(l, i, layer);
	return rc ? gguf_problem(l->gguf, rc, l->err) : 0;
}
