#include "services/gateway/answer.h"

#include "services/gateway/audit.h"
#include "services/gateway/logprobs.h"
#include "shared/base/json_text.h"

#include <string.h>

static bool add_event(struct exchange *exchange, json_t *value)
{
	return text_add_json(&exchange->out, value, "data: ", "\n\n");
}

static const char *model_of(const struct exchange *exchange, struct watch_news *news)
{
	watch_read(&exchange->gateway->watch, news);
	return news->model[0] ? news->model : "outrider";
}

static json_t *head(const struct exchange *exchange, const char *object, json_t *choices)
{
	struct watch_news news;

	return json_pack("{s:s,s:s,s:I,s:o,s:o}", "id", exchange->id, "object", object, "created",
		(json_int_t)exchange->created, "model", json_text(model_of(exchange, &news)),
		"choices", choices);
}

static const char *finish_reason(enum outrider_end end)
{
	return end == OUTRIDER_END_LENGTH || end == OUTRIDER_END_DEADLINE ? "length" : "stop";
}

static json_t *finish(const struct choice *choice)
{
	const char *reason = finish_reason(choice->end);

	if (choice->end == OUTRIDER_END_NONE)
		return json_null();
	if (choice->calls && strcmp(reason, "stop") == 0)
		reason = "tool_calls";
	return json_string(reason);
}

/* The usage of all choices of an answer together. */
struct sums {
	json_int_t prompt, cached, completion, thoughts, drafted, accepted, iterations, restarts;
	double prompt_ms, decode_ms;
	json_t *lossy;
};

static bool sum(const struct exchange *exchange, struct sums *sums)
{
	*sums = (struct sums){.lossy = json_array()};
	for (uint32_t i = 0; i < exchange->n_started; i++) {
		struct outrider_usage usage;

		if (!exchange->choices[i].stream ||
			outrider_usage(exchange->choices[i].stream, &usage) < 0)
			continue;
		/* The prompt is the same for all. */
		sums->prompt = usage.prompt_tokens;
		/* What the other choices found in the cache was computed by this request itself. */
		if (i == 0)
			sums->cached = usage.cached_tokens;
		sums->completion += usage.output_tokens;
		sums->thoughts += exchange->choices[i].thoughts.n;
		sums->drafted += usage.drafted;
		sums->accepted += usage.accepted;
		sums->iterations += usage.iterations;
		if ((json_int_t)usage.restarts > sums->restarts)
			sums->restarts = usage.restarts;
		sums->prompt_ms += (double)usage.prefill_ns / 1e6;
		sums->decode_ms += (double)usage.decode_ns / 1e6;
		for (size_t l = 0; i == 0 && l < usage.n_lossy; l++)
			json_array_append_new(sums->lossy, json_text(usage.lossy[l]));
	}
	return sums->lossy != NULL;
}

static json_t *usage_json(const struct sums *sums)
{
	return json_pack("{s:I,s:I,s:I,s:{s:I},s:{s:I}}", "prompt_tokens", sums->prompt,
		"completion_tokens", sums->completion, "total_tokens",
		sums->prompt + sums->completion, "prompt_tokens_details", "cached_tokens",
		sums->cached, "completion_tokens_details", "reasoning_tokens", sums->thoughts);
}

/* Adds "outrider" and "timings"; takes over sums->lossy. */
static bool add_more(json_t *body, const struct exchange *exchange, struct sums *sums)
{
	/* After a restart of the service the times cover only the tokens since then. */
	double rate = sums->decode_ms > 0 && sums->restarts == 0
			      ? (double)sums->completion * 1e3 / sums->decode_ms
			      : 0;
	json_t *own =
		json_pack("{s:I,s:I,s:I,s:I,s:I,s:o}", "seed", (json_int_t)exchange->params.seed,
			"drafted", sums->drafted, "accepted", sums->accepted, "iterations",
			sums->iterations, "restarts", sums->restarts, "lossy", sums->lossy);
	json_t *timings = json_pack("{s:I,s:f,s:I,s:f,s:f,s:I,s:I}", "prompt_n", sums->prompt,
		"prompt_ms", sums->prompt_ms, "predicted_n", sums->completion, "predicted_ms",
		sums->decode_ms, "predicted_per_second", rate, "draft_n", sums->drafted,
		"draft_n_accepted", sums->accepted);

	if (exchange->params.audit)
		json_object_set_new(own, "audit", audit_json(exchange));
	return json_object_set_new(body, "outrider", own) == 0 &&
	       json_object_set_new(body, "timings", timings) == 0;
}

static json_t *chunk(
	struct exchange *exchange, struct choice *choice, const char *text, size_t bytes, bool role)
{
	/* The chunk that tells the role has no log probabilities. */
	json_t *of, *logprobs = role ? json_null() : logprobs_take(choice);

	if (!exchange->params.chat) {
		of = json_pack("{s:i,s:s%,s:o,s:o}", "index", (int)choice->index, "text", text,
			bytes, "logprobs", logprobs, "finish_reason", finish(choice));
		return head(exchange, "text_completion", json_pack("[o]", of));
	}
	json_t *delta = json_object();
	if (role)
		json_object_set_new(delta, "role", json_string("assistant"));
	if (role || bytes)
		json_object_set_new(delta, "content", json_stringn(text, bytes));
	of = json_pack("{s:i,s:o,s:o,s:o}", "index", (int)choice->index, "delta", delta, "logprobs",
		logprobs, "finish_reason", finish(choice));
	return head(exchange, "chat.completion.chunk", json_pack("[o]", of));
}

bool answer_chunk(struct exchange *exchange, struct choice *choice, const char *text, size_t bytes)
{
	bool first = !choice->begun;

	if (bytes == 0 && !choice->logprobs && !(first && exchange->params.chat))
		return true;
	choice->begun = true;
	if (!first || !exchange->params.chat)
		return add_event(exchange, chunk(exchange, choice, text, bytes, false));
	return add_event(exchange, chunk(exchange, choice, "", 0, true)) &&
	       ((bytes == 0 && !choice->logprobs) ||
		       add_event(exchange, chunk(exchange, choice, text, bytes, false)));
}

/* A chunk with anything other than content; takes over delta. */
static bool add_delta(struct exchange *exchange, struct choice *choice, json_t *delta)
{
	json_t *of;

	if (!choice->begun) {
		choice->begun = true;
		if (!add_event(exchange, chunk(exchange, choice, "", 0, true))) {
			json_decref(delta);
			return false;
		}
	}
	of = json_pack("{s:i,s:o,s:o,s:n}", "index", (int)choice->index, "delta", delta, "logprobs",
		logprobs_take(choice), "finish_reason");
	return add_event(exchange, head(exchange, "chat.completion.chunk", json_pack("[o]", of)));
}

bool answer_thought(
	struct exchange *exchange, struct choice *choice, const char *text, size_t bytes)
{
	return add_delta(exchange, choice, json_pack("{s:s%}", "reasoning_content", text, bytes));
}

bool answer_call(struct exchange *exchange, struct choice *choice)
{
	size_t i = json_array_size(choice->calls) - 1;
	json_t *call = json_copy(json_array_get(choice->calls, i));

	json_object_set_new(call, "index", json_integer((json_int_t)i));
	return add_delta(exchange, choice, json_pack("{s:[o]}", "tool_calls", call));
}

bool answer_arguments(
	struct exchange *exchange, struct choice *choice, const char *text, size_t bytes)
{
	json_int_t i = (json_int_t)json_array_size(choice->calls) - 1;

	return add_delta(exchange, choice,
		json_pack("{s:[{s:I,s:{s:s%}}]}", "tool_calls", "index", i, "function", "arguments",
			text, bytes));
}

bool answer_chunk_end(struct exchange *exchange, struct choice *choice)
{
	return answer_chunk(exchange, choice, "", 0) &&
	       add_event(exchange, chunk(exchange, choice, "", 0, false));
}

bool answer_stream_end(struct exchange *exchange)
{
	struct sums sums;

	if (!sum(exchange, &sums))
		return false;
	if (!exchange->params.include_usage) {
		json_decref(sums.lossy);
	} else {
		json_t *body = head(exchange,
			exchange->params.chat ? "chat.completion.chunk" : "text_completion",
			json_array());

		json_object_set_new(body, "usage", usage_json(&sums));
		if (!add_more(body, exchange, &sums) || !add_event(exchange, body))
			return false;
	}
	text_add_string(&exchange->out, "data: [DONE]\n\n");
	return !exchange->out.failed;
}

bool answer_stream_fault(struct exchange *exchange)
{
	return add_event(exchange, fault_json(&exchange->fault));
}

/* Takes over `text`. */
static json_t *message(const struct choice *choice, json_t *text)
{
	json_t *of = json_pack("{s:s,s:o,s:n}", "role", "assistant", "content", text, "refusal");

	if (of && choice->thought.n)
		json_object_set_new(of, "reasoning_content",
			json_stringn(choice->thought.data, choice->thought.n));
	if (of && choice->calls) {
		json_object_set(of, "tool_calls", choice->calls);
		if (choice->text.n == 0)
			json_object_set_new(of, "content", json_null());
	}
	return of;
}

static json_t *whole_choice(const struct exchange *exchange, struct choice *choice)
{
	json_t *logprobs = logprobs_take(choice);
	json_t *text = json_stringn(choice->text.n ? choice->text.data : "", choice->text.n);

	if (!exchange->params.chat)
		return json_pack("{s:i,s:o,s:o,s:o}", "index", (int)choice->index, "text", text,
			"logprobs", logprobs, "finish_reason", finish(choice));
	return json_pack("{s:i,s:o,s:o,s:o}", "index", (int)choice->index, "message",
		message(choice, text), "logprobs", logprobs, "finish_reason", finish(choice));
}

bool answer_whole(struct exchange *exchange)
{
	json_t *choices = json_array();
	struct sums sums;

	for (uint32_t i = 0; i < exchange->n_started; i++)
		json_array_append_new(choices, whole_choice(exchange, &exchange->choices[i]));
	json_t *body = head(
		exchange, exchange->params.chat ? "chat.completion" : "text_completion", choices);
	if (!body || !sum(exchange, &sums)) {
		json_decref(body);
		return false;
	}
	json_object_set_new(body, "usage", usage_json(&sums));
	if (!add_more(body, exchange, &sums)) {
		json_decref(body);
		return false;
	}
	return text_add_json(&exchange->out, body, "", "\n");
}

json_t *answer_model(const struct exchange *exchange)
{
	struct watch_news news;

	return json_text(model_of(exchange, &news));
}

json_t *answer_usage(const struct exchange *exchange)
{
	struct sums sums;

	if (!sum(exchange, &sums))
		return NULL;
	json_decref(sums.lossy);
	return usage_json(&sums);
}

bool answer_add_own(const struct exchange *exchange, json_t *body)
{
	struct sums sums;

	return sum(exchange, &sums) && add_more(body, exchange, &sums);
}
