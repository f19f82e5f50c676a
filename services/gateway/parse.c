#include "services/gateway/parse.h"

#include "services/gateway/answer.h"
#include "services/gateway/responses.h"
#include "shared/base/checksum.h"

#include <stdio.h>

static void on_content(void *arg, const char *text, size_t bytes)
{
	struct choice *choice = arg;
	struct exchange *exchange = choice->exchange;

	if (exchange->responses) {
		choice->failed |= !responses_content(exchange, text, bytes);
	} else if (exchange->params.stream) {
		choice->failed |= !answer_chunk(exchange, choice, text, bytes);
	} else {
		text_add(&choice->text, text, bytes);
		choice->failed |= choice->text.failed;
	}
}

static void on_thought(void *arg, const char *text, size_t bytes)
{
	struct choice *choice = arg;
	struct exchange *exchange = choice->exchange;

	if (exchange->responses) {
		choice->failed |= !responses_thought(exchange, text, bytes);
	} else if (exchange->params.stream) {
		choice->failed |= !answer_thought(exchange, choice, text, bytes);
	} else {
		text_add(&choice->thought, text, bytes);
		choice->failed |= choice->thought.failed;
	}
}

/* The id depends on the request and the call's place alone, so that the same request with the same
 * seed gets the same ids. Mistral's templates want nine letters and digits. */
static void make_id(const struct choice *choice, size_t i, char id[40])
{
	const struct params *params = &choice->exchange->params;
	const uint64_t of[] = {params->digest, params->seed, choice->index, i};
	unsigned long long sum = (unsigned long long)checksum(1, of, sizeof of);

	if (choice->exchange->format.notation == CALLS_MISTRAL)
		snprintf(id, 40, "%09llx", sum >> 28);
	else
		snprintf(id, 40, "call_%016llx", sum);
}

static void on_call(void *arg, const char *name)
{
	struct choice *choice = arg;
	struct exchange *exchange = choice->exchange;
	char id[40];

	if (!choice->calls)
		choice->calls = json_array();
	make_id(choice, json_array_size(choice->calls), id);
	json_t *call = json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", id, "type", "function", "function",
		"name", name, "arguments", "");
	choice->failed |= json_array_append_new(choice->calls, call) < 0;
	if (!choice->failed && exchange->responses)
		choice->failed |= !responses_call(exchange, choice);
	else if (!choice->failed && exchange->params.stream)
		choice->failed |= !answer_call(exchange, choice);
}

static void on_arguments(void *arg, const char *text, size_t bytes)
{
	struct choice *choice = arg;
	struct exchange *exchange = choice->exchange;

	if (exchange->responses) {
		choice->failed |= !responses_arguments(exchange, text, bytes);
	} else if (exchange->params.stream) {
		choice->failed |= !answer_arguments(exchange, choice, text, bytes);
	} else {
		text_add(&choice->arguments, text, bytes);
		choice->failed |= choice->arguments.failed;
	}
}

static void on_call_end(void *arg)
{
	struct choice *choice = arg;
	struct exchange *exchange = choice->exchange;
	json_t *call = json_array_get(choice->calls, json_array_size(choice->calls) - 1);

	if (choice->failed || exchange->responses || exchange->params.stream)
		return;
	json_t *all = json_stringn(
		choice->arguments.n ? choice->arguments.data : "", choice->arguments.n);
	choice->failed |=
		json_object_set_new(json_object_get(call, "function"), "arguments", all) < 0;
	text_drop(&choice->arguments, choice->arguments.n);
}

bool parse_begin(struct choice *choice)
{
	struct exchange *exchange = choice->exchange;
	const struct calls_sink sink = {
		choice, on_content, on_thought, on_call, on_arguments, on_call_end};
	bool tools = exchange->params.choice != CHOICE_NONE;

	if (!exchange->parsed)
		return true;
	choice->thoughts.within = exchange->thinking;
	choice->parser = calls_new(&exchange->format, tools ? exchange->params.tools : NULL,
		exchange->thinking, &sink);
	return choice->parser != NULL;
}

bool parse_text(struct choice *choice, const char *text, size_t bytes)
{
	return calls_feed(choice->parser, text, bytes) && !choice->failed;
}

bool parse_end(struct choice *choice)
{
	return calls_finish(choice->parser) && !choice->failed;
}

void parse_free(struct choice *choice)
{
	calls_free(&choice->parser);
	text_free(&choice->thought);
	text_free(&choice->arguments);
	json_decref(choice->calls);
	choice->calls = NULL;
}
