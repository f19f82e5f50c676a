/* The SIGBUS handler uses nothing but what POSIX calls async-signal-safe. */
#include "shared/model/gguf_guard.h"

#include "shared/model/gguf_internal.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

/* A split model's parts are open at the same time until they are joined. */
enum { WATCHED_MAX = GGUF_PARTS_MAX + 16 };

static _Atomic(const struct gguf *) watched[WATCHED_MAX];
static const char *guard_prefix = "";
static struct sigaction before;
static atomic_flag speaking = ATOMIC_FLAG_INIT;

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

/* The part of an open file that is mapped at the address, or NULL. */
static const struct gguf_part *part_of(const unsigned char *at)
{
	for (int i = 0; i < WATCHED_MAX; i++) {
		const struct gguf *g = atomic_load(&watched[i]);

		if (!g || at < g->data || at >= g->data + g->bytes)
			continue;
		uint64_t offset = (uint64_t)(at - g->data);
		const struct gguf_part *part = &g->whole;

		for (size_t p = 0; g->parts && p < g->n_parts; p++)
			if (g->parts[p].base <= offset)
				part = &g->parts[p];
		return part;
	}
	return NULL;
}

static void say(const char *text)
{
	if (write(STDERR_FILENO, text, strlen(text)) < 0)
		_exit(EX_IOERR);
}

/* As error messages have it: no control character, and of a long path its end. */
static void say_path(const char *path)
{
	enum { SHOWN = 200 };
	char text[SHOWN + 1];
	size_t n = strlen(path), from = n > SHOWN ? n - SHOWN : 0;

	if (from)
		say("...");
	for (size_t i = from; i <= n; i++)
		text[i - from] = (unsigned char)path[i] < ' ' && path[i] ? '?' : path[i];
	say(text);
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
	const struct gguf_part *part = part_of(info->si_addr);
	struct stat now;

	(void)context;
	if (!part) {
		/* Not about a file of ours: the same instruction meets whoever was there before us. */
		sigaction(number, &before, NULL);
		return;
	}
	/* Threads that meet it at the same time: one speaks for all, and ends the others. */
	while (atomic_flag_test_and_set(&speaking))
		pause();
	say(guard_prefix);
	say_path(part->path);
	say(stat(part->path, &now) == 0 && (uint64_t)now.st_size >= part->bytes
			? ": the file could not be read while it was in use\n"
			: ": the file became shorter while it was in use\n");
	_exit(EX_IOERR);
}

void gguf_guard_start(const char *prefix)
{
	struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};

	guard_prefix = prefix;
	sigaction(SIGBUS, &ours, &before);
}
