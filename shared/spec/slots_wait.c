/*
 * How long the verifier waits for demanded experts, and when it reads them from the file instead.
 * If the cache is gone it does so at once. After its patience it reads all of them if the transfer
 * worker hangs, and one at a time if the worker is slow.
 */
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/timeline.h"
#include "shared/spec/slots_source_private.h"

/* Longest sleep on arrivals; then the cache's life and the patience are checked again. */
#define WAIT_NS_MAX 2000000ull

/* A demand waits behind loads in flight. If this many loads pass in a row without one of ours, the
 * cache has forgotten us. Never longer than PATIENCE_NS_MAX, whatever the header says. */
#define PATIENCE_LOADS 32u
#define PATIENCE_NS_MAX 5000000000ull

bool slots_cache_alive(const struct experts_cached *cached)
{
	return cached->region.fd >= 0 && (cached->options.cache_alive == NULL ||
						 cached->options.cache_alive(cached->options.arg));
}

struct doorbell *slots_arrivals(const struct experts_cached *cached)
{
	return device_tier_used(cached) ? &cached->device.slots.header->arrivals
					: &cached->slots.header->arrivals;
}

bool slots_worker_alive(const struct experts_cached *cached)
{
	return cached->hung_beat_ns == 0 || atomic_load_explicit(&cached->slots.header->beat_ns,
						    memory_order_relaxed) != cached->hung_beat_ns;
}

/* Over a slow link, reading through page faults what the link is about to bring would only be
 * slower. */
uint64_t slots_patience(const struct experts_cached *cached)
{
	uint64_t load_ns =
		atomic_load_explicit(&cached->slots.header->load_ns, memory_order_relaxed);
	if (device_tier_used(cached)) {
		uint64_t copy_ns = atomic_load_explicit(
			&cached->device.slots.header->load_ns, memory_order_relaxed);
		load_ns = copy_ns > load_ns ? copy_ns : load_ns;
	}
	uint64_t wait_ns = load_ns < PATIENCE_NS_MAX / PATIENCE_LOADS ? load_ns * PATIENCE_LOADS
								      : PATIENCE_NS_MAX;
	return wait_ns > cached->options.patience_ns ? wait_ns : cached->options.patience_ns;
}

/* How many of the missing experts are no longer waited for. All when the cache is gone, or when its
 * worker has not even looked at the demands. One at a time when it is only slow, so that it and the
 * mapping of the file work in parallel. */
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
	uint64_t waited = start - cached->progress_ns, most = slots_patience(cached);
	uint32_t give_up = given_up(cached, waited, most);
	for (uint32_t i = 0; i < give_up; i++)
		cached->unserved[cached->n_unserved++] = cached->missing[--cached->n_missing];
	if (give_up > 0)
		return;
	uint64_t left = most - waited;
	doorbell_wait(slots_arrivals(cached), seen, cached->options.spin_ns,
		left < WAIT_NS_MAX ? left : WAIT_NS_MAX);
	uint64_t slept = clock_ns() - start;
	cached->source.stats.wait_ns += slept;
	counter_add(&cached->slots.counts[cached->layer].wait_ns, slept);
	if (device_tier_used(cached)) {
		struct device_header *header = cached->device.slots.header;
		counter_add(&header->wait_ns, slept);
		counter_add(&header->slot_waits, cached->slept != cached->iteration);
		cached->slept = cached->iteration;
	}
	if (timeline_on())
		timeline_end(start, TIMELINE_EXPERT_WAIT, 0, cached->layer, cached->n_missing);
}
