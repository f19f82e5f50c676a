#include "services/expert-cache/policies/published/traces.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A sequence that was not in this many passes over the model has ended. */
enum { SILENT_PASSES = 16 };

static bool matrix_init(struct trace_matrix *matrix, uint32_t n_layers, uint32_t n_experts)
{
	matrix->count = calloc((size_t)n_layers * n_experts, sizeof(*matrix->count));
	matrix->total = calloc(n_layers, sizeof(*matrix->total));
	matrix->square = calloc(n_layers, sizeof(*matrix->square));
	return matrix->count != NULL && matrix->total != NULL && matrix->square != NULL;
}

static void matrix_exit(struct trace_matrix *matrix)
{
	free(matrix->count);
	free(matrix->total);
	free(matrix->square);
	*matrix = (struct trace_matrix){0};
}

static void count(struct trace_matrix *matrix, uint32_t n_experts, uint32_t layer, uint32_t expert,
	uint32_t tokens)
{
	uint32_t *cell = &matrix->count[(size_t)layer * n_experts + expert];
	matrix->square[layer] += (double)tokens * tokens + 2. * tokens * *cell;
	*cell += tokens;
	matrix->total[layer] += tokens;
}

/* ---- The collection. ---- */

/* Ranks the experts of each layer by descending count, as many as can be predicted. */
static void rank(const struct traces *traces, struct trace_kept *kept)
{
	for (uint32_t l = 0; l < traces->n_layers; l++) {
		const uint32_t *row = kept->matrix.count + (size_t)l * traces->n_experts;
		uint32_t filled = 0;
		for (uint32_t e = 0; e < traces->n_experts; e++) {
			uint32_t at = filled;
			while (at > 0 && row[kept->top[l][at - 1]] < row[e])
				at--;
			if (at == traces->n_top)
				continue;
			uint32_t end = filled < traces->n_top ? filled++ : traces->n_top - 1;
			for (uint32_t i = end; i > at; i--)
				kept->top[l][i] = kept->top[l][i - 1];
			kept->top[l][at] = (uint16_t)e;
		}
	}
}

static double cosine(double dot, double square, double other)
{
	return dot > 0 ? dot / sqrt(square * other) : 0;
}

/* Call when kept[k] was replaced: recomputes the similarity of each live sequence with it. */
static void compare(struct traces *traces, uint32_t k)
{
	const struct trace_matrix *kept = &traces->kept[k].matrix;
	for (uint32_t i = 0; i < TRACES_LIVE; i++) {
		struct trace_live *live = &traces->live[i];
		live->similarity[k] = 0;
		for (uint32_t l = 0; live->used && l < traces->n_layers; l++) {
			size_t row = (size_t)l * traces->n_experts;
			double dot = 0;
			for (uint32_t e = 0; e < traces->n_experts; e++)
				dot += (double)kept->count[row + e] * live->matrix.count[row + e];
			live->dot[(size_t)k * traces->n_layers + l] = dot;
			live->similarity[k] += cosine(dot, kept->square[l], live->matrix.square[l]);
		}
	}
}

static uint32_t most_similar(const struct traces *traces, const struct trace_live *live)
{
	uint32_t best = 0;
	for (uint32_t k = 1; k < traces->n_kept; k++)
		if (live->similarity[k] > live->similarity[best])
			best = k;
	return best;
}

/* Moves a sequence to the collection. When that is full, it replaces the most similar one, so that
 * the collection stays diverse. */
static void end_sequence(struct traces *traces, struct trace_live *live)
{
	uint32_t n_layers = traces->n_layers;
	uint32_t k = traces->n_kept < TRACES_KEPT ? traces->n_kept++ : most_similar(traces, live);
	struct trace_kept *kept = &traces->kept[k];
	memcpy(kept->matrix.count, live->matrix.count,
		(size_t)n_layers * traces->n_experts * sizeof(*kept->matrix.count));
	memcpy(kept->matrix.total, live->matrix.total, n_layers * sizeof(*kept->matrix.total));
	memcpy(kept->matrix.square, live->matrix.square, n_layers * sizeof(*kept->matrix.square));
	rank(traces, kept);
	live->used = false;
	compare(traces, k);
}

/* The profile of an earlier run is the first matrix. */
static void keep_profile(struct traces *traces, const struct cache_policy_shape *shape)
{
	struct trace_kept *kept = &traces->kept[0];
	bool any = false;
	for (uint32_t l = 0; l < traces->n_layers; l++)
		for (uint32_t e = 0; shape->moe[l] && e < traces->n_experts; e++) {
			uint64_t uses = shape->profile[(size_t)l * traces->n_experts + e];
			count(&kept->matrix, traces->n_experts, l, e,
				uses < UINT32_MAX ? (uint32_t)uses : UINT32_MAX);
			any = any || uses > 0;
		}
	if (!any)
		return;
	rank(traces, kept);
	traces->n_kept = 1;
}

int traces_init(struct traces *traces, const struct cache_policy_shape *shape, struct error *err)
{
	uint32_t n_layers = shape->n_layers, n_experts = shape->n_experts;
	bool ok = true;
	*traces = (struct traces){.n_layers = n_layers, .n_experts = n_experts};
	traces->n_top = n_experts < TRACES_TOP ? n_experts : TRACES_TOP;
	for (uint32_t k = 0; k < TRACES_KEPT; k++) {
		struct trace_kept *kept = &traces->kept[k];
		kept->top = calloc(n_layers, sizeof(*kept->top));
		ok = matrix_init(&kept->matrix, n_layers, n_experts) && kept->top != NULL && ok;
	}
	for (uint32_t i = 0; i < TRACES_LIVE; i++) {
		struct trace_live *live = &traces->live[i];
		live->dot = calloc((size_t)TRACES_KEPT * n_layers, sizeof(*live->dot));
		ok = matrix_init(&live->matrix, n_layers, n_experts) && live->dot != NULL && ok;
	}
	if (!ok) {
		traces_exit(traces);
		return error_set(err, ENOMEM, "no memory for %d activation matrices",
			TRACES_KEPT + TRACES_LIVE);
	}
	if (shape->profile != NULL)
		keep_profile(traces, shape);
	return 0;
}

void traces_exit(struct traces *traces)
{
	for (uint32_t k = 0; k < TRACES_KEPT; k++) {
		matrix_exit(&traces->kept[k].matrix);
		free(traces->kept[k].top);
	}
	for (uint32_t i = 0; i < TRACES_LIVE; i++) {
		matrix_exit(&traces->live[i].matrix);
		free(traces->live[i].dot);
	}
	*traces = (struct traces){0};
}

/* ---- Live sequences. ---- */

static void begin_sequence(struct traces *traces, struct trace_live *live, uint64_t session)
{
	uint32_t n_layers = traces->n_layers;
	memset(live->matrix.count, 0,
		(size_t)n_layers * traces->n_experts * sizeof(*live->matrix.count));
	memset(live->matrix.total, 0, n_layers * sizeof(*live->matrix.total));
	memset(live->matrix.square, 0, n_layers * sizeof(*live->matrix.square));
	memset(live->dot, 0, (size_t)TRACES_KEPT * n_layers * sizeof(*live->dot));
	memset(live->similarity, 0, sizeof(live->similarity));
	live->used = true;
	live->session = session;
}

struct trace_live *traces_of(struct traces *traces, uint64_t session, uint64_t iteration)
{
	struct trace_live *found = NULL;
	for (uint32_t i = 0; i < TRACES_LIVE; i++)
		if (traces->live[i].used && traces->live[i].session == session)
			found = &traces->live[i];
	if (found == NULL) {
		struct trace_live *oldest = &traces->live[0];
		for (uint32_t i = 0; i < TRACES_LIVE; i++) {
			struct trace_live *live = &traces->live[i];
			if (live->used && iteration - live->last > SILENT_PASSES * traces->n_layers)
				end_sequence(traces, live);
			if (!live->used || (oldest->used && live->last < oldest->last))
				oldest = live;
		}
		if (oldest->used)
			end_sequence(traces, oldest);
		begin_sequence(traces, oldest, session);
		found = oldest;
	}
	found->last = iteration;
	return found;
}

void traces_count(struct traces *traces, struct trace_live *live, uint32_t layer, uint32_t expert,
	uint32_t tokens)
{
	size_t cell = (size_t)layer * traces->n_experts + expert;
	double before = live->matrix.square[layer];
	count(&live->matrix, traces->n_experts, layer, expert, tokens);
	for (uint32_t k = 0; k < traces->n_kept; k++) {
		const struct trace_matrix *kept = &traces->kept[k].matrix;
		double *dot = &live->dot[(size_t)k * traces->n_layers + layer];
		double old = cosine(*dot, before, kept->square[layer]);
		*dot += (double)tokens * kept->count[cell];
		live->similarity[k] +=
			cosine(*dot, live->matrix.square[layer], kept->square[layer]) - old;
	}
}

const struct trace_kept *traces_match(const struct traces *traces, const struct trace_live *live)
{
	return traces->n_kept > 0 ? &traces->kept[most_similar(traces, live)] : NULL;
}
