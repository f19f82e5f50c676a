/* The KV cache that the expert-cache leaves room for is the one that the verifier makes with its defaults. */
#include "services/verifier/state/config.h"
#include "shared/spec/kv_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MODEL "models/outrider-demo-moe-q8_0.gguf"

static void the_plan_is_that_of_the_verifiers_defaults(void **state)
{
	struct verifier_config config;
	struct model *model;
	struct error err;
	(void)state;
	if (model_load(MODEL, &model, &err) != 0)
		fail_msg("%s", err.text);
	config_defaults(verifier_config_keys, &config);
	assert_int_equal(verifier_config_fit(&config, model, &err), 0);
	struct kv_plan plan = kv_plan_default(model);
	assert_int_equal(plan.sessions, config.sessions_max);
	assert_int_equal(plan.prefill, config.prefill_chunk);
	assert_int_equal(plan.tokens, config.kv_tokens);
	assert_int_equal(plan.type, verifier_config_kv_type(&config, model));
	model_free(&model);
}

static void there_is_room_for_one_session_with_its_whole_context(void **state)
{
	(void)state;
	assert_int_equal(kv_plan_tokens(16, 8192), 16 * (2048 + 48));
	assert_int_equal(kv_plan_tokens(16, 1024), 16 * (1024 + 48));
	assert_int_equal(kv_plan_tokens(1, 8192), kv_plan_tokens_min(8192));
	assert_int_equal(kv_plan_tokens_min(8192), 8192 + 48);
}

static void the_help_of_kv_tokens_says_what_is_taken(void **state)
{
	(void)state;
	const struct config_key *key = config_find(verifier_config_keys, "kv_tokens");
	char more[64], each[64];
	int64_t beside = kv_plan_tokens_min(8192) - 8192;
	snprintf(each, sizeof(each), "the smaller of context and %d",
		(int)(kv_plan_tokens(16, 8192) / 16 - beside));
	snprintf(more, sizeof(more), "plus %d for a draft in flight", (int)beside);
	assert_non_null(strstr(key->help, each));
	assert_non_null(strstr(key->help, more));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_plan_is_that_of_the_verifiers_defaults),
		cmocka_unit_test(there_is_room_for_one_session_with_its_whole_context),
		cmocka_unit_test(the_help_of_kv_tokens_says_what_is_taken),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
