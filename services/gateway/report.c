#include "services/gateway/report.h"

#include "shared/base/json_text.h"
#include "shared/base/proquint.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static json_t *number_or_null(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static json_t *session_json(const struct look *look, const Outrider__Session *s)
{
	const Outrider__PolicySession *p = look_session(look, s->uid);
	double utility = p ? look_utility(p) : 0;
	char name[PROQUINT_BYTES];

	return json_pack("{s:s,s:o,s:I,s:I,s:I,s:I,s:o,s:o,s:I,s:I,s:f,s:f}", "name",
		proquint(s->uid, name), "state", json_text(s->state), "prompt_tokens",
		(json_int_t)s->prompt_tokens, "output_tokens", (json_int_t)s->output_tokens,
		"max_tokens", (json_int_t)s->max_tokens, "k", (json_int_t)s->k, "draft_method",
		json_text(s->draft_method), "utility",
		utility > 0 ? json_real(utility) : json_null(), "drafted", (json_int_t)s->drafted,
		"accepted", (json_int_t)s->accepted, "tokens_per_s", (double)s->tokens_per_s,
		"age_s", (double)s->age_ns / 1e9);
}

static json_t *sessions_json(const struct look *look)
{
	const Outrider__Sessions *all = look_sessions(look);
	json_t *list = json_array();

	for (size_t i = 0; all && i < all->n_sessions; i++)
		json_array_append_new(list, session_json(look, all->sessions[i]));
	return list;
}

static json_t *processes_list(const struct look *look, const struct watch_news *news)
{
	json_t *list = json_array();

	for (size_t i = 0; i < outrider_status_count(look->status); i++) {
		const struct outrider_process *p = outrider_status_process(look->status, i);
		uint64_t restarts = 0;

		for (size_t j = 0; j < news->n_processes; j++)
			if (strcmp(news->processes[j].name, p->name) == 0)
				restarts = news->processes[j].restarts;
		json_array_append_new(
			list, json_pack("{s:s,s:o,s:f,s:I,s:I}", "name", p->name, "state",
				      json_text(p->state), "uptime_s", (double)p->uptime_ns / 1e9,
				      "rss_bytes", (json_int_t)p->rss_bytes, "restarts",
				      (json_int_t)restarts));
	}
	return list;
}

static json_t *cache_json(const Outrider__CacheStats *c)
{
	if (!c)
		return json_null();
	return json_pack("{s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:f}", "policy", json_text(c->policy),
		"hits", (json_int_t)c->hits, "misses", (json_int_t)c->misses, "resident",
		(json_int_t)c->resident, "slots", (json_int_t)c->slots, "budget_bytes",
		(json_int_t)c->budget_bytes, "loaded_bytes", (json_int_t)c->bytes_loaded,
		"link_bytes_per_second", c->link_bytes_per_second);
}

char *report_print(const struct look *look, const struct watch_news *news)
{
	const Outrider__PolicyState *policy = look_policy(look);
	json_t *root = json_pack(
		"{s:o,s:o,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o}",
		"model", news->model[0] ? json_text(news->model) : json_null(), "state",
		json_text(news->state), "ready", (int)news->ready, "context",
		(json_int_t)news->context, "running", (json_int_t)news->running, "waiting",
		(json_int_t)news->waiting, "places", (json_int_t)news->places, "queue_max",
		(json_int_t)news->queue_max, "output_tokens", (json_int_t)news->output_tokens,
		"kv_held_tokens", (json_int_t)news->kv_held_tokens, "kv_tokens",
		(json_int_t)news->kv_tokens, "k", number_or_null(news->k), "utility",
		number_or_null(news->utility), "accepted", number_or_null(news->accepted), "policy",
		policy ? json_text(policy->policy) : json_null(), "cache",
		cache_json(look_cache(look)), "processes", processes_list(look, news), "sessions",
		sessions_json(look));
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;

	json_decref(root);
	return text;
}
