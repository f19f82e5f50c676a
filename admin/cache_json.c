/* The expert cache's replies as JSON. */
#include "admin/ctl.h"

/* Counters are below 2^63, the limit of the JSON library. */
static void put(json_t *to, const char *name, uint64_t value)
{
	json_object_set_new(to, name, json_integer((json_int_t)value));
}

static json_t *layer_json(const Outrider__CacheLayer *l)
{
	json_t *layer = json_object();

	put(layer, "layer", l->layer);
	put(layer, "hits", l->hits);
	put(layer, "misses", l->misses);
	put(layer, "loads", l->loads);
	put(layer, "evictions", l->evictions);
	put(layer, "resident", l->resident);
	put(layer, "bytes_loaded", l->bytes_loaded);
	put(layer, "wait_ns", l->wait_ns);
	put(layer, "self_served", l->self_served);
	put(layer, "prefetched", l->prefetched);
	put(layer, "prefetch_used", l->prefetch_used);
	put(layer, "prefetch_wasted", l->prefetch_wasted);
	put(layer, "prefetch_unused",
		ctl_unused(l->prefetched, l->prefetch_used, l->prefetch_wasted));
	put(layer, "promoted", l->promoted);
	put(layer, "cancelled", l->cancelled);
	json_object_set_new(
		layer, "hint_quality", ctl_hints_json(l->hint_quality, l->n_hint_quality));
	return layer;
}

static void put_memory(json_t *to, const Outrider__CacheStats *s)
{
	json_object_set_new(to, "budget", json_text(s->budget));
	put(to, "budget_bytes", s->budget_bytes);
	put(to, "budget_min_bytes", s->budget_min_bytes);
	put(to, "slot_bytes", s->slot_bytes);
	put(to, "room_bytes", s->room_bytes);
	put(to, "memory_bytes", s->memory_bytes);
	put(to, "weights_bytes", s->weights_bytes);
	put(to, "kv_bytes", s->kv_bytes);
	put(to, "sessions_bytes", s->sessions_bytes);
	put(to, "reserve_bytes", s->reserve_bytes);
	json_object_set_new(to, "needs_said", json_boolean(s->needs_said));
	json_object_set_new(to, "room", json_string(s->room));
	put(to, "slots", s->slots);
	put(to, "in_use", s->in_use);
	put(to, "resident", s->resident);
	put(to, "pinned", s->pinned);
	put(to, "packed", s->packed);
	put(to, "arena_bytes", s->arena_bytes);
	put(to, "kept_bytes", s->kept_bytes);
	put(to, "table_bytes", s->table_bytes);
	json_object_set_new(to, "file_cached_bytes",
		s->file_cached_bytes < 0 ? json_null() : json_integer(s->file_cached_bytes));
}

static void put_link(json_t *to, const Outrider__CacheStats *s)
{
	json_object_set_new(to, "link", json_text(s->link));
	json_object_set_new(
		to, "link_bytes_per_second", ctl_measured_json(s->link_bytes_per_second));
	put(to, "link_reads", s->link_reads);
	put(to, "load_ns", s->load_ns);
	put(to, "submits", s->submits);
	put(to, "submit_ns", s->submit_ns);
	put(to, "submit_ns_max", s->submit_ns_max);
	put(to, "queue_depth", s->queue_depth);
	put(to, "load_failures", s->load_failures);
}

static json_t *hybrid_json(const Outrider__CacheDevice *d)
{
	json_t *to = json_object(), *tau = json_array();
	json_object_set_new(to, "rule", json_text(d->hybrid));
	put(to, "streamed", d->streamed);
	put(to, "by_cpu", d->by_cpu);
	put(to, "cpu_expert_ns", d->cpu_expert_ns);
	put(to, "cpu_token_ns", d->cpu_token_ns);
	put(to, "device_expert_ns", d->device_expert_ns);
	put(to, "device_token_ns", d->device_token_ns);
	put(to, "rows_ns", d->rows_ns);
	put(to, "row_ns", d->row_ns);
	put(to, "window_ns", d->window_ns);
	for (size_t i = 0; i < d->n_tau; i++)
		json_array_append_new(tau, json_integer(d->tau[i]));
	json_object_set_new(to, "tau", tau);
	return to;
}

static json_t *device_json(const Outrider__CacheDevice *d)
{
	if (!d)
		return json_null();
	json_t *to = json_object();
	json_object_set_new(to, "name", json_text(d->name));
	json_object_set_new(to, "budget", json_text(d->budget));
	put(to, "slots", d->slots);
	put(to, "slot_bytes", d->slot_bytes);
	put(to, "in_use", d->in_use);
	put(to, "pinned", d->pinned);
	json_object_set_new(to, "all_pinned", json_boolean(d->all_pinned));
	put(to, "adopted", d->adopted);
	put(to, "hits", d->hits);
	put(to, "waits", d->waits);
	put(to, "misses", d->misses);
	put(to, "self_served", d->self_served);
	put(to, "rescued", d->rescued);
	put(to, "wait_ns", d->wait_ns);
	put(to, "loads", d->loads);
	put(to, "prefetched", d->prefetched);
	put(to, "evictions", d->evictions);
	put(to, "bytes_loaded", d->bytes_loaded);
	put(to, "load_ns", d->load_ns);
	put(to, "demanded", d->demanded);
	put(to, "in_flight", d->in_flight);
	put(to, "flight_ns", d->flight_ns);
	put(to, "busy_ns", d->busy_ns);
	json_object_set_new(to, "copied_bytes_per_second",
		ctl_measured_json(ctl_device_rate(d->bytes_loaded, d->busy_ns)));
	put(to, "slot_waits", d->slot_waits);
	put(to, "memory_bytes", d->memory_bytes);
	put(to, "free_bytes", d->free_bytes);
	put(to, "budget_bytes", d->slots * d->slot_bytes);
	put(to, "limit_bytes", d->limit_bytes);
	put(to, "verifier_bytes", d->verifier_bytes);
	put(to, "kv_bytes", d->kv_bytes);
	json_object_set_new(to, "verifier_said", json_boolean(d->verifier_said));
	put(to, "drafter_bytes", d->drafter_bytes);
	put(to, "reserve_bytes", d->reserve_bytes);
	put(to, "room_bytes", d->room_bytes);
	json_object_set_new(to, "hybrid", hybrid_json(d));
	return to;
}

json_t *ctl_cache_json(const Outrider__CacheStats *s)
{
	json_t *root = json_object(), *layers = json_array();

	json_object_set_new(root, "policy", json_text(s->policy));
	put_memory(root, s);
	put(root, "hits", s->hits);
	put(root, "misses", s->misses);
	json_object_set_new(
		root, "hit_rate", ctl_share_json((double)s->hits, (double)(s->hits + s->misses)));
	put(root, "loads", s->loads);
	put(root, "evictions", s->evictions);
	put(root, "bytes_loaded", s->bytes_loaded);
	put(root, "self_served", s->self_served);
	put(root, "wait_ns", s->wait_ns);
	put(root, "hints", s->hints);
	put(root, "hint_loads", s->hint_loads);
	put(root, "hints_kept", s->hints_kept);
	put(root, "activations_lost", s->activations_lost);
	put(root, "hints_lost", s->hints_lost);
	put(root, "prefetched", s->prefetched);
	put(root, "prefetch_used", s->prefetch_used);
	put(root, "prefetch_wasted", s->prefetch_wasted);
	put(root, "prefetch_unused",
		ctl_unused(s->prefetched, s->prefetch_used, s->prefetch_wasted));
	put(root, "promoted", s->promoted);
	put(root, "cancelled", s->cancelled);
	put_link(root, s);
	json_object_set_new(root, "device", device_json(s->device));
	json_object_set_new(
		root, "hint_quality", ctl_hints_json(s->hint_quality, s->n_hint_quality));
	for (size_t i = 0; i < s->n_layers; i++)
		json_array_append_new(layers, layer_json(s->layers[i]));
	json_object_set_new(root, "layers", layers);
	return root;
}

json_t *ctl_cache_hot_json(const Outrider__CacheHot *hot)
{
	json_t *experts = json_array();

	for (size_t i = 0; i < hot->n_experts; i++) {
		const Outrider__CacheExpert *e = hot->experts[i];

		json_array_append_new(
			experts, json_pack("{s:I,s:I,s:I,s:b}", "layer", (json_int_t)e->layer,
					 "expert", (json_int_t)e->expert, "uses",
					 (json_int_t)e->uses, "resident", (int)e->resident));
	}
	return json_pack("{s:o,s:I}", "experts", experts, "uses", (json_int_t)hot->uses);
}
