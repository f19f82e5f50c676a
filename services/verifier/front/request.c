#include "services/verifier/front/request.h"

#include "services/verifier/state/journal.h"

#include <stdlib.h>
#include <string.h>

/* FNV-1a over words of eight bytes. Each piece is hashed with its length, so that two pieces never
 * hash like one. */
struct digest {
	ProtobufCBuffer buffer;
	uint64_t h;
};

static void digest_word(struct digest *d, uint64_t word)
{
	d->h = (d->h ^ word) * 0x100000001b3u;
	d->h ^= d->h >> 32;
}

static void digest_append(ProtobufCBuffer *buffer, size_t bytes, const uint8_t *data)
{
	struct digest *d = (struct digest *)buffer;
	uint64_t word;
	size_t i = 0;

	for (; i + sizeof(word) <= bytes; i += sizeof(word)) {
		memcpy(&word, data + i, sizeof(word));
		digest_word(d, word);
	}
	word = 0;
	memcpy(&word, data + i, bytes - i);
	digest_word(d, word);
	digest_word(d, bytes);
}

uint64_t request_digest(const Outrider__Generate *generate)
{
	struct digest d = {{digest_append}, 0xcbf29ce484222325u};
	Outrider__Generate asked = *generate;
	Outrider__Sampling sampling = OUTRIDER__SAMPLING__INIT;

	if (generate->sampling != NULL)
		sampling = *generate->sampling;
	/* A value that is not given is the same as its default. */
	sampling.top_p = sampling.top_p == 0 ? 1 : sampling.top_p;
	sampling.repeat_penalty = sampling.repeat_penalty == 0 ? 1 : sampling.repeat_penalty;
	sampling.xtc_threshold =
		sampling.xtc_threshold == 0 ? SAMPLER_XTC_THRESHOLD : sampling.xtc_threshold;
	sampling.dry_base = sampling.dry_base == 0 ? SAMPLER_DRY_BASE : sampling.dry_base;
	if (sampling.dry_allowed_length == 0)
		sampling.dry_allowed_length = SAMPLER_DRY_ALLOWED_LENGTH;
	asked.sampling = &sampling;
	asked.base.n_unknown_fields = 0;
	asked.session_uid = asked.deadline_ms = 0;
	asked.class_name = (char *)protobuf_c_empty_string;
	asked.credit = asked.have = asked.arithmetic = 0;
	asked.budgeted = 0;
	if (sampling.coupling != COUPLING_MAXIMAL || sampling.temperature == 0) {
		asked.k_plus_one = 0;
		asked.draft_method = 0;
		asked.draft_nodes = asked.draft_width = 0;
		asked.replay = NULL;
		asked.replay_error = 0;
	}
	(void)outrider__generate__pack_to_buffer(&asked, &d.buffer);
	return d.h;
}

int request_check_ids(
	const char *what, const int32_t *ids, size_t n, uint32_t n_vocab, struct error *err)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] < 0 || (uint32_t)ids[i] >= n_vocab)
			return error_set(err, EINVAL,
				"%s: token %zu is %d, the vocabulary is 0..%u", what, i, ids[i],
				n_vocab - 1);
	return 0;
}

static int append_ids(
	const Outrider__TokenList *list, struct request_input *input, struct error *err)
{
	if (list->n_ids == 0)
		return 0;
	input->prompt = malloc(list->n_ids * sizeof(*input->prompt));
	if (input->prompt == NULL)
		return error_set(err, ENOMEM, "no memory for a prompt of %zu tokens", list->n_ids);
	memcpy(input->prompt, list->ids, list->n_ids * sizeof(*input->prompt));
	input->n_prompt = input->capacity = list->n_ids;
	return 0;
}

static int encode_text(const char *text, const struct tokenizer *tokenizer,
	struct request_input *input, struct error *err)
{
	int32_t bos = tokenizer_bos(tokenizer);

	if (bos >= 0) {
		input->prompt = malloc(sizeof(*input->prompt));
		if (input->prompt == NULL)
			return error_set(err, ENOMEM, "no memory for a prompt");
		input->prompt[0] = bos;
		input->n_prompt = input->capacity = 1;
	}
	return tokenizer_encode(tokenizer, text, strlen(text), false, &input->prompt,
		&input->n_prompt, &input->capacity, err);
}

static int check_conversation(const Outrider__Conversation *conversation, struct error *err)
{
	size_t n = conversation->n_messages, bytes = strlen(conversation->variables);

	/* Each takes two bytes on the wire, but far more for the template. */
	if (n > REQUEST_MESSAGES_MAX)
		return error_set(err, EINVAL, "the conversation has %zu messages, the limit is %d",
			n, REQUEST_MESSAGES_MAX);
	if (n == 0)
		return error_set(err, EINVAL, "the conversation has no messages");
	for (size_t i = 0; i < n; i++)
		bytes += strlen(conversation->messages[i]->text) +
			 strlen(conversation->messages[i]->json);
	if (bytes > LIMIT_TEXT_BYTES)
		return error_set(err, E2BIG, "messages of %zu bytes: at most %d are allowed", bytes,
			LIMIT_TEXT_BYTES);
	return 0;
}

static int too_long(size_t n, const struct request_limits *limits, struct error *err)
{
	return error_set(err, E2BIG,
		"the prompt has %zu tokens, but the context (the verifier's setting) has %u: no "
		"room for an answer",
		n, limits->n_context);
}

int request_render(const Outrider__Conversation *conversation, const struct request_limits *limits,
	struct template_text *text, int32_t **ids, size_t *n, size_t *capacity, struct error *err)
{
	size_t n_messages = conversation->n_messages;
	int rc = check_conversation(conversation, err);
	if (rc != 0)
		return rc;
	struct chat_message *messages = calloc(n_messages, sizeof(*messages));

	if (messages == NULL)
		return error_set(err, ENOMEM, "no memory for %zu messages", n_messages);
	for (size_t i = 0; i < n_messages; i++)
		messages[i] = (struct chat_message){
			.role = conversation->messages[i]->role,
			.text = conversation->messages[i]->text,
			.text_bytes = strlen(conversation->messages[i]->text),
			.json = conversation->messages[i]->json,
		};
	rc = chat_conversation(limits->model->gguf, limits->tokenizer, messages, n_messages,
		conversation->variables, text, ids, n, capacity, err);
	free(messages);
	return rc;
}

static int encode_conversation(const Outrider__Conversation *conversation,
	const struct request_limits *limits, struct request_input *input, struct error *err)
{
	struct template_text text = {0};
	int rc = request_render(conversation, limits, &text, &input->prompt, &input->n_prompt,
		&input->capacity, err);

	template_text_free(&text);
	return rc;
}

/* Checks the input before anything is made of the prompt. */
static int check_input(
	const Outrider__Generate *generate, const struct request_limits *limits, struct error *err)
{
	size_t n;

	switch (generate->input_case) {
	case OUTRIDER__GENERATE__INPUT_PROMPT:
		n = strlen(generate->prompt);
		if (n > LIMIT_TEXT_BYTES)
			return error_set(err, E2BIG, "prompt of %zu bytes: at most %d are allowed",
				n, LIMIT_TEXT_BYTES);
		return 0;
	case OUTRIDER__GENERATE__INPUT_TOKENS:
		n = generate->tokens->n_ids;
		if (n == 0)
			return error_set(err, EINVAL, "the prompt is empty");
		if (n >= limits->n_context)
			return too_long(n, limits, err);
		return request_check_ids(
			"prompt", generate->tokens->ids, n, limits->model->config.n_vocab, err);
	case OUTRIDER__GENERATE__INPUT_CONVERSATION:
		return check_conversation(generate->conversation, err);
	default:
		return error_set(err, EINVAL, "the request has no prompt");
	}
}

static int read_prompt(const Outrider__Generate *generate, const struct request_limits *limits,
	struct request_input *input, struct error *err)
{
	int rc = 0;

	switch (generate->input_case) {
	case OUTRIDER__GENERATE__INPUT_PROMPT:
		rc = encode_text(generate->prompt, limits->tokenizer, input, err);
		break;
	case OUTRIDER__GENERATE__INPUT_TOKENS:
		rc = append_ids(generate->tokens, input, err);
		break;
	case OUTRIDER__GENERATE__INPUT_CONVERSATION:
		rc = encode_conversation(generate->conversation, limits, input, err);
		break;
	default:
		break;
	}
	if (rc != 0)
		return rc;
	if (input->n_prompt == 0)
		return error_set(err, EINVAL, "the prompt is empty");
	if (input->n_prompt >= limits->n_context)
		return too_long(input->n_prompt, limits, err);
	return request_check_ids(
		"prompt", input->prompt, input->n_prompt, limits->model->config.n_vocab, err);
}

/* Copies what is to be proposed as drafts, because the message will be freed before. */
static int copy_replay(
	const Outrider__Generate *generate, struct request_input *input, struct error *err)
{
	size_t n = generate->replay != NULL ? generate->replay->n_ids : 0;

	if (n == 0)
		return 0;
	input->replay = malloc(n * sizeof(*input->replay));
	if (input->replay == NULL)
		return error_set(err, ENOMEM, "no memory for %zu tokens of replay", n);
	memcpy(input->replay, generate->replay->ids, n * sizeof(*input->replay));
	return 0;
}

static int copy_audit(const Outrider__Generate *generate, const struct request_limits *limits,
	struct request_input *input, struct error *err)
{
	size_t n = generate->audit != NULL ? generate->audit->n_ids : 0;

	if (n == 0)
		return 0;
	if (input->n_prompt + n > limits->n_context)
		return error_set(err, EINVAL,
			"audit: %zu tokens behind a prompt of %zu, the context holds %u", n,
			input->n_prompt, limits->n_context);
	input->audit = malloc(n * sizeof(*input->audit));
	if (input->audit == NULL)
		return error_set(err, ENOMEM, "no memory for %zu tokens of audit", n);
	memcpy(input->audit, generate->audit->ids, n * sizeof(*input->audit));
	return 0;
}

static int read_breakers(const Outrider__Sampling *s, struct sampler_params *out, struct error *err)
{
	size_t at = 0;

	if (s->n_dry_breakers == 0)
		return 0;
	memset(out->dry_breakers, 0, sizeof(out->dry_breakers));
	for (size_t i = 0; i < s->n_dry_breakers; i++) {
		size_t bytes = strlen(s->dry_breakers[i]) + 1;

		if (bytes == 1)
			return error_set(err, EINVAL, "dry_breakers: text %zu is empty", i + 1);
		if (at + bytes + 1 > sizeof(out->dry_breakers))
			return error_set(err, EINVAL,
				"dry_breakers: together, each with one byte more, they may have "
				"%zu "
				"bytes",
				sizeof(out->dry_breakers) - 1);
		memcpy(out->dry_breakers + at, s->dry_breakers[i], bytes);
		at += bytes;
	}
	return 0;
}

static int read_sampling(const Outrider__Sampling *s, struct sampler_params *out, struct error *err)
{
	sampler_params_default(out);
	if (s == NULL)
		return 0;
	out->temperature = s->temperature;
	out->top_k = s->top_k;
	out->top_p = s->top_p == 0 ? 1 : s->top_p;
	out->min_p = s->min_p;
	out->repeat_penalty = s->repeat_penalty == 0 ? 1 : s->repeat_penalty;
	out->repeat_window = s->repeat_window;
	out->presence_penalty = s->presence_penalty;
	out->frequency_penalty = s->frequency_penalty;
	out->dry_multiplier = s->dry_multiplier;
	if (s->dry_base != 0)
		out->dry_base = s->dry_base;
	if (s->dry_allowed_length != 0)
		out->dry_allowed_length = s->dry_allowed_length;
	out->dry_window = s->dry_window;
	out->top_n_sigma = s->top_n_sigma;
	out->xtc_probability = s->xtc_probability;
	if (s->xtc_threshold != 0)
		out->xtc_threshold = s->xtc_threshold;
	out->seed = s->seed;
	out->coupling = s->coupling;
	if (s->n_logit_bias > LIMIT_LOGIT_BIASES)
		return error_set(err, EINVAL, "logit_bias: %zu entries, the limit is %d",
			s->n_logit_bias, LIMIT_LOGIT_BIASES);
	int rc = read_breakers(s, out, err);
	if (rc != 0)
		return rc;
	out->n_biases = (uint32_t)s->n_logit_bias;
	for (size_t i = 0; i < s->n_logit_bias; i++)
		out->biases[i] = (struct logit_bias){
			.token = s->logit_bias[i]->token, .bias = s->logit_bias[i]->bias};
	return 0;
}

static int read_stops(
	const Outrider__Generate *generate, struct session_request *out, struct error *err)
{
	if (generate->n_stop > LIMIT_STOPS)
		return error_set(err, EINVAL, "stop: %zu strings, the limit is %d",
			generate->n_stop, LIMIT_STOPS);
	size_t at = 0;
	for (size_t i = 0; i < generate->n_stop; i++) {
		size_t bytes = strlen(generate->stop[i]);

		if (bytes == 0 || bytes >= LIMIT_STOP_BYTES)
			return error_set(err, EINVAL,
				"stop: string %zu has %zu bytes, allowed are 1..%d", i + 1, bytes,
				LIMIT_STOP_BYTES - 1);
		if (at + bytes + 1 > LIMIT_STOPS_BYTES)
			return error_set(err, EINVAL,
				"stop: %zu strings have more than the %zu bytes allowed for all of "
				"them",
				generate->n_stop, LIMIT_STOPS_BYTES - generate->n_stop);
		memcpy(out->stops + at, generate->stop[i], bytes + 1);
		at += bytes + 1;
	}
	out->n_stops = (uint32_t)generate->n_stop;
	out->stops_bytes = (uint32_t)at;
	return 0;
}

/* Copies the grammar behind the stop strings. It is compiled when the text is read. */
static int read_grammar(
	const Outrider__Generate *generate, struct session_request *out, struct error *err)
{
	size_t bytes = strlen(generate->grammar);

	if (bytes > LIMIT_GRAMMAR_BYTES)
		return error_set(err, EINVAL, "grammar: %zu bytes, the limit is %d", bytes,
			LIMIT_GRAMMAR_BYTES);
	out->grammar_kind = generate->grammar_kind;
	out->grammar_bytes = (uint32_t)bytes;
	memcpy(out->stops + out->stops_bytes, generate->grammar, bytes);
	return 0;
}

static int read_replay(const Outrider__Generate *generate, const struct request_limits *limits,
	struct session_request *out, struct error *err)
{
	out->replay_error = generate->replay_error;
	if (generate->replay == NULL || out->audit)
		return 0;
	if (generate->replay->n_ids > limits->n_context)
		return error_set(err, EINVAL, "replay: %zu tokens, the context holds %u",
			generate->replay->n_ids, limits->n_context);
	out->n_replay = (uint32_t)generate->replay->n_ids;
	return request_check_ids("replay", generate->replay->ids, generate->replay->n_ids,
		limits->model->config.n_vocab, err);
}

/* An audit is of the model as it is, and has its tokens. */
static int read_audit(const Outrider__Generate *generate, const struct request_limits *limits,
	struct session_request *out, struct error *err)
{
	const char *without = generate->grammar_kind != GRAMMAR_NONE ? "a grammar"
			      : out->budgeted ? "an expert budget (budget_experts)"
			      : out->sampling.coupling == COUPLING_MAXIMAL ? "coupling = maximal"
									   : NULL;

	if (generate->audit == NULL)
		return 0;
	if (without != NULL)
		return error_set(err, EINVAL, "audit: not with %s", without);
	if (generate->audit->n_ids == 0 || generate->audit->n_ids >= limits->n_context)
		return error_set(err, EINVAL, "audit: %zu tokens, allowed are 1..%u",
			generate->audit->n_ids, limits->n_context - 1);
	out->audit = 1;
	out->budget_default = 0;
	return request_check_ids("audit", generate->audit->ids, generate->audit->n_ids,
		limits->model->config.n_vocab, err);
}

/* What the request says of an expert budget. Neither tokens that were computed with a budget nor the
 * keys and values behind them can be computed again: which experts were left out depends on drafts
 * that are lost. */
static int read_budget(const Outrider__Generate *generate, const struct request_limits *limits,
	struct session_request *out, struct error *err)
{
	const char *experts = generate->budget_experts;
	bool given = experts[0] != '\0' && strcmp(experts, "all") != 0;
	bool maximal = out->sampling.coupling == COUPLING_MAXIMAL;

	if (!given && (generate->budget_ranking != 0 || generate->budget_coverage != 0))
		return error_set(err, EINVAL,
			"budget_ranking and budget_coverage: they need budget_experts");
	if (generate->have > 0 && (given || generate->budgeted))
		return error_set(err, ESTALE,
			"the session is no longer kept: with an expert budget (budget_experts) the "
			"answer cannot go on after %u tokens",
			generate->have);
	/* An answer that was begun without a budget goes on without. */
	out->budget_default = experts[0] == '\0' && !maximal && generate->have == 0 &&
			      limits->budget.n_experts > 0;
	if (!given)
		return 0;
	int rc = budget_read(experts, generate->budget_ranking, generate->budget_coverage,
		&limits->budget, out->budget_experts, err);
	if (rc == 0 && maximal)
		rc = error_set(
			err, EINVAL, "coupling: an expert budget (budget_experts) needs gumbel");
	if (rc != 0)
		return rc;
	out->budgeted = layer_limits_any(out->budget_experts, limits->budget.n_layers);
	out->budget_ranking = generate->budget_ranking;
	out->budget_coverage = generate->budget_coverage;
	return 0;
}

int request_parameters(const Outrider__Generate *generate, const struct request_limits *limits,
	uint64_t now_ns, struct session_request *out, struct error *err)
{
	memset(out, 0, sizeof(*out));
	if (generate->session_uid == 0)
		return error_set(err, EINVAL, "session_uid: 0 is not a session");
	if (generate->k_plus_one < 0 || generate->k_plus_one > LIMIT_DRAFT_DEPTH + 1)
		return error_set(err, EINVAL, "k_plus_one: %d is not 0..%d", generate->k_plus_one,
			LIMIT_DRAFT_DEPTH + 1);
	if (generate->have > limits->n_context)
		return error_set(err, EINVAL, "have: %u tokens, the context holds %u",
			generate->have, limits->n_context);
	int rc = read_sampling(generate->sampling, &out->sampling, err);
	/* The tokens that the client has were drawn with drafts that are lost; other tokens would
	 * follow. */
	if (rc == 0 && generate->have > 0 && out->sampling.coupling == COUPLING_MAXIMAL &&
		out->sampling.temperature > 0)
		rc = error_set(err, ESTALE,
			"the session is no longer kept: with coupling = maximal the answer cannot "
			"go on after %u tokens",
			generate->have);
	if (rc == 0)
		rc = read_budget(generate, limits, out, err);
	if (rc == 0)
		rc = read_audit(generate, limits, out, err);
	/* The tokens of an audit are all there: nothing ends them. */
	if (rc == 0 && !out->audit)
		rc = read_stops(generate, out, err);
	if (rc == 0)
		rc = read_grammar(generate, out, err);
	if (rc == 0)
		rc = read_replay(generate, limits, out, err);
	out->k = generate->k_plus_one - 1;
	out->draft_nodes = generate->draft_nodes;
	out->draft_width = generate->draft_width;
	out->draft_method = generate->draft_method;
	out->ignore_eos = generate->ignore_eos != 0;
	out->control_text = generate->control_text != 0;
	out->logits_hash = generate->logits_hash != 0;
	out->logprobs = generate->logprobs_plus_one;
	out->prefix_domain = generate->prefix_domain;
	if (generate->deadline_ms != 0) {
		uint64_t ms_max = (UINT64_MAX - now_ns) / 1000000;
		out->deadline_ns =
			now_ns +
			1000000 * (generate->deadline_ms < ms_max ? generate->deadline_ms : ms_max);
	}
	if (rc == 0)
		rc = journal_check_request(
			out, limits->model->config.n_vocab, limits->n_context, err);
	return rc == 0 ? check_input(generate, limits, err) : rc;
}

int request_class(const Outrider__Generate *generate, const struct request_classes *classes,
	struct request_class *out, struct error *err)
{
	const struct request_class *found = classes_find(classes, generate->class_name);
	char names[LIMIT_CLASSES * LIMIT_NAME];

	/* What a client has of an answer goes on also when the settings have lost its class. */
	if (found == NULL && generate->have > 0)
		found = &classes->at[0];
	if (found == NULL) {
		classes_names(classes, names, sizeof(names));
		return error_set(err, EINVAL,
			"class: there is no \"%.64s\", allowed are %s (the verifier's setting "
			"classes)",
			generate->class_name, names);
	}
	*out = *found;
	return 0;
}

int request_read(const Outrider__Generate *generate, const struct request_limits *limits,
	uint64_t now_ns, struct session_request *out, struct request_input *input,
	struct error *err)
{
	memset(input, 0, sizeof(*input));
	int rc = request_parameters(generate, limits, now_ns, out, err);
	if (rc == 0)
		rc = read_prompt(generate, limits, input, err);
	if (rc == 0)
		rc = copy_replay(generate, input, err);
	if (rc == 0)
		rc = copy_audit(generate, limits, input, err);
	if (rc != 0) {
		request_input_free(input);
		return rc;
	}
	uint32_t room = limits->n_context - (uint32_t)input->n_prompt;
	out->digest = request_digest(generate);
	out->max_tokens = generate->max_tokens != 0 && generate->max_tokens < room
				  ? generate->max_tokens
				  : room;
	if (out->audit)
		out->max_tokens = (uint32_t)generate->audit->n_ids;
	return 0;
}

void request_input_free(struct request_input *input)
{
	free(input->prompt);
	free(input->replay);
	free(input->audit);
	memset(input, 0, sizeof(*input));
}
