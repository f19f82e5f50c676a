#include "shared/model/arch/weights.h"

#include "kernels/tiles.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
	ALIGNMENT = 64, /* of each matrix: a cache line, and a vector register */
	JOB_BYTES = 1 << 20,
};

/* n matrices of one shape: those of experts, or w alone. */
typedef void visit(
	struct matrix *w, struct expert_tensor *experts, uint64_t n, uint64_t bytes, void *arg);

static void visit_one(visit *fn, struct matrix *w, void *arg)
{
	if (w->data && tiles_possible(w))
		fn(w, NULL, 1, (uint64_t)w->rows * w->row_bytes, arg);
}

static void visit_layer(
	struct layer *layer, uint32_t n_experts, enum weights_part part, visit *fn, void *arg)
{
	struct matrix *dense[LAYER_MATRICES];
	struct expert_tensor *experts[] = {&layer->gate, &layer->up, &layer->down};

	model_layer_matrices(layer, dense);
	for (size_t i = 0; i < LAYER_MATRICES; i++)
		visit_one(fn, dense[i], arg);
	for (size_t i = 0; part == WEIGHTS_ALL && layer->moe && i < 3; i++)
		if (tiles_possible(&experts[i]->shape))
			fn(&experts[i]->shape, experts[i], n_experts, experts[i]->expert_bytes,
				arg);
}

/* Visits every matrix that is copied, always in the same order. */
static void visit_all(struct model *model, enum weights_part part, visit *fn, void *arg)
{
	/* The experts of a packed file have the right layout already. */
	if (model->packed)
		part = WEIGHTS_DENSE;
	for (uint32_t i = 0; i < model->config.n_layers; i++)
		visit_layer(&model->layers[i], model->config.n_experts, part, fn, arg);
	visit_one(fn, &model->output, arg);
}

static uint64_t rounded(uint64_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void add_bytes(
	struct matrix *w, struct expert_tensor *experts, uint64_t n, uint64_t bytes, void *arg)
{
	uint64_t *total = arg;

	(void)w;
	(void)experts;
	*total += rounded(n * bytes);
}

uint64_t weights_bytes(const struct model *model, enum weights_part part)
{
	uint64_t total = 0;

	/* add_bytes does not change the model. */
	visit_all((struct model *)model, part, add_bytes, &total);
	return total;
}

/* Copies rows first..last-1 of one matrix. */
struct job {
	struct matrix from;
	unsigned char *to; /* place of row 0 */
	uint32_t first, last;
};

struct packing {
	const struct gguf *gguf;
	struct job *jobs;
	size_t n, capacity;
	unsigned char *memory;
	uint64_t used;
	_Atomic size_t next;
	int rc;
};

static struct job *new_job(struct packing *p)
{
	if (p->n == p->capacity) {
		size_t capacity = p->capacity ? 2 * p->capacity : 1024;
		struct job *jobs = realloc(p->jobs, capacity * sizeof(*jobs));

		if (!jobs) {
			p->rc = -ENOMEM;
			return NULL;
		}
		p->jobs = jobs;
		p->capacity = capacity;
	}
	return &p->jobs[p->n++];
}

static void add_jobs(
	struct matrix *w, struct expert_tensor *experts, uint64_t n, uint64_t bytes, void *arg)
{
	struct packing *p = arg;
	uint32_t tiles = (uint32_t)(JOB_BYTES / w->row_bytes / TILE_LANES);
	uint32_t rows = tiles ? tiles * TILE_LANES : TILE_LANES;

	for (uint64_t i = 0; i < n; i++) {
		struct matrix from = *w;

		if (experts)
			from.data = model_expert_data(experts, (uint32_t)i);
		for (uint32_t first = 0; first < w->rows; first += rows) {
			struct job *job = new_job(p);

			if (!job)
				return;
			*job = (struct job){
				.from = from,
				.to = p->memory + p->used + i * bytes,
				.first = first,
				.last = w->rows - first < rows ? w->rows : first + rows,
			};
		}
	}
	p->used += rounded(n * bytes);
}

/* Releases the pages of the file that a job has read, because there is a copy now. */
static void let_go(const struct packing *p, const struct job *job)
{
	gguf_advise(p->gguf,
		(const unsigned char *)job->from.data + job->first * job->from.row_bytes,
		(size_t)(job->last - job->first) * job->from.row_bytes, false);
}

static void work(struct packing *p, bool (*progress)(void *arg), void *arg)
{
	size_t i;

	while ((i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n) {
		const struct job *job = &p->jobs[i];

		tiles_pack(&job->from, job->first, job->last, job->to);
		let_go(p, job);
		if (progress && i % 16 == 0 && !progress(arg)) {
			p->rc = -ECANCELED;
			/* Makes the helpers find no further job. */
			atomic_store_explicit(&p->next, p->n, memory_order_relaxed);
		}
	}
}

static void *helper(void *arg)
{
	work(arg, NULL, NULL);
	return NULL;
}

int weights_pack(const struct model *model, enum weights_part part, void *memory,
	uint32_t n_threads, bool (*progress)(void *arg), void *arg)
{
	struct packing p = {.gguf = model->gguf, .memory = memory};
	pthread_t threads[LIMIT_THREADS];
	uint32_t started = 0;

	/* add_jobs only copies the descriptions of the matrices. */
	visit_all((struct model *)model, part, add_jobs, &p);
	/* If fewer helpers start than wanted, it only takes longer. */
	while (p.rc == 0 && started + 1 < n_threads && started < LIMIT_THREADS &&
		pthread_create(&threads[started], NULL, helper, &p) == 0)
		started++;
	if (p.rc == 0)
		work(&p, progress, arg);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	free(p.jobs);
	return p.rc;
}

struct using
{
	const unsigned char *memory;
	uint64_t used;
};

static void use_matrix(
	struct matrix *w, struct expert_tensor *experts, uint64_t n, uint64_t bytes, void *arg)
{
	struct using *u = arg;

	w->data = u->memory + u->used;
	w->layout = LAYOUT_TILES;
	if (experts) {
		experts->expert_stride = bytes;
		experts->places = NULL;
	}
	u->used += rounded(n * bytes);
}

void weights_use(struct model *model, enum weights_part part, const void *memory)
{
	struct using u = {memory, 0};
	bool tied = model->embedding.data == model->output.data;

	visit_all(model, part, use_matrix, &u);
	if (part == WEIGHTS_ALL)
		model->expert_layout = LAYOUT_TILES;
	/* Only the place: the scale belongs to products with the output. */
	if (tied) {
		model->embedding.data = model->output.data;
		model->embedding.layout = model->output.layout;
	}
}
