/*
 * How long the verifier waits for experts that it has demanded, and when it reads them from the
 * file instead: at once when the cache is gone; after its patience all of them when the transfer
 * worker hangs, one by one when it is slow.
 */
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/timeline.h"
#include "shared/spec/slots_source_private.h"

/* How long one sleep on arrivals lasts at most: then the cache's life and the patience are looked at again. */
#define WAIT_NS_MAX 2000000ull

/* A demand waits behind what is in flight already; so many loads in a row, and nothing of ours
 * among them, is a cache that has forgotten us. But never longer than this, whatever the header
 * says. */
#define PATIENCE_LOADS 32u
#define PATIENCE_NS_MAX 5000000000ull

bool slots_cache_alive(const struct experts_cached *cached)
{
	return cached->region.fd >= 0 && (cached->options.cache_alive == NULL ||
						 cached->options.cache_alive(cached->options.arg));
}

bool slots_worker_alive(const struct experts_cached *cached)
{
	return cached->hung_beat_ns == 0 || atomic_load_explicit(&cached->slots.header->beat_ns,
						    memory_order_relaxed) != cached->hung_beat_ns;
}

/* A slow link must not make us read through page faults what it is about to bring: that would only be slower. */
static uint64_t patience(const struct experts_cached *cached)
{
	uint64_t load_ns =
		atomic_load_explicit(&cached->slots.header->load_ns, memory_order_relaxed);
	uint64_t wait_ns = load_ns < PATIENCE_NS_MAX / PATIENCE_LOADS ? load_ns * PATIENCE_LOADS
								      : PATIENCE_NS_MAX;
	return wait_ns > cached->options.patience_ns ? wait_ns : cached->options.patience_ns;
}

/* How many of those that are missing are not waited for any longer. All when the cache is gone
 * or its worker has not even looked at what was demanded; one at a time when it is merely slow,
 * so that it and the file's mapping work side by side. */
static uint32_t given_up(struct experts_cached *cached, uint64_t waited_ns, uint64_t patience_ns)
{
	if (!slots_cache_alive(cached))
		return cached->n_missing;
	if (waited_ns < patience_ns)
		return 0;
	uint64_t beat_ns =
		atomic_load_explicit(&cached->slots.header->beat_ns, memory_order_relaxed);
	if (beat_ns == 0 || beat_ns >= cached->progress_ns)
		return 1;
	cached->hung_beat_ns = beat_ns;
	return cached->n_missing;
}

void slots_wait_or_give_up(struct experts_cached *cached, uint32_t seen)
{
	uint64_t start = clock_ns();
	uint64_t waited = start - cached->progress_ns, most = patience(cached);
	uint32_t give_up = given_up(cached, waited, most);
	for (uint32_t i = 0; i < give_up; i++)
		cached->unserved[cached->n_unserved++] = cached->missing[--cached->n_missing];
	if (give_up > 0)
		return;
	uint64_t left = most - waited;
	doorbell_wait(&cached->slots.header->arrivals, seen, cached->options.spin_ns,
		left < WAIT_NS_MAX ? left : WAIT_NS_MAX);
	uint64_t slept = clock_ns() - start;
	cached->source.stats.wait_ns += slept;
	counter_add(&cached->slots.counts[cached->layer].wait_ns, slept);
	if (timeline_on())
		timeline_end(start, TIMELINE_EXPERT_WAIT, 0, cached->layer, cached->n_missing);
}
