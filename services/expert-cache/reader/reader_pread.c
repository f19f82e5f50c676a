/* For kernels without io_uring for us (old ones, or in a sandbox): a few threads that call preadv.
 */
#include "services/expert-cache/reader/reader_io.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Enough to keep a disk busy; a waiting thread costs little. */
enum { THREADS_MAX = 16 };

struct queue {
	struct read_piece *first, **last;
};

struct preads {
	const int *fds; /* [n_files], then [n_files] with O_DIRECT; owned by the reader */
	unsigned n_files;
	pthread_mutex_t lock; /* protects everything below */
	pthread_cond_t started, ended; /* something was added to the queue: waiting, finished */
	struct queue waiting, finished;
	bool stop;
	unsigned n_threads;
	pthread_t threads[THREADS_MAX];
};

static void queue_put(struct queue *queue, struct read_piece *piece)
{
	piece->next = NULL;
	*queue->last = piece;
	queue->last = &piece->next;
}

static struct read_piece *queue_take(struct queue *queue)
{
	struct read_piece *piece = queue->first;
	if (piece == NULL)
		return NULL;
	queue->first = piece->next;
	if (queue->first == NULL)
		queue->last = &queue->first;
	return piece;
}

static void *read_thread(void *arg)
{
	struct preads *preads = arg;
	pthread_mutex_lock(&preads->lock);
	while (!preads->stop) {
		struct read_piece *piece = queue_take(&preads->waiting);
		if (piece == NULL) {
			pthread_cond_wait(&preads->started, &preads->lock);
			continue;
		}
		pthread_mutex_unlock(&preads->lock);
		unsigned fd = piece->plain ? piece->file : preads->n_files + piece->file;
		ssize_t n = preadv(preads->fds[fd], &piece->iov[piece->first_iov],
			(int)(piece->n_iov - piece->first_iov), (off_t)piece->position);
		piece->result = n < 0 ? -errno : n;
		pthread_mutex_lock(&preads->lock);
		queue_put(&preads->finished, piece);
		pthread_cond_signal(&preads->ended);
	}
	pthread_mutex_unlock(&preads->lock);
	return NULL;
}

static void preads_close(void *io)
{
	struct preads *preads = io;
	pthread_mutex_lock(&preads->lock);
	preads->stop = true;
	pthread_cond_broadcast(&preads->started);
	pthread_mutex_unlock(&preads->lock);
	for (unsigned i = 0; i < preads->n_threads; i++)
		pthread_join(preads->threads[i], NULL);
	pthread_cond_destroy(&preads->started);
	pthread_cond_destroy(&preads->ended);
	pthread_mutex_destroy(&preads->lock);
	free(preads);
}

static int preads_open(
	const int *fds, unsigned n_files, unsigned depth, void **io, struct error *err)
{
	struct preads *preads = calloc(1, sizeof(*preads));
	if (preads == NULL)
		return error_set(err, ENOMEM, "no memory for read threads");
	preads->fds = fds;
	preads->n_files = n_files;
	preads->waiting.last = &preads->waiting.first;
	preads->finished.last = &preads->finished.first;
	pthread_condattr_t clock;
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_mutex_init(&preads->lock, NULL);
	pthread_cond_init(&preads->started, &clock);
	pthread_cond_init(&preads->ended, &clock);
	pthread_condattr_destroy(&clock);
	unsigned n = depth < THREADS_MAX ? depth : THREADS_MAX;
	for (; preads->n_threads < n; preads->n_threads++) {
		int code = pthread_create(
			&preads->threads[preads->n_threads], NULL, read_thread, preads);
		if (code != 0) {
			preads_close(preads);
			return error_thread(err, code, "a read thread cannot be started");
		}
	}
	*io = preads;
	return 0;
}

static void preads_start(void *io, struct read_piece *piece)
{
	struct preads *preads = io;
	pthread_mutex_lock(&preads->lock);
	queue_put(&preads->waiting, piece);
	pthread_cond_signal(&preads->started);
	pthread_mutex_unlock(&preads->lock);
}

static struct read_piece *preads_next(
	void *io, uint64_t timeout_ns, const struct doorbell_seen *seen)
{
	struct preads *preads = io;
	struct timespec until;
	if (seen != NULL)
		timeout_ns = reader_polled(timeout_ns);
	clock_gettime(CLOCK_MONOTONIC, &until);
	uint64_t end_ns = (uint64_t)until.tv_nsec + timeout_ns;
	until.tv_sec += (time_t)(end_ns / 1000000000);
	until.tv_nsec = (long)(end_ns % 1000000000);
	pthread_mutex_lock(&preads->lock);
	struct read_piece *piece = queue_take(&preads->finished);
	int code = 0;
	while (piece == NULL && timeout_ns > 0 && code == 0) {
		code = pthread_cond_timedwait(&preads->ended, &preads->lock, &until);
		piece = queue_take(&preads->finished);
	}
	pthread_mutex_unlock(&preads->lock);
	return piece;
}

const struct reader_io_ops reader_io_pread = {
	.name = "pread",
	.depth_max = THREADS_MAX,
	.open = preads_open,
	.close = preads_close,
	.start = preads_start,
	.next = preads_next,
};
