#include "services/gateway/responses.h"

#include "services/gateway/answer.h"
#include "services/gateway/generate.h"
#include "services/gateway/plan.h"
#include "services/gateway/routes.h"
#include "shared/base/json_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum item { ITEM_NONE, ITEM_MESSAGE, ITEM_THOUGHT, ITEM_CALL };

struct responses {
	json_t *body; /* of the request: the response repeats some of its fields */
	json_t *output; /* the complete items */
	enum item open; /* the item that text is added to */
	char id[48]; /* of the open item */
	struct text text; /* of the open item so far; of a call: its arguments */
	json_t *call; /* owned: the open call, as in a message */
	bool begun; /* the first events were added */
	json_int_t sequence; /* of the next event */
};

/* Adds an event of this type; takes over its other members. */
static bool event(struct exchange *exchange, const char *type, json_t *rest)
{
	struct responses *r = exchange->responses;
	char before[80];

	if (!exchange->params.stream) {
		json_decref(rest);
		return true;
	}
	json_t *body = json_pack("{s:s,s:I}", "type", type, "sequence_number", r->sequence++);
	if (!body || !rest || json_object_update(body, rest)) {
		json_decref(body);
		json_decref(rest);
		return false;
	}
	json_decref(rest);
	snprintf(before, sizeof before, "event: %s\ndata: ", type);
	return text_add_json(&exchange->out, body, before, "\n\n");
}

/* A field of the request as it was sent, or this default, which is taken over. */
static json_t *given(const struct responses *r, const char *field, json_t *fallback)
{
	json_t *value = json_object_get(r->body, field);

	if (!value || json_is_null(value))
		return fallback;
	json_decref(fallback);
	return json_incref(value);
}

static json_t *response(struct exchange *exchange, const char *status, json_t *usage)
{
	struct responses *r = exchange->responses;
	bool cut = strcmp(status, "incomplete") == 0, failed = strcmp(status, "failed") == 0;
	json_t *error = failed ? json_pack("{s:s,s:o}", "code", "server_error", "message",
					 json_text(exchange->fault.message))
			       : json_null();

	return json_pack("{s:s,s:s,s:I,s:s,s:o,s:o,s:o,s:o,s:o,s:O,s:o,s:n,s:o,s:b,s:o,s:o,s:o,s:o,"
			 "s:o,s:s,s:o,s:o,s:o}",
		"id", exchange->id, "object", "response", "created_at",
		(json_int_t)exchange->created, "status", status, "error", error,
		"incomplete_details",
		cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(),
		"instructions", given(r, "instructions", json_null()), "max_output_tokens",
		given(r, "max_output_tokens", json_null()), "model", answer_model(exchange),
		"output", r->output, "parallel_tool_calls",
		given(r, "parallel_tool_calls", json_true()), "previous_response_id", "reasoning",
		given(r, "reasoning", json_pack("{s:n,s:n}", "effort", "summary")), "store", 0,
		"temperature", given(r, "temperature", json_real(1)), "text",
		given(r, "text", json_pack("{s:{s:s}}", "format", "type", "text")), "tool_choice",
		given(r, "tool_choice", json_string("auto")), "tools",
		given(r, "tools", json_array()), "top_p", given(r, "top_p", json_real(1)),
		"truncation", "disabled", "usage", usage, "user", given(r, "user", json_null()),
		"metadata", given(r, "metadata", json_object()));
}

static bool begin(struct exchange *exchange)
{
	struct responses *r = exchange->responses;

	if (r->begun)
		return true;
	r->begun = true;
	return event(exchange, "response.created",
		       json_pack("{s:o}", "response",
			       response(exchange, "in_progress", json_null()))) &&
	       event(exchange, "response.in_progress",
		       json_pack("{s:o}", "response",
			       response(exchange, "in_progress", json_null())));
}

static void make_id(struct exchange *exchange, const char *prefix)
{
	struct responses *r = exchange->responses;

	snprintf(r->id, sizeof r->id, "%s_%.16s%02zx", prefix, exchange->id + strlen("resp_"),
		json_array_size(r->output));
}

static json_t *part(const struct responses *r)
{
	const char *text = r->text.n ? r->text.data : "";

	return r->open == ITEM_MESSAGE
		       ? json_pack("{s:s,s:s%,s:[],s:[]}", "type", "output_text", "text", text,
				 r->text.n, "annotations", "logprobs")
		       : json_pack("{s:s,s:s%}", "type", "reasoning_text", "text", text, r->text.n);
}

/* The open item with this content, which is taken over. */
static json_t *item(const struct responses *r, const char *status, json_t *content)
{
	return r->open == ITEM_MESSAGE
		       ? json_pack("{s:s,s:s,s:s,s:s,s:o}", "id", r->id, "type", "message",
				 "status", status, "role", "assistant", "content", content)
		       : json_pack("{s:s,s:s,s:s,s:[],s:o}", "id", r->id, "type", "reasoning",
				 "status", status, "summary", "content", content);
}

/* Where the open item is. */
static json_t *place(const struct responses *r)
{
	return json_pack("{s:s,s:I,s:i}", "item_id", r->id, "output_index",
		(json_int_t)json_array_size(r->output), "content_index", 0);
}

static json_t *placed(const struct responses *r, const char *key, json_t *value)
{
	json_t *of = place(r);

	if (of && value && json_object_set_new(of, key, value) == 0)
		return of;
	json_decref(of);
	return NULL;
}

static json_t *indexed(const struct responses *r, json_t *value)
{
	return json_pack(
		"{s:I,s:o}", "output_index", (json_int_t)json_array_size(r->output), "item", value);
}

/* The open call, with these arguments. */
static json_t *call_item(const struct responses *r, const char *status, const char *text, size_t n)
{
	const json_t *function = json_object_get(r->call, "function");

	return json_pack("{s:s,s:s,s:s,s:O,s:O,s:s%}", "id", r->id, "type", "function_call",
		"status", status, "call_id", json_object_get(r->call, "id"), "name",
		json_object_get(function, "name"), "arguments", text, n);
}

/* An event of the open call: what it tells of the arguments. */
static json_t *call_event(const struct responses *r, const char *key, const char *text, size_t n)
{
	return json_pack("{s:s,s:I,s:s%}", "item_id", r->id, "output_index",
		(json_int_t)json_array_size(r->output), key, text, n);
}

static bool close_call(struct exchange *exchange, const char *status)
{
	struct responses *r = exchange->responses;
	const char *text = r->text.n ? r->text.data : "";
	json_t *whole = call_item(r, status, text, r->text.n);
	json_t *done = call_event(r, "arguments", text, r->text.n);

	if (done)
		json_object_set(done, "name", json_object_get(whole, "name"));
	bool good = event(exchange, "response.function_call_arguments.done", done);
	good = event(exchange, "response.output_item.done", indexed(r, json_incref(whole))) && good;
	good = json_array_append_new(r->output, whole) == 0 && good;
	text_drop(&r->text, r->text.n);
	r->open = ITEM_NONE;
	return good;
}

/* Ends the open item, if there is one. */
static bool close_item(struct exchange *exchange, const char *status)
{
	struct responses *r = exchange->responses;
	bool message = r->open == ITEM_MESSAGE;

	if (r->open == ITEM_NONE)
		return true;
	if (r->open == ITEM_CALL)
		return close_call(exchange, status);
	json_t *whole = item(r, status, json_pack("[o]", part(r)));
	json_t *said = json_stringn(r->text.n ? r->text.data : "", r->text.n);
	json_t *done = placed(r, "text", said);
	if (message && done)
		json_object_set_new(done, "logprobs", json_array());
	bool good = event(exchange,
			    message ? "response.output_text.done" : "response.reasoning_text.done",
			    done) &&
		    event(exchange, "response.content_part.done", placed(r, "part", part(r))) &&
		    event(exchange, "response.output_item.done", indexed(r, json_incref(whole)));
	good = json_array_append_new(r->output, whole) == 0 && good;
	text_drop(&r->text, r->text.n);
	r->open = ITEM_NONE;
	return good;
}

static bool open_item(struct exchange *exchange, enum item kind)
{
	struct responses *r = exchange->responses;

	if (r->open == kind)
		return true;
	if (!begin(exchange) || !close_item(exchange, "completed"))
		return false;
	r->open = kind;
	make_id(exchange, kind == ITEM_MESSAGE ? "msg" : "rs");
	return event(exchange, "response.output_item.added",
		       indexed(r, item(r, "in_progress", json_array()))) &&
	       event(exchange, "response.content_part.added", placed(r, "part", part(r)));
}

static bool add_text(struct exchange *exchange, enum item kind, const char *text, size_t bytes)
{
	struct responses *r = exchange->responses;
	bool message = kind == ITEM_MESSAGE;

	if (!open_item(exchange, kind))
		return false;
	text_add(&r->text, text, bytes);
	json_t *delta = placed(r, "delta", json_stringn(text, bytes));
	if (message && delta)
		json_object_set_new(delta, "logprobs", json_array());
	return event(exchange,
		       message ? "response.output_text.delta" : "response.reasoning_text.delta",
		       delta) &&
	       !r->text.failed;
}

bool responses_content(struct exchange *exchange, const char *text, size_t bytes)
{
	return bytes == 0 || add_text(exchange, ITEM_MESSAGE, text, bytes);
}

bool responses_thought(struct exchange *exchange, const char *text, size_t bytes)
{
	return bytes == 0 || add_text(exchange, ITEM_THOUGHT, text, bytes);
}

bool responses_call(struct exchange *exchange, const struct choice *choice)
{
	struct responses *r = exchange->responses;

	if (!begin(exchange) || !close_item(exchange, "completed"))
		return false;
	json_decref(r->call);
	r->call = json_incref(json_array_get(choice->calls, json_array_size(choice->calls) - 1));
	r->open = ITEM_CALL;
	make_id(exchange, "fc");
	return event(exchange, "response.output_item.added",
		indexed(r, call_item(r, "in_progress", "", 0)));
}

bool responses_arguments(struct exchange *exchange, const char *text, size_t bytes)
{
	struct responses *r = exchange->responses;

	text_add(&r->text, text, bytes);
	return event(exchange, "response.function_call_arguments.delta",
		       call_event(r, "delta", text, bytes)) &&
	       !r->text.failed;
}

static json_t *usage_of(struct exchange *exchange)
{
	json_t *chat = answer_usage(exchange), *usage;
	const json_t *made = json_object_get(chat, "completion_tokens_details");
	const json_t *details = json_object_get(chat, "prompt_tokens_details");

	usage = json_pack("{s:O,s:{s:I},s:O,s:{s:I},s:O}", "input_tokens",
		json_object_get(chat, "prompt_tokens"), "input_tokens_details", "cached_tokens",
		json_integer_value(json_object_get(details, "cached_tokens")), "output_tokens",
		json_object_get(chat, "completion_tokens"), "output_tokens_details",
		"reasoning_tokens", json_integer_value(json_object_get(made, "reasoning_tokens")),
		"total_tokens", json_object_get(chat, "total_tokens"));
	json_decref(chat);
	return usage;
}

bool responses_end(struct exchange *exchange)
{
	struct responses *r = exchange->responses;
	enum outrider_end end = exchange->choices[0].end;
	bool cut = end == OUTRIDER_END_LENGTH || end == OUTRIDER_END_DEADLINE;
	const char *status = cut ? "incomplete" : "completed";

	if (!begin(exchange) || !close_item(exchange, status))
		return false;
	/* An answer without any text is a message, too. */
	if (json_array_size(r->output) == 0 &&
		(!open_item(exchange, ITEM_MESSAGE) || !close_item(exchange, status)))
		return false;
	json_t *whole = response(exchange, status, usage_of(exchange));
	if (!whole || !answer_add_own(exchange, whole)) {
		json_decref(whole);
		return false;
	}
	if (!exchange->params.stream)
		return text_add_json(&exchange->out, whole, "", "\n");
	return event(exchange, cut ? "response.incomplete" : "response.completed",
		json_pack("{s:o}", "response", whole));
}

bool responses_fault(struct exchange *exchange)
{
	return begin(exchange) && close_item(exchange, "incomplete") &&
	       event(exchange, "response.failed",
		       json_pack("{s:o}", "response", response(exchange, "failed", json_null())));
}

void responses_free(struct exchange *exchange)
{
	struct responses *r = exchange->responses;

	if (!r)
		return;
	json_decref(r->body);
	json_decref(r->output);
	json_decref(r->call);
	text_free(&r->text);
	free(r);
	exchange->responses = NULL;
}

bool responses_handle(struct exchange *exchange)
{
	json_t *body = generate_json(exchange), *chat;
	struct responses *r;

	if (!body)
		return false;
	exchange->params.chat = true;
	routes_take_key(exchange);
	chat = responses_read(body, &exchange->fault);
	r = chat ? calloc(1, sizeof *r) : NULL;
	exchange->responses = r;
	if (!r || (r->output = json_array()) == NULL) {
		json_decref(body);
		json_decref(chat);
		return chat ? fault_set(&exchange->fault, 500, NULL, "internal_error",
				      "no memory for the request")
			    : false;
	}
	r->body = body;
	bool good = params_read(&exchange->params, chat, &exchange->fault);
	json_decref(chat);
	return good && routes_serves(exchange) && plan_chat(exchange);
}
