/* outriderctl cache stats. */
#include "admin/ctl.h"

#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>

json_t *ctl_cache_json(const Outrider__CacheStats *s)
{
	json_t *layers = json_array();

	for (size_t i = 0; i < s->n_layers; i++) {
		const Outrider__CacheLayer *l = s->layers[i];

		json_array_append_new(
			layers, json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "layer",
					(json_int_t)l->layer, "hits", (json_int_t)l->hits, "misses",
					(json_int_t)l->misses, "loads", (json_int_t)l->loads,
					"evictions", (json_int_t)l->evictions, "resident",
					(json_int_t)l->resident, "hint_quality",
					ctl_hints_json(l->hint_quality, l->n_hint_quality)));
	}
	return json_pack(
		"{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:o,s:o}",
		"policy", s->policy, "budget_bytes", (json_int_t)s->budget_bytes,
		"budget_min_bytes", (json_int_t)s->budget_min_bytes, "slot_bytes",
		(json_int_t)s->slot_bytes, "slots", (json_int_t)s->slots, "resident",
		(json_int_t)s->resident, "pinned", (json_int_t)s->pinned, "hits",
		(json_int_t)s->hits, "misses", (json_int_t)s->misses, "hit_rate",
		ctl_rate(s->hits, s->misses), "loads", (json_int_t)s->loads, "evictions",
		(json_int_t)s->evictions, "bytes_loaded", (json_int_t)s->bytes_loaded, "hints",
		(json_int_t)s->hints, "hint_loads", (json_int_t)s->hint_loads, "self_served",
		(json_int_t)s->self_served, "queue_depth", (json_int_t)s->queue_depth, "link",
		s->link, "layers", layers, "hint_quality",
		ctl_hints_json(s->hint_quality, s->n_hint_quality));
}

static int stats_text(const Outrider__CacheStats *s)
{
	printf("policy     %s over %s\n", s->policy, s->link);
	printf("budget     %.1f MB (at least %.1f MB), %u slots of %.2f MB\n",
		(double)s->budget_bytes / 1e6, (double)s->budget_min_bytes / 1e6, s->slots,
		(double)s->slot_bytes / 1e6);
	printf("resident   %u, %u of them pinned; %u loads waiting\n", s->resident, s->pinned,
		s->queue_depth);
	printf("look-ups   %" PRIu64 " hits, %" PRIu64 " misses: %.1f%% hits\n", s->hits, s->misses,
		100 * ctl_rate(s->hits, s->misses));
	printf("loads      %" PRIu64 " (%.1f MB), %" PRIu64 " evictions, %" PRIu64
	       " misses served by the verifier itself\n",
		s->loads, (double)s->bytes_loaded / 1e6, s->evictions, s->self_served);
	printf("hints      %" PRIu64 ", %" PRIu64 " led to a load\n", s->hints, s->hint_loads);
	ctl_hints_text(s->hint_quality, s->n_hint_quality);
	if (s->n_layers)
		printf("\n%5s %10s %10s %7s %10s %10s %9s\n", "LAYER", "HITS", "MISSES", "RATE",
			"LOADS", "EVICTIONS", "RESIDENT");
	for (size_t i = 0; i < s->n_layers; i++) {
		const Outrider__CacheLayer *l = s->layers[i];

		printf("%5u %10" PRIu64 " %10" PRIu64 " %6.1f%% %10" PRIu64 " %10" PRIu64 " %9u\n",
			l->layer, l->hits, l->misses, 100 * ctl_rate(l->hits, l->misses), l->loads,
			l->evictions, l->resident);
		ctl_hints_text(l->hint_quality, l->n_hint_quality);
	}
	return 0;
}

int ctl_cache_stats(struct ctl *ctl, int argc, char **argv)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__CacheStatsRequest body = OUTRIDER__CACHE_STATS_REQUEST__INIT;
	int status;

	(void)argc;
	(void)argv;
	body.per_layer = ctl->layers;
	request.body_case = OUTRIDER__ENVELOPE__BODY_CACHE_STATS_REQUEST;
	request.cache_stats_request = &body;
	status = ctl_call(ctl, PEER_CACHE, &request, OUTRIDER__ENVELOPE__BODY_CACHE_STATS, &reply);
	if (status)
		return status;
	status = ctl->json ? ctl_print_json(ctl_cache_json(reply->cache_stats))
			   : stats_text(reply->cache_stats);
	bus_free(&reply);
	return status;
}
