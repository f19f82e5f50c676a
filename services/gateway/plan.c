#include "services/gateway/plan.h"

#include "services/gateway/exchange.h"
#include "services/gateway/generate.h"
#include "shared/model/text/chat_tools.h"

#include <stdlib.h>
#include <string.h>

static bool no_memory(struct exchange *exchange)
{
	return fault_set(
		&exchange->fault, 500, NULL, "internal_error", "no memory for the request");
}

/* Reads from the template how the model writes thoughts and calls. A template without tools is
 * given Hermes' notation. */
static void read_facts(const char *template, struct gateway_facts *facts)
{
	size_t bytes = strlen(template);

	calls_detect(template, bytes, &facts->format);
	if (!chat_takes_tools(template, bytes))
		facts->format.notation = CALLS_HERMES;
}

/* Sets the grammar of a request: a thought may come first, then content as it was asked for, or
 * calls. */
static bool set_grammar(struct exchange *exchange, const struct calls_format *format, bool thinking)
{
	struct params *params = &exchange->params;
	const json_t *tools = params->choice == CHOICE_NONE ? NULL : params->tools;
	struct calls_rules rules = {.format = format,
		.tools = tools,
		.only = params->only[0] ? params->only : NULL,
		.required = tools && params->choice == CHOICE_REQUIRED,
		.parallel = params->parallel,
		.thinking = thinking,
		.content = params->content};
	bool strict = false;
	char why[200];
	size_t i;
	json_t *tool, *parts;

	json_array_foreach(tools, i, tool) strict |=
		json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
	if (!rules.required && !strict && !(tools && !params->parallel) &&
		!(params->content && (tools || format->think || format->notation == CALLS_HARMONY)))
		return true;
	if (params->audit)
		return fault_set(&exchange->fault, 400, "outrider", "invalid_value",
			"outrider: audit: not with tools that must match a schema");
	if (params->has_grammar && !params->content)
		return fault_set(&exchange->fault, 400, "grammar", "invalid_value",
			"grammar: not together with tools that must match a schema");
	parts = calls_grammar(&rules, why);
	if (!parts)
		return why[0] ? fault_set(
					&exchange->fault, 400, "tools", "invalid_value", "%s", why)
			      : no_memory(exchange);
	char *source = json_dumps(parts, JSON_COMPACT);
	int code = source ? outrider_request_set_grammar(params->request, "parts", source) : 0;
	json_decref(parts);
	if (!source)
		return no_memory(exchange);
	free(source);
	return code == 0 || fault_set(&exchange->fault, 400, "tools", "invalid_value", "tools: %s",
				    outrider_error());
}

static bool begin(struct exchange *exchange, bool thinking)
{
	struct gateway_facts *facts = &exchange->gateway->facts;
	struct params *params = &exchange->params;
	bool tools = params->choice != CHOICE_NONE && json_array_size(params->tools) > 0;

	if (tools && facts->format.notation == CALLS_NONE)
		return fault_set(&exchange->fault, 400, "tools", "unsupported_parameter",
			"tools: how this model writes calls is not known");
	if (!set_grammar(exchange, &facts->format, thinking))
		return false;
	exchange->format = facts->format;
	exchange->marks = facts->marks;
	exchange->thinking = thinking;
	exchange->parsed = exchange->responses || tools || facts->format.think ||
			   facts->format.notation == CALLS_HARMONY;
	outrider_request_set_control_text(params->request,
		tools || facts->format.think || facts->format.notation == CALLS_HARMONY);
	return generate_begin(exchange);
}

/* True when the prompt ends within a thought. */
static bool ends_thinking(const struct ask *ask, const char *think)
{
	size_t n = ask->bytes, bytes = strlen(think);

	while (n > 0 && strchr(" \n\t", ask->text[n - 1]))
		n--;
	return n >= bytes && memcmp(ask->text + n - bytes, think, bytes) == 0;
}

/* Finds the token that a text is. THOUGHTS_NO_TOKEN: the text is no single token. */
static int find_one(struct outrider *client, const char *text, int32_t *token)
{
	int32_t *tokens = NULL;
	size_t n = 0;
	int code = outrider_tokenize(
		client, text, OUTRIDER_TOKENIZE_SPECIAL, ASKS_TIMEOUT_MS, &tokens, &n);

	*token = code == 0 && n == 1 ? tokens[0] : THOUGHTS_NO_TOKEN;
	outrider_free(tokens);
	return code;
}

/* Finds the tokens that stand around thoughts. */
static int find_marks(
	struct outrider *client, const struct calls_format *format, struct thoughts_marks *marks)
{
	bool harmony = format->notation == CALLS_HARMONY;
	const struct {
		int32_t *token;
		const char *text;
	} all[] = {{&marks->open, harmony ? "<|message|>" : format->think},
		{&marks->close, harmony ? "<|end|>" : format->think_end},
		{&marks->channel, harmony ? "<|channel|>" : NULL},
		{&marks->word, harmony ? "analysis" : NULL},
		{&marks->start, harmony ? "<|start|>" : NULL}};
	int code = 0;

	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		*all[i].token = THOUGHTS_NO_TOKEN;
		if (all[i].text && code == 0)
			code = find_one(client, all[i].text, all[i].token);
	}
	return code;
}

/* Asks for the facts of the model, if they are not known yet, and for the rendered prompt, if the
 * model writes thoughts. */
static int ask_plan(struct ask *ask, struct outrider *client)
{
	struct gateway_facts facts = ask->facts;
	int code = 0;

	if (!facts.known) {
		code = outrider_model_info(client, ASKS_TIMEOUT_MS, &ask->info);
		if (code == 0)
			read_facts(ask->info->chat_template, &facts);
		if (code == 0)
			code = find_marks(client, &facts.format, &facts.marks);
		facts.known = code == 0;
	}
	ask->facts = facts;
	if (code == 0 && facts.format.think)
		code = outrider_apply_template(
			client, ask->request, ASKS_TIMEOUT_MS, &ask->text, &ask->bytes, NULL, NULL);
	return code;
}

static bool planned(struct exchange *exchange, struct ask *ask)
{
	struct gateway_facts *facts = &exchange->gateway->facts;

	if (!facts->known || facts->generation != ask->facts.generation)
		*facts = ask->facts;
	exchange->params.request = ask->request;
	ask->request = NULL;
	return begin(exchange, ask->text && ends_thinking(ask, facts->format.think));
}

bool plan_chat(struct exchange *exchange)
{
	struct gateway_facts *facts = &exchange->gateway->facts;
	struct watch_news news;
	struct ask *ask;

	watch_read(&exchange->gateway->watch, &news);
	if (facts->generation != news.generation)
		*facts = (struct gateway_facts){.generation = news.generation};
	if (facts->known && !facts->format.think)
		return begin(exchange, false);
	ask = ask_new();
	if (!ask)
		return no_memory(exchange);
	ask->run = ask_plan;
	ask->done = planned;
	ask->facts = *facts;
	ask->request = exchange->params.request;
	exchange->params.request = NULL;
	return ask_put(exchange, ask);
}
