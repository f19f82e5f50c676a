#include "client/summary/summary.h"

#include "client/summary/process.h"
#include "shared/base/plural.h"
#include "shared/base/units.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
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

static bool any_answers(const struct outrider_status *status)
{
	for (size_t i = 0; i < outrider_status_count(status); i++)
		if (outrider_status_process(status, i)->answers)
			return true;
	return false;
}

static void add_serving(struct lines *lines, const struct outrider_status *status,
	const struct outrider_process *verifier)
{
	const char *model = process_file(verifier, "model");
	char uptime[UNITS_BYTES];

	if (!model) {
		add(lines, "serving", "nothing: the verifier does not answer; %s",
			any_answers(status)
				? "the log of the service says why (outrider up --detach: "
				  "up.log in its runtime directory)"
				: "outrider up --model FILE starts a service");
		return;
	}
	add(lines, "serving", "%s for %s, up to %" PRIu64 " tokens of context (%s)", model,
		units_period(verifier->uptime_ns, uptime), process_number(verifier, "context"),
		process_detail(verifier, "kernels"));
}

static void add_speed(struct lines *lines, const struct outrider_process *verifier)
{
	uint64_t tokens = process_number(verifier, "recent_tokens"),
		 ns = process_number(verifier, "recent_ns");
	uint64_t running = process_number(verifier, "running"),
		 waiting = process_number(verifier, "waiting");

	if (!process_detail(verifier, "recent_tokens"))
		return;
	if (running + waiting == 0 && tokens == 0)
		add(lines, "speed", "idle; %" PRIu64 " tokens since it started",
			process_number(verifier, "output_tokens"));
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
	char experts[96] = "", device[64] = "", memory[UNITS_BYTES];
	uint64_t all = process_number(cache, "experts");

	if (!process_detail(verifier, "places"))
		return;
	if (all)
		snprintf(experts, sizeof experts,
			", %" PRIu64 " of %" PRIu64 " experts in memory (room for %s)",
			process_number(cache, "resident"), all,
			units_size(process_number(cache, "budget_bytes"), memory));
	if (process_detail(cache, "device"))
		snprintf(device, sizeof device,
			", %" PRIu64 " on the device (room for %" PRIu64 ")",
			process_number(cache, "device_in_use"),
			process_number(cache, "device_slots"));
	add(lines, "room",
		"%" PRIu64 " of %" PRIu64 " places taken, %" PRIu64 " of %" PRIu64
		" tokens of KV cache%s%s",
		process_number(verifier, "running"), process_number(verifier, "places"),
		process_number(verifier, "kv_held_tokens"), process_number(verifier, "kv_tokens"),
		experts, device);
}

/* A device that lacks experts, and the CPU beside it. */
static void add_hybrid(struct lines *lines, const struct outrider_process *cache)
{
	const char *rule = process_detail(cache, "device_hybrid");
	uint64_t by_cpu = process_number(cache, "device_by_cpu");

	if (!rule || (strcmp(rule, "off") == 0 && by_cpu == 0))
		return;
	add(lines, "hybrid",
		"%s; the CPU computed %" PRIu64 " of the %" PRIu64
		" experts that the device lacked",
		rule, by_cpu, process_number(cache, "device_misses"));
}

/* Where drafts come from if a request names no method. */
static const char *draft_source(const struct outrider_process *drafter, const char *model)
{
	const char *head = process_detail(drafter, "head");
	const char *skip = process_detail(drafter, "layer_skip");
	const char *method = process_detail(drafter, "method");

	if (method && strcmp(method, "layer-skip") == 0)
		return skip && strncmp(skip, "refused", 7) == 0
			       ? "n-grams"
			       : "a part of the model's layers (layer-skip)";
	if (strcmp(model, "none") != 0)
		return model;
	return head && strcmp(head, "mtp") == 0 && method && strcmp(method, "ngram") != 0
		       ? "the model's own layer"
		       : "n-grams";
}

/* The file of the adapter that the verifier uses; NULL: none. */
static const char *adapter_used(const struct outrider_process *verifier)
{
	return process_detail(verifier, "adapter_masks") ? process_file(verifier, "adapter") : NULL;
}

static void add_drafts(struct lines *lines, const struct outrider_process *verifier,
	const struct outrider_process *drafter)
{
	const char *model = process_file(drafter, "draft");
	uint64_t drafted = process_number(verifier, "drafted");
	const char *device = process_detail(drafter, "device"), *adapter = adapter_used(verifier);
	char right[64] = "none made for the latest answers", where[64] = "";

	if (!verifier || !model)
		return;
	if (drafted)
		snprintf(right, sizeof right, "%.0f%% right in the latest answers",
			(double)process_number(verifier, "accepted") * 100 / (double)drafted);
	if (device && strcmp(device, "cpu") != 0)
		snprintf(where, sizeof where, " on the device (%s of it)",
			UNITS_SIZE(process_number(drafter, "device_bytes")));
	else if (process_detail(drafter, "device_refused"))
		snprintf(where, sizeof where, " on the CPU (outriderctl status --all says why)");
	add(lines, "drafts", "from %s%s%s%s; %s", draft_source(drafter, model), where,
		adapter ? ", or for requests of method mtp-lora from " : "", adapter ? adapter : "",
		right);
}

static void add_gateway(struct lines *lines, const struct outrider_process *gateway)
{
	uint64_t n = process_number(gateway, "recent_responses"),
		 ns = process_number(gateway, "recent_ns"), open = process_number(gateway, "open"),
		 errors = process_number(gateway, "errors");

	if (!gateway)
		return;
	add(lines, "gateway",
		"%s; %" PRIu64 " request%s open, %.1f/s in the last 10 s, %" PRIu64
		" error%s since it started",
		process_detail(gateway, "listen"), open, plural(open),
		ns ? (double)n * 1e9 / (double)ns : 0, errors, plural(errors));
}

/* Why the verifier does not use the adapter that it was given; NULL: it does, or there is none. */
static const char *adapter_refusal(const struct outrider_process *verifier)
{
	const char *said = process_detail(verifier, "adapter");

	return adapter_used(verifier) || (said && strcmp(said, "none") == 0) ? NULL : said;
}

/* Lists the processes that are neither ready nor idle for lack of work, and what the service goes on
 * without. */
static void add_trouble(struct lines *lines, const struct outrider_status *status)
{
	const char *refusal = adapter_refusal(process_find(status, PEER_VERIFIER));
	size_t before = lines->n;

	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		if (strncmp(p->state, "ready", 5) != 0 && strncmp(p->state, "idle", 4) != 0)
			add(lines, lines->n == before ? "trouble" : "", "%s: %s", p->name,
				p->state);
	}
	if (refusal)
		add(lines, lines->n == before ? "trouble" : "", "the adapter is not used: %s",
			refusal);
	if (outrider_status_given_up(status))
		add(lines, lines->n == before ? "trouble" : "", "given up: %s",
			outrider_status_given_up(status));
	if (lines->n == before)
		add(lines, "trouble", "none");
}

size_t summary(const struct outrider_status *status, char text[static SUMMARY_LINES][SUMMARY_BYTES])
{
	const struct outrider_process *verifier = process_find(status, PEER_VERIFIER);
	struct lines lines = {.text = text};

	add_serving(&lines, status, verifier);
	add_speed(&lines, verifier);
	add_room(&lines, verifier, process_find(status, PEER_CACHE));
	add_hybrid(&lines, process_find(status, PEER_CACHE));
	add_drafts(&lines, verifier, process_find(status, PEER_DRAFTER));
	add_gateway(&lines, process_find(status, PEER_GATEWAY));
	add_trouble(&lines, status);
	return lines.n;
}
