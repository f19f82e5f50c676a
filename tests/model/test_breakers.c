/* The breakers of DRY: which tokens have one, and how far a repetition may reach back from the end of a text. */
#include "shared/model/text/breakers.h"
#include "shared/model/gguf/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct gguf *gguf;
static struct tokenizer *tokenizer;
static struct sampler_params params;

static int open_model(void **state)
{
	struct error err = {""};

	(void)state;
	if (gguf_open("models/outrider-demo-moe-q4_0.gguf", &gguf, &err) != 0 ||
		tokenizer_load(gguf, &tokenizer, &err) != 0) {
		print_error("%s\n", err.text);
		return -1;
	}
	sampler_params_default(&params);
	params.dry_multiplier = 1;
	return 0;
}

static int close_model(void **state)
{
	(void)state;
	tokenizer_free(&tokenizer);
	gguf_close(&gguf);
	return 0;
}

/* By looking at each byte. */
static bool has_usual(struct gguf_string text)
{
	for (size_t i = 0; i < text.bytes; i++)
		if (memchr("\n:\"*", text.data[i], 4))
			return true;
	return false;
}

static void the_usual_ones_are_those_of_llama_cpp(void **state)
{
	(void)state;
	uint32_t n = 0;
	for (int32_t i = 0; i < (int32_t)tokenizer_n_vocab(tokenizer); i++) {
		bool usual = has_usual(tokenizer_piece(tokenizer, i, true));
		assert_int_equal(breakers_in(tokenizer, &params, i), usual);
		n += usual;
	}
	assert_true(n >= 4);
	assert_false(breakers_in(NULL, &params, 0));
	assert_false(breakers_in(tokenizer, &params, -1));
}

static void a_repetition_reaches_back_to_the_last_breaker(void **state)
{
	(void)state;
	const char text[] = "one: two three\nfour five six";
	int32_t *ids = NULL;
	size_t n = 0, capacity = 0;
	struct error err = {""};
	assert_int_equal(
		tokenizer_encode(tokenizer, text, strlen(text), false, &ids, &n, &capacity, &err),
		0);
	uint32_t reach = 0;
	for (uint32_t i = 0; i < n; i++) {
		reach = breakers_reach_behind(tokenizer, &params, reach, ids[i]);
		assert_int_equal(reach, breakers_reach(tokenizer, &params, ids, i + 1));
		uint32_t from = i + 1 - reach;
		assert_true(from == 0 || breakers_in(tokenizer, &params, ids[from - 1]));
	}
	assert_true(reach > 0 && reach < n);
	struct sampler_params other = params;
	memcpy(other.dry_breakers, "one\0", 5);
	assert_true(breakers_reach(tokenizer, &other, ids, (uint32_t)n) > reach);
	other.dry_multiplier = 0;
	assert_int_equal(breakers_reach(tokenizer, &other, ids, (uint32_t)n), 0);
	free(ids);
}

static void it_ends_after_the_longest_that_counts(void **state)
{
	(void)state;
	static int32_t same[2 * SAMPLER_DRY_LONGEST];
	for (uint32_t i = 0; i < 2 * SAMPLER_DRY_LONGEST; i++)
		same[i] = 300;
	assert_false(breakers_in(tokenizer, &params, 300));
	assert_int_equal(breakers_reach(tokenizer, &params, same, 2 * SAMPLER_DRY_LONGEST),
		SAMPLER_DRY_LONGEST);
	assert_int_equal(breakers_reach_behind(tokenizer, &params, SAMPLER_DRY_LONGEST, 300),
		SAMPLER_DRY_LONGEST);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_usual_ones_are_those_of_llama_cpp),
		cmocka_unit_test(a_repetition_reaches_back_to_the_last_breaker),
		cmocka_unit_test(it_ends_after_the_longest_that_counts),
	};
	return cmocka_run_group_tests_name("breakers", tests, open_model, close_model);
}
