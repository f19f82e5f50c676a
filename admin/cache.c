/* outriderctl cache stats, cache top, cache hot. */
#include "admin/ctl.h"

#include "client/include/outrider.h"
#include "shared/base/clock.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
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

static uint64_t detail_of(const struct outrider_process *p, const char *key)
{
	size_t n = strlen(key);

	for (size_t i = 0; i < p->n_details; i++)
		if (strncmp(p->details[i], key, n) == 0 && p->details[i][n] == '=')
			return strtoull(p->details[i] + n + 1, NULL, 10);
	return 0;
}

/* What the processes have beside the slots; a region that several have mapped is counted in each. */
static void memory_text(const struct ctl *ctl)
{
	struct outrider_status *status;

	if (outrider_status(ctl->runtime_dir, STATUS_TIMEOUT_MS, &status) < 0)
		return;
	printf("\n%-14s %12s %14s %14s\n", "MEMORY, MiB", "ITS OWN", "MAPPED FILES", "SHARED");
	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		if (p->pid)
			printf("%-14s %12.1f %14.1f %14.1f\n", p->name,
				ctl_mib(detail_of(p, "memory_anonymous_bytes")),
				ctl_mib(detail_of(p, "memory_file_bytes")),
				ctl_mib(detail_of(p, "memory_shared_bytes")));
	}
	outrider_status_free(&status);
}

/* The same; an empty list where nobody answers. */
static json_t *memory_json(const struct ctl *ctl)
{
	struct outrider_status *status;
	json_t *list = json_array();

	if (outrider_status(ctl->runtime_dir, STATUS_TIMEOUT_MS, &status) < 0)
		return list;
	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		if (p->pid)
			json_array_append_new(list,
				json_pack("{s:s,s:I,s:I,s:I}", "process", p->name,
					"anonymous_bytes",
					(json_int_t)detail_of(p, "memory_anonymous_bytes"),
					"file_bytes", (json_int_t)detail_of(p, "memory_file_bytes"),
					"shared_bytes",
					(json_int_t)detail_of(p, "memory_shared_bytes")));
	}
	outrider_status_free(&status);
	return list;
}

static void hints_text(const Outrider__CacheStats *s)
{
	printf("hints      %" PRIu64 ", %" PRIu64 " led to a load, %u noted for later\n", s->hints,
		s->hint_loads, s->hints_kept);
	ctl_hints_text(s->hint_quality, s->n_hint_quality);
	printf("lost       %" PRIu64 " activations and %" PRIu64
	       " hints that the cache was too late for\n",
		s->activations_lost, s->hints_lost);
	printf("prefetches %" PRIu64 " came before they were asked for: %" PRIu64
	       " useful, %" PRIu64 " wasted, %" PRIu64 " unused yet; beside them %" PRIu64
	       " late, %" PRIu64 " taken back\n",
		s->prefetched, s->prefetch_used, s->prefetch_wasted,
		ctl_unused(s->prefetched, s->prefetch_used, s->prefetch_wasted), s->promoted,
		s->cancelled);
}

static void link_text(const Outrider__CacheStats *s)
{
	char rate[16], load[16], mean[16], most[16];

	printf("link       %s, %u read%s at once, %s GiB/s, %s ms an expert; %u loading or "
	       "waited for\n",
		s->link, s->link_reads, plural(s->link_reads),
		ctl_measured(s->link_bytes_per_second / (1 << 30), 2, rate, sizeof rate),
		ctl_measured((double)s->load_ns / 1e6, 2, load, sizeof load), s->queue_depth);
	printf("demands    %" PRIu64 " submitted after %s us in the mean, %s us at most; %" PRIu64
	       " load%s failed\n",
		s->submits,
		ctl_measured(part_of(s->submit_ns, s->submits) / 1e3, 0, mean, sizeof mean),
		ctl_measured((double)s->submit_ns_max / 1e3, 0, most, sizeof most),
		s->load_failures, plural(s->load_failures));
}

static void layers_text(const Outrider__CacheStats *s)
{
	printf("\n%5s %9s %9s %6s %9s %9s %9s %8s %9s %9s %8s %8s %8s %8s\n", "LAYER", "HITS",
		"MISSES", "RATE", "LOADS", "EVICTED", "MiB", "RESIDENT", "STALL ms", "PREFETCH",
		"USEFUL", "WASTED", "UNUSED", "LATE");
	for (size_t i = 0; i < s->n_layers; i++) {
		const Outrider__CacheLayer *l = s->layers[i];
		char rate[16];

		printf("%5u %9" PRIu64 " %9" PRIu64 " %6s %9" PRIu64 " %9" PRIu64
		       " %9.1f %8u %9.1f %9" PRIu64 " %8" PRIu64 " %8" PRIu64 " %8" PRIu64
		       " %8" PRIu64 "\n",
			l->layer, l->hits, l->misses,
			ctl_share((double)l->hits, (double)(l->hits + l->misses), 1, rate,
				sizeof rate),
			l->loads, l->evictions, ctl_mib(l->bytes_loaded), l->resident,
			(double)l->wait_ns / 1e6, l->prefetched, l->prefetch_used,
			l->prefetch_wasted,
			ctl_unused(l->prefetched, l->prefetch_used, l->prefetch_wasted),
			l->promoted);
		ctl_hints_text(l->hint_quality, l->n_hint_quality);
	}
}

static int stats_text(const struct ctl *ctl, const Outrider__CacheStats *s)
{
	char rate[16];

	printf("policy     %s\n", s->policy);
	printf("budget     %s: %.1f MiB (at least %.1f MiB), %u slots of %.2f MiB\n", s->budget,
		ctl_mib(s->budget_bytes), ctl_mib(s->budget_min_bytes), s->slots,
		ctl_mib(s->slot_bytes));
	if (*s->room)
		printf("room for   %s\n", s->room);
	printf("in use     %u slots, %.1f MiB; %u resident, %u of them pinned, %u packed; tables "
	       "%.1f MiB\n",
		s->in_use, ctl_mib(s->arena_bytes), s->resident, s->pinned, s->packed,
		ctl_mib(s->table_bytes));
	if (s->kept_bytes > 0)
		printf("kept       %.1f MiB in free slots, which the kernel did not take back\n",
			ctl_mib(s->kept_bytes));
	if (s->file_cached_bytes >= 0)
		printf("page cache %.1f MiB of the model's file\n",
			ctl_mib((uint64_t)s->file_cached_bytes));
	printf("look-ups   %" PRIu64 " hits, %" PRIu64 " misses: %s hits; %.1f ms stalled\n",
		s->hits, s->misses,
		ctl_share((double)s->hits, (double)(s->hits + s->misses), 1, rate, sizeof rate),
		(double)s->wait_ns / 1e6);
	printf("loads      %" PRIu64 " (%.1f MiB), %" PRIu64 " evictions; %" PRIu64
	       " miss%s served by the verifier itself\n",
		s->loads, ctl_mib(s->bytes_loaded), s->evictions, s->self_served,
		s->self_served == 1 ? "" : "es");
	link_text(s);
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

/* What a counter grew by; one of a new region begins at 0. */
static double growth(uint64_t from, uint64_t to)
{
	return (double)(to < from ? to : to - from);
}

/* The share of the time that was waited. A wait is counted when it ends, and may have begun before the first look. */
static double stalled(uint64_t wait_ns, uint64_t more_wait_ns, double seconds)
{
	double share = growth(wait_ns, more_wait_ns) / 1e9 / seconds;

	return share < 1 ? share : 1;
}

/* What happened in each layer between two looks. */
static void top_text(
	const Outrider__CacheStats *old, const Outrider__CacheStats *now, double seconds)
{
	printf("%s, budget %s: %u of %u slots in use, %.1f MiB; %u loading or waited for\n\n",
		now->policy, now->budget, now->in_use, now->slots, ctl_mib(now->arena_bytes),
		now->queue_depth);
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
	do {
		nanosleep(&second, NULL);
		status = ask_stats(ctl, true, &now);
		if (status)
			break;
		/* More than the second: who looks may have been stopped meanwhile. */
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
		fflush(stdout);
		bus_free(&old);
		old = now;
		then_ns = now_ns;
	} while (screen);
	bus_free(&old);
	return status;
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
			return ctl_fail(
				EX_USAGE, "\"%.32s\": how many experts, 1 to %d", argv[0], HOT_MAX);
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
