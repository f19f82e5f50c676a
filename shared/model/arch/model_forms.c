/*
 * The forms in which files hold matrices that multiply the same vector. The engine uses one: every
 * matrix is a view of its rows, wherever these lie, so that the form never affects an answer.
 * Weights and biases are looked for separately, and need not have the same form. A matrix that is
 * there in two forms at once is refused.
 */
#include "shared/model/arch/model_internal.h"

#include <stdio.h>
#include <string.h>

static bool has(
	struct loader *l, uint32_t i, const char *name, const char *suffix, const char *kind)
{
	name_tensor(l, "blk.%u.%s%s.%s", i, name, suffix, kind);
	return has_tensor(l);
}

static void name_expert(
	struct loader *l, uint32_t i, const char *name, uint32_t expert, const char *kind)
{
	name_tensor(l, "blk.%u.%s.%u.%s", i, name, expert, kind);
}

/* True when any expert has a tensor of this name of its own; then l->name is its name. */
static bool has_single(
	struct loader *l, uint32_t i, const struct group *g, const char *name, const char *kind)
{
	size_t n = strlen(name_tensor(l, "blk.%u.%s.", i, name));
	const struct gguf_tensor *t = g->n_experts ? gguf_tensor_from(l->gguf, l->name) : NULL;
	/* Digits sort before the letters of "weight" and "bias". */
	if (!t || t->name.bytes <= n || memcmp(t->name.data, l->name, n) != 0 ||
		t->name.data[n] < '0' || t->name.data[n] > '9')
		return false;
	bool any = false;
	for (uint32_t e = 0; !any && e < g->n_experts; e++) {
		name_expert(l, i, name, e, kind);
		any = has_tensor(l);
	}
	return any;
}

static bool has_part(
	struct loader *l, uint32_t i, const struct group *g, uint32_t p, const char *kind)
{
	return has(l, i, g->part[p].name, g->suffix, kind) ||
	       has_single(l, i, g, g->part[p].name, kind);
}

static uint32_t all_rows(const struct group *g)
{
	uint32_t rows = 0;
	for (uint32_t p = 0; p < g->n; p++)
		rows += g->part[p].rows;
	return rows;
}

/* Refuses l->name, which is there in addition to `other`. In a file that is checked this is
 * reported once, and loading continues with `other`. */
static int refuse_both(struct loader *l, const char *other)
{
	(void)find_tensor(l);
	return gguf_problem(l->gguf,
		error_set(l->err, EINVAL,
			"tensor %s is there, and so is %s, which holds the same part of the model: "
			"one of them is too many",
			l->name, other),
		l->err);
}

/* Sets *fused when one tensor has the rows of all parts; then l->name is its name. */
static int find_fused(
	struct loader *l, uint32_t i, const struct group *g, const char *kind, bool *fused)
{
	char name[sizeof(l->name)];
	int rc = 0;
	*fused = g->fused && has(l, i, g->fused, g->suffix, kind);
	if (*fused) {
		memcpy(name, l->name, sizeof(name));
		for (uint32_t p = 0; !rc && p < g->n; p++)
			if (has_part(l, i, g, p, kind))
				rc = refuse_both(l, name);
		memcpy(l->name, name, sizeof(name));
		return rc;
	}
	if (!g->last_holds_all || has_part(l, i, g, 0, kind) ||
		!has(l, i, g->part[g->n - 1].name, g->suffix, kind))
		return 0;
	const struct gguf_tensor *t = gguf_tensor_find(l->gguf, l->name);
	*fused = t->ne[strcmp(kind, "weight") == 0] == all_rows(g);
	return 0;
}

/* Records where else part p was looked for, for the message that it is missing. */
static void set_other_forms(struct loader *l, uint32_t i, const struct group *g, uint32_t p,
	const char *kind, bool single)
{
	const size_t size = sizeof(l->other_forms);
	size_t n = 0;
	if (g->fused)
		n = (size_t)snprintf(
			l->other_forms, size, "blk.%u.%s%s.%s", i, g->fused, g->suffix, kind);
	if (g->last_holds_all && p + 1 < g->n && n < size)
		n += (size_t)snprintf(l->other_forms + n, size - n, ", blk.%u.%s%s.%s of %u rows",
			i, g->part[g->n - 1].name, g->suffix, kind, all_rows(g));
	if (g->n_experts && g->fused && n < size)
		n += (size_t)snprintf(
			l->other_forms + n, size - n, ", blk.%u.%s.0.%s", i, g->fused, kind);
	if (g->n_experts && n < size)
		snprintf(l->other_forms + n, size - n,
			single ? "%sblk.%u.%s%s.%s" : "%sblk.%u.%s.0%s.%s", n ? ", " : "", i,
			g->part[p].name, single ? g->suffix : "", kind);
}

static struct matrix rows_of(const struct matrix *all, uint32_t first, uint32_t rows)
{
	struct matrix w = *all;
	w.rows = rows;
	w.data = (const unsigned char *)all->data + first * all->row_bytes;
	return w;
}

static int load_weights(
	struct loader *l, uint32_t i, const struct group *g, struct matrix *const *weight)
{
	struct matrix all = {.data = NULL};
	bool fused;
	int rc = find_fused(l, i, g, "weight", &fused);
	if (!rc && fused)
		rc = load_matrix(l, all_rows(g), g->cols, &all);
	for (uint32_t p = 0, row = 0; !rc && p < g->n; row += g->part[p++].rows) {
		if (fused && all.data)
			*weight[p] = rows_of(&all, row, g->part[p].rows);
		if (fused)
			continue;
		set_other_forms(l, i, g, p, "weight", false);
		(void)has(l, i, g->part[p].name, g->suffix, "weight");
		rc = load_matrix(l, g->part[p].rows, g->cols, weight[p]);
	}
	l->other_forms[0] = '\0';
	return rc;
}

int load_group(struct loader *l, uint32_t i, const struct group *g, struct matrix *const *weight,
	const float **const *bias)
{
	const float *all = NULL;
	bool fused = false;
	int rc = load_weights(l, i, g, weight);
	if (!rc)
		rc = find_fused(l, i, g, "bias", &fused);
	if (!rc && fused)
		rc = load_vector(l, all_rows(g), &all);
	for (uint32_t p = 0, row = 0; !rc && p < g->n; row += g->part[p++].rows) {
		if (fused) {
			*bias[p] = all + row;
			continue;
		}
		(void)has(l, i, g->part[p].name, g->suffix, "bias");
		rc = load_part(l, PART_OPTIONAL, g->part[p].rows, bias[p]);
	}
	return rc;
}

/* stride: distance between experts, if they have no places. */
static void set_expert_tensor(
	struct loader *l, const struct matrix *first, uint64_t stride, struct expert_tensor *out)
{
	out->shape = *first;
	out->file_offset = (uint64_t)((const char *)first->data - (const char *)gguf_data(l->gguf));
	out->expert_bytes = (uint64_t)first->row_bytes * first->rows;
	out->expert_stride = stride;
	l->model->expert_bytes_total += out->expert_bytes * l->model->config.n_experts;
}

/* For one tensor per expert: finds their shape, with all rows, and where they lie. */
static int find_singles(struct loader *l, uint32_t i, const struct group *g, const char *name,
	uint32_t rows, struct matrix *shape, uint64_t **out)
{
	struct matrix first = {.data = NULL};
	uint64_t *places = keep(l, g->n_experts, sizeof(*places));
	int rc = places ? 0 : -ENOMEM;
	for (uint32_t e = 0; !rc && e < g->n_experts; e++) {
		struct matrix one = {.data = NULL};
		name_expert(l, i, name, e, "weight");
		rc = load_matrix(l, rows, g->cols, &one);
		/* In a file that is checked, an unusable tensor was reported already. */
		if (rc || !one.data)
			continue;
		if (!first.data)
			first = one;
		if (one.type != first.type)
			rc = gguf_problem(l->gguf,
				error_set(l->err, ENOTSUP,
					"tensor %s is of type %s, those of other experts are of "
					"type %s; the experts of a layer must be of one type",
					l->name, gguf_tensor_type_name((uint32_t)one.type),
					gguf_tensor_type_name((uint32_t)first.type)),
				l->err);
		places[e] = (uint64_t)((const char *)one.data - (const char *)gguf_data(l->gguf));
	}
	*shape = first;
	*out = places;
	return rc;
}

/* Takes the part's rows, which begin at `row`, from each expert's tensor. */
static int take_singles(struct loader *l, const struct group *g, uint32_t p,
	const struct matrix *all, const uint64_t *places, uint32_t row, struct expert_tensor *out)
{
	struct matrix first = rows_of(all, row, g->part[p].rows);
	uint64_t *own = keep(l, g->n_experts, sizeof(*own));
	if (!own)
		return -ENOMEM;
	for (uint32_t e = 0; e < g->n_experts; e++)
		own[e] = places[e] + (uint64_t)row * all->row_bytes;
	set_expert_tensor(l, &first, 0, out);
	out->places = own;
	return 0;
}

static int load_singles(
	struct loader *l, uint32_t i, const struct group *g, uint32_t p, struct expert_tensor *out)
{
	struct matrix shape;
	uint64_t *places;
	int rc = find_singles(l, i, g, g->part[p].name, g->part[p].rows, &shape, &places);
	return rc || !shape.data ? rc : take_singles(l, g, p, &shape, places, 0, out);
}

/* Loads gate and up of each expert from a tensor of its own. */
static int load_fused_singles(
	struct loader *l, uint32_t i, const struct group *g, struct expert_tensor *const *weight)
{
	char name[sizeof(l->name)];
	struct matrix shape;
	uint64_t *places;
	int rc = 0;
	memcpy(name, l->name, sizeof(name));
	for (uint32_t p = 0; !rc && p < g->n; p++)
		if (has_part(l, i, g, p, "weight"))
			rc = refuse_both(l, name);
	if (!rc)
		rc = find_singles(l, i, g, g->fused, all_rows(g), &shape, &places);
	for (uint32_t p = 0, row = 0; !rc && shape.data && p < g->n; row += g->part[p++].rows)
		rc = take_singles(l, g, p, &shape, places, row, weight[p]);
	return rc;
}

/* Loads the experts' matrices of one part: from one tensor, or from single ones. */
static int load_expert_part(
	struct loader *l, uint32_t i, const struct group *g, uint32_t p, struct expert_tensor *out)
{
	char name[sizeof(l->name)];
	struct matrix first = {.data = NULL};
	bool single = has_single(l, i, g, g->part[p].name, "weight");
	memcpy(name, l->name, sizeof(name));
	bool together = has(l, i, g->part[p].name, g->suffix, "weight");
	int rc = single && together ? refuse_both(l, name) : 0;
	if (rc)
		return rc;
	set_other_forms(l, i, g, p, "weight", single);
	if (single) {
		rc = load_singles(l, i, g, p, out);
	} else {
		rc = load_matrices(l, g->part[p].rows, g->cols, g->n_experts, &first);
		if (!rc && first.data)
			set_expert_tensor(l, &first, (uint64_t)first.row_bytes * first.rows, out);
	}
	l->other_forms[0] = '\0';
	return rc;
}

int load_expert_group(
	struct loader *l, uint32_t i, const struct group *g, struct expert_tensor *const *weight)
{
	struct matrix all = {.data = NULL};
	bool fused;
	int rc = find_fused(l, i, g, "weight", &fused);
	if (!rc && !fused && g->fused && has_single(l, i, g, g->fused, "weight"))
		return load_fused_singles(l, i, g, weight);
	if (!rc && fused)
		rc = load_matrices(l, all_rows(g), g->cols, g->n_experts, &all);
	for (uint32_t p = 0, row = 0; !rc && p < g->n; row += g->part[p++].rows) {
		if (!fused) {
			rc = load_expert_part(l, i, g, p, weight[p]);
		} else if (all.data) {
			struct matrix first = rows_of(&all, row, g->part[p].rows);
			set_expert_tensor(l, &first, (uint64_t)all.row_bytes * all.rows, weight[p]);
		}
	}
	return rc;
}

static int load_single_biases(struct loader *l, uint32_t i, const struct group *g, const char *name,
	uint32_t n, struct expert_bias *out)
{
	float *rows = keep(l, (size_t)g->n_experts * n, sizeof(*rows));
	int rc = rows ? 0 : -ENOMEM;
	for (uint32_t e = 0; !rc && e < g->n_experts; e++) {
		const float *one;
		name_expert(l, i, name, e, "bias");
		rc = load_vector(l, n, &one);
		if (!rc)
			memcpy(rows + (size_t)e * n, one, n * sizeof(*rows));
	}
	*out = (struct expert_bias){.rows = rows, .stride = n};
	return rc;
}

static int load_bias_part(struct loader *l, uint32_t i, const struct group *g, uint32_t p,
	bool needed, struct expert_bias *out)
{
	char name[sizeof(l->name)];
	bool single = has_single(l, i, g, g->part[p].name, "bias");
	memcpy(name, l->name, sizeof(name));
	bool together = has(l, i, g->part[p].name, g->suffix, "bias");
	int rc = single && together ? refuse_both(l, name) : 0;
	if (rc || (!needed && !single && !together))
		return rc;
	set_other_forms(l, i, g, p, "bias", single);
	*out = (struct expert_bias){.stride = g->part[p].rows};
	rc = single ? load_single_biases(l, i, g, g->part[p].name, g->part[p].rows, out)
		    : load_table(l, g->n_experts, g->part[p].rows, &out->rows);
	l->other_forms[0] = '\0';
	return rc;
}

int load_expert_biases(struct loader *l, uint32_t i, const struct group *g, bool needed,
	struct expert_bias *const *bias)
{
	const float *all = NULL;
	struct expert_bias both;
	bool fused;
	int rc = find_fused(l, i, g, "bias", &fused);
	if (!rc && fused)
		rc = load_table(l, g->n_experts, all_rows(g), &all);
	if (!rc && !fused && g->fused && has_single(l, i, g, g->fused, "bias")) {
		rc = load_single_biases(l, i, g, g->fused, all_rows(g), &both);
		all = both.rows;
		fused = true;
	}
	for (uint32_t p = 0, row = 0; !rc && p < g->n; row += g->part[p++].rows) {
		if (fused)
			*bias[p] = (struct expert_bias){.rows = all + row, .stride = all_rows(g)};
		else
			rc = load_bias_part(l, i, g, p, needed, bias[p]);
	}
	return rc;
}
