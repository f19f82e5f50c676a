/* What a client's request may say: everything beyond a bound is refused by name, before anything is made of it. */
#include "services/verifier/request.h"

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
	expect_refusal(&generate, -E2BIG, "50 tokens, the context 50");
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
	generate.k_plus_one = LIMIT_DRAFT + 2;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tokens_are_of_the_vocabulary_and_fit_the_context),
		cmocka_unit_test(numbers_out_of_range_are_refused),
		cmocka_unit_test(a_conversation_of_too_many_messages_is_refused_unread),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
