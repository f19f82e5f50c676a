#include "services/policy-controller/journal_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x4c4e524a5452554full /* "OUTRJRNL" */
enum { LAYOUT = 3 };

struct journal_head {
	uint64_t magic;
	uint32_t layout, entry_bytes;
	uint64_t capacity;
};

/* FNV-1a over 64-bit words: detects torn writes, not an adversary. */
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

void journal_file_seal(struct journal_entry *entry)
{
	entry->check = check_of(entry);
}

off_t journal_file_place(const struct journal_file *file, uint64_t number)
{
	return JOURNAL_HEAD_BYTES + (off_t)(number % file->capacity * JOURNAL_ENTRY_BYTES);
}

/* A reader sees an entry whole or not at all: the checksum decides. */
static bool valid(
	const struct journal_file *file, const struct journal_entry *entry, uint64_t place)
{
	return entry->number != 0 && entry->number % file->capacity == place &&
	       entry->check == check_of(entry);
}

bool journal_file_block(const struct journal_file *file, uint64_t first, uint32_t n,
	unsigned char block[JOURNAL_BLOCK][JOURNAL_ENTRY_BYTES])
{
	size_t bytes = (size_t)n * JOURNAL_ENTRY_BYTES;
	return pread(file->fd, block, bytes, journal_file_place(file, first)) == (ssize_t)bytes;
}

bool journal_file_entry(const struct journal_file *file,
	unsigned char block[JOURNAL_BLOCK][JOURNAL_ENTRY_BYTES], uint64_t first, uint32_t at,
	struct journal_entry *out)
{
	memcpy(out, block[at], sizeof(*out));
	return valid(file, out, first + at);
}

uint64_t journal_file_last(const struct journal_file *file)
{
	static unsigned char block[JOURNAL_BLOCK][JOURNAL_ENTRY_BYTES];
	struct journal_entry entry;
	uint64_t last = 0;
	for (uint64_t first = 0; first < file->capacity; first += JOURNAL_BLOCK) {
		uint64_t left = file->capacity - first;
		uint32_t n = left < JOURNAL_BLOCK ? (uint32_t)left : JOURNAL_BLOCK;
		if (!journal_file_block(file, first, n, block))
			break; /* the file has not grown this far yet */
		for (uint32_t i = 0; i < n; i++)
			if (journal_file_entry(file, block, first, i, &entry) &&
				entry.number > last)
				last = entry.number;
	}
	return last;
}

bool journal_file_capacity(const struct journal_file *file, uint64_t *capacity)
{
	struct journal_head head;
	if (pread(file->fd, &head, sizeof(head), 0) != sizeof(head) || head.magic != MAGIC ||
		head.layout != LAYOUT || head.entry_bytes != JOURNAL_ENTRY_BYTES)
		return false;
	*capacity = head.capacity;
	return true;
}

bool journal_file_fits(const struct journal_file *file)
{
	uint64_t capacity;
	return journal_file_capacity(file, &capacity) && capacity == file->capacity;
}

off_t journal_file_bytes(const struct journal_file *file)
{
	return JOURNAL_HEAD_BYTES + (off_t)(file->capacity * JOURNAL_ENTRY_BYTES);
}

int journal_file_begin(const struct journal_file *file)
{
	struct journal_head head = {MAGIC, LAYOUT, JOURNAL_ENTRY_BYTES, file->capacity};
	if (ftruncate(file->fd, 0) != 0 || ftruncate(file->fd, journal_file_bytes(file)) != 0)
		return -1;
	return pwrite(file->fd, &head, sizeof(head), 0) == sizeof(head) ? 0 : -1;
}

bool journal_file_blank(const struct journal_file *file)
{
	struct journal_head head, nothing = {0};
	ssize_t n = pread(file->fd, &head, sizeof(head), 0);
	return n == 0 || (n == sizeof(head) && memcmp(&head, &nothing, sizeof(head)) == 0);
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = ((const struct journal_entry *)a)->number;
	uint64_t y = ((const struct journal_entry *)b)->number;
	return (x > y) - (x < y);
}

/* Checks the values: the checksum protects against accidents only. */
static bool possible(const struct journal_entry *e)
{
	return e->session != 0 && e->k <= LIMIT_DRAFT_DEPTH && e->depth <= e->k &&
	       e->depth <= e->drafted && e->drafted <= LIMIT_DRAFT_NODES &&
	       e->accepted <= e->depth && e->emitted <= e->accepted + 1 &&
	       e->foreseen <= LIMIT_DRAFT_DEPTH && e->foreseen_drafted <= e->foreseen &&
	       e->foreseen_right <= e->foreseen_drafted && e->batch_sessions > 0 &&
	       e->batch_sessions <= LIMIT_RUNNING;
}

static size_t load_entries(const struct journal_file *file, struct journal_entry *out)
{
	unsigned char block[JOURNAL_BLOCK][JOURNAL_ENTRY_BYTES];
	size_t n = 0;
	for (uint64_t first = 0; first < file->capacity; first += JOURNAL_BLOCK) {
		uint64_t left = file->capacity - first;
		uint32_t run = left < JOURNAL_BLOCK ? (uint32_t)left : JOURNAL_BLOCK;
		if (!journal_file_block(file, first, run, block))
			break;
		for (uint32_t i = 0; i < run; i++)
			if (journal_file_entry(file, block, first, i, &out[n]) && possible(&out[n]))
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
	/* The file's size bounds what its head may claim. */
	bool whole = fstat(file.fd, &status) == 0 && S_ISREG(status.st_mode) &&
		     pread(file.fd, &head, sizeof(head), 0) == sizeof(head);
	bool other = whole && head.magic == MAGIC && head.layout != LAYOUT;
	file.capacity = whole ? head.capacity : 0;
	uint64_t most = whole ? (uint64_t)status.st_size / JOURNAL_ENTRY_BYTES : 0;
	if (whole && file.capacity > 0 && file.capacity <= most && journal_file_fits(&file))
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
	if (other)
		return error_set(err, EINVAL,
			"%s: a journal of version %u; only those of version %d are read", path,
			head.layout, LAYOUT);
	return error_set(err, EINVAL, "%s: %s", path,
		whole ? "a journal with nothing in it" : "not a journal of outrider-policy");
}
