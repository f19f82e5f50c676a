/* The table of the GPU's back end: memory, queues, tickets, copies and flags, all of which the
 * runtime does, and the steps. */
#include "kernels/gpu/steps/steps.h"

extern "C" {
#include "kernels/cpu/requantise.h"
#include "kernels/kernels.h"
#include "kernels/gpu/backend.h"
}

static struct runtime *runtime_of(const struct backend *backend)
{
	return reinterpret_cast<const struct gpu_backend *>(backend)->runtime;
}

/* ---- Memory. ---- */

static int gpu_alloc(struct backend *backend, size_t bytes, enum buffer_kind kind,
	struct buffer *out, struct error *err)
{
	int rc = runtime_alloc(runtime_of(backend), bytes, kind, out, err);

	out->backend = backend;
	return rc;
}

static int gpu_wrap(
	struct backend *backend, void *memory, size_t bytes, struct buffer *out, struct error *err)
{
	int rc = runtime_wrap(runtime_of(backend), memory, bytes, out, err);

	out->backend = backend;
	return rc;
}

static int gpu_wrap_weights(struct backend *backend, const void *memory, size_t bytes,
	struct buffer *out, struct error *err)
{
	int rc = runtime_wrap_weights(runtime_of(backend), memory, bytes, out, err);

	out->backend = backend;
	return rc;
}

static int gpu_place(struct backend *backend, const void *at, size_t bytes, struct error *err)
{
	return runtime_place(runtime_of(backend), at, bytes, err);
}

static void gpu_forget(struct backend *backend, const void *at, size_t bytes)
{
	runtime_forget(runtime_of(backend), at, bytes);
}

static void gpu_memory(const struct backend *backend, struct backend_memory *out)
{
	runtime_memory(runtime_of(backend), out);
}

static int gpu_failure(struct backend *backend, struct error *err)
{
	return runtime_failure(runtime_of(backend), err);
}

static int gpu_import(struct backend *backend, int fd, size_t bytes, bool write, struct buffer *out,
	struct error *err)
{
	int rc = runtime_import(runtime_of(backend), fd, bytes, write, out, err);

	out->backend = backend;
	return rc;
}

static void gpu_free(struct buffer *buffer)
{
	if (buffer->backend)
		runtime_free(runtime_of(buffer->backend), buffer);
}

/* Both matrices are in the host's memory, so the CPU converts. */
static int gpu_requantise(
	struct backend *backend, const struct matrix *from, void *to, struct error *err)
{
	(void)backend;
	return requantise(kernels_select(nullptr, err), from, to, err);
}

static int gpu_fast(struct backend *backend, char name[BACKEND_FAST_NAME], struct error *err)
{
	return library_load(runtime_of(backend), name, err);
}

/* ---- Queues. ---- */

static void layout(struct gpu_queue *q, struct gpu_carve *c)
{
	gpu_attend_layout(q, c);
	gpu_ffn_layout(q, c);
	gpu_pick_layout(q, c);
	gpu_adapt_layout(q, c);
	gpu_fast_layout(q, c);
}

static size_t layout_bytes(const struct queue_limits *limits)
{
	struct gpu_queue q = {};
	struct gpu_carve count = {nullptr, 0};

	q.limits = *limits;
	layout(&q, &count);
	return count.used;
}

static size_t gpu_queue_bytes(const struct backend *backend, const struct queue_limits *limits)
{
	(void)backend;
	return sizeof(struct gpu_queue) + stream_bytes() + layout_bytes(limits) +
	       gpu_pick_bytes(limits);
}

static void gpu_queue_free(struct queue *queue)
{
	struct gpu_queue *q = gpu_queue(queue);

	if (q->library)
		library_close(q->library);
	if (q->stream)
		stream_destroy(q->stream);
	gpu_pick_close(q);
	free(q->times);
	runtime_free(q->runtime, &q->memory);
	free(q);
}

/* OUTRIDER_GRAPHS=off: every step is queued anew. */
static bool graphs_wanted(void)
{
	const char *text = getenv("OUTRIDER_GRAPHS");

	return !text || strcmp(text, "off") != 0;
}

static int gpu_queue_create(struct backend *backend, const struct queue_limits *limits,
	struct queue **out, struct error *err)
{
	struct gpu_queue *q = static_cast<struct gpu_queue *>(calloc(1, sizeof(*q)));
	size_t bytes = layout_bytes(limits);
	int rc = 0;

	if (!q)
		return error_set(err, ENOMEM, "no memory for a queue");
	q->queue = {backend->ops, backend};
	q->runtime = runtime_of(backend);
	q->limits = *limits;
	q->graphs = graphs_wanted();
	q->memory.fd = -1;
	if (bytes > 0)
		rc = runtime_alloc(q->runtime, bytes, BUFFER_OWN, &q->memory, err);
	if (rc == 0)
		rc = stream_create(q->runtime, &q->stream, err);
	if (rc == 0)
		rc = gpu_pick_open(q, err);
	if (rc < 0) {
		gpu_queue_free(&q->queue);
		return rc;
	}
	struct gpu_carve carve = {q->memory.device, 0};
	layout(q, &carve);
	gpu_mla_open(q);
	rc = gpu_fast_open(q, err);
	if (rc < 0)
		gpu_queue_free(&q->queue);
	else
		*out = &q->queue;
	return rc;
}

static void gpu_set_spin(struct queue *q, uint64_t spin_ns)
{
	(void)q;
	(void)spin_ns;
}

/* ---- Copies, flags and tickets. ---- */

static void gpu_copy(struct queue *q, struct place to, struct place from, size_t bytes)
{
	if (gpu_queue(q)->replays)
		return;
	gpu_work(q, QUEUE_COPY);
	assert(bytes <= to.buffer->bytes && to.offset <= to.buffer->bytes - bytes);
	assert(bytes <= from.buffer->bytes && from.offset <= from.buffer->bytes - bytes);
	stream_copy(gpu_queue(q)->stream, dev_place(to), dev_place(from), bytes);
}

static uint32_t *word_at(struct place word)
{
	assert(word.offset % sizeof(uint32_t) == 0 && word.buffer->bytes >= sizeof(uint32_t) &&
		word.offset <= word.buffer->bytes - sizeof(uint32_t));
	return dev_array<uint32_t>(word);
}

static void gpu_wait_value(struct queue *q, struct place word, uint32_t value)
{
	gpu_work(q, QUEUE_FLAG);
	stream_wait_value(gpu_queue(q)->stream, word_at(word), value);
}

static void gpu_write_value(struct queue *q, struct place word, uint32_t value)
{
	stream_write_value(gpu_queue(q)->stream, word_at(word), value);
}

static ticket gpu_ticket(struct queue *q)
{
	gpu_work(q, GPU_IDLE);
	return stream_ticket(gpu_queue(q)->stream);
}

static bool gpu_reached(struct queue *q, ticket t)
{
	return stream_reached(gpu_queue(q)->stream, t);
}

static int gpu_wait(struct queue *q, ticket t)
{
	return stream_wait(gpu_queue(q)->stream, t);
}

/* ---- Graphs. ---- */

static void gpu_graph_begin(struct queue *queue, uint64_t key)
{
	struct gpu_queue *q = gpu_queue(queue);

	assert(!q->in_graph);
	if (key == 0 || !q->graphs || (q->times && q->times->on))
		return;
	q->in_graph = true;
	q->replays = !stream_graph_begin(q->stream, key);
}

static void gpu_graph_end(struct queue *queue)
{
	struct gpu_queue *q = gpu_queue(queue);

	if (q->in_graph)
		stream_graph_end(q->stream);
	q->in_graph = q->replays = false;
}

template <auto STEP, class S> static void timed(struct queue *q, const S *step)
{
	gpu_work(q, QUEUE_STEPS);
	STEP(q, step);
}

/* A step that may be part of a graph. */
template <auto STEP, class S> static void in_graph(struct queue *q, const S *step)
{
	if (!gpu_queue(q)->replays)
		timed<STEP>(q, step);
}

static void gpu_destroy(struct backend *backend)
{
	runtime_close(runtime_of(backend));
	free(backend);
}

static struct backend_ops table(const char *name)
{
	struct backend_ops ops = {};

	ops.name = name;
	ops.behind = true;
	ops.destroy = gpu_destroy;
	ops.alloc = gpu_alloc;
	ops.wrap = gpu_wrap;
	ops.wrap_weights = gpu_wrap_weights;
	ops.place = gpu_place;
	ops.forget = gpu_forget;
	ops.memory = gpu_memory;
	ops.failure = gpu_failure;
	ops.export_fd = runtime_export;
	ops.import_fd = gpu_import;
	ops.free = gpu_free;
	ops.queue = gpu_queue_create;
	ops.queue_bytes = gpu_queue_bytes;
	ops.queue_free = gpu_queue_free;
	ops.set_spin = gpu_set_spin;
	ops.copy = gpu_copy;
	ops.wait_value = gpu_wait_value;
	ops.write_value = gpu_write_value;
	ops.ticket = gpu_ticket;
	ops.reached = gpu_reached;
	ops.wait = gpu_wait;
	ops.graph_begin = gpu_graph_begin;
	ops.graph_end = gpu_graph_end;
	ops.watch = gpu_watch;
	ops.mark = gpu_mark;
	ops.times = gpu_times;
	ops.embed = in_graph<gpu_embed>;
	ops.norm = in_graph<gpu_norm>;
	ops.attend = in_graph<gpu_attend>;
	ops.mla = in_graph<gpu_mla>;
	ops.delta = in_graph<gpu_delta>;
	ops.replay = timed<gpu_replay>;
	ops.dense_ffn = in_graph<gpu_dense_ffn>;
	ops.route = in_graph<gpu_route>;
	ops.budget = timed<gpu_budget>;
	ops.experts = in_graph<gpu_experts>;
	ops.know_experts = gpu_know_experts;
	ops.combine = in_graph<gpu_combine>;
	ops.pick = timed<gpu_pick>;
	ops.products = in_graph<gpu_products>;
	ops.logits = in_graph<gpu_logits>;
	ops.requantise = gpu_requantise;
	ops.fast = gpu_fast;
	ops.adapt = timed<gpu_adapt>;
	ops.silu_norm = timed<gpu_silu_norm>;
	return ops;
}

#ifdef __CUDACC__
/* What load.c compares: which interface this was compiled with. */
extern "C" const char outrider_backend_cuda_interface[];
const char outrider_backend_cuda_interface[] = BACKEND_INTERFACE;
#define BACKEND_NAME "cuda"
#define BACKEND_CREATE outrider_backend_cuda_create
#else
#define BACKEND_NAME "simt"
#define BACKEND_CREATE backend_simt_create
#endif

extern "C" int BACKEND_CREATE(
	const struct backend_gpu_options *options, struct backend **out, struct error *err)
{
	static struct backend_ops ops;
	struct gpu_backend *gpu = static_cast<struct gpu_backend *>(calloc(1, sizeof(*gpu)));

	if (!gpu)
		return error_set(err, ENOMEM, "no memory for a back end");
	ops = table(BACKEND_NAME);
	gpu->backend.ops = &ops;
	int rc = runtime_open(options->device ? options->device : "", options->seed, &gpu->runtime,
		&gpu->backend.variant, err);
	if (rc < 0) {
		free(gpu);
		return rc;
	}
	gpu->backend.device = runtime_device(gpu->runtime);
	*out = &gpu->backend;
	return 0;
}
