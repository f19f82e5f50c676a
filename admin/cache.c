/* outriderctl cache stats, cache top, cache hot. */
#include "admin/ctl.h"
#include "admin/interrupt.h"
#include "admin/table.h"

#include "client/include/outrider.h"
#include "shared/base/clock.h"
#include "shared/base/columns.h"
#include "shared/base/standard.h"
#include "shared/base/units.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"
#include "shared/model/pass/experts.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

enum { STATUS_TIMEOUT_MS = 500, HOT_MAX = 1 << 18 };

static double part_of(uint64_t part, uint64_t all)
{
	return all ? (double)part / (double)all : 0;
}

/* ---- cache stats ---- */

/* A number of bytes; UINT64_MAX if the process does not report it, because it has no /proc. */
static uint64_t detail_of(const struct outrider_process *p, const char *key)
{
	size_t n = strlen(key);

	for (size_t i = 0; i < p->n_details; i++)
		if (strncmp(p->details[i], key, n) == 0 && p->details[i][n] == '=')
			return strtoull(p->details[i] + n + 1, NULL, 10);
	return UINT64_MAX;
}

static const char *detail_size(
	const struct outrider_process *p, const char *key, char out[static UNITS_BYTES])
{
	uint64_t bytes = detail_of(p, key);

	return bytes == UINT64_MAX ? "unknown" : units_size(bytes, out);
}

static json_t *detail_json(const struct outrider_process *p, const char *key)
{
	uint64_t bytes = detail_of(p, key);

	return bytes == UINT64_MAX ? json_null() : json_integer((json_int_t)bytes);
}

/* The memory of the processes in addition to the slots; a region that several processes have mapped
 * is counted for each. */
static void memory_text(const struct ctl *ctl)
{
	struct outrider_status *status;
	char own[UNITS_BYTES], files[UNITS_BYTES], shared[UNITS_BYTES];

	if (outrider_status(ctl->runtime_dir, STATUS_TIMEOUT_MS, &status) < 0)
		return;
	printf("\n%-14s %12s %14s %14s\n", "PROCESS", "ITS OWN", "MAPPED FILES", "SHARED");
	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		if (p->answers)
			printf("%-14s %12s %14s %14s\n", p->name,
				detail_size(p, "memory_anonymous_bytes", own),
				detail_size(p, "memory_file_bytes", files),
				detail_size(p, "memory_shared_bytes", shared));
	}
	outrider_status_free(&status);
}

/* The same as JSON; an empty list when no process answers. */
static json_t *memory_json(const struct ctl *ctl)
{
	struct outrider_status *status;
	json_t *list = json_array();

	if (outrider_status(ctl->runtime_dir, STATUS_TIMEOUT_MS, &status) < 0)
		return list;
	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		if (p->answers)
			json_array_append_new(list,
				json_pack("{s:s,s:o,s:o,s:o}", "process", p->name,
					"anonymous_bytes", detail_json(p, "memory_anonymous_bytes"),
					"file_bytes", detail_json(p, "memory_file_bytes"),
					"shared_bytes", detail_json(p, "memory_shared_bytes")));
	}
	outrider_status_free(&status);
	return list;
}

/* Prints a line of the stats: its subject, then the rest, folded. */
static void say(const char *about, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(const char *about, const char *format, ...)
{
	char text[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	columns_fold(stdout, text, printf("%-10s ", about), 11);
}

static void hints_text(const Outrider__CacheStats *s)
{
	say("hints", "%" PRIu64 ", %" PRIu64 " led to a load, %u noted for later", s->hints,
		s->hint_loads, s->hints_kept);
	ctl_hints_text(s->hint_quality, s->n_hint_quality);
	say("lost",
		"%" PRIu64 " activations and %" PRIu64
		" hints that found no room because the cache fell behind",
		s->activations_lost, s->hints_lost);
	say("prefetches",
		"%" PRIu64 " came before they were asked for: %" PRIu64 " useful, %" PRIu64
		" wasted, %" PRIu64 " unused so far; another %" PRIu64 " late, %" PRIu64
		" taken back",
		s->prefetched, s->prefetch_used, s->prefetch_wasted,
		ctl_unused(s->prefetched, s->prefetch_used, s->prefetch_wasted), s->promoted,
		s->cancelled);
}

static void link_text(const Outrider__CacheStats *s)
{
	char rate[32] = "speed unknown", load[32] = "";

	if (s->link_bytes_per_second > 0)
		snprintf(rate, sizeof rate, "%.2f GiB/s", s->link_bytes_per_second / (1 << 30));
	if (s->load_ns > 0)
		snprintf(load, sizeof load, ", %.2f ms per expert", (double)s->load_ns / 1e6);
	say("link", "%s, %u read%s at a time, %s%s; %u loading or waiting for a slot", s->link,
		s->link_reads, plural(s->link_reads), rate, load, s->queue_depth);
	if (s->submits > 0)
		say("demands",
			"%" PRIu64 " submitted after %.0f us on average, %.0f us at most; %" PRIu64
			" load%s failed",
			s->submits, part_of(s->submit_ns, s->submits) / 1e3,
			(double)s->submit_ns_max / 1e3, s->load_failures, plural(s->load_failures));
	else
		say("demands", "none submitted; %" PRIu64 " load%s failed", s->load_failures,
			plural(s->load_failures));
}

static void layers_text(const Outrider__CacheStats *s)
{
	static const char *const heads[] = {"LAYER", "HITS", "MISSES", "RATE", "LOADS", "EVICTED",
		"MiB", "RESIDENT", "STALL MS", "PREFETCH", "USEFUL", "WASTED", "UNUSED", "LATE",
		NULL};
	struct table table;

	table_init(&table, heads);
	for (size_t i = 0; i < s->n_layers; i++) {
		const Outrider__CacheLayer *l = s->layers[i];
		char rate[16];

		table_add(&table, "%u", l->layer);
		table_add(&table, "%" PRIu64, l->hits);
		table_add(&table, "%" PRIu64, l->misses);
		table_add(&table, "%s",
			ctl_share((double)l->hits, (double)(l->hits + l->misses), 1, rate,
				sizeof rate));
		table_add(&table, "%" PRIu64, l->loads);
		table_add(&table, "%" PRIu64, l->evictions);
		table_add(&table, "%.1f", ctl_mib(l->bytes_loaded));
		table_add(&table, "%u", l->resident);
		table_add(&table, "%.1f", (double)l->wait_ns / 1e6);
		table_add(&table, "%" PRIu64, l->prefetched);
		table_add(&table, "%" PRIu64, l->prefetch_used);
		table_add(&table, "%" PRIu64, l->prefetch_wasted);
		table_add(&table, "%" PRIu64,
			ctl_unused(l->prefetched, l->prefetch_used, l->prefetch_wasted));
		table_add(&table, "%" PRIu64, l->promoted);
	}
	putchar('\n');
	table_print_heads(&table);
	for (size_t i = 0; i < s->n_layers; i++) {
		table_print_row(&table, i);
		ctl_hints_text(s->layers[i]->hint_quality, s->layers[i]->n_hint_quality);
	}
	table_exit(&table);
}

static void device_text(const Outrider__CacheDevice *d)
{
	char a[UNITS_BYTES], b[UNITS_BYTES], c[UNITS_BYTES], rate[16],
		drafter[64] = "", reserve[64] = " (device_memory)";

	if (!d)
		return;
	if (d->limit_bytes + d->reserve_bytes >= d->memory_bytes)
		snprintf(reserve, sizeof reserve, ", %s in reserve", UNITS_SIZE(d->reserve_bytes));
	if (d->drafter_bytes > 0)
		snprintf(drafter, sizeof drafter, "%s for the drafter, ",
			UNITS_SIZE(d->drafter_bytes));
	say("device", "%s, budget %s: %u slots of %.2f MiB, %u in use, %u pinned%s", d->name,
		d->budget, d->slots, ctl_mib(d->slot_bytes), d->in_use, d->pinned,
		d->all_pinned ? "; every expert stays there" : "");
	say("",
		"%s of %s for experts, %s%s for the verifier%s, of which the KV cache has %s; all "
		"may take %s%s; %s free now",
		units_size(d->slots * d->slot_bytes, a), units_size(d->memory_bytes, b), drafter,
		units_size(d->verifier_bytes, c), d->verifier_said ? "" : " (estimated)",
		UNITS_SIZE(d->kv_bytes), UNITS_SIZE(d->limit_bytes), reserve,
		UNITS_SIZE(d->free_bytes));
	say("",
		"%" PRIu64 " hits, %" PRIu64 " being copied, %" PRIu64 " misses: %s hits; %" PRIu64
		" layer%s waited for a slot, %.1f ms in all",
		d->hits, d->waits, d->misses,
		ctl_share((double)d->hits, (double)(d->hits + d->waits + d->misses), 1, rate,
			sizeof rate),
		d->slot_waits, plural(d->slot_waits), (double)d->wait_ns / 1e6);
	say("",
		"%" PRIu64 " copies (%s): %" PRIu64 " for demands, %" PRIu64
		" ahead of use; %.2f ms in flight, %.2f GB/s; %u now",
		d->loads, units_size(d->bytes_loaded, a), d->demanded, d->prefetched,
		d->loads > 0 ? (double)d->flight_ns / (double)d->loads / 1e6 : 0,
		ctl_device_rate(d->bytes_loaded, d->busy_ns) / 1e9, d->in_flight);
	say("",
		"%" PRIu64 " evictions; %" PRIu64 " miss%s served and %" PRIu64
		" wait%s ended by the verifier itself",
		d->evictions, d->self_served, d->self_served == 1 ? "" : "es", d->rescued,
		plural(d->rescued));
}

/* "0.52 ms", or "?" where nothing was measured yet. */
static const char *cost_text(uint64_t ns, char out[16])
{
	if (ns > 0)
		snprintf(out, 16, "%.3g ms", (double)ns / 1e6);
	else
		snprintf(out, 16, "?");
	return out;
}

static void hybrid_text(const Outrider__CacheDevice *d)
{
	char a[16], b[16], c[16], e[16], link[16];

	if (!d)
		return;
	say("hybrid",
		"%s: %" PRIu64 " missing expert%s computed by the CPU, %" PRIu64
		" waited for by the device",
		d->hybrid, d->by_cpu, plural(d->by_cpu), d->streamed);
	if (d->by_cpu == 0 && strcmp(d->hybrid, "off") == 0)
		return;
	say("",
		"the CPU takes %s for an expert with one token, %s for each of several; the device "
		"%s and %s; a copy to it takes %s",
		cost_text(d->cpu_expert_ns, a), cost_text(d->cpu_token_ns, b),
		cost_text(d->device_expert_ns, c), cost_text(d->device_token_ns, e),
		cost_text(d->load_ns, link));
	say("",
		"the CPU waits %s for its inputs in a pass of up to %d rows, %s for each row of a "
		"larger one",
		cost_text(d->rows_ns, a), EXPERT_ROWS_FEW, cost_text(d->row_ns, b));
}

static int stats_text(const struct ctl *ctl, const Outrider__CacheStats *s)
{
	char a[UNITS_BYTES], b[UNITS_BYTES], rate[16];

	say("policy", "%s", s->policy);
	say("budget", "%s: %s (at least %s), %u slots of %.2f MiB", s->budget,
		units_size(s->budget_bytes, a), units_size(s->budget_min_bytes, b), s->slots,
		ctl_mib(s->slot_bytes));
	if (*s->room)
		say("room for", "%s", s->room);
	say("in use", "%u slots, %s; %u resident, %u of them pinned, %u packed; tables %s",
		s->in_use, units_size(s->arena_bytes, a), s->resident, s->pinned, s->packed,
		units_size(s->table_bytes, b));
	if (s->kept_bytes > 0)
		say("kept", "%s in free slots, which the kernel did not take back",
			units_size(s->kept_bytes, a));
	if (s->file_cached_bytes >= 0)
		say("page cache", "%s of the model's file",
			units_size((uint64_t)s->file_cached_bytes, a));
	say("look-ups", "%" PRIu64 " hits, %" PRIu64 " misses: %s hits; %.1f ms stalled", s->hits,
		s->misses,
		ctl_share((double)s->hits, (double)(s->hits + s->misses), 1, rate, sizeof rate),
		(double)s->wait_ns / 1e6);
	say("loads",
		"%" PRIu64 " (%s), %" PRIu64 " evictions; %" PRIu64
		" miss%s served by the verifier itself",
		s->loads, units_size(s->bytes_loaded, a), s->evictions, s->self_served,
		s->self_served == 1 ? "" : "es");
	link_text(s);
	device_text(s->device);
	hybrid_text(s->device);
	hints_text(s);
	if (s->n_layers)
		layers_text(s);
	memory_text(ctl);
	return 0;
}

static int stats_json(const struct ctl *ctl, const Outrider__CacheStats *s)
{
	json_t *root = ctl_cache_json(s), *memory = memory_json(ctl);

	if (json_object_set_new(root, "memory", memory) < 0) {
		json_decref(root);
		root = NULL;
	}
	return ctl_print_json(root);
}

static int ask_stats(struct ctl *ctl, bool per_layer, Outrider__Envelope **reply)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__CacheStatsRequest body = OUTRIDER__CACHE_STATS_REQUEST__INIT;

	body.per_layer = per_layer;
	request.body_case = OUTRIDER__ENVELOPE__BODY_CACHE_STATS_REQUEST;
	request.cache_stats_request = &body;
	return ctl_call(ctl, PEER_CACHE, &request, OUTRIDER__ENVELOPE__BODY_CACHE_STATS, reply);
}

int ctl_cache_stats(struct ctl *ctl, int argc, char **argv)
{
	Outrider__Envelope *reply;
	int status = ask_stats(ctl, ctl->layers, &reply);

	(void)argc;
	(void)argv;
	if (status)
		return status;
	status = ctl->json ? stats_json(ctl, reply->cache_stats)
			   : stats_text(ctl, reply->cache_stats);
	bus_free(&reply);
	return status;
}

/* ---- cache top ---- */

/* By how much a counter grew; that of a new region begins at 0. */
static double growth(uint64_t from, uint64_t to)
{
	return (double)(to < from ? to : to - from);
}

/* The share of the time that was spent waiting. A wait is counted when it ends, and may have begun
 * before the first look. */
static double stalled(uint64_t wait_ns, uint64_t more_wait_ns, double seconds)
{
	double share = growth(wait_ns, more_wait_ns) / 1e9 / seconds;

	return share < 1 ? share : 1;
}

/* What happened in each layer between two looks. */
static void top_text(
	const Outrider__CacheStats *old, const Outrider__CacheStats *now, double seconds)
{
	char arena[UNITS_BYTES];

	printf("%s, budget %s: %u of %u slots in use, %s; %u loading or waiting for a slot\n\n",
		now->policy, now->budget, now->in_use, now->slots,
		units_size(now->arena_bytes, arena), now->queue_depth);
	printf("%5s %9s %9s %6s %9s %9s %9s %7s %10s\n", "LAYER", "HITS/s", "MISSES/s", "RATE",
		"LOADS/s", "EVICT/s", "MiB/s", "STALL", "PREFETCH/s");
	for (size_t i = 0; i < now->n_layers && i < old->n_layers; i++) {
		const Outrider__CacheLayer *a = old->layers[i], *b = now->layers[i];
		double hits = growth(a->hits, b->hits), misses = growth(a->misses, b->misses);
		char rate[16];

		printf("%5u %9.0f %9.0f %6s %9.0f %9.0f %9.1f %6.1f%% %10.0f\n", b->layer,
			hits / seconds, misses / seconds,
			ctl_share(hits, hits + misses, 1, rate, sizeof rate),
			growth(a->loads, b->loads) / seconds,
			growth(a->evictions, b->evictions) / seconds,
			growth(a->bytes_loaded, b->bytes_loaded) / 1048576 / seconds,
			100 * stalled(a->wait_ns, b->wait_ns, seconds),
			growth(a->prefetched, b->prefetched) / seconds);
	}
}

int ctl_cache_top(struct ctl *ctl, int argc, char **argv)
{
	const struct timespec second = {.tv_sec = 1};
	bool screen = !ctl->once && !ctl->json && isatty(STDOUT_FILENO);
	Outrider__Envelope *old, *now;
	int status = ask_stats(ctl, true, &old);
	uint64_t then_ns = clock_ns(), now_ns;

	(void)argc;
	(void)argv;
	if (status)
		return status;
	if (screen)
		interrupt_watch(true);
	do {
		if (nanosleep(&second, NULL) != 0 && interrupted())
			break;
		status = ask_stats(ctl, true, &now);
		if (status)
			break;
		/* The time may be longer than a second, as this process may have been stopped. */
		now_ns = clock_ns();
		if (screen)
			fputs("\033[H\033[J", stdout);
		if (ctl->json)
			ctl_print_json(json_pack("{s:f,s:o,s:o}", "seconds",
				(double)(now_ns - then_ns) / 1e9, "before",
				ctl_cache_json(old->cache_stats), "after",
				ctl_cache_json(now->cache_stats)));
		else
			top_text(old->cache_stats, now->cache_stats,
				(double)(now_ns - then_ns) / 1e9);
		bus_free(&old);
		old = now;
		then_ns = now_ns;
	} while (standard_flush() && screen && !interrupted());
	bus_free(&old);
	return interrupt_status(status);
}

/* ---- cache hot ---- */

static int hot_text(const Outrider__CacheHot *hot)
{
	printf("%5s %7s %12s %7s  %s\n", "LAYER", "EXPERT", "USES", "SHARE", "RESIDENT");
	for (size_t i = 0; i < hot->n_experts; i++) {
		const Outrider__CacheExpert *e = hot->experts[i];

		printf("%5u %7u %12" PRIu64 " %6.2f%%  %s\n", e->layer, e->expert, e->uses,
			100 * part_of(e->uses, hot->uses), e->resident ? "yes" : "no");
	}
	return 0;
}

int ctl_cache_hot(struct ctl *ctl, int argc, char **argv)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__CacheHotRequest body = OUTRIDER__CACHE_HOT_REQUEST__INIT;
	int status;

	if (argc > 1)
		return ctl_fail(EX_USAGE, "unexpected argument \"%.64s\"", argv[1]);
	if (argc == 1) {
		uint64_t n = 0;

		if (!ctl_number(argv[0], HOT_MAX, &n) || n == 0)
			return ctl_fail(EX_USAGE,
				"\"%.32s\": expected a number of experts, 1 to %d", argv[0],
				HOT_MAX);
		body.n = (uint32_t)n;
	}
	request.body_case = OUTRIDER__ENVELOPE__BODY_CACHE_HOT_REQUEST;
	request.cache_hot_request = &body;
	status = ctl_call(ctl, PEER_CACHE, &request, OUTRIDER__ENVELOPE__BODY_CACHE_HOT, &reply);
	if (status)
		return status;
	status = ctl->json ? ctl_print_json(ctl_cache_hot_json(reply->cache_hot))
			   : hot_text(reply->cache_hot);
	bus_free(&reply);
	return status;
}
