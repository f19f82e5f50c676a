#include "services/gateway/metrics_print.h"

#include <inttypes.h>
#include <math.h>

static void print_processes(const struct watch_news *news, struct text *out)
{
	const struct {
		const char *name, *type, *help;
	} of[] = {
		{"process_up", "gauge", "Whether the process answers."},
		{"process_restarts_total", "counter",
			"How often it was started again, since the gateway was started."},
		{"process_uptime_seconds", "gauge", "Since it was started."},
		{"process_resident_bytes", "gauge", "Its resident memory."},
	};

	for (size_t m = 0; m < sizeof of / sizeof of[0]; m++) {
		metrics_head(out, of[m].name, of[m].type, of[m].help);
		for (size_t i = 0; i < news->n_processes; i++) {
			const struct news_process *p = &news->processes[i];
			const double values[] = {p->up, (double)p->restarts,
				p->up ? (double)p->uptime_ns / 1e9 : 0,
				p->up ? (double)p->rss_bytes : 0};

			metrics_line(out, "outrider_%s{process=\"%s\"} %.17g\n", of[m].name,
				p->name, values[m]);
		}
	}
}

static void print_sessions(const struct watch_news *news, struct text *out)
{
	metrics_gauge(
		out, "sessions_running", "Sessions that are computed.", (double)news->running);
	metrics_gauge(out, "sessions_waiting", "Sessions in the verifier's queue.",
		(double)news->waiting);
	metrics_gauge(out, "sessions_places", "Sessions that can be computed at a time.",
		(double)news->places);
	metrics_gauge(
		out, "queue_places", "Room in the verifier's queue.", (double)news->queue_max);
	metrics_gauge(out, "kv_held_tokens",
		"Tokens in the KV cache, of sessions that have not ended.",
		(double)news->kv_held_tokens);
	metrics_gauge(out, "kv_tokens", "Tokens that the KV cache has room for.",
		(double)news->kv_tokens);
	metrics_gauge(
		out, "draft_length", "Mean draft length K of the sessions that run.", news->k);
	metrics_gauge(out, "utility",
		"Mean utility of speculation in the sessions that run, where it is measured.",
		news->utility);
	metrics_counter(out, "service_output_tokens_total",
		"Tokens that the verifier has emitted since it started, for all its clients.",
		news->output_tokens);
	metrics_counter(out, "service_iterations_total",
		"Passes of the verifier since it started, counted for each session.",
		news->iterations);
	metrics_counter(out, "service_drafted_tokens_total",
		"Tokens that the drafter has drafted since it started.", news->drafter_drafted);
	metrics_counter(out, "drafter_requests_total", "Drafts that the drafter was asked for.",
		news->drafter_requests);
	metrics_head(out, "drafter_busy_seconds_total", "counter", "Time that the drafter worked.");
	metrics_line(out, "outrider_drafter_busy_seconds_total %.9g\n",
		(double)news->drafter_busy_ns / 1e9);
	metrics_counter(out, "policy_decisions_total", "Changes of K by the policy-controller.",
		news->decisions);
	metrics_counter(out, "policy_records_lost_total",
		"Measurements that the policy-controller did not get.", news->records_lost);
}

static void print_cache(const struct news_cache *cache, struct text *out)
{
	if (!cache->known)
		return;
	metrics_counter(out, "expert_hits_total",
		"Experts that were in memory when they were needed.", cache->hits);
	metrics_counter(out, "expert_misses_total", "Experts that were waited for.", cache->misses);
	metrics_counter(out, "expert_loads_total", "Experts that were read.", cache->loads);
	metrics_counter(
		out, "expert_evictions_total", "Experts that had to make room.", cache->evictions);
	metrics_counter(out, "expert_loaded_bytes_total", "Bytes of experts that were read.",
		cache->loaded_bytes);
	metrics_counter(out, "expert_self_served_total", "Misses that the verifier read by itself.",
		cache->self_served);
	metrics_counter(
		out, "expert_load_failures_total", "Reads that failed.", cache->load_failures);
	metrics_counter(out, "expert_prefetched_total",
		"Experts that were read before they were needed.", cache->prefetched);
	metrics_counter(out, "expert_prefetch_used_total",
		"Prefetched experts that were used before they were evicted.",
		cache->prefetch_used);
	metrics_counter(out, "expert_prefetch_wasted_total",
		"Prefetched experts that were evicted unused.", cache->prefetch_wasted);
	metrics_head(out, "expert_wait_seconds_total", "counter",
		"Time that the verifier slept until an expert was there.");
	metrics_line(
		out, "outrider_expert_wait_seconds_total %.9g\n", (double)cache->wait_ns / 1e9);
	metrics_gauge(
		out, "expert_budget_bytes", "Memory for experts.", (double)cache->budget_bytes);
	metrics_gauge(out, "expert_slots", "Experts that there is room for.", (double)cache->slots);
	metrics_gauge(out, "expert_resident", "Experts in memory.", (double)cache->resident);
	metrics_gauge(out, "expert_loading", "Experts that are waited for or being read.",
		(double)cache->loading);
	metrics_gauge(out, "expert_link_bytes_per_second",
		"How fast experts can be read, as measured.",
		cache->link_bytes_per_second > 0 ? cache->link_bytes_per_second : (double)NAN);
}

void metrics_service(const struct watch_news *news, struct text *out)
{
	metrics_gauge(out, "ready", "Whether the verifier takes requests.", news->ready);
	metrics_gauge(
		out, "processes", "Processes of the service that answer.", (double)news->answering);
	print_processes(news, out);
	print_sessions(news, out);
	print_cache(&news->cache, out);
}
