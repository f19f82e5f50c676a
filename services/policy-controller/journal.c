#include "services/policy-controller/journal.h"
#include "services/policy-controller/journal_file.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file at the path is not ours to overwrite: it becomes PATH.old, replacing an earlier one, and
 * a new file is created. 0, or -1 with errno. */
static int set_aside(struct journal *journal, uint64_t file_bytes)
{
	char old[sizeof(journal->path) + 8];
	uint64_t capacity;
	bool other_size = journal_file_capacity(&journal->file, &capacity);
	snprintf(old, sizeof(old), "%s.old", journal->path);
	if (rename(journal->path, old) != 0)
		return -1;
	if (other_size)
		log_notice("the journal %s has %llu KiB, the settings say %llu KiB: it is kept as "
			   "%s, and a new one is begun",
			journal->path, (unsigned long long)file_bytes >> 10,
			(unsigned long long)journal_file_bytes(&journal->file) >> 10, old);
	else
		log_notice("%s is no journal of this version: it is kept as %s, and a new one is "
			   "begun",
			journal->path, old);
	close(journal->file.fd);
	journal->file.fd =
		open(journal->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	return journal->file.fd < 0 ? -1 : 0;
}

/* Takes over the open file, which then has this journal's head. 0, or -1 with errno. */
static int take_file(struct journal *journal)
{
	struct stat status;
	if (fstat(journal->file.fd, &status) != 0)
		return -1;
	if (!S_ISREG(status.st_mode)) {
		errno = EINVAL;
		return -1;
	}
	if (journal_file_fits(&journal->file))
		return 0;
	if (!journal_file_blank(&journal->file) &&
		set_aside(journal, (uint64_t)status.st_size) != 0)
		return -1;
	return journal_file_begin(&journal->file);
}

static int try_open(struct journal *journal)
{
	journal->file.fd =
		open(journal->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (journal->file.fd < 0)
		return -1;
	if (take_file(journal) == 0) {
		journal->next = journal_file_last(&journal->file) + 1;
		return 0;
	}
	int saved = errno;
	if (journal->file.fd < 0)
		return -1;
	close(journal->file.fd);
	journal->file.fd = -1;
	errno = saved;
	return -1;
}

static void fails(struct journal *journal, int code)
{
	struct stat st;
	bool other = lstat(journal->path, &st) == 0 && !S_ISREG(st.st_mode);
	if (!journal->failing)
		log_notice("the journal %s cannot be written: %s; serving goes on without it",
			journal->path, other ? "it is no regular file" : strerror(code));
	journal->failing = true;
}

void journal_open(struct journal *journal, const char *path, uint64_t bytes)
{
	memory_clear(journal, sizeof(*journal));
	journal->file.fd = -1;
	journal->file.capacity = (bytes - JOURNAL_HEAD_BYTES) / JOURNAL_ENTRY_BYTES;
	pthread_mutex_init(&journal->mutex, NULL);
	snprintf(journal->path, sizeof(journal->path), "%s", path);
	if (*path && try_open(journal) != 0)
		fails(journal, errno);
}

void journal_close(struct journal *journal)
{
	if (journal->file.capacity == 0)
		return;
	journal_flush(journal);
	if (journal->file.fd >= 0)
		close(journal->file.fd);
	pthread_mutex_destroy(&journal->mutex);
	memory_clear(journal, sizeof(*journal));
	journal->file.fd = -1;
}

static uint32_t microseconds(uint64_t ns)
{
	return ns / 1000 > UINT32_MAX ? UINT32_MAX : (uint32_t)(ns / 1000);
}

/* Adds an entry for the losses that no entry has told yet, if there is room. Call under the mutex.
 */
static void mark_loss(struct journal *journal, uint64_t time_ns)
{
	if (journal->unmarked == 0 || journal->n_pending == JOURNAL_PENDING)
		return;
	journal->pending[journal->n_pending++] =
		(struct journal_entry){.time_ns = time_ns, .lost = journal->unmarked};
	journal->unmarked = 0;
}

void journal_add(struct journal *journal, const struct iteration_record *record,
	const struct policy_state *state)
{
	/* A record of session 0 from a peer would read as a loss. */
	if (!*journal->path || record->session == 0)
		return;
	struct journal_entry entry = {
		.time_ns = record->finished_ns,
		.session = record->session,
		.iteration = record->iteration,
		.n_context = record->n_context,
		.k = record->k,
		.depth = record->depth,
		.drafted = record->drafted,
		.accepted = record->accepted,
		.emitted = record->emitted,
		.k_fixed = record->k_fixed != 0,
		.method = record->method,
		.batch_sessions = record->batch_sessions,
		.batch_tokens = record->batch_tokens,
		.prefill_tokens = record->prefill_tokens,
		.unique_experts = record->unique_experts,
		.expert_hits = record->expert_hits,
		.expert_misses = record->expert_misses,
		.expert_bytes = record->expert_bytes,
		.draft_us = microseconds(record->draft_ns),
		.verify_us = microseconds(record->verify_ns),
		.sample_us = microseconds(record->sample_ns),
		.iteration_us = microseconds(record->iteration_ns),
		.foreseen = record->foreseen,
		.foreseen_drafted = record->foreseen_drafted,
		.foreseen_right = record->foreseen_right,
		.foreseen_method = record->foreseen_method,
	};
	memcpy(entry.confidence, record->confidence, sizeof(entry.confidence));
	static_assert(sizeof(entry.confidence) == sizeof(record->confidence), "as in the record");
	if (state) {
		entry.phase = (uint8_t)state->phase;
		entry.k_next = (uint8_t)state->k;
		entry.base_us = (float)(state->base_ns / 1e3);
		entry.utility = state->utility;
		entry.etr = state->etr;
	}
	pthread_mutex_lock(&journal->mutex);
	mark_loss(journal, record->finished_ns);
	if (journal->n_pending < JOURNAL_PENDING) {
		journal->pending[journal->n_pending++] = entry;
	} else {
		journal->lost++;
		journal->unmarked++;
	}
	pthread_mutex_unlock(&journal->mutex);
}

void journal_add_loss(struct journal *journal, uint64_t n)
{
	if (!*journal->path || n == 0)
		return;
	pthread_mutex_lock(&journal->mutex);
	journal->unmarked += n;
	mark_loss(journal, clock_ns());
	pthread_mutex_unlock(&journal->mutex);
}

/* Moves the waiting entries to journal->writing, so that the records thread never waits for the
 * disk. */
static uint32_t take_pending(struct journal *journal)
{
	pthread_mutex_lock(&journal->mutex);
	uint32_t n = journal->n_pending;
	memcpy(journal->writing, journal->pending, n * sizeof(journal->pending[0]));
	journal->n_pending = 0;
	pthread_mutex_unlock(&journal->mutex);
	return n;
}

uint64_t journal_lost(struct journal *journal)
{
	pthread_mutex_lock(&journal->mutex);
	uint64_t lost = journal->lost;
	pthread_mutex_unlock(&journal->mutex);
	return lost;
}

/* Counts the last n of the entries to be written as lost. */
static void lose(struct journal *journal, const struct journal_entry *from, uint32_t n, int code)
{
	pthread_mutex_lock(&journal->mutex);
	for (uint32_t i = 0; i < n; i++) {
		journal->lost += from[i].session != 0;
		journal->unmarked += from[i].session != 0 ? 1 : from[i].lost;
	}
	pthread_mutex_unlock(&journal->mutex);
	fails(journal, code);
}

/* Writes a run of entries that are adjacent in the file, up to where it wraps. */
static uint32_t write_run(struct journal *journal, const struct clock_pair *now,
	const struct journal_entry *from, uint32_t n)
{
	static unsigned char block[JOURNAL_BLOCK][JOURNAL_ENTRY_BYTES];
	uint64_t left = journal->file.capacity - journal->next % journal->file.capacity;
	uint32_t run = n < JOURNAL_BLOCK ? n : JOURNAL_BLOCK;
	run = left < run ? (uint32_t)left : run;
	memset(block, 0, run * sizeof(block[0]));
	for (uint32_t i = 0; i < run; i++) {
		struct journal_entry entry = from[i];
		entry.number = journal->next + i;
		entry.time_ns = clock_wall_by(now, entry.time_ns);
		journal_file_seal(&entry);
		memcpy(block[i], &entry, sizeof(entry));
	}
	ssize_t bytes = (ssize_t)(run * sizeof(block[0]));
	ssize_t done = pwrite(journal->file.fd, block, (size_t)bytes,
		journal_file_place(&journal->file, journal->next));
	if (done == bytes)
		return run;
	if (done >= 0)
		errno = ENOSPC;
	return 0;
}

void journal_flush(struct journal *journal)
{
	uint32_t n = take_pending(journal), written = 0;
	if (n == 0)
		return;
	if (journal->file.fd < 0 && try_open(journal) != 0) {
		lose(journal, journal->writing, n, errno);
		return;
	}
	struct clock_pair now = clock_pair();
	while (written < n) {
		uint32_t run = write_run(journal, &now, journal->writing + written, n - written);
		if (run == 0) {
			lose(journal, journal->writing + written, n - written, errno);
			return;
		}
		written += run;
		journal->next += run;
	}
	if (journal->failing)
		log_notice("the journal %s is written again", journal->path);
	journal->failing = false;
}

/* Passes the entries to `see`, newest first, until it returns false. */
static void walk(struct journal *journal, bool (*see)(void *arg, const struct journal_entry *entry),
	void *arg)
{
	static unsigned char block[JOURNAL_BLOCK][JOURNAL_ENTRY_BYTES];
	bool more = true;
	journal_flush(journal);
	if (journal->file.fd < 0)
		return;
	uint64_t end = journal->next;
	uint64_t oldest = end > journal->file.capacity ? end - journal->file.capacity : 1;
	while (end > oldest && more) {
		/* The adjacent entries directly before end. */
		uint64_t run = (end - 1) % journal->file.capacity + 1;
		run = run < JOURNAL_BLOCK ? run : JOURNAL_BLOCK;
		run = end - oldest < run ? end - oldest : run;
		uint64_t first = end - run;
		if (!journal_file_block(&journal->file, first, (uint32_t)run, block))
			break;
		for (uint64_t i = run; i-- > 0 && more;) {
			struct journal_entry entry;
			if (journal_file_entry(&journal->file, block,
				    first % journal->file.capacity, (uint32_t)i, &entry) &&
				entry.number == first + i)
				more = see(arg, &entry);
		}
		end = first;
	}
}

/* An array that is filled from its end. */
struct reading {
	uint64_t session;
	struct journal_entry *out;
	uint32_t n, max;
};

static bool take_entry(void *arg, const struct journal_entry *entry)
{
	struct reading *r = arg;
	if (entry->session != 0 && (r->session == 0 || entry->session == r->session))
		r->out[r->max - ++r->n] = *entry;
	return r->n < r->max;
}

uint32_t journal_read(
	struct journal *journal, uint64_t session, struct journal_entry *out, uint32_t max)
{
	struct reading r = {session, out, 0, max};
	if (max > 0)
		walk(journal, take_entry, &r);
	memmove(out, out + (max - r.n), r.n * sizeof(*out));
	return r.n;
}

struct losses {
	uint64_t above;
	struct journal_loss *out;
	uint32_t n, max, open; /* open: losses found last whose iteration is not known yet */
};

static bool take_loss(void *arg, const struct journal_entry *entry)
{
	struct losses *l = arg;
	if (entry->session != 0) {
		for (; l->open > 0; l->open--)
			l->out[l->max - l->n + l->open - 1].iteration = entry->iteration;
		return entry->number > l->above && l->n < l->max;
	}
	if (entry->number > l->above && l->n < l->max) {
		l->out[l->max - ++l->n] = (struct journal_loss){
			.number = entry->number, .time_ns = entry->time_ns, .lost = entry->lost};
		l->open++;
	}
	return true;
}

uint32_t journal_losses(
	struct journal *journal, uint64_t above, struct journal_loss *out, uint32_t max)
{
	struct losses l = {above, out, 0, max, 0};
	if (max > 0)
		walk(journal, take_loss, &l);
	memmove(out, out + (max - l.n), l.n * sizeof(*out));
	return l.n;
}
