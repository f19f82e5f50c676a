#include "services/policy-controller/journal.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x4c4e524a5452554full /* "OUTRJRNL" */
enum { LAYOUT = 1, HEAD_BYTES = 4096, READ_ENTRIES = 512 };

struct journal_head {
	uint64_t magic;
	uint32_t layout, entry_bytes;
	uint64_t capacity;
};

/* FNV-1a over 64-bit words: against torn writes, not against an adversary. */
static uint64_t check_of(const struct journal_entry *entry)
{
	uint64_t words[sizeof(*entry) / sizeof(uint64_t)], h = 0xcbf29ce484222325u;
	static_assert(sizeof(*entry) % sizeof(uint64_t) == 0, "an entry is whole words");
	memcpy(words, entry, sizeof(*entry));
	for (size_t i = 1; i < sizeof(words) / sizeof(words[0]); i++) {
		h = (h ^ words[i]) * 0x100000001b3u;
		h ^= h >> 32;
	}
	return h;
}

static off_t place_of(const struct journal_file *file, uint64_t number)
{
	return HEAD_BYTES + (off_t)(number % file->capacity * JOURNAL_ENTRY_BYTES);
}

/* Entries lie in their places whole or not at all for a reader: the check sum tells. */
static bool valid(
	const struct journal_file *file, const struct journal_entry *entry, uint64_t place)
{
	return entry->number != 0 && entry->number % file->capacity == place &&
	       entry->check == check_of(entry);
}

static bool read_block(const struct journal_file *file, uint64_t first, uint32_t n,
	unsigned char block[READ_ENTRIES][JOURNAL_ENTRY_BYTES])
{
	size_t bytes = (size_t)n * JOURNAL_ENTRY_BYTES;
	return pread(file->fd, block, bytes, place_of(file, first)) == (ssize_t)bytes;
}

/* The entry at place `at` of a block, when it is one. */
static bool entry_at(const struct journal_file *file,
	unsigned char block[READ_ENTRIES][JOURNAL_ENTRY_BYTES], uint64_t first, uint32_t at,
	struct journal_entry *out)
{
	memcpy(out, block[at], sizeof(*out));
	return valid(file, out, first + at);
}

/* The highest number in the file. */
static uint64_t find_last(const struct journal_file *file)
{
	static unsigned char block[READ_ENTRIES][JOURNAL_ENTRY_BYTES];
	struct journal_entry entry;
	uint64_t last = 0;
	for (uint64_t first = 0; first < file->capacity; first += READ_ENTRIES) {
		uint64_t left = file->capacity - first;
		uint32_t n = left < READ_ENTRIES ? (uint32_t)left : READ_ENTRIES;
		if (!read_block(file, first, n, block))
			break; /* the file has not grown so far yet */
		for (uint32_t i = 0; i < n; i++)
			if (entry_at(file, block, first, i, &entry) && entry.number > last)
				last = entry.number;
	}
	return last;
}

/* Whether it is a journal that can be read; *capacity: what it has room for. */
static bool read_head(const struct journal_file *file, uint64_t *capacity)
{
	struct journal_head head;
	if (pread(file->fd, &head, sizeof(head), 0) != sizeof(head) || head.magic != MAGIC ||
		head.layout != LAYOUT || head.entry_bytes != JOURNAL_ENTRY_BYTES)
		return false;
	*capacity = head.capacity;
	return true;
}

static bool head_fits(const struct journal_file *file)
{
	uint64_t capacity;
	return read_head(file, &capacity) && capacity == file->capacity;
}

static off_t file_bytes_of(const struct journal_file *file)
{
	return HEAD_BYTES + (off_t)(file->capacity * JOURNAL_ENTRY_BYTES);
}

/* 0, or -1 with errno. */
static int begin_file(const struct journal_file *file)
{
	struct journal_head head = {MAGIC, LAYOUT, JOURNAL_ENTRY_BYTES, file->capacity};
	if (ftruncate(file->fd, 0) != 0 || ftruncate(file->fd, file_bytes_of(file)) != 0)
		return -1;
	return pwrite(file->fd, &head, sizeof(head), 0) == sizeof(head) ? 0 : -1;
}

/* Whether nobody has written anything to it: a new one, or one whose making was interrupted. */
static bool is_blank(const struct journal_file *file)
{
	struct journal_head head, nothing = {0};
	ssize_t n = pread(file->fd, &head, sizeof(head), 0);
	return n == 0 || (n == sizeof(head) && memcmp(&head, &nothing, sizeof(head)) == 0);
}

/* What lies there is not ours to overwrite: it becomes PATH.old, in the place of an earlier one, and a new file takes its
 * name. 0, or -1 with errno. */
static int set_aside(struct journal *journal, uint64_t file_bytes)
{
	char old[sizeof(journal->path) + 8];
	uint64_t capacity;
	bool other_size = read_head(&journal->file, &capacity);
	snprintf(old, sizeof(old), "%s.old", journal->path);
	if (rename(journal->path, old) != 0)
		return -1;
	if (other_size)
		log_notice("the journal %s has %llu KiB, the settings say %llu KiB: it is kept as "
			   "%s, and a new one is begun",
			journal->path, (unsigned long long)file_bytes >> 10,
			(unsigned long long)file_bytes_of(&journal->file) >> 10, old);
	else
		log_notice("%s is no journal of this version: it is kept as %s, and a new one is "
			   "begun",
			journal->path, old);
	close(journal->file.fd);
	journal->file.fd =
		open(journal->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	return journal->file.fd < 0 ? -1 : 0;
}

/* The file is open; its head is this journal's afterwards. 0, or -1 with errno. */
static int take_file(struct journal *journal)
{
	struct stat status;
	if (fstat(journal->file.fd, &status) != 0)
		return -1;
	if (!S_ISREG(status.st_mode)) {
		errno = EINVAL;
		return -1;
	}
	if (head_fits(&journal->file))
		return 0;
	if (!is_blank(&journal->file) && set_aside(journal, (uint64_t)status.st_size) != 0)
		return -1;
	return begin_file(&journal->file);
}

static int try_open(struct journal *journal)
{
	journal->file.fd =
		open(journal->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (journal->file.fd < 0)
		return -1;
	if (take_file(journal) == 0) {
		journal->next = find_last(&journal->file) + 1;
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
	if (!journal->failing)
		log_notice("the journal %s cannot be written: %s; serving goes on without it",
			journal->path, strerror(code));
	journal->failing = true;
}

void journal_open(struct journal *journal, const char *path, uint64_t bytes)
{
	memset(journal, 0, sizeof(*journal));
	journal->file.fd = -1;
	journal->file.capacity = (bytes - HEAD_BYTES) / JOURNAL_ENTRY_BYTES;
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
	memset(journal, 0, sizeof(*journal));
	journal->file.fd = -1;
}

static uint32_t microseconds(uint64_t ns)
{
	return ns / 1000 > UINT32_MAX ? UINT32_MAX : (uint32_t)(ns / 1000);
}

void journal_add(struct journal *journal, const struct iteration_record *record,
	const struct policy_state *state)
{
	if (!*journal->path)
		return;
	struct journal_entry entry = {
		.time_ns = record->finished_ns,
		.session = record->session,
		.iteration = record->iteration,
		.n_context = record->n_context,
		.k = record->k,
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
	if (state) {
		entry.phase = (uint8_t)state->phase;
		entry.k_next = (uint8_t)state->k;
		entry.base_us = (float)(state->base_ns / 1e3);
		entry.utility = state->utility;
		entry.etr = state->etr;
	}
	pthread_mutex_lock(&journal->mutex);
	if (journal->n_pending < JOURNAL_PENDING)
		journal->pending[journal->n_pending++] = entry;
	else
		journal->lost++;
	pthread_mutex_unlock(&journal->mutex);
}

/* Takes what waits into journal->writing, so that the records thread never waits for the disk. */
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

static void lose(struct journal *journal, uint32_t n, int code)
{
	pthread_mutex_lock(&journal->mutex);
	journal->lost += n;
	pthread_mutex_unlock(&journal->mutex);
	fails(journal, code);
}

/* A run of entries that lie side by side in the file: up to where it wraps. */
static uint32_t write_run(struct journal *journal, const struct clock_pair *now,
	const struct journal_entry *from, uint32_t n)
{
	static unsigned char block[READ_ENTRIES][JOURNAL_ENTRY_BYTES];
	uint64_t left = journal->file.capacity - journal->next % journal->file.capacity;
	uint32_t run = n < READ_ENTRIES ? n : READ_ENTRIES;
	run = left < run ? (uint32_t)left : run;
	memset(block, 0, run * sizeof(block[0]));
	for (uint32_t i = 0; i < run; i++) {
		struct journal_entry entry = from[i];
		entry.number = journal->next + i;
		entry.time_ns = clock_wall_by(now, entry.time_ns);
		entry.check = check_of(&entry);
		memcpy(block[i], &entry, sizeof(entry));
	}
	ssize_t bytes = (ssize_t)(run * sizeof(block[0]));
	ssize_t done = pwrite(
		journal->file.fd, block, (size_t)bytes, place_of(&journal->file, journal->next));
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
		lose(journal, n, errno);
		return;
	}
	struct clock_pair now = clock_pair();
	while (written < n) {
		uint32_t run = write_run(journal, &now, journal->writing + written, n - written);
		if (run == 0) {
			lose(journal, n - written, errno);
			return;
		}
		written += run;
		journal->next += run;
	}
	if (journal->failing)
		log_notice("the journal %s is written again", journal->path);
	journal->failing = false;
}

uint32_t journal_read(
	struct journal *journal, uint64_t session, struct journal_entry *out, uint32_t max)
{
	static unsigned char block[READ_ENTRIES][JOURNAL_ENTRY_BYTES];
	uint32_t n = 0;
	journal_flush(journal);
	if (journal->file.fd < 0)
		return 0;
	uint64_t end = journal->next;
	uint64_t oldest = end > journal->file.capacity ? end - journal->file.capacity : 1;
	/* Backwards in blocks that do not wrap; out is filled from its end. */
	while (end > oldest && n < max) {
		uint64_t run = (end - 1) % journal->file.capacity + 1;
		run = run < READ_ENTRIES ? run : READ_ENTRIES;
		run = end - oldest < run ? end - oldest : run;
		uint64_t first = end - run;
		if (!read_block(&journal->file, first, (uint32_t)run, block))
			break;
		for (uint64_t i = run; i-- > 0 && n < max;) {
			struct journal_entry entry;
			if (entry_at(&journal->file, block, first % journal->file.capacity,
				    (uint32_t)i, &entry) &&
				entry.number == first + i &&
				(session == 0 || entry.session == session))
				out[max - ++n] = entry;
		}
		end = first;
	}
	memmove(out, out + (max - n), n * sizeof(*out));
	return n;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = ((const struct journal_entry *)a)->number;
	uint64_t y = ((const struct journal_entry *)b)->number;
	return (x > y) - (x < y);
}

/* The check sum is against accidents alone. */
static bool possible(const struct journal_entry *e)
{
	return e->session != 0 && e->k <= LIMIT_DRAFT && e->drafted <= e->k &&
	       e->accepted <= e->drafted && e->emitted <= e->accepted + 1 &&
	       e->foreseen <= LIMIT_DRAFT && e->foreseen_drafted <= e->foreseen &&
	       e->foreseen_right <= e->foreseen_drafted && e->batch_sessions > 0 &&
	       e->batch_sessions <= LIMIT_SESSIONS;
}

static size_t load_entries(const struct journal_file *file, struct journal_entry *out)
{
	unsigned char block[READ_ENTRIES][JOURNAL_ENTRY_BYTES];
	size_t n = 0;
	for (uint64_t first = 0; first < file->capacity; first += READ_ENTRIES) {
		uint64_t left = file->capacity - first;
		uint32_t run = left < READ_ENTRIES ? (uint32_t)left : READ_ENTRIES;
		if (!read_block(file, first, run, block))
			break;
		for (uint32_t i = 0; i < run; i++)
			if (entry_at(file, block, first, i, &out[n]) && possible(&out[n]))
				n++;
	}
	qsort(out, n, sizeof(*out), by_number);
	return n;
}

int journal_load(const char *path, struct journal_entry **out, size_t *n, struct error *err)
{
	struct journal_file file = {.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
	struct journal_head head;
	struct stat status;
	*out = NULL;
	*n = 0;
	if (file.fd < 0)
		return error_set(err, errno, "%s: %s", path, strerror(errno));
	/* Its size bounds what the head may say. */
	bool whole = fstat(file.fd, &status) == 0 && S_ISREG(status.st_mode) &&
		     pread(file.fd, &head, sizeof(head), 0) == sizeof(head);
	file.capacity = whole ? head.capacity : 0;
	uint64_t most = whole ? (uint64_t)status.st_size / JOURNAL_ENTRY_BYTES : 0;
	if (whole && file.capacity > 0 && file.capacity <= most && head_fits(&file))
		*out = calloc(file.capacity, sizeof(**out));
	else
		whole = false;
	if (*out)
		*n = load_entries(&file, *out);
	close(file.fd);
	if (*n > 0)
		return 0;
	free(*out);
	*out = NULL;
	return error_set(err, EINVAL, "%s: %s", path,
		whole ? "a journal with nothing in it" : "not a journal of outrider-policy");
}
