/*
 * Measures, when a reader is opened, how the disk under this file is best read: random reads for a
 * bounded time, first of several lengths with enough of them in flight, then of the best length
 * with fewer and more of them. It takes the longest reads that come close to the best rate, because
 * each read costs CPU time, and the shortest queue that does, because a demand waits for what is in
 * the kernel before it.
 */
#include "services/expert-cache/reader/reader_internal.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/spec/slots.h"

#include <stdlib.h>

#define TRIAL_NS 10000000ull
#define TRIAL_BYTES_MIN (1ull << 20)

enum {
	DEPTH = 16, /* for the trials of lengths, and when nothing can be measured */
	BYTES = 512 << 10,
	DEMAND_BYTES = 4 << 20, /* that may be in the kernel at once, at least */
	/* Target of the reads. Nobody looks at it; reads without a place of their own share one. */
	MEMORY_BYTES = 16 << 20,
	/* A trial has at most this much in the kernel, whatever depth and length are given, because
	 * a slow disk takes long for it. */
	TRIAL_AHEAD_BYTES = 64 << 20,
	ROUNDS = 2, /* the better of two rounds counts: something else may have used the disk */
};

static const size_t lengths[] = {128 << 10, 256 << 10, 512 << 10, 1 << 20};
static const unsigned depths[] = {4, 8, 16, 32, 64};
enum {
	N_LENGTHS = sizeof(lengths) / sizeof(lengths[0]),
	N_DEPTHS = sizeof(depths) / sizeof(depths[0])
};

struct tuning {
	struct reader *reader;
	const struct file *file; /* the largest file */
	unsigned char *memory; /* [MEMORY_BYTES] */
	struct read_request *requests; /* [depth_max] */
	uint64_t trial_bytes; /* most bytes of a trial */
	uint64_t seed;
	bool failed;
};

static void submit(struct tuning *t, struct read_request *request, size_t bytes)
{
	uint64_t pages = (t->file->stamp.bytes - bytes) / SLOTS_PAGE + 1;
	size_t place = (size_t)(request - t->requests) % (MEMORY_BYTES / bytes);
	t->seed = t->seed * 6364136223846793005u + 1442695040888963407u;
	*request = (struct read_request){
		.offset = t->file->base + (t->seed >> 33) % pages * SLOTS_PAGE,
		.bytes = bytes,
		.need = bytes,
		.to = t->memory + place * bytes,
		.priority = READ_DEMAND,
	};
	reader_submit(t->reader, request);
}

/* Bytes per second of random reads of `bytes` bytes, `depth` at a time; 0 when one failed. */
static double trial(struct tuning *t, unsigned depth, size_t bytes)
{
	struct reader *reader = t->reader;
	struct read_request *finished[DEPTH];
	uint64_t start_ns = clock_ns(), now_ns = start_ns, read = 0;
	reader->depth = reader->prefetch_depth = depth;
	reader->read_bytes = bytes;
	for (unsigned i = 0; i < depth && i * bytes < TRIAL_AHEAD_BYTES; i++)
		submit(t, &t->requests[i], bytes);
	while (reader->busy > 0) {
		unsigned n = reader_wait(reader, 1000000000, finished, DEPTH);
		now_ns = clock_ns();
		for (unsigned i = 0; i < n; i++) {
			read += bytes;
			t->failed |= finished[i]->status != 0;
			if (!t->failed && now_ns - start_ns < TRIAL_NS && read < t->trial_bytes)
				submit(t, finished[i], bytes);
		}
	}
	return t->failed ? 0 : (double)read * 1e9 / (double)(now_ns - start_ns + 1);
}

static double best(const double *rates, unsigned n)
{
	double most = 0;
	for (unsigned i = 0; i < n; i++)
		most = rates[i] > most ? rates[i] : most;
	return most;
}

/* The shortest queue that gives this share of the best rate. */
static unsigned first_near(const double *rates, unsigned n, double share)
{
	double least = best(rates, n) * share;
	unsigned i = 0;
	while (i + 1 < n && rates[i] < least)
		i++;
	return i;
}

/* The longest reads that do. 1 MiB costs 18 ms of CPU time per GB, 512 KiB 38, 128 KiB 60, all at
 * the same 1.0 GB/s (registered buffers, virtio disk, measured). */
static unsigned last_near(const double *rates, unsigned n, double share)
{
	double least = best(rates, n) * share;
	unsigned i = n - 1;
	while (i > 0 && rates[i] < least)
		i--;
	return i;
}

static void measure_lengths(struct tuning *t, unsigned depth, size_t *bytes)
{
	double rates[N_LENGTHS] = {0};
	for (int round = 0; round < ROUNDS; round++)
		for (unsigned i = 0; i < N_LENGTHS && !t->failed; i++) {
			double rate = trial(t, depth, lengths[i]);
			rates[i] = rate > rates[i] ? rate : rates[i];
		}
	*bytes = lengths[last_near(rates, N_LENGTHS, 0.92)];
	for (unsigned i = 0; i < N_LENGTHS; i++)
		log_debug("reads of %zu KiB, %u at once: %.2f GiB/s", lengths[i] >> 10, depth,
			rates[i] / (1 << 30));
}

static void measure_depths(struct tuning *t, size_t bytes, unsigned *depth, unsigned *prefetch)
{
	double rates[N_DEPTHS] = {0};
	unsigned n = 1;
	while (n < N_DEPTHS && depths[n] <= t->reader->depth_max &&
		depths[n] <= t->reader->ops->depth_max)
		n++;
	for (int round = 0; round < ROUNDS; round++)
		for (unsigned i = 0; i < n && !t->failed; i++) {
			double rate = trial(t, depths[i], bytes);
			rates[i] = rate > rates[i] ? rate : rates[i];
		}
	*depth = depths[first_near(rates, n, 0.97)];
	*prefetch = depths[first_near(rates, n, 0.85)];
	/* A disk that was busy or throttled while it was measured is faster later. Demands, which
	 * all wait at the same time, get room for it. */
	while (*depth * bytes < DEMAND_BYTES && *depth * 2 <= depths[n - 1])
		*depth *= 2;
	for (unsigned i = 0; i < n; i++)
		log_debug("reads of %zu KiB, %u at once: %.2f GiB/s", bytes >> 10, depths[i],
			rates[i] / (1 << 30));
}

/* Sets depth and length; 0: the value for when nothing was measured. */
static void take(struct reader *reader, unsigned depth, size_t read_bytes)
{
	reader->depth = depth != 0 ? depth : DEPTH;
	reader->prefetch_depth = (reader->depth + 1) / 2;
	reader->read_bytes = read_bytes != 0 ? read_bytes : BYTES;
	reader->rate_ns = 0;
}

static void measure(struct tuning *t, const unsigned given_depth, const size_t given_bytes)
{
	struct reader *reader = t->reader;
	unsigned depth = given_depth, prefetch = 0;
	size_t bytes = given_bytes;
	unsigned some = depth != 0 && depth < DEPTH ? depth : DEPTH;
	trial(t, some, BYTES); /* during the first reads the disk may still be asleep */
	if (bytes == 0)
		measure_lengths(t, depth != 0 ? depth : DEPTH, &bytes);
	if (depth == 0)
		measure_depths(t, bytes, &depth, &prefetch);
	double rate = trial(t, depth, bytes);
	if (t->failed)
		take(reader, given_depth, given_bytes);
	else
		take(reader, depth, bytes);
	if (!t->failed && prefetch != 0)
		reader->prefetch_depth = prefetch;
	atomic_store_explicit(&reader->rate, (uint64_t)rate, memory_order_relaxed);
}

int reader_tune(struct reader *reader, unsigned depth, size_t read_bytes, struct error *err)
{
	struct tuning t = {.reader = reader, .file = &reader->files[0], .seed = clock_ns()};
	for (unsigned i = 1; i < reader->n_files; i++)
		if (reader->files[i].stamp.bytes > t.file->stamp.bytes)
			t.file = &reader->files[i];
	take(reader, depth, read_bytes);
	uint64_t file_bytes = t.file->stamp.bytes;
	uint64_t longest =
		read_bytes > lengths[N_LENGTHS - 1] ? read_bytes : lengths[N_LENGTHS - 1];
	if ((depth != 0 && read_bytes != 0) || file_bytes < 2 * longest)
		return 0;
	t.trial_bytes = file_bytes / (ROUNDS * (N_LENGTHS + N_DEPTHS));
	if (t.trial_bytes < TRIAL_BYTES_MIN)
		t.trial_bytes = TRIAL_BYTES_MIN;
	t.memory = aligned_alloc(SLOTS_PAGE, MEMORY_BYTES);
	t.requests = calloc(reader->depth_max, sizeof(*t.requests));
	if (t.memory != NULL && t.requests != NULL)
		measure(&t, depth, read_bytes);
	int status =
		t.memory != NULL && t.requests != NULL
			? 0
			: error_set(err, ENOMEM, "no memory to measure reads of %s", t.file->path);
	free(t.memory);
	free(t.requests);
	return status;
}
