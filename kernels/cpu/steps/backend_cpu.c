#include "kernels/cpu/steps/backend_cpu.h"

#include "kernels/cpu/pick.h"
#include "kernels/cpu/requantise.h"
#include "kernels/cpu/steps/steps.h"
#include "kernels/host_buffer.h"
#include "shared/base/clock.h"
#include "shared/base/huge_pages.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct cpu_backend *cpu_backend(struct backend *backend)
{
	return (struct cpu_backend *)backend;
}

/* ---- Memory. ---- */

static int cpu_alloc(struct backend *backend, size_t bytes, enum buffer_kind kind,
	struct buffer *out, struct error *err)
{
	int rc = host_buffer_alloc(bytes, kind, out, err);

	out->backend = backend;
	return rc;
}

static int cpu_wrap(
	struct backend *backend, void *memory, size_t bytes, struct buffer *out, struct error *err)
{
	(void)err;
	host_buffer_wrap(memory, bytes, out);
	out->backend = backend;
	return 0;
}

static int cpu_wrap_weights(struct backend *backend, const void *memory, size_t bytes,
	struct buffer *out, struct error *err)
{
	return cpu_wrap(backend, (void *)(uintptr_t)memory, bytes, out, err);
}

static int cpu_import(struct backend *backend, int fd, size_t bytes, bool write, struct buffer *out,
	struct error *err)
{
	int rc = host_buffer_import(fd, bytes, write, out, err);

	out->backend = backend;
	return rc;
}

static int cpu_fast(struct backend *backend, char name[BACKEND_FAST_NAME], struct error *err)
{
	(void)backend;
	(void)name;
	return error_set(err, ENOTSUP, "the CPU computes in the exact arithmetic alone");
}

static int cpu_requantise(
	struct backend *backend, const struct matrix *from, void *to, struct error *err)
{
	return requantise(cpu_backend(backend)->kernels, from, to, err);
}

/* ---- Queues. ---- */

/* Called twice: to count the bytes, then to place the arrays. */
static void layout(struct cpu_queue *q, struct carve *c)
{
	const struct queue_limits *limits = &q->limits;

	CARVE(c, q->products, limits->products);
	CARVE(c, q->x_rows, limits->pairs);
	CARVE(c, q->y_rows, limits->pairs);
	CARVE(c, q->items, WORK_ITEMS_MAX(q->n_threads, limits->products));
	CARVE(c, q->ffn, limits->products);
	if (limits->ffn_plain || q->kernels->matmul_f32)
		CARVE(c, q->act, (size_t)limits->ffn_pairs * limits->ffn_width);
	CARVE(c, q->act_q8, (size_t)limits->ffn_pairs * (limits->ffn_width / Q8_BLOCK));
	CARVE(c, q->act_rows, limits->ffn_pairs);
	CARVE(c, q->gate_up, (size_t)q->n_threads * 2 * WORK_FFN_FLOATS);
	if (limits->adapt_rank > 0) {
		CARVE(c, q->gated, limits->ffn_pairs);
		CARVE(c, q->adapted, (size_t)limits->ffn_pairs * 2 * limits->adapt_rank);
	}
	CARVE(c, q->selection, (size_t)q->n_threads * limits->n_experts);
	CARVE(c, q->ends, (size_t)limits->n_experts + 1);
	CARVE(c, q->attention_tokens, limits->n_tokens);
	if (limits->mla_nope > 0)
		mla_layout(q, c);
	if (limits->delta_channels > 0) {
		CARVE(c, q->delta_zeros, limits->delta_channels);
		CARVE(c, q->delta_state, (size_t)q->n_threads * limits->delta_d_k * DELTA_COLUMNS);
		CARVE(c, q->delta_path, (size_t)q->n_threads * limits->delta_drafts);
	}
}

static size_t layout_bytes(const struct cpu_backend *cpu, const struct queue_limits *limits)
{
	struct cpu_queue q = {
		.kernels = cpu->kernels, .n_threads = cpu->threads, .limits = *limits};
	struct carve count = {0};

	layout(&q, &count);
	return count.used;
}

static struct attention_limits attention_limits(
	const struct cpu_backend *cpu, const struct queue_limits *limits)
{
	/* Latent attention takes a batch in blocks of tokens. */
	bool blocks = limits->mla_nope > 0 && limits->n_tokens > MLA_TOKENS;

	return (struct attention_limits){
		.kernels = cpu->kernels,
		.n_threads = cpu->threads,
		.n_tokens = blocks ? MLA_TOKENS : limits->n_tokens,
		.n_kv_heads = limits->n_kv_heads,
		.n_heads = limits->n_heads,
		.k_dim = limits->k_dim,
		.v_dim = limits->v_dim,
	};
}

static size_t cpu_queue_bytes(const struct backend *backend, const struct queue_limits *limits)
{
	const struct cpu_backend *cpu = (const struct cpu_backend *)backend;
	const struct attention_limits attention = attention_limits(cpu, limits);
	size_t bytes =
		sizeof(struct cpu_queue) + layout_bytes(cpu, limits) + pool_bytes(cpu->threads);

	if (limits->k_dim > 0)
		bytes += attention_memory_bytes(&attention);
	if (limits->pick_vocab > 0)
		bytes += pick_bytes(cpu->threads, limits->pick_vocab);
	return bytes;
}

static void cpu_queue_free(struct queue *queue)
{
	struct cpu_queue *q = cpu_queue(queue);

	pick_destroy(&q->pick);
	pool_destroy(&q->pool);
	attention_memory_put(&q->attention);
	free(q->memory);
	free(q);
}

static int cpu_queue_create(struct backend *backend, const struct queue_limits *limits,
	struct queue **out, struct error *err)
{
	const struct cpu_backend *cpu = cpu_backend(backend);
	const struct attention_limits attention = attention_limits(cpu, limits);
	size_t bytes = layout_bytes(cpu, limits);
	struct cpu_queue *q = calloc(1, sizeof(*q));

	if (!q)
		return error_set(err, ENOMEM, "no memory for a queue");
	q->queue = (struct queue){backend->ops, backend};
	q->kernels = cpu->kernels;
	q->n_threads = cpu->threads;
	q->limits = *limits;
	q->memory = huge_pages_alloc(bytes);
	if (!q->memory) {
		free(q);
		return error_set(err, ENOMEM, "no memory for a queue: %zu bytes", bytes);
	}
	int rc = pool_create(cpu->threads, cpu->pin, cpu->spin_ns, &q->pool, err);
	if (rc == 0 && limits->k_dim > 0)
		rc = attention_memory_get(&q->attention, &attention, err);
	if (rc == 0 && limits->pick_vocab > 0)
		rc = pick_create(cpu->kernels, q->pool, limits->pick_vocab, &q->pick, err);
	if (rc != 0) {
		cpu_queue_free(&q->queue);
		return rc;
	}
	layout(q, &(struct carve){q->memory, 0});
	for (size_t i = 0; i < limits->ffn_pairs; i++)
		q->act_rows[i] = (struct activation){
			q->act ? q->act + i * limits->ffn_width : NULL,
			q->act_q8 + i * (limits->ffn_width / Q8_BLOCK),
		};
	for (size_t i = 0; i < limits->delta_channels; i++)
		q->delta_zeros[i] = 0;
	*out = &q->queue;
	return 0;
}

static void cpu_set_spin(struct queue *queue, uint64_t spin_ns)
{
	pool_set_spin(cpu_queue(queue)->pool, spin_ns);
}

/* ---- Copies and flags. ---- */

static void cpu_copy(struct queue *q, struct place to, struct place from, size_t bytes)
{
	(void)q;
	assert(bytes <= to.buffer->bytes && to.offset <= to.buffer->bytes - bytes);
	assert(bytes <= from.buffer->bytes && from.offset <= from.buffer->bytes - bytes);
	memmove(to.buffer->host + to.offset, from.buffer->host + from.offset, bytes);
}

static _Atomic uint32_t *word_at(struct place word)
{
	assert(word.offset % sizeof(uint32_t) == 0 && word.buffer->bytes >= sizeof(uint32_t) &&
		word.offset <= word.buffer->bytes - sizeof(uint32_t));
	return (_Atomic uint32_t *)(void *)(word.buffer->host + word.offset);
}

/* The word may be written by another process, or a device, that wakes nobody. */
static void cpu_wait_value(struct queue *queue, struct place word, uint32_t value)
{
	const struct timespec nap = {.tv_nsec = 20000};
	uint64_t spin_ns = cpu_backend(queue->backend)->spin_ns, start_ns = clock_ns();
	_Atomic uint32_t *at = word_at(word);

	/* Acquire pairs with the writer's release: what was written before the word is visible
	 * after the wait. */
	while ((int32_t)(atomic_load_explicit(at, memory_order_acquire) - value) < 0)
		if (clock_ns() - start_ns >= spin_ns)
			nanosleep(&nap, NULL);
}

static void cpu_write_value(struct queue *q, struct place word, uint32_t value)
{
	(void)q;
	atomic_store_explicit(word_at(word), value, memory_order_release);
}

/* ---- Tickets: every queued step has already run. ---- */

static ticket cpu_ticket(struct queue *queue)
{
	return ++cpu_queue(queue)->ticket;
}

static bool cpu_reached(struct queue *queue, ticket t)
{
	return t <= cpu_queue(queue)->ticket;
}

static int cpu_wait(struct queue *queue, ticket t)
{
	assert(cpu_reached(queue, t));
	return 0;
}

/* ---- Weights are read where they are. ---- */

static int cpu_place(struct backend *backend, const void *at, size_t bytes, struct error *err)
{
	(void)backend;
	(void)at;
	(void)bytes;
	(void)err;
	return 0;
}

static void cpu_forget(struct backend *backend, const void *at, size_t bytes)
{
	(void)backend;
	(void)at;
	(void)bytes;
}

static void cpu_memory(const struct backend *backend, struct backend_memory *out)
{
	(void)backend;
	*out = (struct backend_memory){0};
}

static int cpu_failure(struct backend *backend, struct error *err)
{
	(void)backend;
	(void)err;
	return 0;
}

static void cpu_graph_begin(struct queue *q, uint64_t key)
{
	(void)q;
	(void)key;
}

static void cpu_graph_end(struct queue *q)
{
	(void)q;
}

static void cpu_destroy(struct backend *backend)
{
	free(cpu_backend(backend));
}

static const struct backend_ops cpu_ops = {
	.name = "cpu",
	.destroy = cpu_destroy,
	.alloc = cpu_alloc,
	.wrap = cpu_wrap,
	.wrap_weights = cpu_wrap_weights,
	.export_fd = host_buffer_export,
	.import_fd = cpu_import,
	.free = host_buffer_free,
	.place = cpu_place,
	.forget = cpu_forget,
	.memory = cpu_memory,
	.failure = cpu_failure,
	.requantise = cpu_requantise,
	.fast = cpu_fast,
	.queue = cpu_queue_create,
	.queue_bytes = cpu_queue_bytes,
	.queue_free = cpu_queue_free,
	.set_spin = cpu_set_spin,
	.copy = cpu_copy,
	.wait_value = cpu_wait_value,
	.write_value = cpu_write_value,
	.ticket = cpu_ticket,
	.reached = cpu_reached,
	.wait = cpu_wait,
	.graph_begin = cpu_graph_begin,
	.graph_end = cpu_graph_end,
	.embed = cpu_embed,
	.norm = cpu_norm,
	.products = cpu_products,
	.attend = cpu_attend,
	.mla = cpu_mla,
	.delta = cpu_delta,
	.replay = cpu_replay,
	.dense_ffn = cpu_dense_ffn,
	.route = cpu_route,
	.budget = cpu_budget,
	.experts = cpu_experts,
	.combine = cpu_combine,
	.logits = cpu_logits,
	.pick = cpu_pick,
	.adapt = cpu_adapt,
	.silu_norm = cpu_silu_norm,
};

int backend_cpu_create(
	const struct backend_cpu_options *options, struct backend **out, struct error *err)
{
	struct cpu_backend *cpu = calloc(1, sizeof(*cpu));

	if (!cpu)
		return error_set(err, ENOMEM, "no memory for a back end");
	*cpu = (struct cpu_backend){
		.backend = {.ops = &cpu_ops, .variant = options->kernels->name},
		.kernels = options->kernels,
		.threads = options->threads,
		.pin = options->pin,
		.spin_ns = options->spin_ns,
	};
	*out = &cpu->backend;
	return 0;
}

struct pool *backend_cpu_pool(const struct queue *q)
{
	return ((const struct cpu_queue *)q)->pool;
}

const struct kernels *backend_cpu_kernels(const struct backend *backend)
{
	return ((const struct cpu_backend *)backend)->kernels;
}
