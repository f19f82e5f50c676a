/* Memory of the emulated GPU: weights that are placed and forgotten, a device that has too little of
 * it, what a page of the host's can be mapped for, and a device that is lost. */
#include "tests/gpu/rig.h"

#include <sys/wait.h>
#include <unistd.h>

enum { WIDTH = 64, BYTES = WIDTH * sizeof(float) };

/* A back end with a queue, and rows to normalise. */
struct machine {
	struct backend *backend;
	const struct backend_ops *ops;
	struct queue *q;
	struct buffer rows;
};

static const struct queue_limits limits = {.products = 1, .pairs = 1};

static void open_machine(struct machine *m, const char *memory, const char *lost)
{
	const struct backend_gpu_options options = {.seed = 0};
	struct error err = {""};

	assert_int_equal(memory ? setenv("OUTRIDER_SIMT_MEMORY", memory, 1)
				: unsetenv("OUTRIDER_SIMT_MEMORY"),
		0);
	assert_int_equal(
		lost ? setenv("OUTRIDER_SIMT_LOST", lost, 1) : unsetenv("OUTRIDER_SIMT_LOST"), 0);
	assert_int_equal(backend_simt_create(&options, &m->backend, &err), 0);
	m->ops = m->backend->ops;
	assert_int_equal(m->ops->queue(m->backend, &limits, &m->q, &err), 0);
	assert_int_equal(m->ops->alloc(m->backend, 2 * BYTES, BUFFER_HOST, &m->rows, &err), 0);
}

static void close_machine(struct machine *m)
{
	m->ops->queue_free(m->q);
	m->ops->free(&m->rows);
	m->ops->destroy(m->backend);
}

/* y = norm(1, 1, ..) * w. Returns what the wait returns; *first: y[0]. */
static int normalise(struct machine *m, const float *w, float *first)
{
	float *x = (float *)(void *)m->rows.host;
	struct step_norm step = {.width = WIDTH,
		.x = {&m->rows, 0, BYTES, 1},
		.y = {&m->rows, BYTES, BYTES, 1},
		.w = w};

	for (uint32_t i = 0; i < WIDTH; i++)
		x[i] = 1;
	m->ops->norm(m->q, &step);
	int rc = m->ops->wait(m->q, m->ops->ticket(m->q));
	*first = x[WIDTH];
	return rc;
}

static void weights_are_copied_when_they_are_placed(void **state)
{
	struct machine m;
	struct error err;
	float w[WIDTH] = {3}, first;

	(void)state;
	open_machine(&m, NULL, NULL);
	assert_int_equal(m.ops->place(m.backend, w, sizeof(w), &err), 0);
	assert_int_equal(normalise(&m, w, &first), 0);
	assert_true(first == 3);
	/* Another model is mapped there. */
	m.ops->forget(m.backend, w, sizeof(w));
	w[0] = 5;
	assert_int_equal(m.ops->place(m.backend, w, sizeof(w), &err), 0);
	assert_int_equal(normalise(&m, w, &first), 0);
	assert_true(first == 5);
	m.ops->forget(m.backend, w, sizeof(w));
	close_machine(&m);
}

static void what_is_placed_twice_is_forgotten_twice(void **state)
{
	struct backend_memory before, now;
	struct machine m;
	struct error err;
	float w[2 * WIDTH] = {[WIDTH] = 7}, first;

	(void)state;
	open_machine(&m, "1M", NULL);
	m.ops->memory(m.backend, &before);
	assert_int_equal(before.bytes, 1 << 20);
	for (int i = 0; i < 2; i++)
		assert_int_equal(m.ops->place(m.backend, w, sizeof(w), &err), 0);
	m.ops->memory(m.backend, &now);
	assert_int_equal(before.free - now.free, sizeof(w));
	m.ops->forget(m.backend, w, sizeof(w));
	/* A step may read a part of a tensor. */
	assert_int_equal(normalise(&m, w + WIDTH, &first), 0);
	assert_true(first == 7);
	m.ops->forget(m.backend, w, sizeof(w));
	m.ops->memory(m.backend, &now);
	assert_int_equal(before.free, now.free);
	close_machine(&m);
}

static void too_little_memory_is_an_error_that_says_what_there_is(void **state)
{
	enum { LARGE = 600 << 10 };
	float *w = calloc(1, LARGE);
	struct buffer a, b;
	struct machine m;
	struct error err;

	(void)state;
	assert_non_null(w);
	open_machine(&m, "1M", NULL);
	assert_int_equal(m.ops->alloc(m.backend, LARGE, BUFFER_OWN, &a, &err), 0);
	assert_int_equal(m.ops->alloc(m.backend, LARGE, BUFFER_OWN, &b, &err), -ENOMEM);
	assert_string_equal(
		err.text, "the emulated GPU has no 0.6 MiB left: 0.4 MiB of its 1.0 MiB are free");
	assert_int_equal(m.ops->place(m.backend, w, LARGE, &err), -ENOMEM);
	assert_int_equal(m.ops->wrap_weights(m.backend, w, LARGE, &b, &err), -ENOMEM);
	assert_int_equal(m.ops->alloc(m.backend, LARGE, BUFFER_SHARED, &b, &err), -ENOMEM);
	m.ops->free(&a);
	assert_int_equal(m.ops->wrap_weights(m.backend, w, LARGE, &b, &err), 0);
	m.ops->free(&b);
	close_machine(&m);
	free(w);
}

static void a_page_of_the_host_is_mapped_once(void **state)
{
	unsigned char *pages = aligned_alloc(4096, 8192);
	struct buffer a, b;
	struct machine m;
	struct error err;

	(void)state;
	assert_non_null(pages);
	open_machine(&m, NULL, NULL);
	assert_int_equal(m.ops->wrap(m.backend, pages, 100, &a, &err), 0);
	assert_int_equal(m.ops->wrap(m.backend, pages + 200, 100, &b, &err), -EBUSY);
	assert_int_equal(m.ops->wrap(m.backend, pages + 4096, 100, &b, &err), 0);
	m.ops->free(&b);
	m.ops->free(&a);
	assert_int_equal(m.ops->wrap(m.backend, pages + 200, 100, &b, &err), 0);
	m.ops->free(&b);
	close_machine(&m);
	free(pages);
}

static void what_follows_the_loss_of_a_device_fails(void **state)
{
	struct machine m;
	struct error err = {""};
	float w[WIDTH] = {3}, first;

	(void)state;
	open_machine(&m, NULL, "2");
	assert_int_equal(m.ops->place(m.backend, w, sizeof(w), &err), 0);
	assert_int_equal(normalise(&m, w, &first), 0);
	assert_int_equal(m.ops->failure(m.backend, &err), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(normalise(&m, w, &first), -ENODEV);
	assert_int_equal(m.ops->failure(m.backend, &err), -ENODEV);
	assert_string_equal(err.text, "the emulated GPU was lost in kernel norm: it was told to");
	m.ops->forget(m.backend, w, sizeof(w));
	close_machine(&m);
}

/* Runs fn in a process of its own, which must end with SIGABRT and name what is wrong. */
static void must_die(void (*fn)(void), const char *with)
{
	int ends[2], status;
	char text[512];

	assert_int_equal(pipe(ends), 0);
	pid_t child = fork();
	if (child == 0) {
		dup2(ends[1], 2);
		fn();
		_exit(0);
	}
	close(ends[1]);
	size_t used = 0;
	for (ssize_t n; (n = read(ends[0], text + used, sizeof(text) - 1 - used)) > 0;)
		used += (size_t)n;
	text[used] = '\0';
	close(ends[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	if (!strstr(text, with))
		fail_msg("\"%s\" is not in \"%s\"", with, text);
}

static void read_weights_that_are_not_placed(void)
{
	struct machine m;
	float w[WIDTH] = {3}, first;

	open_machine(&m, NULL, NULL);
	(void)normalise(&m, w, &first);
}

/* A buffer with the host's address instead of the device's. */
static void read_weights_of_the_host(void)
{
	struct machine m;
	struct error err;
	float w[WIDTH] = {3}, first;
	struct buffer wrong = {.host = (unsigned char *)w,
		.device = (unsigned char *)w,
		.bytes = sizeof(w),
		.fd = -1};
	struct step_norm step = {.width = WIDTH, .x = {&wrong, 0, BYTES, 1}};

	open_machine(&m, NULL, NULL);
	if (m.ops->place(m.backend, w, sizeof(w), &err) == 0)
		m.ops->norm(m.q, &step);
	(void)normalise(&m, w, &first);
}

static void weights_that_a_device_could_not_read_are_found(void **state)
{
	(void)state;
	must_die(read_weights_that_are_not_placed, "256 bytes of weights at ");
	must_die(read_weights_of_the_host, "kernel norm gets the host's address of weights");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(weights_are_copied_when_they_are_placed),
		cmocka_unit_test(what_is_placed_twice_is_forgotten_twice),
		cmocka_unit_test(too_little_memory_is_an_error_that_says_what_there_is),
		cmocka_unit_test(a_page_of_the_host_is_mapped_once),
		cmocka_unit_test(what_follows_the_loss_of_a_device_fails),
		cmocka_unit_test(weights_that_a_device_could_not_read_are_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
