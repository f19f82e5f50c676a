#include "client/cli/doctor/measure.h"

#include "shared/base/limits.h"
#include "shared/base/median.h"
#include "shared/measure/hand_over.h"

enum {
	READ_BYTES_MIN = 8 << 20,
	READ_BYTES_MAX = 256 << 20,
	HAND_OVERS = 501,
	SPIN_NS = 50000, /* as the threads of a pass */
	ROUNDS = 3,
};

static size_t read_bytes_of(uint64_t model_bytes)
{
	if (model_bytes == 0 || model_bytes > READ_BYTES_MAX)
		return READ_BYTES_MAX;
	return model_bytes < READ_BYTES_MIN ? READ_BYTES_MIN : (size_t)model_bytes;
}

/* 1, 2, 4 and so on, and all. */
static void choose_counts(uint32_t threads, struct measured *out)
{
	out->n_counts = 0;
	for (uint32_t n = 1; n < threads && out->n_counts < MEASURE_COUNTS - 1; n *= 2)
		out->counts[out->n_counts++].threads = n;
	out->counts[out->n_counts++].threads = threads;
}

static double hand_over(struct pool *pool)
{
	double us[HAND_OVERS];

	for (int i = 0; i < HAND_OVERS; i++)
		us[i] = hand_over_us(pool);
	return median(us, HAND_OVERS);
}

static int measure_count(const struct cpus *cpus, const struct peaks_memory *memory, uint32_t i,
	struct measured *out, struct error *err)
{
	uint32_t threads = out->counts[i].threads;
	struct peaks rounds[ROUNDS];
	struct pool *pool;
	int rc = pool_create(threads, threads >= cpus->cores, SPIN_NS, &pool, err);

	if (rc != 0)
		return rc;
	if (i + 1 < out->n_counts) {
		out->counts[i].gb_s = peaks_read(memory, pool);
	} else {
		for (int round = 0; round < ROUNDS; round++)
			peaks_measure(memory, pool, &rounds[round]);
		out->peaks = peaks_median(rounds, ROUNDS);
		out->counts[i].gb_s = out->peaks.read_gb_s;
		out->hand_over_us = threads > 1 ? hand_over(pool) : 0;
	}
	pool_destroy(&pool);
	return 0;
}

int measure_memory(
	const struct cpus *cpus, uint64_t model_bytes, struct measured *out, struct error *err)
{
	struct peaks_memory memory;
	int rc = peaks_memory_get(&memory, read_bytes_of(model_bytes), err);

	if (rc != 0)
		return rc;
	out->read_bytes = memory.bytes;
	choose_counts(cpus->threads, out);
	for (uint32_t i = 0; rc == 0 && i < out->n_counts; i++)
		rc = measure_count(cpus, &memory, i, out, err);
	peaks_memory_put(&memory);
	return rc;
}
