#include "services/gateway/news.h"

#include "client/summary/process.h"
#include "shared/ipc/peers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void take_model(struct watch_news *news, const char *file)
{
	snprintf(news->model, sizeof news->model, "%s", file);
	char *end = strstr(news->model, ".gguf");
	if (end && end[5] == '\0')
		*end = '\0';
}

static void take_verifier(struct watch_news *news, const struct outrider_process *p)
{
	const char *model = process_file(p, "model");

	snprintf(news->state, sizeof news->state, "%s", p->state);
	news->ready = p->answers &&
		      (strncmp(p->state, "ready", 5) == 0 || strncmp(p->state, "degraded", 8) == 0);
	if (!p->answers)
		return;
	if (model)
		take_model(news, model);
	news->generation = p->generation;
	news->context = process_number(p, "context");
	news->running = process_number(p, "running");
	news->waiting = process_number(p, "waiting");
	news->places = process_number(p, "places");
	news->output_tokens = process_number(p, "output_tokens");
	news->kv_held_tokens = process_number(p, "kv_held_tokens");
	news->kv_tokens = process_number(p, "kv_tokens");
}

static void take_drafter(struct watch_news *news, const struct outrider_process *p)
{
	if (!p)
		return;
	news->drafter_drafted = process_number(p, "drafted");
	news->drafter_requests = process_number(p, "requests");
	news->drafter_busy_ns = process_number(p, "busy_ns");
}

static struct news_process *entry_of(struct watch_news *news, const char *name)
{
	for (size_t i = 0; i < news->n_processes; i++)
		if (strcmp(news->processes[i].name, name) == 0)
			return &news->processes[i];
	if (news->n_processes == NEWS_PROCESSES)
		return NULL;
	struct news_process *to = &news->processes[news->n_processes++];
	*to = (struct news_process){0};
	snprintf(to->name, sizeof to->name, "%s", name);
	return to;
}

static void take_process(struct watch_news *news, const struct outrider_process *p)
{
	struct news_process *to = entry_of(news, p->name);

	news->answering += p->answers != 0;
	if (!to)
		return;
	to->up = p->answers != 0;
	if (!to->up)
		return;
	to->restarts += to->generation && to->generation != p->generation;
	to->generation = p->generation;
	to->uptime_ns = p->uptime_ns;
	to->rss_bytes = p->rss_bytes;
}

static void take_sessions(struct watch_news *news, const struct look *look)
{
	const Outrider__Sessions *all = look_sessions(look);
	double k = 0, utility = 0, drafted = 0, accepted = 0;
	size_t n = 0, measured = 0;

	for (size_t i = 0; all && i < all->n_sessions; i++) {
		const Outrider__Session *s = all->sessions[i];
		const Outrider__PolicySession *p = look_session(look, s->uid);
		double value = p ? look_utility(p) : 0;

		if (strcmp(s->state, "running") != 0)
			continue;
		n++;
		k += s->k;
		drafted += s->drafted;
		accepted += s->accepted;
		measured += value > 0;
		utility += value > 0 ? value : 0;
	}
	news->k = n ? k / (double)n : (double)NAN;
	news->utility = measured ? utility / (double)measured : (double)NAN;
	news->accepted = drafted > 0 ? accepted / drafted : (double)NAN;
	if (!all)
		return;
	news->iterations = all->iterations_total;
	news->queue_max = all->queue_max;
}

static void take_cache(struct watch_news *news, const Outrider__CacheStats *c)
{
	news->cache.known = c != NULL;
	if (!c)
		return;
	news->cache = (struct news_cache){
		.known = true,
		.hits = c->hits,
		.misses = c->misses,
		.loads = c->loads,
		.evictions = c->evictions,
		.loaded_bytes = c->bytes_loaded,
		.self_served = c->self_served,
		.load_failures = c->load_failures,
		.wait_ns = c->wait_ns,
		.prefetched = c->prefetched,
		.prefetch_used = c->prefetch_used,
		.prefetch_wasted = c->prefetch_wasted,
		.budget_bytes = c->budget_bytes,
		.resident = c->resident,
		.slots = c->slots,
		.loading = c->queue_depth,
		.link_bytes_per_second = c->link_bytes_per_second,
	};
}

void news_take(struct watch_news *news, const struct look *look)
{
	const Outrider__PolicyState *policy = look_policy(look);

	news->answering = 0;
	for (size_t i = 0; i < outrider_status_count(look->status); i++) {
		const struct outrider_process *p = outrider_status_process(look->status, i);

		take_process(news, p);
		if (strcmp(p->name, PEER_VERIFIER) == 0)
			take_verifier(news, p);
	}
	take_drafter(news, process_find(look->status, PEER_DRAFTER));
	take_sessions(news, look);
	take_cache(news, look_cache(look));
	if (policy) {
		news->decisions = policy->decisions;
		news->records_lost = policy->records_lost;
	}
}
