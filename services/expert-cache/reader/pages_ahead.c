#include "services/expert-cache/reader/pages_ahead.h"

#include "shared/base/log.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Bytes at a time. The kernel holds a lock on the process's memory meanwhile, and a thread of the
 * lowest priority must not hold it long. */
#define STEP_BYTES ((size_t)64 << 10)
#define NICE_MOST 19
/* How often the thread checks whether to stop. */
#define IDLE_NS 1000000000ull

/* False: skip the rest. */
static bool populate(struct pages_ahead *ahead, uint32_t slot)
{
	unsigned char *at = slots_at(ahead->slots, slot), *end = at + ahead->slots->slot_bytes;
	for (; at < end; at += STEP_BYTES) {
		size_t left = (size_t)(end - at);
		if (atomic_load_explicit(&ahead->cancelled, memory_order_relaxed))
			return false;
		if (madvise(at, left < STEP_BYTES ? left : STEP_BYTES, MADV_POPULATE_WRITE) == 0)
			continue;
		log_notice("memory for experts is found when they are read: %s", strerror(errno));
		atomic_store_explicit(&ahead->refused, true, memory_order_relaxed);
		return false;
	}
	return true;
}

static void *pages_ahead_thread(void *arg)
{
	struct pages_ahead *ahead = arg;
	/* On Linux this concerns the calling thread only. */
	(void)setpriority(PRIO_PROCESS, 0, NICE_MOST);
	while (!atomic_load_explicit(&ahead->stop, memory_order_relaxed)) {
		uint32_t seen = doorbell_read(&ahead->given);
		/* Acquire pairs with the release in pages_ahead_give: slot[] is written. */
		uint32_t n = atomic_load_explicit(&ahead->n, memory_order_acquire);
		for (uint32_t i = 0; i < n && populate(ahead, ahead->slot[i]); i++)
			;
		if (n == 0) {
			doorbell_wait(&ahead->given, seen, 0, IDLE_NS);
			continue;
		}
		/* Release pairs with the acquire in pages_ahead_idle: when the worker sees this and
		 * returns pages, no more are added. */
		atomic_store_explicit(&ahead->n, 0, memory_order_release);
		doorbell_ring(&ahead->slots->hinted->work);
	}
	return NULL;
}

int pages_ahead_start(struct pages_ahead *ahead, const struct slots *slots, struct error *err)
{
	memset(ahead, 0, sizeof(*ahead));
	ahead->slots = slots;
	int code = pthread_create(&ahead->thread, NULL, pages_ahead_thread, ahead);
	if (code != 0)
		return error_thread(err, code, "the thread that finds pages cannot be started");
	ahead->running = true;
	return 0;
}

void pages_ahead_stop(struct pages_ahead *ahead)
{
	if (!ahead->running)
		return;
	atomic_store_explicit(&ahead->stop, true, memory_order_relaxed);
	pages_ahead_cancel(ahead);
	doorbell_ring(&ahead->given);
	pthread_join(ahead->thread, NULL);
	ahead->running = false;
}

bool pages_ahead_idle(const struct pages_ahead *ahead)
{
	return atomic_load_explicit(&ahead->n, memory_order_acquire) == 0;
}

bool pages_ahead_works(const struct pages_ahead *ahead)
{
	return ahead->running && !atomic_load_explicit(&ahead->refused, memory_order_relaxed);
}

void pages_ahead_give(struct pages_ahead *ahead, uint32_t n)
{
	atomic_store_explicit(&ahead->cancelled, false, memory_order_relaxed);
	atomic_store_explicit(&ahead->n, n, memory_order_release);
	doorbell_ring(&ahead->given);
}

void pages_ahead_cancel(struct pages_ahead *ahead)
{
	atomic_store_explicit(&ahead->cancelled, true, memory_order_relaxed);
}
