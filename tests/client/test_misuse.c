/*
 * The SDK used wrongly: every function of outrider.h with NULL for each pointer it takes, values beyond its range, and a client
 * in the child of a fork. tests/client/symbols.t sees to it that no function is missing here.
 */
#include "client/include/outrider.h"
#include "shared/base/patience.h"
#include "shared/ipc/bus.h"
#include "tests/client/service.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int setup(void **state)
{
	struct service *s = service_open(state);

	assert_int_equal(outrider_start(s->sdk, s->request, &s->stream), 0);
	return 0;
}

static int ignore(void *user, const struct outrider_event *event)
{
	(void)user;
	(void)event;
	return 0;
}

/* A sentence, and one of this call: the last one's is replaced first. */
static void refused(int code, int expected, const char *what)
{
	const char *said = outrider_error();

	if (code != expected || strlen(said) < 10 || strstr(said, "pass one"))
		fail_msg("%s: %d, \"%s\"", what, code, said);
}

#define REFUSED_AS(expected, call)                                         \
	do {                                                               \
		outrider_request_set_draft_method(s->request, "pass one"); \
		refused(call, expected, #call);                            \
	} while (0)
#define REFUSED(call) REFUSED_AS(-EINVAL, call)

static void null_is_refused_by_every_function_that_returns_a_code(void **state)
{
	struct service *s = *state;
	struct outrider_usage usage;
	const struct outrider_event *event = (const void *)s;
	struct outrider_stream *stream = (void *)s;
	struct outrider_model_info *info;
	int32_t ids[] = {1}, *tokens;
	char *text;
	size_t n;

	REFUSED(outrider_connect(s->dir, NULL));
	REFUSED(outrider_set_window(NULL, 1));
	REFUSED(outrider_set_wait(NULL, 1, 1));
	REFUSED(outrider_request_new(NULL));
	REFUSED(outrider_request_set_prompt(NULL, "x"));
	REFUSED(outrider_request_set_prompt(s->request, NULL));
	REFUSED(outrider_request_set_tokens(NULL, ids, 1));
	REFUSED(outrider_request_set_tokens(s->request, NULL, 1));
	REFUSED(outrider_request_add_message(NULL, "user", "x"));
	REFUSED(outrider_request_add_message(s->request, NULL, "x"));
	REFUSED(outrider_request_add_message(s->request, "user", NULL));
	REFUSED(outrider_request_add_message_json(NULL, "{}"));
	REFUSED(outrider_request_add_message_json(s->request, NULL));
	REFUSED(outrider_request_set_variables(NULL, "{}"));
	REFUSED(outrider_request_set_variables(s->request, NULL));
	REFUSED(outrider_request_set_temperature(NULL, 1));
	REFUSED(outrider_request_set_top_k(NULL, 1));
	REFUSED(outrider_request_set_top_p(NULL, 1));
	REFUSED(outrider_request_set_min_p(NULL, 1));
	REFUSED(outrider_request_set_repeat(NULL, 1, 1));
	REFUSED(outrider_request_set_presence_penalty(NULL, 1));
	REFUSED(outrider_request_set_frequency_penalty(NULL, 1));
	REFUSED(outrider_request_set_top_n_sigma(NULL, 1));
	REFUSED(outrider_request_set_xtc(NULL, 1, 0.1f));
	REFUSED(outrider_request_set_dry(NULL, 1, 1.75f, 2, 0));
	REFUSED(outrider_request_add_dry_breaker(NULL, "x"));
	REFUSED(outrider_request_add_dry_breaker(s->request, NULL));
	REFUSED(outrider_request_set_logprobs(NULL, 1));
	REFUSED(outrider_request_add_stop(NULL, "x"));
	REFUSED(outrider_request_add_stop(s->request, NULL));
	REFUSED(outrider_request_add_logit_bias(NULL, 1, 1));
	REFUSED(outrider_request_set_uid(NULL, 1));
	REFUSED(outrider_request_set_prefix_domain(NULL, 1));
	REFUSED(outrider_request_set_class(NULL, "chat"));
	REFUSED(outrider_request_set_budget(NULL, "4", NULL, NULL));
	REFUSED(outrider_request_set_grammar(NULL, "gbnf", "root ::= \"a\""));
	REFUSED(outrider_tokenize(NULL, "x", 0, 0, &tokens, &n));
	REFUSED(outrider_tokenize(s->sdk, NULL, 0, 0, &tokens, &n));
	REFUSED(outrider_tokenize(s->sdk, "x", 0, 0, NULL, &n));
	REFUSED(outrider_tokenize(s->sdk, "x", 0, 0, &tokens, NULL));
	REFUSED(outrider_detokenize(NULL, ids, 1, false, 0, &text, &n, NULL));
	REFUSED(outrider_detokenize(s->sdk, NULL, 1, false, 0, &text, &n, NULL));
	REFUSED(outrider_detokenize(s->sdk, ids, 1, false, 0, NULL, &n, NULL));
	REFUSED(outrider_detokenize(s->sdk, ids, 1, false, 0, &text, NULL, NULL));
	REFUSED(outrider_apply_template(NULL, s->request, 0, &text, &n, NULL, NULL));
	REFUSED(outrider_apply_template(s->sdk, NULL, 0, &text, &n, NULL, NULL));
	REFUSED(outrider_apply_template(s->sdk, s->request, 0, NULL, &n, NULL, NULL));
	REFUSED(outrider_apply_template(s->sdk, s->request, 0, &text, NULL, NULL, NULL));
	REFUSED(outrider_apply_template(s->sdk, s->request, 0, &text, &n, &tokens, NULL));
	REFUSED(outrider_model_info(NULL, 0, &info));
	REFUSED(outrider_model_info(s->sdk, 0, NULL));
	REFUSED(outrider_request_set_k(NULL, 1));
	REFUSED(outrider_request_set_draft_tree(NULL, 4, 2));
	REFUSED(outrider_request_set_draft_method(NULL, "auto"));
	REFUSED(outrider_request_set_draft_method(s->request, NULL));
	REFUSED(outrider_request_set_coupling(NULL, "gumbel"));
	REFUSED(outrider_request_set_coupling(s->request, NULL));
	REFUSED(outrider_request_set_replay(NULL, ids, 1, 0));
	REFUSED(outrider_request_set_replay(s->request, NULL, 1, 0));
	REFUSED(outrider_request_set_audit(NULL, ids, 1));
	REFUSED(outrider_request_set_audit(s->request, NULL, 1));
	REFUSED(outrider_start(NULL, s->request, &stream));
	assert_null(stream);
	REFUSED(outrider_start(s->sdk, NULL, &stream));
	REFUSED(outrider_start(s->sdk, s->request, NULL));
	REFUSED(outrider_resume(NULL, 1, 0, &stream));
	REFUSED(outrider_resume(s->sdk, 1, 0, NULL));
	REFUSED(outrider_next(NULL, 0, &event));
	assert_null(event);
	REFUSED(outrider_next(s->stream, 0, NULL));
	REFUSED(outrider_next_event(NULL, 0, &stream, &event));
	REFUSED(outrider_next_event(s->sdk, 0, NULL, &event));
	REFUSED(outrider_next_event(s->sdk, 0, &stream, NULL));
	REFUSED(outrider_client_fd(NULL));
	REFUSED(outrider_cancel(NULL));
	REFUSED(outrider_usage(NULL, &usage));
	REFUSED(outrider_usage(s->stream, NULL));
	REFUSED(outrider_generate(NULL, s->request, ignore, NULL));
	REFUSED(outrider_generate(s->sdk, NULL, ignore, NULL));
	REFUSED(outrider_generate(s->sdk, s->request, NULL, NULL));
	REFUSED(outrider_status(s->dir, 10, NULL));
}

static void null_does_nothing_where_nothing_can_be_said(void **state)
{
	struct service *s = *state;
	struct outrider *client = NULL;
	struct outrider_request *request = NULL;
	struct outrider_stream *stream = NULL;
	struct outrider_status *status = NULL;

	(void)s;
	outrider_close(NULL);
	outrider_close(&client);
	outrider_request_free(NULL);
	outrider_request_free(&request);
	outrider_stream_free(NULL);
	outrider_stream_free(&stream);
	outrider_status_free(NULL);
	outrider_status_free(&status);
	outrider_free(NULL);
	assert_int_equal(outrider_retry_ms(), 0);
	outrider_model_info_free(NULL);
	outrider_model_info_free(&(struct outrider_model_info *){NULL});
	outrider_request_set_max_tokens(NULL, 1);
	outrider_request_set_seed(NULL, 1);
	outrider_request_set_ignore_eos(NULL, true);
	outrider_request_set_deadline_ms(NULL, 1);
	outrider_request_set_control_text(NULL, true);
	outrider_request_set_logits_hash(NULL, true);
	assert_non_null(strstr(outrider_error(), "expected a request, got NULL"));
	assert_true(outrider_stream_uid(NULL) == 0);
	assert_int_equal(outrider_status_count(NULL), 0);
	assert_null(outrider_status_process(NULL, 0));
	assert_null(outrider_status_given_up(NULL));
	assert_string_equal(outrider_end_name((enum outrider_end) - 1), "none");
	assert_string_equal(outrider_end_name((enum outrider_end)7), "none");
	assert_non_null(outrider_version());
}

static void values_out_of_range_are_refused(void **state)
{
	struct service *s = *state;
	struct outrider_stream *stream;
	struct outrider_status *status;
	struct outrider_model_info *info;
	int32_t negative[] = {-1}, *tokens;
	char *text;
	size_t n;
	static char large[(2 << 20) + 2];
	const float wrong[] = {-1, NAN, INFINITY, -INFINITY};

	memset(large, 'x', sizeof large - 1);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		REFUSED(outrider_request_set_temperature(s->request, wrong[i]));
		REFUSED(outrider_request_set_top_p(s->request, wrong[i]));
		REFUSED(outrider_request_set_min_p(s->request, wrong[i]));
		REFUSED(outrider_request_set_repeat(s->request, wrong[i], 0));
		REFUSED(outrider_request_set_top_n_sigma(s->request, wrong[i]));
		REFUSED(outrider_request_set_xtc(s->request, wrong[i], 0.1f));
		REFUSED(outrider_request_set_dry(s->request, wrong[i], 1.75f, 2, 0));
		REFUSED(outrider_request_set_dry(s->request, 1, wrong[i], 2, 0));
		REFUSED(outrider_request_set_xtc(s->request, 0.5f, wrong[i]));
		REFUSED(outrider_request_set_replay(s->request, NULL, 0, wrong[i]));
		/* -1 is a bias, and -inf bans a token. */
		if (i == 1 || i == 2)
			REFUSED(outrider_request_add_logit_bias(s->request, 1, wrong[i]));
	}
	REFUSED(outrider_request_set_grammar(s->request, "no such kind", "x"));
	REFUSED(outrider_request_set_grammar(s->request, "gbnf", NULL));
	REFUSED_AS(-E2BIG, outrider_request_set_grammar(s->request, "gbnf", large));
	REFUSED(outrider_tokenize(s->sdk, "x", 4, 0, &tokens, &n));
	REFUSED_AS(-E2BIG, outrider_tokenize(s->sdk, large, 0, 0, &tokens, &n));
	REFUSED_AS(
		-E2BIG, outrider_detokenize(s->sdk, negative, SIZE_MAX, false, 0, &text, &n, NULL));
	/* Its input is a list of tokens. */
	REFUSED(outrider_apply_template(s->sdk, s->request, 0, &text, &n, NULL, NULL));
	/* The scripted service does not answer. */
	REFUSED_AS(-ETIMEDOUT, outrider_tokenize(s->sdk, "x", 0, 5, &tokens, &n));
	REFUSED_AS(-ETIMEDOUT, outrider_model_info(s->sdk, 0, &info));
	assert_null(info);
	REFUSED(outrider_request_set_temperature(s->request, 101));
	REFUSED(outrider_request_set_top_p(s->request, 0));
	REFUSED(outrider_request_set_top_p(s->request, 1.5f));
	REFUSED(outrider_request_set_min_p(s->request, 1.5f));
	REFUSED(outrider_request_set_repeat(s->request, 0, 0));
	REFUSED(outrider_request_set_presence_penalty(s->request, 2.01f));
	REFUSED(outrider_request_set_presence_penalty(s->request, NAN));
	REFUSED(outrider_request_set_frequency_penalty(s->request, -2.01f));
	REFUSED(outrider_request_set_frequency_penalty(s->request, NAN));
	REFUSED(outrider_request_set_top_n_sigma(s->request, 101));
	REFUSED(outrider_request_set_xtc(s->request, 0.5f, 0));
	REFUSED(outrider_request_set_xtc(s->request, 0.5f, 0.6f));
	REFUSED(outrider_request_set_xtc(s->request, 1.1f, 0.1f));
	REFUSED(outrider_request_set_dry(s->request, 1, 1.75f, 0, 0));
	REFUSED(outrider_request_set_dry(s->request, 1, 1.75f, 257, 0));
	REFUSED(outrider_request_set_dry(s->request, 1, 1.75f, 2, UINT32_MAX));
	REFUSED(outrider_request_add_dry_breaker(s->request, ""));
	REFUSED_AS(-E2BIG, outrider_request_add_dry_breaker(s->request, large));
	REFUSED(outrider_request_set_logprobs(s->request, -2));
	REFUSED(outrider_request_set_logprobs(s->request, 21));
	REFUSED(outrider_request_set_budget(s->request, NULL, NULL, NULL));
	REFUSED(outrider_request_set_budget(s->request, "some", NULL, NULL));
	REFUSED(outrider_request_set_budget(s->request, "4,0-3:4", NULL, NULL));
	REFUSED(outrider_request_set_budget(s->request, "4", "best", NULL));
	REFUSED(outrider_request_set_budget(s->request, "4", NULL, "none"));
	REFUSED(outrider_request_set_repeat(s->request, 1, UINT32_MAX));
	REFUSED(outrider_request_set_top_k(s->request, UINT32_MAX));
	REFUSED(outrider_request_add_logit_bias(s->request, -1, 0));
	REFUSED(outrider_request_set_k(s->request, -2));
	REFUSED(outrider_request_set_k(s->request, 64));
	REFUSED(outrider_request_set_draft_tree(s->request, 512, 2));
	REFUSED(outrider_request_set_draft_tree(s->request, 4, 256));
	REFUSED(outrider_request_set_draft_tree(s->request, 4, 0));
	REFUSED(outrider_request_set_draft_tree(s->request, 0, 2));
	REFUSED(outrider_request_set_coupling(s->request, ""));
	REFUSED(outrider_request_add_stop(s->request, ""));
	REFUSED(outrider_request_add_message(s->request, "", "x"));
	REFUSED(outrider_request_add_message_json(s->request, ""));
	REFUSED(outrider_request_set_variables(s->request, ""));
	REFUSED(outrider_request_set_tokens(s->request, negative, 1));
	REFUSED(outrider_request_set_replay(s->request, negative, 1, 0));
	REFUSED(outrider_request_set_audit(s->request, negative, 1));
	REFUSED(outrider_set_window(s->sdk, 0));
	REFUSED(outrider_set_window(s->sdk, 65537));
	REFUSED(outrider_set_wait(s->sdk, -1, 0));
	REFUSED(outrider_set_wait(s->sdk, 0, INT64_MAX));
	REFUSED(outrider_resume(s->sdk, 0, 0, &stream));
	REFUSED_AS(-E2BIG, outrider_request_set_prompt(s->request, large));
	REFUSED_AS(-E2BIG, outrider_request_add_message(s->request, "user", large));
	REFUSED_AS(-E2BIG, outrider_request_set_tokens(s->request, negative, SIZE_MAX));
	/* Whatever was refused, the request is as it was. */
	assert_int_equal(outrider_start(s->sdk, s->request, &stream), 0);
	outrider_stream_free(&stream);
	assert_int_equal(outrider_status("/nonexistent", -5, &status), 0);
	assert_null(outrider_status_process(status, SIZE_MAX));
	outrider_status_free(&status);
}

/* The child's part; returns the number of what went wrong. */
static int in_child(struct service *s)
{
	const struct outrider_event *event;
	struct outrider_stream *stream;
	struct outrider *own = NULL;
	const struct {
		int code;
		const char *said;
	} calls[] = {
		{outrider_next(s->stream, -1, &event), strdup(outrider_error())},
		{outrider_next(s->stream, 0, &event), strdup(outrider_error())},
		{outrider_next_event(s->sdk, -1, &stream, &event), strdup(outrider_error())},
		{outrider_client_fd(s->sdk), strdup(outrider_error())},
		{outrider_cancel(s->stream), strdup(outrider_error())},
		{outrider_start(s->sdk, s->request, &stream), strdup(outrider_error())},
		{outrider_resume(s->sdk, 1, 0, &stream), strdup(outrider_error())},
		{outrider_generate(s->sdk, s->request, ignore, NULL), strdup(outrider_error())},
		{outrider_set_window(s->sdk, 5), strdup(outrider_error())},
		{outrider_set_wait(s->sdk, 5, 5), strdup(outrider_error())},
	};

	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		if (calls[i].code != -EPERM || !strstr(calls[i].said, "fork"))
			return 10 + (int)i;
	if (outrider_stream_uid(s->stream) == 0)
		return 1;
	outrider_stream_free(&s->stream);
	outrider_request_free(&s->request);
	outrider_close(&s->sdk);
	if (s->stream || s->request || s->sdk)
		return 2;
#ifndef __SANITIZE_THREAD__ /* which does not allow a forked process to start threads */
	if (outrider_connect(s->dir, &own) != 0)
		return 3;
	outrider_close(&own);
#endif
	return own ? 4 : 0;
}

static void a_client_belongs_to_the_process_that_opened_it(void **state)
{
	struct service *s = *state;
	Outrider__Envelope *heard = NULL, envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Tokens tokens = OUTRIDER__TOKENS__INIT;
	const struct outrider_event *event;
	struct patience patience;
	int32_t ids[] = {7, 8};
	int status;

	assert_int_equal(outrider_next(s->stream, 10, &event), -EAGAIN);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(in_child(s));
	patience_init(&patience, 30000);
	while (waitpid(child, &status, WNOHANG) == 0)
		if (patience_step_ms(&patience) > 0)
			usleep(10000);
		else
			kill(child, SIGKILL);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	/* The parent's goes on. */
	while (bus_receive_from(s->socket, &s->client, &heard, NULL) == -EAGAIN)
		assert_int_equal(outrider_next(s->stream, 5, &event), -EAGAIN);
	assert_int_equal(heard->body_case, OUTRIDER__ENVELOPE__BODY_GENERATE);
	bus_free(&heard);
	tokens.session_uid = outrider_stream_uid(s->stream);
	tokens.n_ids = 2;
	tokens.ids = ids;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_TOKENS;
	envelope.tokens = &tokens;
	assert_int_equal(bus_send_to(s->socket, &s->client, &envelope), 0);
	assert_int_equal(outrider_next(s->stream, 30000, &event), 0);
	assert_int_equal(event->n_tokens, 2);
	assert_int_equal(event->tokens[1], 8);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, service_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(null_is_refused_by_every_function_that_returns_a_code),
		TEST(null_does_nothing_where_nothing_can_be_said),
		TEST(values_out_of_range_are_refused),
		TEST(a_client_belongs_to_the_process_that_opened_it),
	};

	return cmocka_run_group_tests_name("misuse", tests, NULL, NULL);
}
