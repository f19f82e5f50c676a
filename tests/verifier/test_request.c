/* What a client's request may say: everything beyond a bound is refused by name, before anything is made of it. */
#include "services/verifier/front/request.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct model model = {.config.n_vocab = 100};
/* Neither tokenizer nor file: who gets as far as these has not been refused. */
static const struct request_limits limits = {.model = &model, .n_context = 50};

static struct session_request got;
static struct request_input input;

static int read_request(const Outrider__Generate *generate, struct error *err)
{
	err->text[0] = '\0';
	int rc = request_read(generate, &limits, 1, &got, &input, err);
	if (rc != 0)
		assert_null(input.prompt);
	return rc;
}

static Outrider__Generate request_of(Outrider__TokenList *tokens)
{
	Outrider__Generate generate = OUTRIDER__GENERATE__INIT;
	generate.session_uid = 7;
	generate.input_case = OUTRIDER__GENERATE__INPUT_TOKENS;
	generate.tokens = tokens;
	return generate;
}

static void expect_refusal(const Outrider__Generate *generate, int rc, const char *words)
{
	struct error err;
	assert_int_equal(read_request(generate, &err), rc);
	if (strstr(err.text, words) == NULL)
		fail_msg("\"%s\" lacks \"%s\"", err.text, words);
}

static char other_class[] = "other";

static void a_class_is_one_of_the_settings_and_goes_on_without(void **state)
{
	Outrider__Generate generate = OUTRIDER__GENERATE__INIT;
	struct request_classes classes;
	struct request_class found;
	struct error err;
	(void)state;
	assert_int_equal(classes_read("chat priority=3", &classes, &err), 0);
	assert_int_equal(request_class(&generate, &classes, &found, &err), 0);
	assert_string_equal(found.name, "default");
	generate.class_name = other_class;
	assert_int_equal(request_class(&generate, &classes, &found, &err), -EINVAL);
	assert_non_null(strstr(err.text, "there is no \"other\", allowed are default, chat"));
	/* Its client has tokens: the settings have lost the class in the meantime. */
	generate.have = 1;
	assert_int_equal(request_class(&generate, &classes, &found, &err), 0);
	assert_string_equal(found.name, "default");
}

static void tokens_are_of_the_vocabulary_and_fit_the_context(void **state)
{
	int32_t ids[51] = {1, 2, 99};
	Outrider__TokenList tokens = OUTRIDER__TOKEN_LIST__INIT;
	Outrider__Generate generate = request_of(&tokens);
	struct error err;
	(void)state;
	expect_refusal(&generate, -EINVAL, "the prompt is empty");
	tokens.ids = ids;
	tokens.n_ids = 3;
	assert_int_equal(read_request(&generate, &err), 0);
	assert_int_equal(input.n_prompt, 3);
	assert_int_equal(got.max_tokens, 47);
	request_input_free(&input);
	ids[1] = 100;
	expect_refusal(&generate, -EINVAL, "prompt: token 1 is 100, the vocabulary is 0..99");
	ids[1] = -1;
	expect_refusal(&generate, -EINVAL, "prompt: token 1 is -1");
	ids[1] = 2;
	tokens.n_ids = 50;
	expect_refusal(
		&generate, -E2BIG, "50 tokens, but the context (the verifier's setting) has 50");
}

static void grammars_are_bounded_and_stand_alone(void **state)
{
	static char source[LIMIT_GRAMMAR_BYTES + 2];
	int32_t ids[] = {1, 2};
	Outrider__TokenList tokens = OUTRIDER__TOKEN_LIST__INIT;
	Outrider__Sampling sampling = OUTRIDER__SAMPLING__INIT;
	Outrider__Generate generate;
	struct error err;

	(void)state;
	tokens.ids = ids;
	tokens.n_ids = 2;
	generate = request_of(&tokens);
	generate.sampling = &sampling;
	memset(source, 'a', sizeof(source) - 2);
	generate.grammar = source;
	generate.grammar_kind = GRAMMAR_REGEX;
	assert_int_equal(read_request(&generate, &err), 0);
	assert_int_equal(got.grammar_bytes, LIMIT_GRAMMAR_BYTES);
	assert_memory_equal(session_grammar(&got), source, LIMIT_GRAMMAR_BYTES);
	request_input_free(&input);
	sampling.coupling = COUPLING_MAXIMAL;
	expect_refusal(&generate, -EINVAL, "coupling: a grammar needs gumbel");
	sampling.coupling = COUPLING_GUMBEL;
	generate.ignore_eos = true;
	expect_refusal(&generate, -EINVAL, "ignore_eos");
	generate.ignore_eos = false;
	generate.grammar_kind = GRAMMAR_JSON_OBJECT;
	expect_refusal(&generate, -EINVAL, "grammar: the kind json-object takes no source");
	generate.grammar_kind = GRAMMAR_NONE;
	expect_refusal(&generate, -EINVAL, "grammar: the kind none takes no source");
	generate.grammar_kind = GRAMMAR_KINDS;
	expect_refusal(&generate, -EINVAL, "grammar_kind: 6 is not 0..5");
	source[LIMIT_GRAMMAR_BYTES] = 'a';
	generate.grammar_kind = GRAMMAR_REGEX;
	expect_refusal(&generate, -EINVAL, "grammar: 65537 bytes, the limit is 65536");
}

static void numbers_out_of_range_are_refused(void **state)
{
	int32_t ids[] = {1, 2};
	Outrider__TokenList tokens = OUTRIDER__TOKEN_LIST__INIT;
	(void)state;
	tokens.ids = ids;
	tokens.n_ids = 2;
	const Outrider__Generate sound = request_of(&tokens);
	Outrider__Generate generate = sound;
	generate.session_uid = 0;
	expect_refusal(&generate, -EINVAL, "session_uid");
	generate = sound;
	generate.k_plus_one = LIMIT_DRAFT_DEPTH + 2;
	expect_refusal(&generate, -EINVAL, "k_plus_one");
	generate.k_plus_one = INT32_MIN;
	expect_refusal(&generate, -EINVAL, "k_plus_one");
	generate = sound;
	generate.have = 51;
	expect_refusal(&generate, -EINVAL, "have: 51");
	generate = sound;
	generate.draft_method = UINT32_MAX;
	expect_refusal(&generate, -EINVAL, "draft_method");
	generate = sound;
	generate.replay_error = NAN;
	expect_refusal(&generate, -EINVAL, "replay error is nan: allowed are 0 to 1");
	generate = sound;
	generate.deadline_ms = UINT64_MAX;
	struct error err;
	assert_int_equal(read_request(&generate, &err), 0);
	assert_true(got.deadline_ns > UINT64_MAX - 2000000);
	request_input_free(&input);
}

/* Two bytes each on the wire and an object each in memory: of four megabytes of them nothing is made. */
static void a_conversation_of_too_many_messages_is_refused_unread(void **state)
{
	static Outrider__ChatMessage message = OUTRIDER__CHAT_MESSAGE__INIT;
	Outrider__Conversation conversation = OUTRIDER__CONVERSATION__INIT;
	Outrider__Generate generate = request_of(NULL);
	const size_t n = REQUEST_MESSAGES_MAX + 1;
	Outrider__ChatMessage **messages = malloc(n * sizeof(*messages));
	(void)state;
	assert_non_null(messages);
	for (size_t i = 0; i < n; i++)
		messages[i] = &message;
	generate.input_case = OUTRIDER__GENERATE__INPUT_CONVERSATION;
	generate.conversation = &conversation;
	expect_refusal(&generate, -EINVAL, "the conversation has no messages");
	conversation.messages = messages;
	conversation.n_messages = n;
	expect_refusal(&generate, -EINVAL, "65537 messages, the limit is 65536");
	free(messages);
}

static void texts_beyond_the_bound_are_refused_unread(void **state)
{
	static char text[LIMIT_TEXT_BYTES + 2];
	static Outrider__ChatMessage message = OUTRIDER__CHAT_MESSAGE__INIT;
	Outrider__ChatMessage *messages[] = {&message, &message};
	Outrider__Conversation conversation = OUTRIDER__CONVERSATION__INIT;
	Outrider__Generate generate = request_of(NULL);
	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	generate.input_case = OUTRIDER__GENERATE__INPUT_CONVERSATION;
	generate.conversation = &conversation;
	conversation.messages = messages;
	conversation.n_messages = 2;
	message.text = text + sizeof(text) - 1 - LIMIT_TEXT_BYTES / 2 - 1;
	expect_refusal(&generate, -E2BIG, "messages of 2097154 bytes: at most 2097152");
	message.json = message.text;
	message.text = (char *)"";
	expect_refusal(&generate, -E2BIG, "messages of 2097154 bytes: at most 2097152");
	conversation.variables = text;
	conversation.n_messages = 1;
	message.json = (char *)"";
	expect_refusal(&generate, -E2BIG, "messages of 2097153 bytes: at most 2097152");
}

/* Each change by itself; `same`: the answer is the same all the same. */
static void a_digest_tells_requests_apart_that_differ_in_their_answers(void **state)
{
	int32_t ids[] = {1, 2, 3}, others[] = {1, 2, 4}, fewer[] = {1, 2};
	Outrider__TokenList tokens = OUTRIDER__TOKEN_LIST__INIT, list = tokens;
	Outrider__Sampling sampling = OUTRIDER__SAMPLING__INIT, s;
	Outrider__LogitBias bias = OUTRIDER__LOGIT_BIAS__INIT, *biases[] = {&bias};
	char *stops[] = {(char *)"ab", (char *)"c"}, *moved[] = {(char *)"a", (char *)"bc"};
	uint64_t seen[40];
	size_t n = 0;
	(void)state;
	tokens.ids = ids;
	tokens.n_ids = 3;
	const Outrider__Generate first = request_of(&tokens);
	const uint64_t digest = request_digest(&first);
	Outrider__Generate g = first;
#define SAME(set)                                          \
	do {                                               \
		g = first;                                 \
		s = sampling;                              \
		g.sampling = &s;                           \
		set;                                       \
		assert_true(request_digest(&g) == digest); \
	} while (0)
#define DIFFERS(set)                            \
	do {                                    \
		g = first;                      \
		s = sampling;                   \
		g.sampling = &s;                \
		set;                            \
		seen[n++] = request_digest(&g); \
	} while (0)
	SAME(g.session_uid = 8);
	SAME(g.have = 9; g.credit = 10; g.deadline_ms = 11; g.class_name = other_class);
	SAME(g.k_plus_one = 4; g.draft_method = 2; g.replay = &tokens; g.replay_error = 0.5f);
	SAME(s.top_p = 1; s.repeat_penalty = 1);
	SAME(g.sampling = NULL);
	SAME(s.coupling = COUPLING_MAXIMAL; s.coupling = 0);
	seen[n++] = digest;
	list = tokens;
	list.ids = others;
	DIFFERS(g.tokens = &list);
	Outrider__TokenList less = tokens;
	less.ids = fewer;
	less.n_ids = 2;
	DIFFERS(g.tokens = &less);
	DIFFERS(g.input_case = OUTRIDER__GENERATE__INPUT_PROMPT; g.prompt = (char *)"\1\2\3");
	DIFFERS(g.input_case = OUTRIDER__GENERATE__INPUT_PROMPT; g.prompt = (char *)"abcdefghi");
	DIFFERS(g.input_case = OUTRIDER__GENERATE__INPUT_PROMPT; g.prompt = (char *)"abcdefghj");
	DIFFERS(g.max_tokens = 5);
	DIFFERS(g.ignore_eos = 1);
	DIFFERS(g.logits_hash = 1);
	DIFFERS(g.control_text = 1);
	DIFFERS(g.audit = &tokens);
	DIFFERS(g.n_stop = 2; g.stop = stops);
	DIFFERS(g.n_stop = 2; g.stop = moved);
	DIFFERS(g.n_stop = 1; g.stop = stops);
	DIFFERS(s.temperature = 1);
	DIFFERS(s.top_k = 1);
	DIFFERS(s.top_p = 0.5f);
	DIFFERS(s.min_p = 0.5f);
	DIFFERS(s.repeat_penalty = 2);
	DIFFERS(s.repeat_window = 2);
	DIFFERS(s.seed = 1);
	DIFFERS(s.n_logit_bias = 1; s.logit_bias = biases);
	bias.token = 3;
	DIFFERS(s.n_logit_bias = 1; s.logit_bias = biases);
	bias.bias = 3;
	DIFFERS(s.n_logit_bias = 1; s.logit_bias = biases);
	/* There the drafts decide too. */
	DIFFERS(s.coupling = COUPLING_MAXIMAL; s.temperature = 1);
	DIFFERS(s.coupling = COUPLING_MAXIMAL; s.temperature = 1; g.k_plus_one = 4);
	DIFFERS(s.coupling = COUPLING_MAXIMAL; s.temperature = 1; g.draft_method = 2);
	DIFFERS(s.coupling = COUPLING_MAXIMAL; s.temperature = 1; g.replay = &tokens);
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < i; j++)
			if (seen[i] == seen[j])
				fail_msg("requests %zu and %zu have one digest", j, i);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_class_is_one_of_the_settings_and_goes_on_without),
		cmocka_unit_test(tokens_are_of_the_vocabulary_and_fit_the_context),
		cmocka_unit_test(grammars_are_bounded_and_stand_alone),
		cmocka_unit_test(numbers_out_of_range_are_refused),
		cmocka_unit_test(a_conversation_of_too_many_messages_is_refused_unread),
		cmocka_unit_test(texts_beyond_the_bound_are_refused_unread),
		cmocka_unit_test(a_digest_tells_requests_apart_that_differ_in_their_answers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
