#include "client/sdk/request.h"

#include "client/sdk/failure.h"
#include "shared/base/layer_limits.h"
#include "shared/base/sampling.h"
#include "kernels/sampler.h"
#include "shared/spec/budget.h"
#include "shared/spec/session.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const methods[] = {
	"auto", "none", "ngram", "model", "replay", "eagle3", "mtp", "mtp-lora", "layer-skip"};
static_assert(sizeof methods / sizeof methods[0] == DRAFT_METHODS, "a name for each");
static const char *const couplings[] = {"gumbel", "maximal"};
static const char *const budget_rankings[] = {"router", "static", "oracle"};
static const char *const budget_coverages[] = {"substitution", "truncation"};
static const char *const grammar_kinds[] = {
	"none", "json-schema", "json-object", "regex", "gbnf", "parts"};

int outrider_request_new(struct outrider_request **request)
{
	struct outrider_request *r;

	if (!request)
		return failure_null("place for a request");
	*request = r = calloc(1, sizeof *r);
	if (!r)
		return failure_set(ENOMEM, "no memory for a request");
	outrider__generate__init(&r->generate);
	outrider__sampling__init(&r->sampling);
	r->generate.sampling = &r->sampling;
	return 0;
}

static void free_token_list(Outrider__TokenList **list)
{
	if (*list)
		outrider__token_list__free_unpacked(*list, NULL);
	*list = NULL;
}

static void drop_input(Outrider__Generate *generate)
{
	switch (generate->input_case) {
	case OUTRIDER__GENERATE__INPUT_PROMPT:
		free(generate->prompt);
		break;
	case OUTRIDER__GENERATE__INPUT_TOKENS:
		free_token_list(&generate->tokens);
		break;
	case OUTRIDER__GENERATE__INPUT_CONVERSATION:
		outrider__conversation__free_unpacked(generate->conversation, NULL);
		break;
	default:
		break;
	}
	generate->input_case = OUTRIDER__GENERATE__INPUT__NOT_SET;
	generate->prompt = NULL;
}

/* Where none was set, a string is protobuf-c's empty one. */
static void free_string(char *string)
{
	if (string != protobuf_c_empty_string)
		free(string);
}

void outrider_request_free(struct outrider_request **request)
{
	struct outrider_request *r = request ? *request : NULL;

	if (!r)
		return;
	drop_input(&r->generate);
	free_token_list(&r->generate.replay);
	free_token_list(&r->generate.audit);
	for (size_t i = 0; i < r->generate.n_stop; i++)
		free(r->generate.stop[i]);
	free(r->generate.stop);
	free_string(r->generate.grammar);
	free_string(r->generate.class_name);
	free_string(r->generate.budget_experts);
	for (size_t i = 0; i < r->sampling.n_logit_bias; i++)
		free(r->sampling.logit_bias[i]);
	free(r->sampling.logit_bias);
	for (size_t i = 0; i < r->sampling.n_dry_breakers; i++)
		free(r->sampling.dry_breakers[i]);
	free(r->sampling.dry_breakers);
	free(r);
	*request = NULL;
}

size_t request_bytes(const struct outrider_request *request)
{
	return outrider__generate__get_packed_size(&request->generate);
}

Outrider__Generate *request_copy(const struct outrider_request *request)
{
	size_t bytes = outrider__generate__get_packed_size(&request->generate);
	uint8_t *packed = malloc(bytes ? bytes : 1);
	Outrider__Generate *copy;

	if (!packed)
		return NULL;
	outrider__generate__pack(&request->generate, packed);
	copy = outrider__generate__unpack(NULL, bytes, packed);
	free(packed);
	return copy;
}

static int check_request(const struct outrider_request *request)
{
	return request ? 0 : failure_null("request");
}

/* The same check, and that a value is given. */
static int check_given(const struct outrider_request *request, const void *given, const char *what)
{
	int code = check_request(request);

	return code < 0 || given ? code : failure_null(what);
}

int outrider_request_set_uid(struct outrider_request *request, uint64_t uid)
{
	int code = check_request(request);

	if (code == 0)
		request->generate.session_uid = uid;
	return code;
}

int outrider_request_set_prefix_domain(struct outrider_request *request, uint64_t domain)
{
	int code = check_request(request);

	if (code == 0)
		request->generate.prefix_domain = domain;
	return code;
}

int outrider_request_set_prompt(struct outrider_request *request, const char *text)
{
	char *copy;
	int code = check_given(request, text, "prompt");

	if (code < 0)
		return code;
	if (strlen(text) > LIMIT_TEXT_BYTES)
		return failure_set(E2BIG, "prompt of %zu bytes: at most %d are allowed",
			strlen(text), LIMIT_TEXT_BYTES);
	copy = strdup(text);
	if (!copy)
		return failure_set(ENOMEM, "no memory for a prompt of %zu bytes", strlen(text));
	drop_input(&request->generate);
	request->generate.prompt = copy;
	request->generate.input_case = OUTRIDER__GENERATE__INPUT_PROMPT;
	return 0;
}

static int make_token_list(const int32_t *tokens, size_t n, Outrider__TokenList **out)
{
	Outrider__TokenList *list;

	if (n > LIMIT_CONTEXT)
		return failure_set(E2BIG, "%zu tokens: at most %d are allowed", n, LIMIT_CONTEXT);
	for (size_t i = 0; i < n; i++)
		if (tokens[i] < 0)
			return failure_set(
				EINVAL, "token %zu is %d: ids are not negative", i, tokens[i]);
	list = malloc(sizeof *list);
	if (list) {
		outrider__token_list__init(list);
		list->ids = malloc((n ? n : 1) * sizeof *list->ids);
	}
	if (!list || !list->ids) {
		free(list);
		return failure_set(ENOMEM, "no memory for %zu tokens", n);
	}
	if (n)
		memcpy(list->ids, tokens, n * sizeof *tokens);
	list->n_ids = n;
	*out = list;
	return 0;
}

int outrider_request_set_tokens(struct outrider_request *request, const int32_t *tokens, size_t n)
{
	Outrider__TokenList *list = NULL;
	int code = check_given(request, n ? (const void *)tokens : request, "list of tokens");

	if (code == 0)
		code = make_token_list(tokens, n, &list);
	if (code < 0)
		return code;
	drop_input(&request->generate);
	request->generate.tokens = list;
	request->generate.input_case = OUTRIDER__GENERATE__INPUT_TOKENS;
	return 0;
}

/* The conversation of the request; makes one if the input is another kind, or none. */
static Outrider__Conversation *conversation_of(Outrider__Generate *generate)
{
	Outrider__Conversation *conversation;

	if (generate->input_case == OUTRIDER__GENERATE__INPUT_CONVERSATION)
		return generate->conversation;
	conversation = malloc(sizeof *conversation);
	if (!conversation)
		return NULL;
	outrider__conversation__init(conversation);
	drop_input(generate);
	generate->conversation = conversation;
	generate->input_case = OUTRIDER__GENERATE__INPUT_CONVERSATION;
	return conversation;
}

static int check_role(const char *role)
{
	static const char *const roles[] = {
		"system", "user", "assistant", "tool", "developer", "function"};

	for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
		if (strcmp(role, roles[i]) == 0)
			return 0;
	return failure_set(EINVAL,
		"role \"%.32s\": expected system, user, assistant, tool, developer or function",
		role);
}

/* The limit is that of a prompt: all messages together take at most half of what can be sent. */
static int check_bytes(const Outrider__Generate *generate, size_t more)
{
	const Outrider__Conversation *conversation =
		generate->input_case == OUTRIDER__GENERATE__INPUT_CONVERSATION
			? generate->conversation
			: NULL;
	size_t bytes = more + (conversation ? strlen(conversation->variables) : 0);

	for (size_t i = 0; conversation && i < conversation->n_messages; i++)
		bytes += strlen(conversation->messages[i]->text) +
			 strlen(conversation->messages[i]->json);
	if (bytes <= LIMIT_TEXT_BYTES)
		return 0;
	return failure_set(
		E2BIG, "messages of %zu bytes: at most %d are allowed", bytes, LIMIT_TEXT_BYTES);
}

/* Appends a message; json is "", or the whole message. */
static int append_message(
	struct outrider_request *request, const char *role, const char *text, const char *json)
{
	Outrider__Conversation *conversation;
	Outrider__ChatMessage *message, **grown;
	int code = check_bytes(&request->generate, strlen(text) + strlen(json));

	if (code < 0)
		return code;
	conversation = conversation_of(&request->generate);
	if (!conversation)
		return failure_set(ENOMEM, "no memory for a conversation");
	grown = realloc(conversation->messages,
		(conversation->n_messages + 1) * sizeof *conversation->messages);
	if (grown)
		conversation->messages = grown;
	message = grown ? malloc(sizeof *message) : NULL;
	if (message) {
		outrider__chat_message__init(message);
		message->role = strdup(role);
		message->text = strdup(text);
		message->json = strdup(json);
	}
	if (!message || !message->role || !message->text || !message->json) {
		if (message) {
			free(message->role);
			free(message->text);
			free(message->json);
		}
		free(message);
		return failure_set(ENOMEM, "no memory for a message of %zu bytes",
			strlen(text) + strlen(json));
	}
	conversation->messages[conversation->n_messages++] = message;
	return 0;
}

int outrider_request_add_message(
	struct outrider_request *request, const char *role, const char *text)
{
	int code = check_given(request, role, "role");

	if (code == 0)
		code = check_given(request, text, "text");
	if (code == 0)
		code = check_role(role);
	return code < 0 ? code : append_message(request, role, text, "");
}

int outrider_request_add_message_json(struct outrider_request *request, const char *json)
{
	int code = check_given(request, json, "message");

	if (code < 0)
		return code;
	if (json[strspn(json, " \t\r\n")] != '{')
		return failure_set(EINVAL, "message \"%.32s\": expected a JSON object", json);
	return append_message(request, "", "", json);
}

int outrider_request_set_variables(struct outrider_request *request, const char *json)
{
	Outrider__Conversation *conversation;
	char *copy;
	int code = check_given(request, json, "variables");

	if (code < 0)
		return code;
	if (json[strspn(json, " \t\r\n")] != '{')
		return failure_set(EINVAL, "variables \"%.32s\": expected a JSON object", json);
	code = check_bytes(&request->generate, strlen(json));
	if (code < 0)
		return code;
	conversation = conversation_of(&request->generate);
	copy = conversation ? strdup(json) : NULL;
	if (!copy)
		return failure_set(ENOMEM, "no memory for variables of %zu bytes", strlen(json));
	if (conversation->variables[0])
		free(conversation->variables);
	conversation->variables = copy;
	return 0;
}

void outrider_request_set_max_tokens(struct outrider_request *request, uint32_t max_tokens)
{
	if (check_request(request) == 0)
		request->generate.max_tokens = max_tokens;
}

static int check(const struct outrider_request *request, enum sampling_value what, double value)
{
	struct error err;
	int code = check_request(request);

	if (code < 0)
		return code;
	return sampling_check(what, value, &err) < 0 ? failure_set(EINVAL, "%s", err.text) : 0;
}

int outrider_request_set_temperature(struct outrider_request *request, float temperature)
{
	int code = check(request, SAMPLING_TEMPERATURE, (double)temperature);

	if (code == 0)
		request->sampling.temperature = temperature;
	return code;
}

int outrider_request_set_top_k(struct outrider_request *request, uint32_t top_k)
{
	int code = check(request, SAMPLING_TOP_K, top_k);

	if (code == 0)
		request->sampling.top_k = top_k;
	return code;
}

int outrider_request_set_top_p(struct outrider_request *request, float top_p)
{
	int code = check(request, SAMPLING_TOP_P, (double)top_p);

	if (code == 0)
		request->sampling.top_p = top_p;
	return code;
}

int outrider_request_set_min_p(struct outrider_request *request, float min_p)
{
	int code = check(request, SAMPLING_MIN_P, (double)min_p);

	if (code == 0)
		request->sampling.min_p = min_p;
	return code;
}

int outrider_request_set_repeat(struct outrider_request *request, float penalty, uint32_t window)
{
	int code = check(request, SAMPLING_REPEAT_PENALTY, (double)penalty);

	if (code == 0)
		code = check(request, SAMPLING_REPEAT_WINDOW, window);
	if (code < 0)
		return code;
	request->sampling.repeat_penalty = penalty;
	request->sampling.repeat_window = window;
	return 0;
}

int outrider_request_set_presence_penalty(struct outrider_request *request, float penalty)
{
	int code = check(request, SAMPLING_PRESENCE_PENALTY, (double)penalty);

	if (code == 0)
		request->sampling.presence_penalty = penalty;
	return code;
}

int outrider_request_set_frequency_penalty(struct outrider_request *request, float penalty)
{
	int code = check(request, SAMPLING_FREQUENCY_PENALTY, (double)penalty);

	if (code == 0)
		request->sampling.frequency_penalty = penalty;
	return code;
}

int outrider_request_set_top_n_sigma(struct outrider_request *request, float n)
{
	int code = check(request, SAMPLING_TOP_N_SIGMA, (double)n);

	if (code == 0)
		request->sampling.top_n_sigma = n;
	return code;
}

int outrider_request_set_dry(struct outrider_request *request, float multiplier, float base,
	uint32_t allowed, uint32_t window)
{
	int code = check(request, SAMPLING_DRY_MULTIPLIER, (double)multiplier);

	if (code == 0)
		code = check(request, SAMPLING_DRY_BASE, (double)base);
	if (code == 0)
		code = check(request, SAMPLING_DRY_ALLOWED_LENGTH, allowed);
	if (code == 0)
		code = check(request, SAMPLING_DRY_WINDOW, window);
	if (code < 0)
		return code;
	request->sampling.dry_multiplier = multiplier;
	request->sampling.dry_base = base;
	request->sampling.dry_allowed_length = allowed;
	request->sampling.dry_window = window;
	return 0;
}

int outrider_request_add_dry_breaker(struct outrider_request *request, const char *text)
{
	int code = check_given(request, text, "DRY breaker");
	Outrider__Sampling *sampling;
	size_t all = 1;
	char **grown, *copy;

	if (code < 0)
		return code;
	if (*text == '\0')
		return failure_set(EINVAL, "DRY breaker: expected a text, got an empty one");
	sampling = &request->sampling;
	for (size_t i = 0; i < sampling->n_dry_breakers; i++)
		all += strlen(sampling->dry_breakers[i]) + 1;
	if (all + strlen(text) + 1 > LIMIT_DRY_BREAKER_BYTES)
		return failure_set(E2BIG,
			"DRY breakers of %zu bytes, each with one byte more: at most %d",
			all + strlen(text), LIMIT_DRY_BREAKER_BYTES - 1);
	grown = realloc(sampling->dry_breakers, (sampling->n_dry_breakers + 1) * sizeof *grown);
	if (grown)
		sampling->dry_breakers = grown;
	copy = strdup(text);
	if (!grown || !copy) {
		free(copy);
		return failure_set(ENOMEM, "no memory for a DRY breaker");
	}
	sampling->dry_breakers[sampling->n_dry_breakers++] = copy;
	return 0;
}

int outrider_request_set_xtc(struct outrider_request *request, float probability, float threshold)
{
	int code = check(request, SAMPLING_XTC_PROBABILITY, (double)probability);

	if (code == 0)
		code = check(request, SAMPLING_XTC_THRESHOLD, (double)threshold);
	if (code < 0)
		return code;
	request->sampling.xtc_probability = probability;
	request->sampling.xtc_threshold = threshold;
	return 0;
}

void outrider_request_set_seed(struct outrider_request *request, uint64_t seed)
{
	if (check_request(request) == 0)
		request->sampling.seed = seed;
}

int outrider_request_add_stop(struct outrider_request *request, const char *text)
{
	Outrider__Generate *generate;
	size_t bytes, all;
	char **grown, *copy;
	int code = check_given(request, text, "stop string");

	if (code < 0)
		return code;
	generate = &request->generate;
	bytes = strlen(text);
	all = bytes + 1;
	if (bytes == 0 || bytes >= LIMIT_STOP_BYTES)
		return failure_set(EINVAL, "stop string of %zu bytes: allowed are 1 to %d", bytes,
			LIMIT_STOP_BYTES - 1);
	if (generate->n_stop == LIMIT_STOPS)
		return failure_set(E2BIG, "more than %d stop strings", LIMIT_STOPS);
	for (size_t i = 0; i < generate->n_stop; i++)
		all += strlen(generate->stop[i]) + 1;
	if (all > LIMIT_STOPS_BYTES)
		return failure_set(E2BIG, "stop strings of %zu bytes: all together may have %d",
			all - generate->n_stop - 1, LIMIT_STOPS_BYTES - (int)generate->n_stop - 1);
	grown = realloc(generate->stop, (generate->n_stop + 1) * sizeof *grown);
	if (grown)
		generate->stop = grown;
	copy = strdup(text);
	if (!grown || !copy) {
		free(copy);
		return failure_set(ENOMEM, "no memory for a stop string");
	}
	generate->stop[generate->n_stop++] = copy;
	return 0;
}

int outrider_request_add_logit_bias(struct outrider_request *request, int32_t token, float bias)
{
	Outrider__Sampling *sampling;
	Outrider__LogitBias **grown, *entry;
	int code = check_request(request);

	if (code < 0)
		return code;
	sampling = &request->sampling;
	if (token < 0)
		return failure_set(EINVAL, "logit bias for token %d: ids are not negative", token);
	code = check(request, SAMPLING_LOGIT_BIAS, (double)bias);
	if (code < 0)
		return code;
	if (sampling->n_logit_bias == LIMIT_LOGIT_BIASES)
		return failure_set(E2BIG, "more than %d logit biases", LIMIT_LOGIT_BIASES);
	grown = realloc(sampling->logit_bias, (sampling->n_logit_bias + 1) * sizeof *grown);
	if (grown)
		sampling->logit_bias = grown;
	entry = malloc(sizeof *entry);
	if (!grown || !entry) {
		free(entry);
		return failure_set(ENOMEM, "no memory for a logit bias");
	}
	outrider__logit_bias__init(entry);
	entry->token = token;
	entry->bias = bias;
	sampling->logit_bias[sampling->n_logit_bias++] = entry;
	return 0;
}

void outrider_request_set_ignore_eos(struct outrider_request *request, bool ignore)
{
	if (check_request(request) == 0)
		request->generate.ignore_eos = ignore;
}

void outrider_request_set_deadline_ms(struct outrider_request *request, uint64_t deadline_ms)
{
	if (check_request(request) == 0)
		request->generate.deadline_ms = deadline_ms;
}

int outrider_request_set_class(struct outrider_request *request, const char *name)
{
	int code = check_given(request, name, "class");
	char *copy;

	if (code < 0)
		return code;
	if (name[0] == '\0' || strlen(name) >= LIMIT_NAME)
		return failure_set(EINVAL, "class \"%.32s\": a name has 1 to %d characters", name,
			LIMIT_NAME - 1);
	copy = strdup(name);
	if (!copy)
		return failure_set(ENOMEM, "no memory for the name of a class");
	free_string(request->generate.class_name);
	request->generate.class_name = copy;
	return 0;
}

int outrider_request_set_k(struct outrider_request *request, int k)
{
	int code = check_request(request);

	if (code < 0)
		return code;
	if (k < -1 || k > LIMIT_DRAFT_DEPTH)
		return failure_set(EINVAL,
			"k %d: allowed are 0 to %d, or -1 for the policy's choice", k,
			LIMIT_DRAFT_DEPTH);
	request->generate.k_plus_one = k + 1;
	return 0;
}

int outrider_request_set_draft_tree(
	struct outrider_request *request, uint32_t tokens, uint32_t width)
{
	int code = check_request(request);

	if (code < 0)
		return code;
	if (tokens > LIMIT_DRAFT_NODES || width > LIMIT_DRAFT_WIDTH || (tokens > 0) != (width > 0))
		return failure_set(EINVAL,
			"a draft tree of %u tokens and width %u: tokens are 1 to %d and the width "
			"1 to %d, or both are 0 for a chain",
			tokens, width, LIMIT_DRAFT_NODES, LIMIT_DRAFT_WIDTH);
	request->generate.draft_nodes = tokens;
	request->generate.draft_width = width;
	return 0;
}

static int find_name(const char *what, const char *name, const char *const *names, size_t n)
{
	char list[128] = "";
	size_t used = 0;

	for (size_t i = 0; i < n; i++) {
		if (strcmp(names[i], name) == 0)
			return (int)i;
		assert(used < sizeof list);
		used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
			i == 0	     ? ""
			: i == n - 1 ? " and "
				     : ", ",
			names[i]);
	}
	return failure_set(EINVAL, "%s \"%.32s\": allowed are %s", what, name, list);
}

int outrider_request_set_draft_method(struct outrider_request *request, const char *name)
{
	int i = check_given(request, name, "draft method");

	if (i == 0)
		i = find_name("draft method", name, methods, DRAFT_METHODS);
	if (i < 0)
		return i;
	request->generate.draft_method = (uint32_t)i;
	return 0;
}

int outrider_request_set_coupling(struct outrider_request *request, const char *name)
{
	int i = check_given(request, name, "coupling");

	if (i == 0)
		i = find_name("coupling", name, couplings, 2);
	if (i < 0)
		return i;
	request->sampling.coupling = (uint32_t)i;
	return 0;
}

int outrider_request_set_budget(struct outrider_request *request, const char *experts,
	const char *ranking, const char *coverage)
{
	int code = check_given(request, experts, "experts"), r = 0, c = 0;
	struct error err;
	char *copy;

	if (code < 0)
		return code;
	if (layer_limits_form("budget_experts", experts, &err) < 0)
		return failure_set(EINVAL, "%s", err.text);
	if (ranking)
		r = find_name("budget ranking", ranking, budget_rankings, BUDGET_RANKINGS);
	if (r >= 0 && coverage)
		c = find_name("budget coverage", coverage, budget_coverages, BUDGET_COVERAGES);
	if (r < 0 || c < 0)
		return r < 0 ? r : c;
	copy = strdup(experts);
	if (copy == NULL)
		return failure_set(ENOMEM, "no memory for a budget");
	bool all = strcmp(experts, "all") == 0;
	free_string(request->generate.budget_experts);
	request->generate.budget_experts = copy;
	request->generate.budget_ranking = all ? 0 : (uint32_t)r;
	request->generate.budget_coverage = all ? 0 : (uint32_t)c;
	return 0;
}

int outrider_request_set_grammar(
	struct outrider_request *request, const char *kind, const char *source)
{
	char *copy;
	int i = check_given(request, kind, "grammar kind");

	if (i == 0)
		i = check_given(request, source, "grammar");
	if (i == 0)
		i = find_name("grammar kind", kind, grammar_kinds,
			sizeof grammar_kinds / sizeof *grammar_kinds);
	if (i < 0)
		return i;
	if (strlen(source) > LIMIT_GRAMMAR_BYTES)
		return failure_set(E2BIG, "grammar of %zu bytes: at most %d are allowed",
			strlen(source), LIMIT_GRAMMAR_BYTES);
	copy = strdup(source);
	if (!copy)
		return failure_set(ENOMEM, "no memory for a grammar");
	free_string(request->generate.grammar);
	request->generate.grammar = copy;
	request->generate.grammar_kind = (uint32_t)i;
	return 0;
}

int outrider_request_set_replay(
	struct outrider_request *request, const int32_t *tokens, size_t n, float error)
{
	Outrider__TokenList *list = NULL;
	int code = check_given(request, n ? (const void *)tokens : request, "list of tokens");

	if (code == 0)
		code = check(request, SAMPLING_REPLAY_ERROR, (double)error);
	if (code == 0)
		code = make_token_list(tokens, n, &list);
	if (code < 0)
		return code;
	free_token_list(&request->generate.replay);
	request->generate.replay = list;
	request->generate.replay_error = error;
	return 0;
}

int outrider_request_set_audit(struct outrider_request *request, const int32_t *tokens, size_t n)
{
	Outrider__TokenList *list = NULL;
	int code = check_given(request, n ? (const void *)tokens : request, "list of tokens");

	if (code == 0 && n > 0)
		code = make_token_list(tokens, n, &list);
	if (code < 0)
		return code;
	free_token_list(&request->generate.audit);
	request->generate.audit = list;
	return 0;
}

void outrider_request_set_control_text(struct outrider_request *request, bool wanted)
{
	if (request)
		request->generate.control_text = wanted;
}

void outrider_request_set_logits_hash(struct outrider_request *request, bool wanted)
{
	if (check_request(request) == 0)
		request->generate.logits_hash = wanted;
}

int outrider_request_set_logprobs(struct outrider_request *request, int top)
{
	int code = check_request(request);

	if (code < 0)
		return code;
	if (top < -1 || top > LIMIT_TOP_LOGPROBS)
		return failure_set(EINVAL,
			"log probabilities of %d likely tokens: allowed are 0 to %d, or -1 for no "
			"log probabilities",
			top, LIMIT_TOP_LOGPROBS);
	request->generate.logprobs_plus_one = (uint32_t)(top + 1);
	return 0;
}
