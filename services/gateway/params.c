#include "services/gateway/params.h"

#include "services/gateway/tools.h"
#include "shared/base/checksum.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { CHAT = 1, TEXT = 2, BOTH = CHAT | TEXT };

/* OpenAI's own default; without a temperature the service would be greedy. */
#define TEMPERATURE 1.0f
/* llama.cpp's default. */
#define XTC_THRESHOLD 0.1f
#define DRY_BASE 1.75f
#define DRY_ALLOWED_LENGTH 2
enum { MOST_LOGPROBS = 20 };

struct reading {
	struct params *params;
	struct fault *fault;
	const char *field;
	json_t *variables; /* of the chat template */
	float xtc_probability, xtc_threshold;
	float dry_multiplier, dry_base;
	uint32_t dry_allowed_length, dry_window;
	bool dry_off;
};

typedef bool taker(struct reading *reading, const json_t *value);

static bool wrong(struct reading *reading, const char *expected)
{
	return fault_set(reading->fault, 400, reading->field, "invalid_type", "%s: expected %s",
		reading->field, expected);
}

/* Turns the result of an SDK setter into the fault. */
static bool took(struct reading *reading, int code)
{
	if (code == 0)
		return true;
	return fault_set(reading->fault, 400, reading->field, "invalid_value", "%s: %s",
		reading->field, outrider_error());
}

static bool take_bool(struct reading *reading, const json_t *value, bool *out)
{
	if (!json_is_boolean(value))
		return wrong(reading, "true or false");
	*out = json_is_true(value);
	return true;
}

static bool take_count(struct reading *reading, const json_t *value, json_int_t least,
	json_int_t most, uint32_t *out)
{
	json_int_t n = json_integer_value(value);

	if (!json_is_integer(value))
		return wrong(reading, "an integer");
	if (n < least || n > most)
		return fault_set(reading->fault, 400, reading->field, "invalid_value",
			"%s: %lld is out of range; allowed are %lld to %lld", reading->field,
			(long long)n, (long long)least, (long long)most);
	*out = (uint32_t)n;
	return true;
}

static bool take_number(struct reading *reading, const json_t *value,
	int (*set)(struct outrider_request *request, float number))
{
	if (!json_is_number(value))
		return wrong(reading, "a number");
	return took(reading, set(reading->params->request, (float)json_number_value(value)));
}

static bool take_model(struct reading *reading, const json_t *value)
{
	const char *name = json_string_value(value);

	if (!name)
		return wrong(reading, "a string");
	snprintf(reading->params->model, sizeof reading->params->model, "%s", name);
	return true;
}

/* Templates of models that see would write a mark for a picture, which nothing then fills. */
static bool check_parts(struct reading *reading, const json_t *message, size_t i)
{
	static const char *const media[] = {"image", "input_", "audio", "video", "file"};
	const json_t *part;
	size_t k;

	json_array_foreach(json_object_get(message, "content"), k, part)
	{
		const char *type = json_string_value(json_object_get(part, "type"));

		for (size_t m = 0; type && m < sizeof media / sizeof media[0]; m++)
			if (strncmp(type, media[m], strlen(media[m])) == 0)
				return fault_set(reading->fault, 400, "messages", "invalid_value",
					"messages[%zu].content[%zu]: the type %.32s is not "
					"supported; Outrider reads text alone",
					i, k, type);
	}
	return true;
}

static bool take_messages(struct reading *reading, const json_t *value)
{
	size_t i;
	json_t *message;

	if (!json_is_array(value) || json_array_size(value) == 0)
		return wrong(reading, "an array of messages that is not empty");
	json_array_foreach(value, i, message)
	{
		if (!json_is_object(message) || !json_is_string(json_object_get(message, "role")))
			return fault_set(reading->fault, 400, "messages", "invalid_type",
				"messages[%zu]: expected an object with a role", i);
		if (!tools_check_message(message, i, reading->fault) ||
			!check_parts(reading, message, i))
			return false;
		char *text = json_dumps(message, JSON_COMPACT);
		if (text)
			reading->params->digest =
				checksum(reading->params->digest, text, strlen(text));
		int code = text ? outrider_request_add_message_json(reading->params->request, text)
				: -ENOMEM;
		free(text);
		if (code < 0)
			return fault_set(reading->fault, 400, "messages", "invalid_value",
				"messages[%zu]: %s", i, outrider_error());
	}
	reading->params->has_input = true;
	return true;
}

static bool take_tokens(struct reading *reading, const json_t *list)
{
	size_t n = json_array_size(list), i;
	int32_t *ids = calloc(n + 1, sizeof *ids);
	json_t *id;
	bool good = ids != NULL;

	json_array_foreach(list, i, id)
	{
		good = good && json_is_integer(id) && json_integer_value(id) >= 0 &&
		       json_integer_value(id) <= INT32_MAX;
		if (good)
			ids[i] = (int32_t)json_integer_value(id);
	}
	good = good ? took(reading, outrider_request_set_tokens(reading->params->request, ids, n))
		    : wrong(reading, "a string or an array of token numbers");
	free(ids);
	return good;
}

static bool take_prompt(struct reading *reading, const json_t *value)
{
	reading->params->has_input = true;
	/* A list with one text is that text. */
	if (json_is_array(value) && json_is_string(json_array_get(value, 0))) {
		if (json_array_size(value) != 1)
			return fault_set(reading->fault, 400, "prompt", "unsupported_value",
				"prompt: only one prompt per request is taken");
		value = json_array_get(value, 0);
	}
	if (json_is_string(value))
		return took(reading, outrider_request_set_prompt(
					     reading->params->request, json_string_value(value)));
	if (json_is_array(value) && json_array_size(value) > 0)
		return take_tokens(reading, value);
	return wrong(reading, "a string or an array of token numbers");
}

static bool take_max_tokens(struct reading *reading, const json_t *value)
{
	uint32_t n = 0;

	if (!take_count(reading, value, 1, INT32_MAX, &n))
		return false;
	outrider_request_set_max_tokens(reading->params->request, n);
	return true;
}

static bool take_temperature(struct reading *reading, const json_t *value)
{
	return take_number(reading, value, outrider_request_set_temperature);
}

static bool take_top_p(struct reading *reading, const json_t *value)
{
	return take_number(reading, value, outrider_request_set_top_p);
}

static bool take_min_p(struct reading *reading, const json_t *value)
{
	return take_number(reading, value, outrider_request_set_min_p);
}

static bool take_top_k(struct reading *reading, const json_t *value)
{
	uint32_t n = 0;

	return take_count(reading, value, 0, INT32_MAX, &n) &&
	       took(reading, outrider_request_set_top_k(reading->params->request, n));
}

/* A repetition penalty over all tokens. */
static int set_repeat(struct outrider_request *request, float penalty)
{
	return outrider_request_set_repeat(request, penalty, 0);
}

static bool take_repeat(struct reading *reading, const json_t *value)
{
	return take_number(reading, value, set_repeat);
}

static bool take_presence(struct reading *reading, const json_t *value)
{
	return take_number(reading, value, outrider_request_set_presence_penalty);
}

static bool take_frequency(struct reading *reading, const json_t *value)
{
	return take_number(reading, value, outrider_request_set_frequency_penalty);
}

static bool take_top_n_sigma(struct reading *reading, const json_t *value)
{
	return take_number(reading, value, outrider_request_set_top_n_sigma);
}

static bool take_xtc_number(struct reading *reading, const json_t *value, float *out)
{
	if (!json_is_number(value))
		return wrong(reading, "a number");
	*out = (float)json_number_value(value);
	return took(reading, outrider_request_set_xtc(reading->params->request,
				     reading->xtc_probability, reading->xtc_threshold));
}

static bool take_xtc_probability(struct reading *reading, const json_t *value)
{
	return take_xtc_number(reading, value, &reading->xtc_probability);
}

static bool take_xtc_threshold(struct reading *reading, const json_t *value)
{
	return take_xtc_number(reading, value, &reading->xtc_threshold);
}

static bool take_float(struct reading *reading, const json_t *value, float *out)
{
	if (!json_is_number(value))
		return wrong(reading, "a number");
	*out = (float)json_number_value(value);
	return took(reading,
		outrider_request_set_dry(reading->params->request, reading->dry_multiplier,
			reading->dry_base, reading->dry_allowed_length, reading->dry_window));
}

static bool take_dry_multiplier(struct reading *reading, const json_t *value)
{
	return take_float(reading, value, &reading->dry_multiplier);
}

static bool take_dry_base(struct reading *reading, const json_t *value)
{
	return take_float(reading, value, &reading->dry_base);
}

static bool take_dry_allowed_length(struct reading *reading, const json_t *value)
{
	return take_count(reading, value, 1, 256, &reading->dry_allowed_length);
}

/* As in llama.cpp: -1 means all tokens, and 0 turns DRY off. */
static bool take_dry_window(struct reading *reading, const json_t *value)
{
	reading->dry_off = json_is_integer(value) && json_integer_value(value) == 0;
	if (json_is_integer(value) && json_integer_value(value) == -1)
		return true;
	return take_count(reading, value, 0, 1048576, &reading->dry_window);
}

static bool take_dry_breakers(struct reading *reading, const json_t *value)
{
	size_t i;
	json_t *text;

	if (!json_is_array(value) || json_array_size(value) == 0)
		return wrong(reading, "an array of strings that is not empty");
	json_array_foreach(value, i, text)
	{
		if (!json_is_string(text))
			return wrong(reading, "an array of strings that is not empty");
		if (!took(reading, outrider_request_add_dry_breaker(
					   reading->params->request, json_string_value(text))))
			return false;
	}
	return true;
}

static bool set_dry(struct reading *reading)
{
	float multiplier = reading->dry_off ? 0 : reading->dry_multiplier;

	reading->field = "dry_multiplier";
	return took(reading,
		outrider_request_set_dry(reading->params->request, multiplier, reading->dry_base,
			reading->dry_allowed_length, reading->dry_window));
}

static bool take_logprobs(struct reading *reading, const json_t *value)
{
	return take_bool(reading, value, &reading->params->logprobs);
}

static bool take_top_logprobs(struct reading *reading, const json_t *value)
{
	return take_count(reading, value, 0, MOST_LOGPROBS, &reading->params->top_logprobs);
}

/* In a completion `logprobs` is a number, not a flag. */
static bool take_logprobs_count(struct reading *reading, const json_t *value)
{
	reading->params->logprobs = true;
	return take_top_logprobs(reading, value);
}

static bool set_logprobs(struct reading *reading)
{
	const struct params *params = reading->params;

	if (!params->logprobs && params->top_logprobs == 0)
		return true;
	reading->field = "top_logprobs";
	if (!params->logprobs)
		return fault_set(reading->fault, 400, reading->field, "invalid_value",
			"top_logprobs: logprobs must be true where it is given");
	return took(
		reading, outrider_request_set_logprobs(params->request, (int)params->top_logprobs));
}

static bool take_seed(struct reading *reading, const json_t *value)
{
	if (!json_is_integer(value))
		return wrong(reading, "an integer");
	reading->params->seed = (uint64_t)json_integer_value(value);
	return true;
}

static bool take_stream(struct reading *reading, const json_t *value)
{
	return take_bool(reading, value, &reading->params->stream);
}

static bool take_stream_options(struct reading *reading, const json_t *value)
{
	const json_t *usage = json_object_get(value, "include_usage");

	if (!json_is_object(value))
		return wrong(reading, "an object");
	return !usage || take_bool(reading, usage, &reading->params->include_usage);
}

static bool take_n(struct reading *reading, const json_t *value)
{
	return take_count(reading, value, 1, PARAMS_CHOICES, &reading->params->n);
}

static bool add_stop(struct reading *reading, const json_t *text)
{
	if (!json_is_string(text))
		return wrong(reading, "a string or an array of strings");
	return took(reading,
		outrider_request_add_stop(reading->params->request, json_string_value(text)));
}

static bool take_stop(struct reading *reading, const json_t *value)
{
	size_t i;
	json_t *text;

	if (!json_is_array(value))
		return add_stop(reading, value);
	json_array_foreach(value, i, text)
	{
		if (!add_stop(reading, text))
			return false;
	}
	return true;
}

/* {"50256": -100}: OpenAI's bounds are -100 and 100, and -100 forbids the token. */
static bool take_logit_bias(struct reading *reading, const json_t *value)
{
	const char *key;
	json_t *bias;
	json_t *object = (json_t *)value;

	if (!json_is_object(value))
		return wrong(reading, "an object with a number per token number");
	json_object_foreach(object, key, bias)
	{
		char *end;
		long token = strtol(key, &end, 10);

		if (*key == '\0' || *end || token < 0 || token > INT32_MAX)
			return fault_set(reading->fault, 400, "logit_bias", "invalid_value",
				"logit_bias: \"%.32s\" is not the number of a token", key);
		if (!json_is_number(bias))
			return wrong(reading, "an object with a number per token number");
		if (!took(reading, outrider_request_add_logit_bias(reading->params->request,
					   (int32_t)token, (float)json_number_value(bias))))
			return false;
	}
	return true;
}

static bool take_variables(struct reading *reading, const json_t *value)
{
	if (!json_is_object(value))
		return wrong(reading, "an object");
	json_object_update(reading->variables, (json_t *)value);
	return true;
}

static bool take_effort(struct reading *reading, const json_t *value)
{
	if (!json_is_string(value))
		return wrong(reading, "a string");
	json_object_set(reading->variables, "reasoning_effort", (json_t *)value);
	/* Templates that can turn thinking off have this variable. chat_template_kwargs overrides
	 * it, wherever it stands. */
	if (strcmp(json_string_value(value), "none") == 0 &&
		!json_object_get(reading->variables, "enable_thinking"))
		json_object_set_new(reading->variables, "enable_thinking", json_false());
	return true;
}

static bool take_tools(struct reading *reading, const json_t *value)
{
	json_decref(reading->params->tools);
	reading->params->tools = json_incref((json_t *)value);
	return tools_check(value, reading->fault);
}

static bool take_choice(struct reading *reading, const json_t *value)
{
	return tools_choose(reading->params, value, reading->fault);
}

static bool take_parallel(struct reading *reading, const json_t *value)
{
	return take_bool(reading, value, &reading->params->parallel);
}

static bool take_ignore_eos(struct reading *reading, const json_t *value)
{
	bool ignore = false;

	if (!take_bool(reading, value, &ignore))
		return false;
	outrider_request_set_ignore_eos(reading->params->request, ignore);
	return true;
}

/* An expert budget: a number, or a text that has one for each layer; and two names, which the request
 * may leave out. */
static bool take_budget(struct reading *reading, json_t *object)
{
	const json_t *experts = json_object_get(object, "budget_experts");
	const json_t *ranking = json_object_get(object, "budget_ranking");
	const json_t *coverage = json_object_get(object, "budget_coverage");

	if (!experts && !ranking && !coverage)
		return true;
	bool number = json_is_integer(experts);
	if ((!number && !json_is_string(experts)) || (ranking && !json_is_string(ranking)) ||
		(coverage && !json_is_string(coverage)))
		return wrong(reading,
			"budget_experts (an integer or a string), with it budget_ranking and "
			"budget_coverage (strings)");
	char text[32];
	snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(experts));
	return took(reading, outrider_request_set_budget(reading->params->request,
				     number ? text : json_string_value(experts),
				     json_string_value(ranking), json_string_value(coverage)));
}

/* What is Outrider's own: {"class": "chat", "k": 3, "draft_method": "ngram"}. */
static bool take_outrider(struct reading *reading, const json_t *value)
{
	const char *key;
	json_t *of;
	json_t *object = (json_t *)value;

	if (!json_is_object(value))
		return wrong(reading, "an object");
	json_object_foreach(object, key, of)
	{
		if (strcmp(key, "k") == 0 && json_is_integer(of)) {
			json_int_t k = json_integer_value(of);

			if (!took(reading, outrider_request_set_k(reading->params->request,
						   k < -1 || k > INT16_MAX ? INT16_MAX : (int)k)))
				return false;
		} else if (strcmp(key, "draft_method") == 0 && json_is_string(of)) {
			if (!took(reading,
				    outrider_request_set_draft_method(
					    reading->params->request, json_string_value(of))))
				return false;
		} else if (strcmp(key, "class") == 0 && json_is_string(of)) {
			if (!took(reading, outrider_request_set_class(reading->params->request,
						   json_string_value(of))))
				return false;
		} else if (strcmp(key, "audit") == 0 && json_is_boolean(of)) {
			reading->params->audit = json_is_true(of);
		} else if (strcmp(key, "budget_experts") != 0 &&
			   strcmp(key, "budget_ranking") != 0 &&
			   strcmp(key, "budget_coverage") != 0) {
			return wrong(reading,
				"class (a string), k (an integer), draft_method (a string), "
				"audit (true or false), "
				"budget_experts (an integer or a string), budget_ranking and "
				"budget_coverage (strings)");
		}
	}
	return take_budget(reading, object);
}

/* Accepts any value: the field has no meaning here. */
static bool take_nothing(struct reading *reading, const json_t *value)
{
	(void)reading;
	(void)value;
	return true;
}

/* True for a value that asks for nothing. Some known fields are accepted only with such a value. */
static bool is_off(const json_t *value)
{
	return json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
	       ((json_is_array(value) || json_is_object(value)) && json_array_size(value) == 0 &&
		       json_object_size(value) == 0) ||
	       (json_is_string(value) && (strcmp(json_string_value(value), "none") == 0));
}

static bool refuse(struct reading *reading, const json_t *value)
{
	return is_off(value) ||
	       fault_set(reading->fault, 400, reading->field, "unsupported_parameter",
		       "%s is not supported", reading->field);
}

static bool set_grammar(struct reading *reading, const char *kind, const char *source)
{
	reading->params->has_grammar = true;
	return took(reading, outrider_request_set_grammar(reading->params->request, kind, source));
}

static bool take_schema(struct reading *reading, const json_t *value)
{
	if (!json_is_object(value) && !json_is_boolean(value))
		return wrong(reading, "a JSON schema");
	json_decref(reading->params->content);
	reading->params->content =
		json_pack("{s:O,s:s}", "schema", (json_t *)value, "name", reading->field);
	char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
	bool good = text ? set_grammar(reading, "json-schema", text)
			 : fault_set(reading->fault, 500, NULL, "internal_error", "no memory");
	free(text);
	return good;
}

static bool take_gbnf(struct reading *reading, const json_t *value)
{
	if (!json_is_string(value))
		return wrong(reading, "a string");
	json_decref(reading->params->content);
	reading->params->content = NULL;
	return set_grammar(reading, "gbnf", json_string_value(value));
}

/* {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}; as in llama.cpp, the
 * schema may also stand one level higher. */
static bool take_format(struct reading *reading, const json_t *value)
{
	const char *type = json_string_value(json_object_get(value, "type"));
	const json_t *named = json_object_get(value, "json_schema");
	const json_t *schema = json_object_get(named ? named : value, "schema");

	if (!type)
		return wrong(reading, "an object with a type");
	if (strcmp(type, "json_object") == 0 && !schema) {
		json_decref(reading->params->content);
		reading->params->content = json_pack("{s:{s:s}}", "schema", "type", "object");
		return set_grammar(reading, "json-object", "");
	}
	if (strcmp(type, "json_object") == 0)
		return take_schema(reading, schema);
	if (strcmp(type, "json_schema") == 0)
		return schema ? take_schema(reading, schema)
			      : wrong(reading, "json_schema with a schema");
	return strcmp(type, "text") == 0 ||
	       fault_set(reading->fault, 400, reading->field, "unsupported_value",
		       "response_format: \"%.32s\" is not supported; allowed are text, json_object "
		       "and json_schema",
		       type);
}

static bool take_best_of(struct reading *reading, const json_t *value)
{
	return (json_is_integer(value) && json_integer_value(value) == 1) || refuse(reading, value);
}

static const struct field {
	const char *name;
	unsigned of;
	taker *take;
} fields[] = {
	{"model", BOTH, take_model},
	{"messages", CHAT, take_messages},
	{"prompt", TEXT, take_prompt},
	{"stream", BOTH, take_stream},
	{"stream_options", BOTH, take_stream_options},
	{"n", BOTH, take_n},
	{"max_tokens", BOTH, take_max_tokens},
	{"max_completion_tokens", CHAT, take_max_tokens},
	{"temperature", BOTH, take_temperature},
	{"top_p", BOTH, take_top_p},
	{"top_k", BOTH, take_top_k},
	{"min_p", BOTH, take_min_p},
	{"repeat_penalty", BOTH, take_repeat},
	{"repetition_penalty", BOTH, take_repeat},
	{"presence_penalty", BOTH, take_presence},
	{"frequency_penalty", BOTH, take_frequency},
	{"top_n_sigma", BOTH, take_top_n_sigma},
	{"xtc_probability", BOTH, take_xtc_probability},
	{"xtc_threshold", BOTH, take_xtc_threshold},
	{"dry_multiplier", BOTH, take_dry_multiplier},
	{"dry_base", BOTH, take_dry_base},
	{"dry_allowed_length", BOTH, take_dry_allowed_length},
	{"dry_penalty_last_n", BOTH, take_dry_window},
	{"dry_sequence_breakers", BOTH, take_dry_breakers},
	{"logprobs", CHAT, take_logprobs},
	{"logprobs", TEXT, take_logprobs_count},
	{"top_logprobs", CHAT, take_top_logprobs},
	{"logit_bias", BOTH, take_logit_bias},
	{"stop", BOTH, take_stop},
	{"seed", BOTH, take_seed},
	{"chat_template_kwargs", CHAT, take_variables},
	{"reasoning_effort", CHAT, take_effort},
	{"ignore_eos", BOTH, take_ignore_eos},
	{"outrider", BOTH, take_outrider},
	{"response_format", BOTH, take_format},
	{"json_schema", BOTH, take_schema},
	{"grammar", BOTH, take_gbnf},
	{"best_of", TEXT, take_best_of},
	/* These say who asks, or how the answer is billed or kept. */
	{"user", BOTH, take_nothing},
	{"metadata", BOTH, take_nothing},
	{"store", BOTH, take_nothing},
	{"service_tier", BOTH, take_nothing},
	{"safety_identifier", BOTH, take_nothing},
	{"prompt_cache_key", BOTH, take_nothing},
	{"tools", CHAT, take_tools},
	{"tool_choice", CHAT, take_choice},
	{"parallel_tool_calls", CHAT, take_parallel},
	{"functions", CHAT, refuse},
	{"function_call", CHAT, refuse},
	{"audio", CHAT, refuse},
	{"prediction", CHAT, refuse},
	{"web_search_options", CHAT, refuse},
	{"echo", TEXT, refuse},
	{"suffix", TEXT, refuse},
};

static const struct field *find(const char *name, bool chat)
{
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
		if ((fields[i].of & (chat ? CHAT : TEXT)) && strcmp(fields[i].name, name) == 0)
			return &fields[i];
	return NULL;
}

static bool read_fields(struct reading *reading, const json_t *body)
{
	json_t *object = (json_t *)body, *value;
	const char *name;

	json_object_foreach(object, name, value)
	{
		const struct field *field = find(name, reading->params->chat);

		if (!field)
			return fault_set(reading->fault, 400, name, "unknown_parameter",
				"Unrecognized request argument supplied: %.64s", name);
		reading->field = field->name;
		/* null is a field that is left out. */
		if (!json_is_null(value) && !field->take(reading, value))
			return false;
	}
	return true;
}

static bool set_variables(struct reading *reading)
{
	const struct params *params = reading->params;

	if (json_array_size(params->tools) > 0 && params->choice != CHOICE_NONE)
		json_object_set(reading->variables, "tools", params->tools);
	if (json_object_size(reading->variables) == 0)
		return true;
	char *text = json_dumps(reading->variables, JSON_COMPACT);
	int code = text ? outrider_request_set_variables(reading->params->request, text) : -ENOMEM;
	free(text);
	reading->field = "chat_template_kwargs";
	return took(reading, code);
}

bool params_read(struct params *params, const json_t *body, struct fault *fault)
{
	struct reading reading = {.params = params,
		.fault = fault,
		.variables = json_object(),
		.xtc_threshold = XTC_THRESHOLD,
		.dry_base = DRY_BASE,
		.dry_allowed_length = DRY_ALLOWED_LENGTH};
	const char *input = params->chat ? "messages" : "prompt";
	uint64_t seed;
	bool good;

	params->n = 1;
	params->parallel = true;
	if (!reading.variables || outrider_request_new(&params->request) < 0) {
		json_decref(reading.variables);
		return fault_set(fault, 500, NULL, "internal_error", "no memory for the request");
	}
	if (params->idempotency)
		seed = params->idempotency;
	else if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
		seed = 0;
	/* Clients read JSON numbers as doubles, or as signed 64-bit integers: a seed that is
	 * reported must survive both. */
	params->seed = seed >> 12;
	outrider_request_set_temperature(params->request, TEMPERATURE);
	good = json_is_object(body) ? read_fields(&reading, body)
				    : fault_set(fault, 400, NULL, "invalid_type",
					      "the body is not a JSON object");
	if (good && !params->has_input)
		good = fault_set(fault, 400, input, "missing_required_parameter",
			"you must provide %s", input);
	if (good && params->audit && params->has_grammar)
		good = fault_set(fault, 400, "outrider", "invalid_value",
			"outrider: audit: not with a grammar or response_format");
	good = good && set_dry(&reading) && set_logprobs(&reading) && tools_finish(params, fault) &&
	       set_variables(&reading);
	json_decref(reading.variables);
	return good;
}

void params_free(struct params *params)
{
	outrider_request_free(&params->request);
	json_decref(params->tools);
	json_decref(params->content);
	params->tools = params->content = NULL;
}
