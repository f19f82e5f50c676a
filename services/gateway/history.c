#include "services/gateway/history.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* How much a counter grew. A counter that went back began again at 0. */
static double grown(uint64_t now, uint64_t before)
{
	return now >= before ? (double)(now - before) : (double)NAN;
}

void history_add(
	struct history *history, const struct watch_news *news, uint64_t at_ns, double time_s)
{
	const struct news_cache *cache = &news->cache;

	if (history->at_ns && at_ns - history->at_ns < HISTORY_PERIOD_NS)
		return;
	struct sample *to = &history->samples[++history->n % HISTORY_SAMPLES];
	double seconds = (double)(at_ns - history->at_ns) / 1e9;
	double hits = grown(cache->hits, history->hits),
	       misses = grown(cache->misses, history->misses);

	*to = (struct sample){
		.time_s = time_s,
		.tokens_per_s = (double)NAN,
		.k = news->k,
		.utility = news->utility,
		.accepted = news->accepted,
		.hits = (double)NAN,
		.running = (double)news->running,
		.waiting = (double)news->waiting,
	};
	if (history->at_ns && seconds > 0)
		to->tokens_per_s = grown(news->output_tokens, history->output_tokens) / seconds;
	if (history->at_ns && cache->known && hits + misses > 0)
		to->hits = hits / (hits + misses);
	history->at_ns = at_ns;
	history->output_tokens = news->output_tokens;
	history->hits = cache->hits;
	history->misses = cache->misses;
}

/* JSON has no NAN. */
static void add_number(struct text *out, const char *name, double value, int digits)
{
	char text[64];

	if (isfinite(value))
		snprintf(text, sizeof text, ",\"%s\":%.*f", name, digits, value);
	else
		snprintf(text, sizeof text, ",\"%s\":null", name);
	text_add_string(out, text);
}

void history_print(const struct history *history, uint64_t after, struct text *out)
{
	uint64_t first = history->n > HISTORY_SAMPLES ? history->n - HISTORY_SAMPLES + 1 : 1;
	char text[64];

	/* A number that this gateway never gave comes from another gateway: all samples are
	 * printed. */
	if (after >= first && after <= history->n)
		first = after + 1;
	text_add_string(out, "[");
	for (uint64_t i = first; i <= history->n; i++) {
		const struct sample *s = &history->samples[i % HISTORY_SAMPLES];

		snprintf(text, sizeof text, "%s{\"number\":%" PRIu64, i > first ? "," : "", i);
		text_add_string(out, text);
		add_number(out, "time_s", s->time_s, 1);
		add_number(out, "tokens_per_s", s->tokens_per_s, 1);
		add_number(out, "k", s->k, 2);
		add_number(out, "utility", s->utility, 3);
		add_number(out, "accepted", s->accepted, 3);
		add_number(out, "hits", s->hits, 4);
		add_number(out, "running", s->running, 0);
		add_number(out, "waiting", s->waiting, 0);
		text_add_string(out, "}");
	}
	text_add_string(out, "]");
}
