/* The SIGBUS handler uses only functions that POSIX calls async-signal-safe, and mmap, which on
 * Linux is a plain system call. */
#include "shared/model/gguf/gguf_guard.h"

#include "shared/model/gguf/gguf_internal.h"
#include "shared/model/gguf/gguf_watch.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

/* The parts of a split model are open at the same time until they are joined. */
enum { WATCHED_MAX = GGUF_PARTS_MAX + 16 };

static _Atomic(const struct gguf *) watched[WATCHED_MAX];
static const char *guard_prefix = "";
static struct sigaction before;
static atomic_flag speaking = ATOMIC_FLAG_INIT;
static atomic_bool survive;
static size_t page_bytes; /* set before survive */

void gguf_guard_add(const struct gguf *gguf)
{
	for (int i = 0; i < WATCHED_MAX; i++) {
		const struct gguf *none = NULL;

		if (atomic_compare_exchange_strong(&watched[i], &none, gguf))
			return;
	}
}

void gguf_guard_remove(const struct gguf *gguf)
{
	for (int i = 0; i < WATCHED_MAX; i++) {
		const struct gguf *expected = gguf;

		if (atomic_compare_exchange_strong(&watched[i], &expected, NULL))
			return;
	}
}

/* The open file that is mapped at the address, and the index of its part, or NULL. */
static const struct gguf *file_of(const unsigned char *at, size_t *index)
{
	for (int i = 0; i < WATCHED_MAX; i++) {
		const struct gguf *g = atomic_load(&watched[i]);

		if (!g || at < g->data || at >= g->data + g->bytes)
			continue;
		uint64_t offset = (uint64_t)(at - g->data);

		*index = 0;
		for (size_t p = 0; g->parts && p < g->n_parts; p++)
			if (g->parts[p].base <= offset)
				*index = p;
		return g;
	}
	return NULL;
}

/* A line that is composed in parts and written at once, because other processes write to the same
 * file. Safe in a signal handler; too long lines are cut. */
struct line {
	char text[512];
	size_t n;
};

static void add(struct line *line, const char *text)
{
	while (*text && line->n < sizeof(line->text))
		line->text[line->n++] = *text++;
}

/* Adds a path as error messages do: without control characters, and only the end of a long one. */
static void add_path(struct line *line, const char *path)
{
	enum { SHOWN = 200 };
	char text[SHOWN + 1] = {0};
	size_t n = strlen(path), from = n > SHOWN ? n - SHOWN : 0;

	if (from)
		add(line, "...");
	for (size_t i = from; i <= n; i++)
		text[i - from] = (unsigned char)path[i] < ' ' && path[i] ? '?' : path[i];
	add(line, text);
}

static void say(const struct line *line)
{
	if (write(STDERR_FILENO, line->text, line->n) < 0)
		_exit(EX_IOERR);
}

static bool is_shorter(const struct gguf_part *part)
{
	struct stat now;

	return fstat(part->fd, &now) != 0 || (uint64_t)now.st_size < part->bytes;
}

/* Maps zeros from the page of the address to the end of the part. */
static bool read_zeros_from(
	const struct gguf *g, const struct gguf_part *part, const unsigned char *at)
{
	size_t from = (size_t)(at - g->data) / page_bytes * page_bytes;
	size_t end = part->base + (part->bytes + page_bytes - 1) / page_bytes * page_bytes;

	return mmap((void *)(uintptr_t)(g->data + from), end - from, PROT_READ,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		       0) != MAP_FAILED;
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
	size_t index = 0;
	int code = errno;
	const struct gguf *g = file_of(info->si_addr, &index);

	(void)context;
	if (!g) {
		/* The address is in no file of ours: the instruction faults again, for the handler
		 * that was installed before. */
		sigaction(number, &before, NULL);
		return;
	}
	const struct gguf_part *part = gguf_part_at(g, index);
	if (atomic_load(&survive)) {
		gguf_lose(g, is_shorter(part) ? GGUF_SHORTER : GGUF_UNREADABLE, index);
		if (read_zeros_from(g, part, info->si_addr)) {
			errno = code;
			return;
		}
	}
	/* If several threads fault at the same time, one prints the message for all and ends the
	 * process. */
	while (atomic_flag_test_and_set(&speaking))
		pause();
	struct line line = {.n = 0};
	add(&line, guard_prefix);
	add_path(&line, part->path);
	add(&line, is_shorter(part) ? ": the file became shorter while it was in use\n"
				    : ": the file could not be read while it was in use\n");
	say(&line);
	_exit(EX_IOERR);
}

void gguf_guard_start(const char *prefix)
{
	struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};

	guard_prefix = prefix;
	sigaction(SIGBUS, &ours, &before);
}

void gguf_guard_survive(void)
{
	page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	atomic_store(&survive, true);
}
