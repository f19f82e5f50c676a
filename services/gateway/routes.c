#include "services/gateway/routes.h"

#include "services/gateway/generate.h"
#include "services/gateway/page.h"
#include "services/gateway/plan.h"
#include "services/gateway/responses.h"
#include "services/gateway/texts.h"
#include "shared/base/checksum.h"
#include "shared/base/json_text.h"

#include <stdlib.h>
#include <string.h>

static bool no_memory(struct exchange *exchange)
{
	return fault_set(&exchange->fault, 500, NULL, "internal_error", "no memory for the answer");
}

/* Makes `value` the whole answer. */
static bool answer(struct exchange *exchange, json_t *value)
{
	exchange->complete = true;
	return text_add_json(&exchange->out, value, "", "\n") || no_memory(exchange);
}

static bool health(struct exchange *exchange)
{
	struct watch_news news;

	watch_read(&exchange->gateway->watch, &news);
	if (!news.ready)
		return fault_set(&exchange->fault, 503, NULL, "not_ready",
			"the service does not take requests yet: the verifier is %s", news.state);
	return answer(exchange, json_pack("{s:s}", "status", "ok"));
}

static bool models(struct exchange *exchange)
{
	struct watch_news news;
	json_t *list = json_array();

	watch_read(&exchange->gateway->watch, &news);
	if (news.model[0])
		json_array_append_new(
			list, json_pack("{s:o,s:s,s:i,s:s,s:{s:I}}", "id", json_text(news.model),
				      "object", "model", "created", 0, "owned_by", "outrider",
				      "meta", "n_ctx", (json_int_t)news.context));
	return answer(exchange, json_pack("{s:s,s:o}", "object", "list", "data", list));
}

static bool metrics(struct exchange *exchange)
{
	struct gateway *gateway = exchange->gateway;
	struct watch_news news;

	watch_read(&gateway->watch, &news);
	gateway->metrics.streams = gateway->queue.running;
	gateway->metrics.streams_waiting = gateway->queue.n;
	metrics_print(&gateway->metrics, &news, &exchange->out);
	exchange->complete = true;
	return !exchange->out.failed || no_memory(exchange);
}

/* ?after=N: the number of the last sample that the page has; 0: it has none. */
static bool status(struct exchange *exchange)
{
	const char *after =
		MHD_lookup_connection_value(exchange->connection, MHD_GET_ARGUMENT_KIND, "after");

	if (after &&
		(!*after || strspn(after, "0123456789") != strlen(after) || strlen(after) > 18))
		return fault_set(&exchange->fault, 400, "after", "invalid_value",
			"after: expected the number of a sample, 0 to 10^18");
	watch_report(
		&exchange->gateway->watch, after ? strtoull(after, NULL, 10) : 0, &exchange->out);
	exchange->complete = true;
	return !exchange->out.failed || no_memory(exchange);
}

/* Only one model is served; "outrider" means that one, whatever its name. */
bool routes_serves(struct exchange *exchange)
{
	const char *asked = exchange->params.model;
	struct watch_news news;

	watch_read(&exchange->gateway->watch, &news);
	if (!*asked || !news.model[0] || strcmp(asked, news.model) == 0 ||
		strcmp(asked, "outrider") == 0)
		return true;
	return fault_set(&exchange->fault, 404, "model", "model_not_found",
		"the model \"%.100s\" is not served here; \"%s\" is", asked, news.model);
}

void routes_take_key(struct exchange *exchange)
{
	const char *key = MHD_lookup_connection_value(
		exchange->connection, MHD_HEADER_KIND, "Idempotency-Key");

	if (key)
		exchange->params.idempotency = checksum(0, key, strlen(key)) | 1;
}

static bool complete(struct exchange *exchange, bool chat)
{
	exchange->params.chat = chat;
	routes_take_key(exchange);
	return generate_read(exchange) && routes_serves(exchange) &&
	       (chat ? plan_chat(exchange) : generate_begin(exchange));
}

static bool completions(struct exchange *exchange)
{
	return complete(exchange, false);
}

static bool chat(struct exchange *exchange)
{
	return complete(exchange, true);
}

static const struct route routes[] = {
	{"GET", "/health", true, ROUTES_JSON, health},
	{"GET", "/v1/health", true, ROUTES_JSON, health},
	{"GET", "/v1/models", false, ROUTES_JSON, models},
	{"GET", "/metrics", false, "text/plain; version=0.0.4; charset=utf-8", metrics},
	{"GET", "/status", false, ROUTES_JSON, status},
	{"GET", "/", true, ROUTES_HTML, page_html},
	{"GET", "/page/page.js", true, "text/javascript; charset=utf-8", page_script},
	{"GET", "/page/page.css", true, "text/css; charset=utf-8", page_style},
	{"GET", "/page/icon.svg", true, "image/svg+xml", page_icon},
	{"GET", "/props", false, ROUTES_JSON, texts_props},
	{"POST", "/tokenize", false, ROUTES_JSON, texts_tokenize},
	{"POST", "/detokenize", false, ROUTES_JSON, texts_detokenize},
	{"POST", "/apply-template", false, ROUTES_JSON, texts_template},
	{"POST", "/v1/completions", false, ROUTES_JSON, completions},
	{"POST", "/v1/responses", false, ROUTES_JSON, responses_handle},
	{"POST", "/v1/chat/completions", false, ROUTES_JSON, chat},
};

const struct route *routes_find(const char *method, const char *path, bool *known)
{
	*known = false;
	for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
		if (strcmp(routes[i].path, path) != 0)
			continue;
		*known = true;
		if (strcmp(routes[i].method, method) == 0 ||
			(strcmp(method, "HEAD") == 0 && strcmp(routes[i].method, "GET") == 0))
			return &routes[i];
	}
	return NULL;
}
