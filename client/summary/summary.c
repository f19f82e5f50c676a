#include "client/summary/summary.h"

#include "shared/base/plural.h"
#include "shared/base/units.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lines {
	char (*text)[SUMMARY_BYTES];
	size_t n;
};

static void add(struct lines *lines, const char *title, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static void add(struct lines *lines, const char *title, const char *format, ...)
{
	char said[SUMMARY_BYTES - 16];
	va_list args;

	if (lines->n == SUMMARY_LINES)
		return;
	va_start(args, format);
	vsnprintf(said, sizeof said, format, args);
	va_end(args);
	snprintf(lines->text[lines->n++], SUMMARY_BYTES, "%-9s %s", title, said);
}

static const struct outrider_process *find(const struct outrider_status *status, const char *name)
{
	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		if (strcmp(p->name, name) == 0 && p->answers)
			return p;
	}
	return NULL;
}

/* The value of a "key=value" line, or NULL; also of a process that is NULL. */
static const char *detail(const struct outrider_process *p, const char *key)
{
	size_t n = strlen(key);

	for (size_t i = 0; p && i < p->n_details; i++)
		if (strncmp(p->details[i], key, n) == 0 && p->details[i][n] == '=')
			return p->details[i] + n + 1;
	return NULL;
}

static uint64_t number(const struct outrider_process *p, const char *key)
{
	const char *value = detail(p, key);

	return value ? strtoull(value, NULL, 10) : 0;
}

static void add_serving(struct lines *lines, const struct outrider_process *verifier)
{
	const char *path = detail(verifier, "model"), *slash = path ? strrchr(path, '/') : NULL;
	char uptime[UNITS_BYTES];

	if (!path) {
		add(lines, "serving", "nothing: the verifier does not answer");
		return;
	}
	add(lines, "serving", "%s for %s, up to %" PRIu64 " tokens of context (%s)",
		slash ? slash + 1 : path, units_period(verifier->uptime_ns, uptime),
		number(verifier, "context"), detail(verifier, "kernels"));
}

static void add_speed(struct lines *lines, const struct outrider_process *verifier)
{
	uint64_t tokens = number(verifier, "recent_tokens"), ns = number(verifier, "recent_ns");
	uint64_t running = number(verifier, "running"), waiting = number(verifier, "waiting");

	if (!detail(verifier, "recent_tokens"))
		return;
	if (running + waiting == 0 && tokens == 0)
		add(lines, "speed", "idle; %" PRIu64 " tokens since it started",
			number(verifier, "output_tokens"));
	else
		add(lines, "speed",
			"%.1f tokens/s in the last 10 s; %" PRIu64 " answer%s running, %" PRIu64
			" waiting",
			ns ? (double)tokens * 1e9 / (double)ns : 0, running, plural(running),
			waiting);
}

static void add_room(struct lines *lines, const struct outrider_process *verifier,
	const struct outrider_process *cache)
{
	char experts[96] = "", memory[UNITS_BYTES];
	uint64_t all = number(cache, "experts");

	if (!detail(verifier, "places"))
		return;
	if (all)
		snprintf(experts, sizeof experts,
			", %" PRIu64 " of %" PRIu64 " experts in memory (room for %s)",
			number(cache, "resident"), all,
			units_size(number(cache, "budget_bytes"), memory));
	add(lines, "room",
		"%" PRIu64 " of %" PRIu64 " places taken, %" PRIu64 " of %" PRIu64
		" tokens of KV cache%s",
		number(verifier, "running"), number(verifier, "places"),
		number(verifier, "kv_held_tokens"), number(verifier, "kv_tokens"), experts);
}

static void add_drafts(struct lines *lines, const struct outrider_process *verifier,
	const struct outrider_process *drafter)
{
	const char *model = detail(drafter, "draft"), *slash = model ? strrchr(model, '/') : NULL;
	uint64_t drafted = number(verifier, "drafted");
	char right[64] = "none made for the latest answers";

	if (!verifier || !model)
		return;
	if (drafted)
		snprintf(right, sizeof right, "%.0f%% right in the latest answers",
			(double)number(verifier, "accepted") * 100 / (double)drafted);
	add(lines, "drafts", "from %s; %s",
		strcmp(model, "none") == 0 ? "n-grams" : (slash ? slash + 1 : model), right);
}

/* A process that is neither ready nor idle because it has nothing to do. */
static void add_trouble(struct lines *lines, const struct outrider_status *status)
{
	size_t before = lines->n;

	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		if (strncmp(p->state, "ready", 5) != 0 && strncmp(p->state, "idle", 4) != 0)
			add(lines, lines->n == before ? "trouble" : "", "%s: %s", p->name,
				p->state);
	}
	if (outrider_status_given_up(status))
		add(lines, lines->n == before ? "trouble" : "", "given up: %s",
			outrider_status_given_up(status));
	if (lines->n == before)
		add(lines, "trouble", "none");
}

size_t summary(const struct outrider_status *status, char text[static SUMMARY_LINES][SUMMARY_BYTES])
{
	const struct outrider_process *verifier = find(status, PEER_VERIFIER);
	struct lines lines = {.text = text};

	add_serving(&lines, verifier);
	add_speed(&lines, verifier);
	add_room(&lines, verifier, find(status, PEER_CACHE));
	add_drafts(&lines, verifier, find(status, PEER_DRAFTER));
	add_trouble(&lines, status);
	return lines.n;
}
