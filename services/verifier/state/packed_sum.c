#include "services/verifier/state/packed_sum.h"

#include "shared/base/checksum.h"
#include "shared/base/limits.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define BLOCK_BYTES ((size_t)16 << 20)

struct summing {
	const unsigned char *data;
	size_t bytes, n_blocks;
	uint64_t *sums; /* [n_blocks] */
	_Atomic size_t next;
	bool canceled;
};

static void work(struct summing *s, bool (*progress)(void *arg), void *arg)
{
	size_t i;

	while ((i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < s->n_blocks) {
		size_t at = i * BLOCK_BYTES, left = s->bytes - at;

		s->sums[i] = checksum(i, s->data + at, left < BLOCK_BYTES ? left : BLOCK_BYTES);
		if (progress != NULL && !progress(arg)) {
			s->canceled = true;
			/* The helpers find no more blocks. */
			atomic_store_explicit(&s->next, s->n_blocks, memory_order_relaxed);
		}
	}
}

static void *helper(void *arg)
{
	work(arg, NULL, NULL);
	return NULL;
}

int packed_sum(const void *data, size_t bytes, uint32_t n_threads, bool (*progress)(void *arg),
	void *arg, uint64_t *sum)
{
	struct summing s = {
		.data = data, .bytes = bytes, .n_blocks = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES};
	pthread_t threads[LIMIT_THREADS];
	uint32_t started = 0;

	s.sums = calloc(s.n_blocks + 1, sizeof(*s.sums));
	if (s.sums == NULL)
		return -ENOMEM;
	/* With fewer helpers than wanted it only takes longer. */
	while (started + 1 < n_threads && started < LIMIT_THREADS && started + 1 < s.n_blocks &&
		pthread_create(&threads[started], NULL, helper, &s) == 0)
		started++;
	work(&s, progress, arg);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	*sum = checksum(bytes, s.sums, s.n_blocks * sizeof(*s.sums));
	free(s.sums);
	return s.canceled ? -ECANCELED : 0;
}
