/* Grammars put together from parts, and the control tokens that they name. */
#include "tests/grammar/rig.h"

#include "kernels/sampler.h"
#include "shared/model/grammar/vocab.h"

static void parts_are_put_together(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig, GRAMMAR_PARTS,
		"{\"sequence\":[{\"until\":\"<a>\"},{\"choice\":[\"\",{\"sequence\":[{\"control\":"
		"\"<a>\"},"
		"{\"schema\":{\"type\":\"integer\"},\"name\":\"n\"},{\"repeat\":{\"regex\":\"[xy]"
		"\"},\"max\":2},"
		"\"</a>\"]}]}]}");
	assert_true(rig_matches(&rig, ""));
	assert_true(rig_matches(&rig, "some < text <b>"));
	assert_true(rig_matches(&rig, "text <<a>-7xy</a>"));
	assert_true(rig_matches(&rig, "\xFF<a>\xFF"
				      "3</a>"));
	assert_false(rig_matches(&rig, "text <a>"));
	assert_false(rig_matches(&rig, "<a>1xyx</a>"));
	assert_false(rig_matches(&rig, "<a>one</a>"));
	assert_false(rig_matches(&rig, "<a>1</a> more"));
	rig_close(&rig);
}

static void each_schema_has_its_own_references(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig, GRAMMAR_PARTS,
		"{\"choice\":[{\"sequence\":[\"f\",{\"schema\":{\"$ref\":\"#/$defs/"
		"v\",\"$defs\":{\"v\":"
		"{\"type\":\"boolean\"}}}}]},{\"sequence\":[\"g\",{\"schema\":{\"$ref\":\"#/$defs/"
		"v\","
		"\"$defs\":{\"v\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
		"v\"},\"maxItems\":1}}}}]}]}");
	assert_true(rig_matches(&rig, "ftrue"));
	assert_true(rig_matches(&rig, "g[[]]"));
	assert_false(rig_matches(&rig, "f[]"));
	assert_false(rig_matches(&rig, "gtrue"));
	rig_close(&rig);
}

static void what_is_wrong_is_said(void **state)
{
	static const char *const bad[][2] = {{"[", "line 1"}, {"7", "a part is"},
		{"{\"untill\":\"a\"}", "a part is"},
		{"{\"repeat\":\"a\",\"min\":3,\"max\":1}", "repeat"},
		{"{\"sequence\":[\"a\",{\"schema\":{\"not\":{}},\"name\":\"tools[3]\"}]}",
			"tools[3]: #: "},
		{"{\"regex\":\"(\",\"name\":\"r\"}", "r: byte"}};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct error err = {""};
		struct rig rig;

		assert_true(rig_try(&rig, GRAMMAR_PARTS, bad[i][0], &err) < 0);
		if (strstr(err.text, bad[i][1]) == NULL)
			fail_msg("%s: %s", bad[i][0], err.text);
		rig_close(&rig);
	}
}

/* A control token follows where it is named, and nowhere else, whatever text stands around. */
static void control_tokens_are_named(void **state)
{
	struct error err = {""};
	struct gguf *gguf;
	struct tokenizer *tokenizer;
	struct vocab *vocab;
	struct masks *masks;
	struct rig rig;
	const int32_t start = 1; /* <|im_start|> */

	(void)state;
	assert_int_equal(gguf_open("models/outrider-demo-moe-q4_0.gguf", &gguf, &err), 0);
	assert_int_equal(tokenizer_load(gguf, &tokenizer, &err), 0);
	assert_int_equal(vocab_create(tokenizer, 0, &vocab), 0);
	rig_open(&rig, GRAMMAR_PARTS,
		"{\"sequence\":[{\"regex\":\".*\"},{\"choice\":[\"\",{\"sequence\":[\"!\",{"
		"\"control\":\"<|im_start|>\"},"
		"\"a\"]}]}]}");
	assert_int_equal(masks_create(vocab, rig.matcher, 4, &masks), 0);
	uint32_t at = matcher_start(rig.matcher);
	masks_begin(masks, 2);
	assert_int_equal(masks_of(masks, at)[0] >> start & 1, 0);
	at = matcher_text(rig.matcher, at, "x!", 2);
	assert_int_equal(masks_of(masks, at)[0] >> start & 1, 1);
	at = vocab_token(vocab, rig.matcher, at, start);
	assert_int_not_equal(at, MATCHER_DEAD);
	assert_false(matcher_can_end(rig.matcher, at));
	assert_true(matcher_must_end(rig.matcher, matcher_text(rig.matcher, at, "a", 1)));
	masks_free(&masks);
	rig_close(&rig);
	vocab_free(&vocab);
	tokenizer_free(&tokenizer);
	gguf_close(&gguf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts_are_put_together),
		cmocka_unit_test(each_schema_has_its_own_references),
		cmocka_unit_test(what_is_wrong_is_said),
		cmocka_unit_test(control_tokens_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
