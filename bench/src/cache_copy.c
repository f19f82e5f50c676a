#include "bench/src/cache_copy.h"

#include "bench/src/expert_arena.h"
#include "bench/src/gpu.h"
#include "bench/src/gpu_copy.h"
#include "shared/base/clock.h"
#include "shared/base/median.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* More than caches hold; and what the emulation copies in no time. */
#define ARENA_BYTES (512ull << 20)
#define EMULATED_BYTES (4ull << 20)

struct bench {
	const struct cache_copy_options *o;
	struct backend *backend;
	struct queue *q;
	struct expert_arena arena; /* what is copied from, which is packed anew where that counts */
	struct buffer slots; /* [arena.n] experts */
	struct buffer flags; /* [arena.n] uint32_t */
	uint32_t load; /* the number that the flags have had last */
	struct gpu_copy link;
	double peak[CACHE_COPY_ROUNDS], unused[CACHE_COPY_ROUNDS]; /* GB/s to it and from it */
	double copied[CACHE_COPY_BATCHES][CACHE_COPY_ROUNDS]; /* ns of an expert */
	double packed[CACHE_COPY_BATCHES][CACHE_COPY_ROUNDS]; /* the same, packed before */
};

static int start(void *arg, struct error *err)
{
	struct bench *b = arg;
	const struct queue_limits limits = {0};
	int rc = gpu_open(b->o->backend, &b->backend, err);

	if (rc == 0)
		rc = expert_arena_open(b->backend, b->o->model, b->o->layer,
			gpu_emulated(b->backend) ? EMULATED_BYTES : ARENA_BYTES, &b->arena, err);
	if (rc < 0)
		return rc;
	const struct backend_ops *ops = b->backend->ops;
	rc = ops->queue(b->backend, &limits, &b->q, err);
	if (rc == 0)
		rc = ops->alloc(b->backend, b->arena.memory.bytes, BUFFER_SHARED, &b->slots, err);
	if (rc == 0)
		rc = ops->alloc(
			b->backend, b->arena.n * sizeof(uint32_t), BUFFER_HOST, &b->flags, err);
	return rc == 0 ? gpu_copy_open_link(b->backend, &b->link, err) : rc;
}

static void stop(void *arg)
{
	struct bench *b = arg;

	gpu_copy_close(&b->link);
	if (b->q != NULL)
		b->q->ops->queue_free(b->q);
	if (b->slots.backend != NULL)
		b->backend->ops->free(&b->slots);
	if (b->flags.backend != NULL)
		b->backend->ops->free(&b->flags);
	expert_arena_close(&b->arena);
	if (b->backend != NULL)
		b->backend->ops->destroy(b->backend);
}

static void copy_expert(struct bench *b, uint32_t e)
{
	size_t at = e * b->arena.expert_bytes;

	b->q->ops->copy(b->q, (struct place){&b->slots, at}, (struct place){&b->arena.memory, at},
		b->arena.expert_bytes);
	b->q->ops->write_value(b->q, (struct place){&b->flags, e * sizeof(uint32_t)}, b->load);
}

/* What the verifier's queue waits for. */
static int check_flags(struct bench *b, struct error *err)
{
	_Atomic uint32_t *flags = (_Atomic uint32_t *)b->flags.host;

	for (uint32_t e = 0; e < b->arena.n; e++)
		if (atomic_load_explicit(&flags[e], memory_order_acquire) != b->load)
			return error_set(err, EIO,
				"the flag behind the copy of expert %u did not "
				"arrive",
				e);
	return 0;
}

/* Copies all experts of the arena, `batch` at a time. */
static int run(struct bench *b, uint32_t batch, bool pack, double *ns, struct error *err)
{
	uint64_t began = clock_ns();
	int rc = 0;

	b->load++;
	for (uint32_t e = 0; rc == 0 && e < b->arena.n; e++) {
		if (pack)
			expert_arena_pack(
				&b->arena, e, b->arena.memory.host + e * b->arena.expert_bytes);
		copy_expert(b, e);
		if ((e + 1) % batch == 0 || e + 1 == b->arena.n)
			rc = gpu_finish(b->q, err);
	}
	*ns = (double)(clock_ns() - began) / b->arena.n;
	return rc == 0 ? check_flags(b, err) : rc;
}

static int measure(void *arg, struct error *err)
{
	struct bench *b = arg;
	int rc = run(b, 1, true, &b->packed[0][0], err); /* touches all memory */

	for (uint32_t round = 0; rc == 0 && round < b->o->rounds; round++) {
		rc = gpu_copy_link(&b->link, &b->peak[round], &b->unused[round], err);
		for (uint32_t i = 0; rc == 0 && i < b->o->n_batches; i++) {
			rc = run(b, b->o->batches[i], false, &b->copied[i][round], err);
			if (rc == 0)
				rc = run(b, b->o->batches[i], true, &b->packed[i][round], err);
		}
	}
	return rc;
}

static json_t *way(const struct bench *b, double *ns, double peak)
{
	double each = median(ns, b->o->rounds), gb_s = (double)b->arena.expert_bytes / each;

	return json_pack(
		"{s:f, s:f, s:f}", "us", each / 1000, "gb_s", gb_s, "link_share", gb_s / peak);
}

static json_t *report(void *arg)
{
	struct bench *b = arg;
	double peak = median(b->peak, b->o->rounds);
	json_t *all = gpu_json(b->backend, b->o->rounds), *rows = json_array();

	for (uint32_t i = 0; i < b->o->n_batches; i++)
		json_array_append_new(
			rows, json_pack("{s:i, s:o, s:o}", "batch", (int)b->o->batches[i], "copied",
				      way(b, b->copied[i], peak), "packed_and_copied",
				      way(b, b->packed[i], peak)));
	json_object_set_new(all, "layer", json_integer(b->arena.number));
	json_object_set_new(all, "experts", json_integer(b->arena.n));
	json_object_set_new(all, "expert_bytes", json_integer((json_int_t)b->arena.expert_bytes));
	json_object_set_new(all, "peaks", json_pack("{s:f}", "to_device_gb_s", peak));
	json_object_set_new(all, "rows", rows);
	return all;
}

static void print_way(const json_t *row, const char *name)
{
	const json_t *of = json_object_get(row, name);

	printf(" %10.2f %8.3f %6.1f%%", gpu_number(of, "us"), gpu_number(of, "gb_s"),
		100 * gpu_number(of, "link_share"));
}

static void print_text(const void *arg, const json_t *all)
{
	const struct bench *b = arg;
	const json_t *row;
	size_t i;

	gpu_say(b->backend, b->o->rounds);
	printf("%u experts of layer %u, %.1f KiB each; peak of copies of %zu KiB to it %.2f "
	       "GB/s\n\n%-8s %27s %27s\nbatch   ",
		b->arena.n, b->arena.number, (double)b->arena.expert_bytes / 1024,
		b->link.bytes >> 10,
		json_real_value(json_object_get(json_object_get(all, "peaks"), "to_device_gb_s")),
		"", "copied, of each", "packed and copied, of each");
	for (int n = 0; n < 2; n++)
		printf(" %10s %8s %7s", "us", "GB/s", "of link");
	putchar('\n');
	json_array_foreach(json_object_get(all, "rows"), i, row)
	{
		printf("%-8u", b->o->batches[i]);
		print_way(row, "copied");
		print_way(row, "packed_and_copied");
		putchar('\n');
	}
}

static const struct gpu_bench steps = {start, measure, report, print_text, stop};

int cache_copy(const struct cache_copy_options *options, struct error *err)
{
	struct bench *b = calloc(1, sizeof(*b));

	if (b == NULL)
		return error_set(err, ENOMEM, "no memory");
	b->o = options;
	int rc = gpu_run(&steps, b, options->json, err);
	free(b);
	return rc;
}
