#include "shared/model/gguf/gguf_tensors.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES_MAX = 63, DIMS_MAX = 4 };

/* Every type of the format, not only those with which the engine computes, so that any valid file
 * can be opened, and a model is refused with its tensor's name and type. An unused id has no name.
 */
static const struct type_size {
	const char *name;
	uint32_t block, bytes;
} types[] = {
	[0] = {"F32", 1, 4},
	[1] = {"F16", 1, 2},
	[2] = {"Q4_0", 32, 18},
	[3] = {"Q4_1", 32, 20},
	[6] = {"Q5_0", 32, 22},
	[7] = {"Q5_1", 32, 24},
	[8] = {"Q8_0", 32, 34},
	[9] = {"Q8_1", 32, 36},
	[10] = {"Q2_K", 256, 84},
	[11] = {"Q3_K", 256, 110},
	[12] = {"Q4_K", 256, 144},
	[13] = {"Q5_K", 256, 176},
	[14] = {"Q6_K", 256, 210},
	[15] = {"Q8_K", 256, 292},
	[16] = {"IQ2_XXS", 256, 66},
	[17] = {"IQ2_XS", 256, 74},
	[18] = {"IQ3_XXS", 256, 98},
	[19] = {"IQ1_S", 256, 50},
	[20] = {"IQ4_NL", 32, 18},
	[21] = {"IQ3_S", 256, 110},
	[22] = {"IQ2_S", 256, 82},
	[23] = {"IQ4_XS", 256, 136},
	[24] = {"I8", 1, 1},
	[25] = {"I16", 1, 2},
	[26] = {"I32", 1, 4},
	[27] = {"I64", 1, 8},
	[28] = {"F64", 1, 8},
	[29] = {"IQ1_M", 256, 56},
	[30] = {"BF16", 1, 2},
	[34] = {"TQ1_0", 256, 54},
	[35] = {"TQ2_0", 256, 66},
	[39] = {"MXFP4", 32, 17},
	[40] = {"NVFP4", 64, 36},
	[41] = {"Q1_0", 128, 18},
	[42] = {"Q2_0", 64, 18},
};

const char *gguf_tensor_type_name(uint32_t type)
{
	return type < sizeof(types) / sizeof(types[0]) ? types[type].name : NULL;
}

struct cursor {
	const struct gguf *gguf;
	size_t at;
	struct error *err;
};

static const unsigned char *take(struct cursor *c, uint64_t n, const char *what)
{
	if (n > c->gguf->bytes - c->at) {
		error_set(c->err, EBADMSG,
			"tensor %s: its record at offset %zu needs %llu bytes, but the file ends "
			"at "
			"offset %zu",
			what, c->at, (unsigned long long)n, c->gguf->bytes);
		return NULL;
	}
	const unsigned char *p = c->gguf->data + c->at;
	c->at += (size_t)n;
	return p;
}

/* Computes elements and bytes from ne and type, and checks every product. */
static int size_tensor(struct gguf_tensor *t, const char *name, struct error *err)
{
	const struct type_size *type = &types[t->type];
	uint64_t n = 1;
	for (uint32_t d = 0; d < t->n_dims; d++) {
		if (t->ne[d] == 0 || t->ne[d] > INT64_MAX)
			return error_set(err, EBADMSG,
				"tensor %s: dimension %u is %llu; allowed are 1 to 2^63 - 1", name,
				d, (unsigned long long)t->ne[d]);
		if (__builtin_mul_overflow(n, t->ne[d], &n) || n > INT64_MAX)
			return error_set(err, EBADMSG,
				"tensor %s: the product of its dimensions overflows at dimension "
				"%u "
				"(%llu)",
				name, d, (unsigned long long)t->ne[d]);
	}
	if (t->ne[0] % type->block)
		return error_set(err, EBADMSG,
			"tensor %s: rows of %llu weights are not a multiple of %s's blocks of %u",
			name, (unsigned long long)t->ne[0], type->name, type->block);
	if (__builtin_mul_overflow(n / type->block, (uint64_t)type->bytes, &t->bytes) ||
		t->bytes > INT64_MAX)
		return error_set(err, EBADMSG, "tensor %s: its size in bytes overflows", name);
	return 0;
}

/* good: the tensor can be used; when a file is checked, an unusable one is no error. offset stays
 * relative to the data, whose beginning is known only after the last record. */
static int read_tensor(struct cursor *c, uint64_t index, struct gguf_tensor *t, bool *good)
{
	size_t start = c->at;
	const unsigned char *p = take(c, 8, "without a name");
	if (!p)
		return -EBADMSG;
	uint64_t bytes = gguf_load_u64(p);
	if (bytes == 0 || bytes > NAME_BYTES_MAX)
		return error_set(c->err, EBADMSG,
			"tensor %llu at offset %zu has a name of %llu bytes; 1 to %d are valid",
			(unsigned long long)index, start, (unsigned long long)bytes,
			NAME_BYTES_MAX);
	p = take(c, bytes, "without a name");
	if (!p)
		return -EBADMSG;
	t->name = (struct gguf_string){(const char *)p, (size_t)bytes};
	struct gguf_name_text name = gguf_name_text(t->name);
	p = take(c, 4, name.text);
	if (!p)
		return -EBADMSG;
	t->n_dims = gguf_load_u32(p);
	if (t->n_dims == 0 || t->n_dims > DIMS_MAX)
		return error_set(c->err, EBADMSG,
			"tensor %s: %u dimensions at offset %zu; 1 to %d are valid", name.text,
			t->n_dims, c->at - 4, DIMS_MAX);
	p = take(c, 8 * (uint64_t)t->n_dims + 12, name.text);
	if (!p)
		return -EBADMSG;
	for (uint32_t d = 0; d < DIMS_MAX; d++)
		t->ne[d] = d < t->n_dims ? gguf_load_u64(p + 8 * d) : 1;
	p += 8 * t->n_dims;
	t->type = gguf_load_u32(p);
	t->offset = gguf_load_u64(p + 4);
	int rc = gguf_tensor_type_name(t->type)
			 ? size_tensor(t, name.text, c->err)
			 : error_set(c->err, EBADMSG, "tensor %s: type %u at offset %zu is unknown",
				   name.text, t->type, c->at - 12);
	*good = rc == 0;
	return gguf_problem(c->gguf, rc, c->err);
}

static int compare_names(const void *a, const void *b, void *arg)
{
	const struct gguf *g = arg;
	return gguf_string_compare(
		g->tensors[*(const uint32_t *)a].name, g->tensors[*(const uint32_t *)b].name);
}

static int compare_offsets(const void *a, const void *b, void *arg)
{
	const struct gguf *g = arg;
	uint64_t x = g->tensors[*(const uint32_t *)a].offset;
	uint64_t y = g->tensors[*(const uint32_t *)b].offset;
	return (x > y) - (x < y);
}

/* start: where the data begin in the file. */
static int check_place(
	const struct gguf *g, const struct gguf_tensor *t, uint64_t start, struct error *err)
{
	if (t->offset % g->alignment)
		return error_set(err, EBADMSG,
			"tensor %s: its offset %llu is not a multiple of general.alignment (%llu)",
			gguf_name_text(t->name).text, (unsigned long long)t->offset,
			(unsigned long long)g->alignment);
	if (start > g->bytes || t->offset > g->bytes - start ||
		t->bytes > g->bytes - start - t->offset)
		return error_set(err, EBADMSG,
			"tensor %s: %llu bytes at offset %llu of the data, which starts at %llu "
			"(general.alignment %llu), do not fit in a file of %zu bytes; "
			"is the file complete?",
			gguf_name_text(t->name).text, (unsigned long long)t->bytes,
			(unsigned long long)t->offset, (unsigned long long)start,
			(unsigned long long)g->alignment, g->bytes);
	return 0;
}

/* Makes offsets absolute, and checks that the data are behind the records and within the file. */
static int place_tensors(struct gguf *g, size_t records_end, struct error *err)
{
	/* Cannot overflow: records_end is inside the mapping, the alignment at most 2^24. */
	uint64_t start = (records_end + g->alignment - 1) & ~(g->alignment - 1);
	size_t kept = 0;
	for (size_t i = 0; i < g->n_tensors; i++) {
		struct gguf_tensor *t = &g->tensors[i];
		int misplaced = check_place(g, t, start, err);
		int rc = gguf_problem(g, misplaced, err);
		if (rc)
			return rc;
		if (misplaced)
			continue;
		g->tensors[kept] = *t;
		g->tensors[kept++].offset += start;
	}
	g->n_tensors = kept;
	return 0;
}

static uint32_t *sorted(
	struct gguf *g, int (*compare)(const void *, const void *, void *), struct error *err)
{
	uint32_t *order = malloc(g->n_tensors * sizeof(*order) + 1);
	if (!order) {
		error_set(err, ENOMEM, "no memory to index %zu tensors", g->n_tensors);
		return NULL;
	}
	for (size_t i = 0; i < g->n_tensors; i++)
		order[i] = (uint32_t)i;
	qsort_r(order, g->n_tensors, sizeof(*order), compare, g);
	return order;
}

int gguf_index_tensors(struct gguf *g, struct error *err)
{
	g->tensors_by_name = sorted(g, compare_names, err);
	if (!g->tensors_by_name)
		return -ENOMEM;
	for (size_t i = 1; i < g->n_tensors; i++) {
		const struct gguf_tensor *a = &g->tensors[g->tensors_by_name[i - 1]];
		const struct gguf_tensor *b = &g->tensors[g->tensors_by_name[i]];
		if (gguf_string_compare(a->name, b->name) != 0)
			continue;
		int rc = gguf_problem(g,
			error_set(err, EBADMSG, "tensor %s occurs twice (at offset %zu)",
				gguf_name_text(b->name).text,
				(size_t)((const unsigned char *)b->name.data - g->data)),
			err);
		if (rc)
			return rc;
	}
	return 0;
}

static int check_overlaps(struct gguf *g, struct error *err)
{
	uint32_t *order = sorted(g, compare_offsets, err);
	if (!order)
		return -ENOMEM;
	int rc = 0;
	for (size_t i = 1; !rc && i < g->n_tensors; i++) {
		const struct gguf_tensor *a = &g->tensors[order[i - 1]];
		const struct gguf_tensor *b = &g->tensors[order[i]];
		if (a->bytes > b->offset - a->offset)
			rc = gguf_problem(g,
				error_set(err, EBADMSG,
					"tensor %s at offset %llu overlaps tensor %s at offset "
					"%llu",
					gguf_name_text(b->name).text, (unsigned long long)b->offset,
					gguf_name_text(a->name).text,
					(unsigned long long)a->offset),
				err);
	}
	free(order);
	return rc;
}

int gguf_read_tensors(struct gguf *gguf, uint64_t n, size_t at, struct error *err)
{
	struct cursor c = {gguf, at, err};
	int rc = 0;
	for (uint64_t i = 0; i < n; i++) {
		if (gguf->n_tensors == gguf->tensors_capacity) {
			size_t capacity = gguf->tensors_capacity ? 2 * gguf->tensors_capacity : 64;
			struct gguf_tensor *tensors =
				realloc(gguf->tensors, capacity * sizeof(*tensors));
			if (!tensors)
				return error_set(
					err, ENOMEM, "no memory for %zu tensors", capacity);
			gguf->tensors = tensors;
			gguf->tensors_capacity = capacity;
		}
		bool good = false;
		rc = read_tensor(&c, i, &gguf->tensors[gguf->n_tensors], &good);
		if (rc)
			return rc;
		gguf->n_tensors += good;
	}
	rc = place_tensors(gguf, c.at, err);
	if (!rc)
		rc = gguf_index_tensors(gguf, err);
	if (!rc)
		rc = check_overlaps(gguf, err);
	return rc;
}

size_t gguf_n_tensors(const struct gguf *gguf)
{
	return gguf->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t i)
{
	return i < gguf->n_tensors ? &gguf->tensors[i] : NULL;
}

const struct gguf_tensor *gguf_tensor_from(const struct gguf *gguf, const char *name)
{
	struct gguf_string wanted = {name, strlen(name)};
	size_t low = 0, high = gguf->n_tensors;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct gguf_tensor *t = &gguf->tensors[gguf->tensors_by_name[middle]];
		if (gguf_string_compare(t->name, wanted) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low < gguf->n_tensors ? &gguf->tensors[gguf->tensors_by_name[low]] : NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name)
{
	const struct gguf_tensor *t = gguf_tensor_from(gguf, name);
	return t && t->name.bytes == strlen(name) && memcmp(t->name.data, name, t->name.bytes) == 0
		       ? t
		       : NULL;
}

const void *gguf_tensor_data(const struct gguf *gguf, const struct gguf_tensor *tensor)
{
	return tensor ? gguf->data + tensor->offset : NULL;
}
