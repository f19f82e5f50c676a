/* Where the threads of a pool run, how many take part, and what they do when other processes want
 * their CPUs. */
#include "kernels/pool_internal.h"
#include "shared/base/clock.h"
#include "shared/base/cpu_delay.h"
#include "shared/base/cpus.h"

/* Longer than any of our own pauses between two readings of the clock, and shorter than the time
 * that a scheduler gives another process. */
#define CUT_NS 1000000u
#define SLICE_NS_MIN 2000000u
#define SLICE_NS_MAX 20000000u
/* The caller's CPU counts as contended when it could not run for more than this part (a tenth) of
 * the time between two checks. */
#define LOST_SHARE 10
/* If the CPU comes back from a yield sooner than this, nobody else wanted it. */
#define YIELD_NS 20000u
#define VAIN_YIELDS 8

static void bind_to(struct pool_thread *t, uint32_t cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	/* Only advice: if it fails, the CPU has just gone away, and the next check sees another
	 * mask. */
	(void)pthread_setaffinity_np(t->thread, sizeof(one), &one);
}

static void look(struct pool_thread *t, cpu_set_t *mask)
{
	if (pthread_getaffinity_np(t->thread, sizeof(*mask), mask) != 0)
		*mask = t->seen;
}

void pool_place(struct pool *pool)
{
	struct cpu_place places[LIMIT_THREADS];
	uint32_t cpus = cpus_places(&cpus_files, &pool->mask, places, pool->threads);
	uint32_t active = pool->used ? pool->used : cpus, nodes = 1;
	uint32_t before = atomic_load_explicit(&pool->active, memory_order_relaxed);

	for (uint32_t i = 0; i < active && pool->pin; i++) {
		const struct cpu_place *place = &places[i % cpus];

		bind_to(&pool->of[i], place->cpu);
		atomic_store_explicit(&pool->of[i].node, place->node, memory_order_relaxed);
		nodes += i > 0 && place->node != places[(i - 1) % cpus].node;
	}
	for (uint32_t i = 0; i < pool->threads; i++)
		look(&pool->of[i], &pool->of[i].seen);
	atomic_store_explicit(&pool->nodes, nodes, memory_order_relaxed);
	/* A thread that spins on a CPU that another thread needs makes both wait. */
	pool->crowded = active > cpus;
	atomic_store_explicit(
		&pool->spin_ns, pool->crowded ? 0 : pool->spin_ns_wanted, memory_order_relaxed);
	atomic_store(&pool->active, active);
	/* Threads that no longer take part must not sleep where runs wake a thread. */
	if (active != before)
		pool_rouse(pool);
}

/* The caller's CPU is contended. It exchanges places with another thread, which loses less there,
 * because the others need not wait for it to start a run. */
static void give_place_away(struct pool *pool)
{
	uint32_t active = atomic_load_explicit(&pool->active, memory_order_relaxed);
	struct pool_thread *caller = &pool->of[0];

	for (uint32_t i = active - 1; i > 0; i--) {
		struct pool_thread *t = &pool->of[i];
		cpu_set_t mine = caller->seen, its = t->seen;

		if (atomic_load_explicit(&t->contended, memory_order_relaxed) ||
			CPU_COUNT(&mine) != 1 || CPU_COUNT(&its) != 1)
			continue;
		(void)pthread_setaffinity_np(caller->thread, sizeof(its), &its);
		(void)pthread_setaffinity_np(t->thread, sizeof(mine), &mine);
		look(caller, &caller->seen);
		look(t, &t->seen);
		break;
	}
}

void pool_check(struct pool *pool)
{
	uint64_t now = clock_ns();
	bool changed = false;
	cpu_set_t all;

	pool->unchecked_runs = 0;
	CPU_ZERO(&all);
	/* Together, the masks of all threads are what is left of the process's. A thread whose CPU
	 * went away was given others; a thread that takes no part has kept its mask, so that a CPU
	 * that comes back shows in it. */
	for (uint32_t i = 0; i < pool->threads; i++) {
		cpu_set_t mask;

		look(&pool->of[i], &mask);
		changed = changed || !CPU_EQUAL(&mask, &pool->of[i].seen);
		CPU_OR(&all, &all, &mask);
	}
	if (changed && CPU_COUNT(&all) > 0) {
		pool->mask = all;
		pool_place(pool);
	} else if (pool->pin && pool->of[0].lost_ns > (now - pool->checked_ns) / LOST_SHARE) {
		give_place_away(pool);
	}
	pool->of[0].lost_ns = 0;
	pool->checked_ns = now;
}

void pool_watch_init(struct pool_thread *t)
{
	t->schedstat = cpu_delay_open();
	t->delay_ns = cpu_delay_ns(t->schedstat);
}

void pool_watch(struct pool_thread *t, uint64_t began_ns, uint64_t now_ns)
{
	uint64_t delay, before = t->delay_ns;

	if (now_ns - began_ns < CUT_NS || t->schedstat < 0)
		return;
	delay = cpu_delay_ns(t->schedstat);
	if (delay - before < CUT_NS)
		return;
	t->delay_ns = delay;
	t->lost_ns += delay - before;
	/* The time that it ran before it was stopped is the time that the kernel allows. */
	if (atomic_load_explicit(&t->contended, memory_order_relaxed))
		t->slice_ns = began_ns - t->slice_began_ns;
	else
		t->slice_ns = 4 * CUT_NS;
	if (t->slice_ns < SLICE_NS_MIN)
		t->slice_ns = SLICE_NS_MIN;
	if (t->slice_ns > SLICE_NS_MAX)
		t->slice_ns = SLICE_NS_MAX;
	t->slice_began_ns = now_ns;
	t->vain_yields = 0;
	atomic_store_explicit(&t->contended, true, memory_order_relaxed);
}

bool pool_must_leave(const struct pool_thread *t, uint64_t now_ns)
{
	return now_ns - t->slice_began_ns > t->slice_ns - t->slice_ns / 4;
}

uint64_t pool_leave(struct pool_thread *t)
{
	uint64_t began = clock_ns();

	sched_yield();
	t->slice_began_ns = clock_ns();
	if (t->slice_began_ns - began > YIELD_NS) {
		/* It may be allowed more than we know. */
		t->slice_ns += t->slice_ns / 16;
		t->vain_yields = 0;
	} else if (++t->vain_yields >= VAIN_YIELDS) {
		atomic_store_explicit(&t->contended, false, memory_order_relaxed);
	}
	return t->slice_began_ns;
}
