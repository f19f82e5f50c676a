#include "shared/model/kv/snapshot_sums.h"

#include "shared/base/checksum.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct job {
	uint32_t snapshot;
	const void *content;
	_Atomic uint64_t *sum;
};

struct snapshot_sums {
	size_t bytes;
	uint32_t n;
	pthread_t thread;
	bool started;

	pthread_mutex_t lock; /* of all that follows; free while a sum is made */
	pthread_cond_t asked;
	struct job *jobs; /* [n] a ring: first the done ones, then those that are asked for */
	uint64_t done, next, end; /* free-running: the first done one, the first to do, the end */
	bool stop;
};

uint64_t snapshot_sum(const void *content, size_t bytes)
{
	return checksum(0, content, bytes) | 1;
}

/* Under the lock, which is free meanwhile. */
static void make(struct snapshot_sums *s)
{
	const struct job job = s->jobs[s->next % s->n];

	pthread_mutex_unlock(&s->lock);
	/* Release pairs with the acquire in snapshots.c: a successor compares a sum only when it is
	 * there. */
	atomic_store_explicit(job.sum, snapshot_sum(job.content, s->bytes), memory_order_release);
	pthread_mutex_lock(&s->lock);
	s->next++;
}

static void *run(void *arg)
{
	struct snapshot_sums *s = arg;

	pthread_setname_np(pthread_self(), "state sums");
	pthread_mutex_lock(&s->lock);
	while (!s->stop || s->next != s->end) {
		if (s->next != s->end)
			make(s);
		else
			pthread_cond_wait(&s->asked, &s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

int snapshot_sums_start(uint32_t n, size_t bytes, struct snapshot_sums **out, struct error *err)
{
	struct snapshot_sums *s = calloc(1, sizeof(*s));

	*out = NULL;
	if (!s)
		return error_set(err, ENOMEM, "no memory for checksums of recurrent states");
	s->n = n;
	s->bytes = bytes;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->asked, NULL);
	s->jobs = calloc(n, sizeof(*s->jobs));
	int rc = s->jobs ? 0 : error_set(err, ENOMEM, "no memory for a list of %u states", n);
	if (rc == 0 && (rc = pthread_create(&s->thread, NULL, run, s)) != 0)
		rc = error_thread(
			err, rc, "the thread for checksums of recurrent states cannot be started");
	s->started = rc == 0;
	if (rc != 0)
		snapshot_sums_stop(&s);
	*out = s;
	return rc;
}

void snapshot_sums_stop(struct snapshot_sums **sums)
{
	struct snapshot_sums *s = *sums;

	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_signal(&s->asked);
	pthread_mutex_unlock(&s->lock);
	if (s->started)
		pthread_join(s->thread, NULL);
	pthread_cond_destroy(&s->asked);
	pthread_mutex_destroy(&s->lock);
	free(s->jobs);
	free(s);
	*sums = NULL;
}

void snapshot_sums_ask(
	struct snapshot_sums *s, uint32_t snapshot, const void *content, _Atomic uint64_t *sum)
{
	pthread_mutex_lock(&s->lock);
	s->jobs[s->end++ % s->n] = (struct job){snapshot, content, sum};
	pthread_cond_signal(&s->asked);
	pthread_mutex_unlock(&s->lock);
}

bool snapshot_sums_done(struct snapshot_sums *s, uint32_t *snapshot)
{
	pthread_mutex_lock(&s->lock);
	bool done = s->done != s->next;
	if (done)
		*snapshot = s->jobs[s->done++ % s->n].snapshot;
	pthread_mutex_unlock(&s->lock);
	return done;
}
