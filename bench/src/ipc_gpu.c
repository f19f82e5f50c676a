#include "bench/src/ipc_gpu.h"

#include "bench/src/gpu.h"
#include "bench/src/gpu_copy.h"
#include "bench/src/histogram.h"
#include "bench/src/ipc_gpu_side.h"
#include "shared/base/clock.h"
#include "shared/base/median.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 99, LAYOUT = 1 };

enum time_of { TIME_EXPORT, TIME_IMPORT, TIME_FLAGS, TIMES };

static const struct {
	const char *name, *text;
} times[TIMES] = {
	[TIME_EXPORT] = {"export", "memory of the device as a descriptor"},
	[TIME_IMPORT] = {"import", "that descriptor as memory of another process"},
	[TIME_FLAGS] = {"flag_round_trip", "a flag to the other's queue and one back: round trip"},
};

struct bench {
	const struct ipc_gpu_options *options;
	struct region region;
	struct ipc_gpu_other other;
	struct backend *backend;
	struct queue *q;
	struct buffer flags, memory, host;
	struct gpu_copy link;
	uint32_t flag, n_rounds; /* flag: the last number that was asked for */
	struct histogram times[TIMES];
	double to[ROUNDS], from[ROUNDS]; /* GB/s of large copies */
	double to_of[IPC_GPU_SIZES][ROUNDS], from_of[IPC_GPU_SIZES][ROUNDS]; /* of the other's */
};

static int start(void *arg, struct error *err)
{
	struct bench *b = arg;
	const struct queue_limits limits = {0};
	int rc = region_create(
		"bench-gpu", LAYOUT, sizeof(struct ipc_gpu_flags), 0, &b->region, err);

	/* The other process comes first: a device cannot be used across a fork. */
	if (rc == 0)
		rc = ipc_gpu_start(&b->other, b->options->backend, &b->region, err);
	if (rc == 0)
		rc = gpu_open(b->options->backend, &b->backend, err);
	if (rc < 0)
		return rc;
	const struct backend_ops *ops = b->backend->ops;
	rc = ops->queue(b->backend, &limits, &b->q, err);
	if (rc == 0)
		rc = ipc_gpu_wrap(b->backend, &b->region, &b->flags, err);
	if (rc == 0)
		rc = ops->alloc(b->backend, IPC_GPU_BYTES, BUFFER_SHARED, &b->memory, err);
	if (rc == 0)
		rc = ops->alloc(b->backend, IPC_GPU_BYTES, BUFFER_HOST, &b->host, err);
	return rc == 0 ? gpu_copy_open_link(b->backend, &b->link, err) : rc;
}

static void stop(void *arg)
{
	struct bench *b = arg;
	struct buffer *const all[] = {&b->flags, &b->memory, &b->host};

	ipc_gpu_stop(&b->other);
	gpu_copy_close(&b->link);
	if (b->q != NULL)
		b->q->ops->queue_free(b->q);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i]->backend != NULL)
			b->backend->ops->free(all[i]);
	if (b->backend != NULL)
		b->backend->ops->destroy(b->backend);
	region_close(&b->region);
}

static int measure_sharing(struct bench *b, struct error *err)
{
	struct ipc_gpu_packet import = {.what = IPC_GPU_IMPORT};
	uint64_t began = clock_ns();
	int fd = b->backend->ops->export_fd(&b->memory, err);

	if (fd < 0)
		return fd;
	histogram_record(&b->times[TIME_EXPORT], clock_ns() - began);
	int rc = ipc_gpu_ask(&b->other, &import, fd, err);
	close(fd);
	if (rc == 0)
		histogram_record(&b->times[TIME_IMPORT], import.ns[0]);
	return rc;
}

/* What this process copies to the memory, the other must see. */
static int check_sharing(struct bench *b, uint32_t round, struct error *err)
{
	struct ipc_gpu_packet check = {.what = IPC_GPU_CHECK, .value = 1 + round % 255};

	memset(b->host.host, (int)check.value, IPC_GPU_BYTES);
	b->q->ops->copy(
		b->q, (struct place){&b->memory, 0}, (struct place){&b->host, 0}, IPC_GPU_BYTES);
	int rc = gpu_finish(b->q, err);
	return rc == 0 ? ipc_gpu_ask(&b->other, &check, -1, err) : rc;
}

/* Waits as long as the other process lives; without it, this queue would wait for ever. */
static int wait_flags(struct bench *b, struct error *err)
{
	struct ipc_gpu_flags *flags = region_payload(&b->region);
	ticket t = b->q->ops->ticket(b->q);

	for (uint32_t looks = 1; !b->q->ops->reached(b->q, t); looks++) {
		clock_relax();
		if (looks % 4096 != 0)
			continue;
		sched_yield();
		if (looks % (1 << 20) != 0 || waitpid(b->other.pid, NULL, WNOHANG) == 0)
			continue;
		b->other.pid = 0;
		close(b->other.socket);
		atomic_store(&flags->answered, b->flag);
		(void)gpu_finish(b->q, err);
		return error_set(err, EPIPE, "the other process has ended");
	}
	return gpu_finish(b->q, err);
}

/* The other one's answers are queued before this one asks, so that no host takes part. */
static int measure_flags(struct bench *b, struct error *err)
{
	struct ipc_gpu_packet answer = {.what = IPC_GPU_ANSWER, .value = b->flag};
	int rc = ipc_gpu_ask(&b->other, &answer, -1, err);

	if (rc < 0)
		return rc;
	uint64_t began = clock_ns();
	for (uint32_t i = 0; i < IPC_GPU_HOPS; i++) {
		b->q->ops->write_value(b->q, ipc_gpu_asked(&b->flags), ++b->flag);
		b->q->ops->wait_value(b->q, ipc_gpu_answered(&b->flags), b->flag);
	}
	rc = wait_flags(b, err);
	if (rc == 0)
		histogram_record(&b->times[TIME_FLAGS], (clock_ns() - began) / IPC_GPU_HOPS);
	return rc;
}

static int measure_copies(struct bench *b, uint32_t round, struct error *err)
{
	int rc = gpu_copy_link(&b->link, &b->to[round], &b->from[round], err);

	for (uint32_t i = 0; rc == 0 && i < IPC_GPU_SIZES; i++) {
		struct ipc_gpu_packet copy = {.what = IPC_GPU_COPY, .value = i};

		rc = ipc_gpu_ask(&b->other, &copy, -1, err);
		b->to_of[i][round] = (double)IPC_GPU_BYTES / (double)(copy.ns[0] + 1);
		b->from_of[i][round] = (double)IPC_GPU_BYTES / (double)(copy.ns[1] + 1);
	}
	return rc;
}

static int measure(void *arg, struct error *err)
{
	struct bench *b = arg;
	uint64_t end_ns = clock_ns() + (uint64_t)(b->options->seconds * 1e9);
	int rc = 0;

	for (uint32_t round = 0; rc == 0 && round < ROUNDS; round++) {
		if (round > 0 && clock_ns() >= end_ns)
			break;
		rc = measure_sharing(b, err);
		if (rc == 0)
			rc = check_sharing(b, round, err);
		if (rc == 0)
			rc = measure_flags(b, err);
		if (rc == 0)
			rc = measure_copies(b, round, err);
		b->n_rounds++;
	}
	return rc;
}

static double us(const struct histogram *h, double q)
{
	return (q < 1 ? histogram_quantile_ns(h, q) : (double)h->max_ns) / 1000;
}

static json_t *report(void *arg)
{
	struct bench *b = arg;
	uint32_t n = b->n_rounds;
	double to = median(b->to, n), from = median(b->from, n);
	json_t *all = gpu_json(b->backend, n), *results = json_array(), *copies = json_array();

	for (int t = 0; t < TIMES; t++) {
		const struct histogram *h = &b->times[t];

		json_array_append_new(results,
			json_pack("{s:s, s:s, s:I, s:f, s:f, s:f}", "name", times[t].name, "what",
				times[t].text, "samples", (json_int_t)h->n, "p50_us", us(h, 0.5),
				"p90_us", us(h, 0.9), "max_us", us(h, 1)));
	}
	for (uint32_t i = 0; i < IPC_GPU_SIZES; i++) {
		double to_of = median(b->to_of[i], n), from_of = median(b->from_of[i], n);

		json_array_append_new(
			copies, json_pack("{s:I, s:f, s:f, s:f, s:f}", "bytes",
					(json_int_t)ipc_gpu_sizes[i], "to_device_gb_s", to_of,
					"to_device_share", to_of / to, "from_device_gb_s", from_of,
					"from_device_share", from_of / from));
	}
	json_object_set_new(all, "peaks",
		json_pack("{s:f, s:f}", "to_device_gb_s", to, "from_device_gb_s", from));
	json_object_set_new(all, "results", results);
	json_object_set_new(all, "copies", copies);
	return all;
}

static void print_text(const void *arg, const json_t *all)
{
	const struct bench *b = arg;
	const json_t *peaks = json_object_get(all, "peaks"), *row;
	size_t i;

	gpu_say(b->backend, b->n_rounds);
	printf("peaks of copies of %zu KiB: to it %.2f GB/s, from it %.2f GB/s\n\n",
		b->link.bytes >> 10, gpu_number(peaks, "to_device_gb_s"),
		gpu_number(peaks, "from_device_gb_s"));
	printf("%-54s %8s %10s %10s %10s\n", "microseconds", "samples", "p50", "p90", "max");
	json_array_foreach(json_object_get(all, "results"), i, row) printf(
		"%-54s %8lld %10.3f %10.3f %10.3f\n", times[i].text,
		json_integer_value(json_object_get(row, "samples")), gpu_number(row, "p50_us"),
		gpu_number(row, "p90_us"), gpu_number(row, "max_us"));
	printf("\n%-30s %10s %8s %12s %8s\n", "copies by the importing process", "to, GB/s",
		"of peak", "from, GB/s", "of peak");
	json_array_foreach(json_object_get(all, "copies"), i, row) printf(
		"of %6zu KiB%19s %10.3f %7.1f%% %12.3f %7.1f%%\n", ipc_gpu_sizes[i] >> 10, "",
		gpu_number(row, "to_device_gb_s"), 100 * gpu_number(row, "to_device_share"),
		gpu_number(row, "from_device_gb_s"), 100 * gpu_number(row, "from_device_share"));
}

static const struct gpu_bench steps = {start, measure, report, print_text, stop};

int ipc_gpu(const struct ipc_gpu_options *options, struct error *err)
{
	struct bench *b = calloc(1, sizeof(*b));

	if (b == NULL)
		return error_set(err, ENOMEM, "no memory");
	b->options = options;
	b->region.fd = -1;
	int rc = gpu_run(&steps, b, options->json, err);
	free(b);
	return rc;
}
