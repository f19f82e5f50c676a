#include "services/expert-cache/digest.h"

#include "shared/base/clock.h"
#include "shared/base/cpu_delay.h"
#include "shared/base/log.h"
#include "shared/model/gguf/gguf_watch.h"
#include "shared/spec/slots.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NICE_MOST 19
/* linux/ioprio.h: a class that gets the disk only when nobody else wants it. */
#define IOPRIO_WHO_PROCESS 1
#define IOPRIO_IDLE (3 << 13)
/* How often the files' times are checked. */
#define LOOK_NS 50000000ull
#define SCRUB_NS 1000000000ull
/* Longest pause between two blocks. */
#define PAUSE_NS_MAX 250000000ull
/* For this long there are no pauses: a model of a gigabyte or two has its digest by then. */
#define START_NS 1000000000ull
/* A pause is this many times as long as the last block took. */
enum { PAUSES_IDLE = 1, PAUSES_BUSY = 19 };

/* Reads past the page cache if possible, because the bytes are not needed again. 0 or -errno. */
static int read_block(
	const struct digest *digest, const struct digest_block *block, unsigned char *to)
{
	int fd = digest->fds[block->part];
	size_t got = 0, wanted = (block->bytes + SLOTS_PAGE - 1) / SLOTS_PAGE * SLOTS_PAGE;
	while (got < block->bytes) {
		/* A short read may end anywhere, so the rest goes through the page cache. */
		bool direct = fd >= 0 && got == 0;
		ssize_t n =
			pread(direct ? fd : gguf_part_at(digest->gguf, block->part)->fd, to + got,
				direct ? wanted : block->bytes - got, (off_t)(block->offset + got));
		if (n < 0 && direct && errno == EINVAL) {
			fd = -1;
			continue;
		}
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ESTALE;
		got += (size_t)n;
	}
	return 0;
}

static bool stopping(const struct digest *digest)
{
	return atomic_load_explicit(&digest->stop, memory_order_acquire);
}

static void pause_ns(struct digest *digest, uint64_t ns)
{
	uint32_t seen = doorbell_read(&digest->stopped);
	if (!stopping(digest))
		doorbell_wait(&digest->stopped, seen, 0, ns);
}

/* A block that cannot be read proves nothing; those who need its bytes will notice. */
static bool digest_of(
	struct digest *digest, uint64_t i, unsigned char *buffer, struct block_digest *out)
{
	const struct digest_block block = file_digest_block(digest->gguf, i);
	int code = read_block(digest, &block, buffer);
	if (code == 0) {
		*out = file_digest_of(buffer, block.bytes);
		return true;
	}
	if (!atomic_exchange_explicit(&digest->unreadable, true, memory_order_relaxed))
		log_notice("%s: no digest of %zu bytes at %" PRIu64 ": %s",
			gguf_part_at(digest->gguf, block.part)->path, block.bytes, block.offset,
			strerror(-code));
	return false;
}

static bool is_whole(const struct digest *digest, uint64_t *state)
{
	size_t part;
	return gguf_state_now(digest->gguf, state, &part) == GGUF_WHOLE;
}

/* True when block i still has its digest; false also when it cannot be read. */
static bool compare(struct digest *digest, uint64_t i, unsigned char *buffer)
{
	struct file_digest *table = digest->table;
	struct block_digest now;
	if (!digest_of(digest, i, buffer, &now))
		return false;
	if (now.low == table->digest[i].low && now.high == table->digest[i].high)
		return true;
	uint64_t none = 0;
	atomic_compare_exchange_strong_explicit(
		&table->differs, &none, i + 1, memory_order_release, memory_order_relaxed);
	return false;
}

/* Gives one more block its digest, if the files stay in the state in which the others got theirs.
 */
static void add_block(struct digest *digest, uint64_t i, unsigned char *buffer)
{
	struct file_digest *table = digest->table;
	uint64_t of = atomic_load_explicit(&table->state, memory_order_relaxed), state;
	struct block_digest now;
	if (!digest_of(digest, i, buffer, &now) || !is_whole(digest, &state) || state != of)
		return;
	table->digest[i] = now;
	/* Release: a reader that sees it counted sees it written. */
	atomic_store_explicit(&table->n_done, i + 1, memory_order_release);
}

/* schedstat: of the calling thread (cpu_delay.h). Returns how long it pauses then. */
static uint64_t work(
	struct digest *digest, uint64_t *scrubbed, unsigned char *buffer, int schedstat)
{
	struct file_digest *table = digest->table;
	uint64_t start_ns = clock_ns(), delay_ns = cpu_delay_ns(schedstat);
	pthread_mutex_lock(&digest->turn);
	uint64_t n = atomic_load_explicit(&table->n_done, memory_order_relaxed);
	bool all = n == table->n_blocks;
	if (!all)
		add_block(digest, n, buffer);
	else if (n > 0)
		(void)compare(digest, (*scrubbed)++ % n, buffer);
	pthread_mutex_unlock(&digest->turn);
	if (all)
		return SCRUB_NS;
	if (clock_ns() < digest->start_ns + START_NS)
		return 1;
	uint64_t took_ns = clock_ns() - start_ns;
	/* It may run when the others wait for each other, and then keeps one of them from its CPU. */
	bool busy = (digest->busy != NULL && digest->busy(digest->arg)) ||
		    cpu_delay_ns(schedstat) - delay_ns > took_ns / 4;
	uint64_t ns = took_ns * (busy ? PAUSES_BUSY : PAUSES_IDLE);
	/* No progress: the files are being touched, or cannot be read. */
	if (atomic_load_explicit(&table->n_done, memory_order_relaxed) == n)
		return PAUSE_NS_MAX;
	return ns < PAUSE_NS_MAX ? ns + 1 : PAUSE_NS_MAX;
}

static unsigned char *make_buffer(void)
{
	void *buffer;
	return posix_memalign(&buffer, SLOTS_PAGE, DIGEST_BLOCK_BYTES) == 0 ? buffer : NULL;
}

static void *background_thread(void *arg)
{
	struct digest *digest = arg;
	unsigned char *buffer = make_buffer();
	uint64_t scrubbed = 0;
	int schedstat = cpu_delay_open();
	/* On Linux this concerns the calling thread only. */
	(void)setpriority(PRIO_PROCESS, 0, NICE_MOST);
	(void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE);
	while (buffer != NULL && !stopping(digest))
		pause_ns(digest, work(digest, &scrubbed, buffer, schedstat));
	if (schedstat >= 0)
		close(schedstat);
	free(buffer);
	return NULL;
}

/* True when all blocks that have a digest still match it, and nothing touched the files meanwhile.
 */
static bool compare_all(struct digest *digest, uint64_t n, uint64_t state, unsigned char *buffer)
{
	for (uint64_t i = 0; i < n; i++)
		if (stopping(digest) || !compare(digest, i, buffer))
			return false;
	uint64_t after;
	return is_whole(digest, &after) && after == state;
}

static void follow(struct digest *digest, uint64_t state, unsigned char *buffer)
{
	struct file_digest *table = digest->table;
	pthread_mutex_lock(&digest->turn);
	uint64_t n = atomic_load_explicit(&table->n_done, memory_order_relaxed);
	if (compare_all(digest, n, state, buffer)) {
		/* Nobody knows what the blocks without a digest were. */
		if (n < table->n_blocks)
			atomic_store_explicit(&table->origin, state, memory_order_relaxed);
		/* Release: a reader that sees the state sees its origin. */
		atomic_store_explicit(&table->state, state, memory_order_release);
		atomic_store_explicit(&digest->n_compared, n, memory_order_relaxed);
		atomic_fetch_add_explicit(&digest->compared, 1, memory_order_release);
	}
	pthread_mutex_unlock(&digest->turn);
}

static void *comparing_thread(void *arg)
{
	struct digest *digest = arg;
	unsigned char *buffer = make_buffer();
	while (buffer != NULL && !stopping(digest)) {
		uint64_t state;
		if (atomic_load_explicit(&digest->table->differs, memory_order_relaxed) == 0 &&
			is_whole(digest, &state) &&
			state != atomic_load_explicit(&digest->table->state, memory_order_relaxed))
			follow(digest, state, buffer);
		pause_ns(digest, LOOK_NS);
	}
	free(buffer);
	return NULL;
}

static int open_files(struct digest *digest, struct error *err)
{
	size_t n = gguf_n_parts(digest->gguf);
	digest->fds = malloc(n * sizeof(*digest->fds));
	if (digest->fds == NULL)
		return error_set(err, ENOMEM, "no memory to digest %zu files", n);
	for (size_t i = 0; i < n; i++) {
		char path[48];
		snprintf(path, sizeof(path), "/proc/self/fd/%d", gguf_part_at(digest->gguf, i)->fd);
		digest->fds[i] = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	}
	return 0;
}

int digest_start(struct digest *digest, const struct gguf *gguf, struct file_digest *table,
	bool (*busy)(void *arg), void *arg, struct error *err)
{
	static void *(*const threads[])(void *) = {background_thread, comparing_thread};
	*digest = (struct digest){.gguf = gguf,
		.table = table,
		.origin = atomic_load_explicit(&table->origin, memory_order_relaxed),
		.busy = busy,
		.arg = arg,
		.start_ns = clock_ns()};
	int status = open_files(digest, err);
	if (status != 0)
		return status;
	pthread_mutex_init(&digest->turn, NULL);
	for (; digest->n_threads < 2; digest->n_threads++) {
		int code = pthread_create(&digest->threads[digest->n_threads], NULL,
			threads[digest->n_threads], digest);
		if (code == 0)
			continue;
		digest_stop(digest);
		return error_thread(
			err, code, "the thread that digests the model cannot be started");
	}
	return 0;
}

void digest_stop(struct digest *digest)
{
	if (digest->fds == NULL)
		return;
	atomic_store_explicit(&digest->stop, true, memory_order_release);
	doorbell_ring(&digest->stopped);
	for (unsigned i = 0; i < digest->n_threads; i++)
		pthread_join(digest->threads[i], NULL);
	pthread_mutex_destroy(&digest->turn);
	for (size_t i = 0; i < gguf_n_parts(digest->gguf); i++)
		if (digest->fds[i] >= 0)
			close(digest->fds[i]);
	free(digest->fds);
	digest->fds = NULL;
}

int digest_check(const struct digest *digest, struct error *err)
{
	uint64_t differs = digest->table != NULL ? atomic_load_explicit(&digest->table->differs,
							   memory_order_acquire)
						 : 0;
	if (differs == 0 || differs > digest->table->n_blocks)
		return 0;
	const struct digest_block block = file_digest_block(digest->gguf, differs - 1);
	error_set(err, ESTALE,
		"the file was written to while it was in use: the digest of %zu bytes at %" PRIu64
		" has changed; its model is lost, and a restart serves the file as it is then",
		block.bytes, block.offset);
	return gguf_error_prefix(err, -ESTALE, gguf_part_at(digest->gguf, block.part)->path);
}

bool digest_proves(const struct digest *digest)
{
	const struct file_digest *table = digest->table;
	if (table == NULL || atomic_load_explicit(&table->differs, memory_order_acquire) != 0)
		return false;
	/* Acquire pairs with the release of the comparing thread: the origin is not older. */
	return atomic_load_explicit(&table->state, memory_order_acquire) ==
		       gguf_state(digest->gguf) &&
	       atomic_load_explicit(&table->origin, memory_order_relaxed) == digest->origin &&
	       atomic_load_explicit(&table->n_done, memory_order_acquire) == table->n_blocks;
}
