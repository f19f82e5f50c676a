#include "services/gateway/audit.h"

#include "shared/base/json_text.h"

#include <string.h>

static const int32_t *tokens_of(const struct choice *choice)
{
	return (const int32_t *)(const void *)choice->tokens.data;
}

static size_t n_tokens_of(const struct choice *choice)
{
	return choice->tokens.n / sizeof(int32_t);
}

bool audit_keep(struct choice *choice, const struct outrider_event *event)
{
	if (choice->exchange->params.audit && event->n_tokens > 0)
		text_add(&choice->tokens, (const char *)event->tokens,
			event->n_tokens * sizeof(*event->tokens));
	return !choice->tokens.failed;
}

void audit_begin(struct exchange *exchange)
{
	exchange->n_audits = 0;
	for (uint32_t i = 0; exchange->params.audit && i < exchange->n_started; i++)
		if (exchange->choices[i].tokens.n > 0)
			exchange->audits[exchange->n_audits++] = (struct choice){
				.exchange = exchange, .index = i, .audits = &exchange->choices[i]};
}

int audit_request(const struct choice *audit)
{
	struct outrider_request *request = audit->exchange->params.request;
	int code = outrider_request_set_audit(
		request, tokens_of(audit->audits), n_tokens_of(audit->audits));

	if (code == 0)
		code = outrider_request_set_budget(request, "all", NULL, NULL);
	return code == 0 ? outrider_request_set_logprobs(request, -1) : code;
}

bool audit_take(struct choice *audit, const struct outrider_event *event)
{
	if (event->picked)
		text_add(&audit->tokens, (const char *)event->picked,
			event->n_tokens * sizeof(*event->picked));
	if (event->type == OUTRIDER_EVENT_DONE && event->end == OUTRIDER_END_ERROR)
		audit_fail(audit, event->message);
	else if (event->type == OUTRIDER_EVENT_DONE && event->end == OUTRIDER_END_DEADLINE)
		audit_fail(audit, "the time of the answer (answer_timeout) was over");
	return !audit->tokens.failed;
}

void audit_fail(struct choice *audit, const char *why)
{
	text_drop(&audit->text, audit->text.n);
	text_add(&audit->text, why, strlen(why) + 1);
}

static const struct choice *audit_of(const struct exchange *exchange, uint32_t index)
{
	for (uint32_t i = 0; i < exchange->n_audits; i++)
		if (exchange->audits[i].index == index)
			return &exchange->audits[i];
	return NULL;
}

static json_t *one_json(const struct choice *audit)
{
	json_t *changed = json_array();
	size_t n = audit ? n_tokens_of(audit) : 0;

	if (audit && audit->text.n > 0) {
		json_decref(changed);
		return json_pack("{s:o}", "error", json_text(audit->text.data));
	}
	for (size_t i = 0; i < n; i++) {
		int32_t token = tokens_of(audit->audits)[i], picked = tokens_of(audit)[i];

		if (picked != token)
			json_array_append_new(
				changed, json_pack("{s:I,s:i,s:i}", "index", (json_int_t)i, "token",
						 (int)token, "picked", (int)picked));
	}
	return json_pack("{s:I,s:o}", "tokens", (json_int_t)n, "changed", changed);
}

json_t *audit_json(const struct exchange *exchange)
{
	json_t *all = json_array();

	for (uint32_t i = 0; all && i < exchange->n_started; i++)
		json_array_append_new(all, one_json(audit_of(exchange, i)));
	return all;
}

void audit_free(struct choice *choice)
{
	text_free(&choice->tokens);
}
