/*
 * Experts that the CPU computes while the back end computes others. The rows that they read are
 * copied to memory that both see; the CPU's back end writes their results there, and copies of them
 * are queued. `combine` adds by rank, so who computed cannot show.
 */
#include "shared/base/clock.h"
#include "shared/model/pass/forward_internal.h"

#include <stdlib.h>

struct moe_host {
	struct backend *backend; /* the CPU's */
	struct queue *queue;
	struct buffer rows; /* memory of the pass's back end that the host sees */
	struct buffer rows_cpu, batch_cpu; /* `rows` and f->batch, for the CPU's back end */
	size_t h, h_q8, y; /* in rows: [n_batch][D], both forms; [n_batch * used][D] */
	ticket fetched; /* the layer's inputs are there */
	uint64_t fetch_ns; /* when they were asked for; 0: they have been waited for */
	struct step_expert *of; /* [n_experts] */
	uint32_t *index; /* [n_experts] of its use */
};

static size_t row_bytes(const struct forward *f)
{
	return f->model->config.n_embd * sizeof(float);
}

static size_t q8_bytes(const struct forward *f)
{
	return f->model->config.n_embd / Q8_BLOCK * sizeof(struct q8_block);
}

static int open_queue(struct forward *f, struct moe_host *host, struct error *err)
{
	struct queue_limits limits = forward_queue_limits(f);
	limits.pairs = limits.ffn_pairs;
	limits.pick_vocab = limits.k_dim = limits.mla_nope = limits.delta_channels = 0;
	return host->backend->ops->queue(host->backend, &limits, &host->queue, err);
}

static int allocate(struct forward *f, struct moe_host *host, struct error *err)
{
	const struct backend_ops *ops = f->backend->ops, *cpu = host->backend->ops;
	uint32_t used = f->model->config.n_experts_used, n_experts = f->model->config.n_experts;
	size_t T = f->limits.n_batch;
	struct carve c = {0};
	host->h = carve_at(&c, T, row_bytes(f));
	host->h_q8 = carve_at(&c, T, q8_bytes(f));
	host->y = carve_at(&c, T * used, row_bytes(f));
	host->of = calloc(n_experts, sizeof(*host->of));
	host->index = calloc(n_experts, sizeof(*host->index));
	if (!host->of || !host->index)
		return error_set(err, ENOMEM, "no memory for experts on the CPU");
	int rc = ops->alloc(f->backend, c.used, BUFFER_HOST, &host->rows, err);
	if (rc == 0)
		rc = cpu->wrap(host->backend, host->rows.host, c.used, &host->rows_cpu, err);
	if (rc == 0)
		rc = cpu->wrap(host->backend, f->batch.host, f->batch.bytes, &host->batch_cpu, err);
	return rc == 0 ? open_queue(f, host, err) : rc;
}

int forward_use_host(struct forward *f, struct backend *backend, struct error *err)
{
	if (f->model->config.n_experts == 0)
		return 0;
	f->host = calloc(1, sizeof(*f->host));
	if (!f->host)
		return error_set(err, ENOMEM, "no memory for experts on the CPU");
	f->host->backend = backend;
	int rc = allocate(f, f->host, err);
	if (rc < 0)
		moe_host_exit(f);
	return rc;
}

void moe_host_exit(struct forward *f)
{
	struct moe_host *host = f->host;
	if (!host)
		return;
	if (host->queue)
		host->backend->ops->queue_free(host->queue);
	host->backend->ops->free(&host->batch_cpu);
	host->backend->ops->free(&host->rows_cpu);
	f->backend->ops->free(&host->rows);
	free(host->of);
	free(host->index);
	free(host);
	f->host = NULL;
}

bool moe_host_can(const struct forward *f)
{
	return f->host && f->experts->cpu_wanted;
}

/* The caller has waited for the router, and so for the copies of the layer before: nobody reads the
 * rows any more. */
void moe_host_fetch(struct forward *f, bool quantised)
{
	struct moe_host *host = f->host;
	host->fetch_ns = clock_ns();
	f->queue->ops->copy(f->queue, (struct place){&host->rows, host->h},
		(struct place){&f->memory, f->h}, f->n * row_bytes(f));
	if (quantised)
		f->queue->ops->copy(f->queue, (struct place){&host->rows, host->h_q8},
			(struct place){&f->memory, f->h_q8}, f->n * q8_bytes(f));
	host->fetched = f->queue->ops->ticket(f->queue);
}

static void follow(double *mean, double value)
{
	*mean = *mean > 0 ? *mean + (value - *mean) / 8 : value;
}

/* Waits for the inputs; the pass sees a failure where it ends. Where they were there before, the time says
 * only how long it took at most. */
static void wait_for_rows(struct forward *f)
{
	struct moe_host *host = f->host;
	struct expert_costs *costs = &f->experts->costs;
	if (host->fetch_ns == 0)
		return;
	bool there = f->queue->ops->reached(f->queue, host->fetched);
	(void)f->queue->ops->wait(f->queue, host->fetched);
	bool few = f->n <= EXPERT_ROWS_FEW;
	double *mean = few ? &costs->rows_ns : &costs->row_ns;
	double ns = (double)(clock_ns() - host->fetch_ns) / (few ? 1 : f->n);
	if (!there || *mean <= 0 || ns < *mean)
		follow(mean, ns);
	host->fetch_ns = 0;
}

void moe_measure(double *expert_ns, double *token_ns, uint32_t n, uint32_t n_pairs, uint64_t ns)
{
	bool single = n_pairs < 2 * n;
	double *mean = single ? expert_ns : token_ns;
	follow(mean, (double)ns / (single ? n : n_pairs));
}

static void compute(struct forward *f, uint32_t n)
{
	const struct moe_host *host = f->host;
	const struct model_config *config = &f->model->config;
	size_t pairs_at = (size_t)((const unsigned char *)f->pairs - f->batch.host);
	const struct step_experts step = {
		.shape = moe_shape(f),
		.of = host->of,
		.n = n,
		.n_used = config->n_experts_used,
		.pairs = {&host->batch_cpu, pairs_at},
		.in = {{&host->rows_cpu, host->h, row_bytes(f), f->n},
			{&host->rows_cpu, host->h_q8, q8_bytes(f), f->n}},
		.y = {&host->rows_cpu, host->y, row_bytes(f), f->n * config->n_experts_used},
		.gated = {&host->batch_cpu, (size_t)(f->gated - f->batch.host)},
	};
	host->queue->ops->experts(host->queue, &step);
}

static void give_back(struct forward *f, const struct expert_use *use)
{
	for (uint32_t p = use->first; p < use->first + use->n; p++) {
		size_t at = f->pairs[p] * row_bytes(f);
		f->queue->ops->copy(f->queue, (struct place){&f->memory, f->down + at},
			(struct place){&f->host->rows, f->host->y + at}, row_bytes(f));
	}
}

uint32_t moe_host_run(struct forward *f, uint32_t n)
{
	struct moe_host *host = f->host;
	uint32_t n_cpu = 0, n_pairs = 0, kept = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct expert_view *view = &f->views[i];
		if (!view->by_cpu) {
			f->views[kept++] = *view;
			continue;
		}
		host->of[n_cpu] = moe_expert(f, view, &f->uses[view->index]);
		host->of[n_cpu].adapt = masks_expert(f, f->uses[view->index].expert);
		host->index[n_cpu++] = view->index;
		n_pairs += f->uses[view->index].n;
	}
	if (n_cpu == 0)
		return 0;
	wait_for_rows(f);
	uint64_t began_ns = clock_ns();
	compute(f, n_cpu);
	for (uint32_t i = 0; i < n_cpu; i++)
		give_back(f, &f->uses[host->index[i]]);
	struct expert_costs *costs = &f->experts->costs;
	moe_measure(
		&costs->cpu_expert_ns, &costs->cpu_token_ns, n_cpu, n_pairs, clock_ns() - began_ns);
	return n_cpu;
}
