/* The table of a back end, on the CPU: memory and who may have it, copies, flags, tickets, and steps on rows that lie apart. */
#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/kernels.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNT_ALLOCATIONS 0
#else
#define COUNT_ALLOCATIONS 1
/* Every allocation of the process passes here; glibc's own are behind these names. Those of a thread
 * that counts are kept with their sizes until they are freed. */
enum { BLOCKS_MAX = 256 };
static _Thread_local bool counts;
static _Thread_local struct {
	void *at;
	size_t bytes;
} counted_blocks[BLOCKS_MAX];
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *at);

static void *count(void *at, size_t bytes)
{
	for (size_t i = 0; counts && at && i < BLOCKS_MAX; i++)
		if (!counted_blocks[i].at) {
			counted_blocks[i].at = at;
			counted_blocks[i].bytes = bytes;
			return at;
		}
	return at;
}

void *malloc(size_t bytes)
{
	return count(__libc_malloc(bytes), bytes);
}

void *calloc(size_t n, size_t bytes)
{
	return count(__libc_calloc(n, bytes), n * bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
	return count(__libc_memalign(alignment, bytes), bytes);
}

void free(void *at)
{
	for (size_t i = 0; counts && at && i < BLOCKS_MAX; i++)
		if (counted_blocks[i].at == at)
			counted_blocks[i].at = NULL;
	__libc_free(at);
}

/* Bytes that this thread has allocated since it began to count, and not freed. Ends the count. */
static size_t counted(void)
{
	size_t bytes = 0;

	counts = false;
	for (size_t i = 0; i < BLOCKS_MAX; i++) {
		bytes += counted_blocks[i].at ? counted_blocks[i].bytes : 0;
		counted_blocks[i].at = NULL;
	}
	return bytes;
}
#endif

enum { COLS = 64, ROWS = 96, TOKENS = 5, STRIDE = 7 };

struct fixture {
	struct backend *backend;
	const struct backend_ops *ops;
	struct queue *q;
	const struct kernels *kernels;
};

static int open_backend(void **state)
{
	static struct fixture f;
	struct error err = {""};

	f.kernels = kernels_select(NULL, NULL);
	const struct backend_cpu_options options = {
		.kernels = f.kernels, .threads = 2, .spin_ns = 20000};
	const struct queue_limits limits = {.products = 2, .pairs = 2 * TOKENS};

	assert_int_equal(backend_cpu_create(&options, &f.backend, &err), 0);
	f.ops = f.backend->ops;
	assert_string_equal(f.backend->variant, f.kernels->name);
	assert_int_equal(f.ops->queue(f.backend, &limits, &f.q, &err), 0);
	assert_true(f.ops->queue_bytes(f.backend, &limits) > 0);
	*state = &f;
	return 0;
}

static int close_backend(void **state)
{
	struct fixture *f = *state;

	f->ops->queue_free(f->q);
	f->ops->destroy(f->backend);
	return 0;
}

#if COUNT_ALLOCATIONS
/* Creates a queue. Sets *announced to queue_bytes, and *taken to the bytes that it allocated. */
static void measure_queue(struct fixture *f, uint32_t threads, const struct queue_limits *limits,
	size_t *announced, size_t *taken)
{
	const struct backend_cpu_options options = {.kernels = f->kernels, .threads = threads};
	struct error err = {""};
	struct backend *backend;
	struct queue *q;

	assert_int_equal(backend_cpu_create(&options, &backend, &err), 0);
	*announced = backend->ops->queue_bytes(backend, limits);
	counts = true;
	assert_int_equal(backend->ops->queue(backend, limits, &q, &err), 0);
	*taken = counted();
	backend->ops->queue_free(q);
	backend->ops->destroy(backend);
}

static void a_queue_takes_what_it_announces(void **state)
{
	enum { THREAD_BYTES = 1024 /* the C library allocates some for each thread that starts */ };
	struct queue_limits limits = {.products = 2, .pairs = 2 * TOKENS};
	size_t announced, taken, least;

	measure_queue(*state, 1, &limits, &least, &taken);
	assert_int_equal(taken, least);
	limits.n_tokens = 40;
	limits.n_kv_heads = 2;
	limits.n_heads = 20;
	limits.k_dim = 96;
	limits.v_dim = 64;
	measure_queue(*state, 1, &limits, &announced, &taken);
	assert_int_equal(taken, announced);
	assert_true(announced > least + 40 * 2 * 20 * 2 * sizeof(float));
	limits.n_kv_heads = 1;
	limits.mla_nope = 32;
	measure_queue(*state, 1, &limits, &announced, &taken);
	assert_int_equal(taken, announced);
	limits.pick_vocab = 5000;
	measure_queue(*state, 1, &limits, &announced, &taken);
	assert_int_equal(taken, announced);
	for (uint32_t threads = 2; threads <= 5; threads++) {
		measure_queue(*state, threads, &limits, &announced, &taken);
		assert_in_range(taken, announced, announced + threads * THREAD_BYTES);
	}
}
#endif

static struct buffer alloc(struct fixture *f, size_t bytes, enum buffer_kind kind)
{
	struct buffer b;
	struct error err = {""};

	assert_int_equal(f->ops->alloc(f->backend, bytes, kind, &b, &err), 0);
	assert_non_null(b.host);
	assert_true(b.bytes >= bytes);
	assert_int_equal((uintptr_t)b.host % 64, 0);
	return b;
}

static void memory_is_of_its_own(void **state)
{
	struct fixture *f = *state;
	static const enum buffer_kind kinds[] = {BUFFER_OWN, BUFFER_HOST, BUFFER_SHARED};

	for (size_t i = 0; i < 3; i++) {
		struct buffer a = alloc(f, 100000, kinds[i]), b = alloc(f, 1, kinds[i]);

		b.host[0] = 1;
		memset(a.host, 7, 100000);
		assert_int_equal(b.host[0], 1);
		f->ops->free(&a);
		assert_null(a.host);
		/* Twice is once. */
		f->ops->free(&a);
		f->ops->free(&b);
	}
}

static void shared_memory_is_handed_on_by_descriptor(void **state)
{
	struct fixture *f = *state;
	struct error err = {""};
	struct buffer own = alloc(f, 8192, BUFFER_SHARED), other;
	int fd = f->ops->export_fd(&own, &err);

	assert_true(fd >= 0);
	assert_int_equal(f->ops->import_fd(f->backend, fd, 8192, true, &other, &err), 0);
	close(fd);
	own.host[8191] = 5;
	assert_int_equal(other.host[8191], 5);
	other.host[0] = 6;
	assert_int_equal(own.host[0], 6);
	/* It outlives its maker's mapping. */
	f->ops->free(&own);
	assert_int_equal(other.host[8191], 5);
	f->ops->free(&other);
}

static void what_cannot_be_handed_on_is_refused(void **state)
{
	struct fixture *f = *state;
	struct error err = {""};
	struct buffer own = alloc(f, 4096, BUFFER_OWN), shared = alloc(f, 4096, BUFFER_SHARED), b;
	int pipes[2];

	assert_int_equal(f->ops->export_fd(&own, &err), -ENOTSUP);
	assert_true(strstr(err.text, "descriptor") != NULL);
	int fd = f->ops->export_fd(&shared, &err);
	assert_int_equal(
		f->ops->import_fd(f->backend, fd, (size_t)1 << 40, false, &b, &err), -EINVAL);
	assert_true(strstr(err.text, "1099511627776 bytes") != NULL);
	assert_int_equal(f->ops->import_fd(f->backend, fd, 0, false, &b, &err), -EINVAL);
	close(fd);
	assert_int_equal(f->ops->import_fd(f->backend, fd, 4096, false, &b, &err), -EBADF);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(f->ops->import_fd(f->backend, pipes[0], 1, false, &b, &err), -EINVAL);
	close(pipes[0]);
	close(pipes[1]);
	/* A failed import leaves nothing to give back. */
	f->ops->free(&b);
	f->ops->free(&own);
	f->ops->free(&shared);
}

static void the_callers_memory_stays_the_callers(void **state)
{
	struct fixture *f = *state;
	struct error err = {""};
	struct buffer b;
	char text[] = "mine";

	assert_int_equal(f->ops->wrap(f->backend, text, sizeof(text), &b, &err), 0);
	assert_ptr_equal(b.host, text);
	f->ops->free(&b);
	assert_string_equal(text, "mine");
}

static void copies_come_between_what_is_queued_around_them(void **state)
{
	struct fixture *f = *state;
	struct buffer a = alloc(f, 256, BUFFER_OWN), b = alloc(f, 256, BUFFER_HOST);

	memset(b.host, 0, 256);
	for (int i = 0; i < 256; i++)
		a.host[i] = (unsigned char)i;
	f->ops->copy(f->q, (struct place){&b, 16}, (struct place){&a, 100}, 50);
	/* Over each other, too. */
	f->ops->copy(f->q, (struct place){&a, 1}, (struct place){&a, 0}, 100);
	f->ops->copy(f->q, (struct place){&b, 200}, (struct place){&a, 1}, 4);
	assert_int_equal(f->ops->wait(f->q, f->ops->ticket(f->q)), 0);
	assert_int_equal(b.host[15], 0);
	for (int i = 0; i < 50; i++)
		assert_int_equal(b.host[16 + i], 100 + i);
	assert_int_equal(b.host[66], 0);
	assert_int_equal(a.host[100], 99);
	assert_int_equal(b.host[203], 3);
	f->ops->free(&a);
	f->ops->free(&b);
}

static void tickets_are_reached_in_order(void **state)
{
	struct fixture *f = *state;
	ticket last = f->ops->ticket(f->q);

	for (int i = 0; i < 100; i++) {
		ticket t = f->ops->ticket(f->q);

		assert_true(t > last);
		assert_int_equal(f->ops->wait(f->q, t), 0);
		assert_true(f->ops->reached(f->q, t));
		assert_true(f->ops->reached(f->q, last));
		assert_false(f->ops->reached(f->q, t + 1));
		last = t;
	}
}

struct writer {
	struct buffer *b;
	_Atomic uint32_t *flag;
	atomic_bool seen;
};

/* Another process, or a device: it writes the bytes, then the flag. */
static void *write_later(void *arg)
{
	struct writer *w = arg;
	const struct timespec nap = {.tv_nsec = 3000000};

	for (uint32_t i = 1; i <= 3; i++) {
		nanosleep(&nap, NULL);
		w->b->host[100] = (unsigned char)i;
		atomic_store_explicit(w->flag, i, memory_order_release);
		while (i < 3 && !atomic_exchange(&w->seen, false))
			nanosleep(&nap, NULL);
	}
	return NULL;
}

static void a_queue_waits_for_a_flag_and_what_came_before_it(void **state)
{
	struct fixture *f = *state;
	struct buffer b = alloc(f, 256, BUFFER_SHARED);
	struct writer w = {.b = &b, .flag = (_Atomic uint32_t *)(void *)(b.host + 64)};
	memset(b.host, 0, 256);
	struct place word = {&b, 64}, data = {&b, 100}, out = {&b, 200};
	pthread_t thread;

	f->ops->wait_value(f->q, word, 0); /* is there */
	assert_int_equal(pthread_create(&thread, NULL, write_later, &w), 0);
	for (uint32_t i = 1; i <= 3; i++) {
		f->ops->wait_value(f->q, word, i);
		f->ops->copy(f->q, out, data, 1);
		assert_int_equal(f->ops->wait(f->q, f->ops->ticket(f->q)), 0);
		assert_int_equal(b.host[200], i);
		atomic_store(&w.seen, true);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	/* More than asked for will do, also across the end of 32 bits. */
	f->ops->wait_value(f->q, word, 2);
	f->ops->write_value(f->q, word, 1);
	f->ops->wait_value(f->q, word, UINT32_MAX);
	assert_int_equal(atomic_load(w.flag), 1);
	f->ops->free(&b);
}

/* ---- Steps. ---- */

static float value(uint32_t i)
{
	return (float)(int32_t)(i * 2654435761u) * 0x1p-31f;
}

/* TOKENS rows of `width` floats, STRIDE floats apart from each other's ends. */
static struct rows rows_in(const struct buffer *b, size_t offset, uint32_t width)
{
	return (struct rows){b, offset, (width + STRIDE) * sizeof(float), TOKENS};
}

static float *row(const struct rows *rows, uint32_t i)
{
	return (float *)(void *)(rows->buffer->host + rows->offset + i * rows->stride);
}

static void a_step_takes_rows_that_lie_apart(void **state)
{
	struct fixture *f = *state;
	struct buffer b = alloc(f, 1 << 20, BUFFER_OWN);
	float *weights = malloc(sizeof(float) * ROWS * COLS), expected[TOKENS][ROWS];
	struct rows x = rows_in(&b, 256, COLS), y = rows_in(&b, 1 << 16, ROWS);
	struct rows kept = rows_in(&b, 1 << 18, ROWS);
	struct activation in[TOKENS];
	float *out[TOKENS];

	assert_non_null(weights);
	for (uint32_t i = 0; i < ROWS * COLS; i++)
		weights[i] = value(i);
	memset(b.host, 0x7f, b.bytes);
	for (uint32_t t = 0; t < TOKENS; t++) {
		for (uint32_t i = 0; i < COLS; i++)
			row(&x, t)[i] = value(t * COLS + i + 9);
		in[t] = (struct activation){.f32 = row(&x, t)};
		out[t] = expected[t];
	}
	const struct matrix w = {.type = TENSOR_F32,
		.rows = ROWS,
		.cols = COLS,
		.row_bytes = COLS * sizeof(float),
		.data = weights};
	f->kernels->matmul(&w, 0, ROWS, in, TOKENS, out);
	uint32_t *keep = (uint32_t *)(void *)b.host;
	for (uint32_t t = 0; t < TOKENS; t++)
		keep[t] = t == 1 ? 3 : t == 4 ? 0 : UINT32_MAX;
	const struct step_product products[] = {
		{.w = w, .x.f32 = x, .y = y},
		{.w = w,
			.x.f32 = x,
			.y = rows_in(&b, 1 << 17, ROWS),
			.keep = {&b, 0},
			.kept = kept},
	};
	f->ops->products(f->q, &(struct step_products){.of = products, .n = 2});
	assert_int_equal(f->ops->wait(f->q, f->ops->ticket(f->q)), 0);
	for (uint32_t t = 0; t < TOKENS; t++) {
		const float *second =
			keep[t] == UINT32_MAX ? row(&products[1].y, t) : row(&kept, keep[t]);

		assert_memory_equal(row(&y, t), expected[t], sizeof(expected[t]));
		assert_memory_equal(second, expected[t], sizeof(expected[t]));
		/* Between the rows nothing is written. */
		for (uint32_t i = 0; i < STRIDE * sizeof(float); i++)
			assert_int_equal(((unsigned char *)(row(&y, t) + ROWS))[i], 0x7f);
	}
	/* The rows that were kept are not among the others. */
	assert_int_equal(((unsigned char *)row(&products[1].y, 1))[0], 0x7f);
	free(weights);
	f->ops->free(&b);
}

static void a_norm_adds_first_and_leaves_both_forms(void **state)
{
	struct fixture *f = *state;
	struct buffer b = alloc(f, 1 << 18, BUFFER_OWN);
	struct rows x = rows_in(&b, 0, COLS), add = rows_in(&b, 1 << 14, COLS);
	struct rows y = rows_in(&b, 1 << 15, COLS), q8 = rows_in(&b, 1 << 16, COLS);
	float w[COLS], bias[COLS], sum[TOKENS][COLS], expected[COLS];
	struct q8_block blocks[COLS / Q8_BLOCK];

	for (uint32_t t = 0; t < TOKENS; t++)
		for (uint32_t i = 0; i < COLS; i++) {
			row(&x, t)[i] = value(t * COLS + i);
			row(&add, t)[i] = value(t * COLS + i + 5000);
			bias[i] = value(i + 10000);
			w[i] = value(i + 20000);
			sum[t][i] = row(&x, t)[i] + (row(&add, t)[i] + bias[i]);
		}
	f->ops->norm(f->q, &(struct step_norm){.width = COLS,
				   .x = x,
				   .add = add,
				   .add_bias = bias,
				   .w = w,
				   .eps = 1e-5f,
				   .y = y,
				   .y_q8 = q8});
	for (uint32_t t = 0; t < TOKENS; t++) {
		f->kernels->rms_norm(sum[t], w, 1e-5f, COLS, expected);
		f->kernels->quantise_q8(expected, COLS, blocks);
		assert_memory_equal(row(&x, t), sum[t], sizeof(sum[t]));
		assert_memory_equal(row(&y, t), expected, sizeof(expected));
		assert_memory_equal(row(&q8, t), blocks, sizeof(blocks));
	}
	f->ops->free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#if COUNT_ALLOCATIONS
		cmocka_unit_test(a_queue_takes_what_it_announces),
#endif
		cmocka_unit_test(memory_is_of_its_own),
		cmocka_unit_test(shared_memory_is_handed_on_by_descriptor),
		cmocka_unit_test(what_cannot_be_handed_on_is_refused),
		cmocka_unit_test(the_callers_memory_stays_the_callers),
		cmocka_unit_test(copies_come_between_what_is_queued_around_them),
		cmocka_unit_test(tickets_are_reached_in_order),
		cmocka_unit_test(a_queue_waits_for_a_flag_and_what_came_before_it),
		cmocka_unit_test(a_step_takes_rows_that_lie_apart),
		cmocka_unit_test(a_norm_adds_first_and_leaves_both_forms),
	};

	return cmocka_run_group_tests(tests, open_backend, close_backend);
}
