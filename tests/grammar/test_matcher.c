/* States: the same for texts after which the same may follow, forced continuations, bounds, and compaction. */
#include "tests/grammar/rig.h"

static const char brackets[] = "root ::= \"[\" (root (\",\" root)*)? \"]\"";

static void texts_with_the_same_future_have_the_same_state(void **state)
{
	struct rig rig;
	uint32_t start, a, b;

	(void)state;
	rig_open(&rig, GRAMMAR_GBNF, brackets);
	start = matcher_start(rig.matcher);
	a = matcher_text(rig.matcher, start, "[[],[[]],[", 10);
	b = matcher_text(rig.matcher, start, "[[],[", 5);
	assert_int_equal(a, b);
	assert_int_not_equal(a, matcher_text(rig.matcher, start, "[[],[[", 6));
	assert_false(matcher_can_end(rig.matcher, a));
	a = matcher_text(rig.matcher, a, "]]", 2);
	assert_true(matcher_can_end(rig.matcher, a));
	assert_true(matcher_must_end(rig.matcher, a));
	assert_int_equal(matcher_byte(rig.matcher, a, ']'), MATCHER_DEAD);
	assert_int_equal(matcher_byte(rig.matcher, MATCHER_DEAD, ']'), MATCHER_DEAD);
	assert_false(matcher_can_end(rig.matcher, MATCHER_DEAD));
	rig_close(&rig);
}

static void what_must_follow_is_known(void **state)
{
	struct rig rig;
	uint32_t after;
	uint8_t out[64];

	(void)state;
	rig_open(&rig, GRAMMAR_JSON_SCHEMA,
		"{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"x\"},\"nap\":{\"type\":"
		"\"null\"}},"
		"\"required\":[\"name\",\"nap\"],\"additionalProperties\":false}");
	uint32_t at = matcher_text(rig.matcher, matcher_start(rig.matcher), "{\"", 2);
	size_t n = matcher_forced(rig.matcher, at, out, sizeof(out), &after);
	assert_int_equal(n, 6);
	assert_memory_equal(out, "name\":", 6);
	assert_int_equal(after, matcher_text(rig.matcher, at, "name\":", 6));
	assert_int_equal(matcher_forced(rig.matcher, at, out, 2, &after), 2);
	at = matcher_text(rig.matcher, after, "me\":\"", 5);
	n = matcher_forced(rig.matcher, at, out, sizeof(out), &after);
	assert_int_equal(n, 3);
	assert_memory_equal(out, "x\",", 3);
	at = matcher_text(rig.matcher, after, "\"nap\":null", 10);
	assert_int_equal(matcher_forced(rig.matcher, at, out, sizeof(out), &after), 0);
	rig_close(&rig);
}

static void a_text_that_may_end_is_not_forced_on(void **state)
{
	struct rig rig;
	uint32_t after;
	uint8_t out[8];

	(void)state;
	rig_open(&rig, GRAMMAR_REGEX, "ab(cd)?");
	assert_int_equal(
		matcher_forced(rig.matcher, matcher_start(rig.matcher), out, 8, &after), 2);
	assert_true(matcher_can_end(rig.matcher, after));
	assert_false(matcher_must_end(rig.matcher, after));
	rig_close(&rig);
}

static void compaction_keeps_what_is_asked_for(void **state)
{
	struct rig rig;
	uint32_t deep, other, dead = MATCHER_DEAD;
	size_t bytes;

	(void)state;
	rig_open(&rig, GRAMMAR_GBNF, brackets);
	deep = matcher_start(rig.matcher);
	for (int i = 0; i < 100; i++)
		deep = matcher_byte(rig.matcher, deep, '[');
	other = matcher_text(rig.matcher, matcher_start(rig.matcher), "[[", 2);
	for (uint32_t at = deep, i = 0; i < 300; i++)
		at = matcher_byte(rig.matcher, at, '[');
	bytes = matcher_bytes(rig.matcher);
	uint32_t *states[] = {&deep, &dead, &other};
	assert_int_equal(matcher_compact(rig.matcher, states, 3), 0);
	assert_true(matcher_bytes(rig.matcher) < bytes / 2);
	assert_int_equal(dead, MATCHER_DEAD);
	for (int i = 0; i < 99; i++) {
		deep = matcher_byte(rig.matcher, deep, ']');
		assert_false(matcher_can_end(rig.matcher, deep));
	}
	assert_true(matcher_must_end(rig.matcher, matcher_byte(rig.matcher, deep, ']')));
	assert_true(matcher_can_end(rig.matcher, matcher_text(rig.matcher, other, "]]", 2)));
	assert_int_equal(matcher_text(rig.matcher, matcher_start(rig.matcher), "[[", 2), other);
	rig_close(&rig);
}

/* How deep a text nests decides, and not what was matched before it. */
static void depth_is_bounded_alike_each_time(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig, GRAMMAR_GBNF, brackets);
	for (int round = 0; round < 2; round++) {
		uint32_t at = matcher_start(rig.matcher), n = 0;

		while (at != MATCHER_DEAD) {
			at = matcher_byte(rig.matcher, at, '[');
			assert_int_not_equal(at, MATCHER_FULL);
			n++;
		}
		assert_int_equal(n, GRAMMAR_DEPTH_MAX - 1);
		assert_int_equal(matcher_compact(rig.matcher, NULL, 0), 0);
	}
	rig_close(&rig);
}

static void without_room_it_says_so_and_goes_on_after_compaction(void **state)
{
	struct grammar *grammar;
	struct matcher *matcher;
	struct error err;
	uint32_t at, before = 0, rounds = 0;

	(void)state;
	assert_int_equal(
		grammar_compile(GRAMMAR_GBNF, brackets, strlen(brackets), &grammar, &err), 0);
	assert_int_equal(matcher_create(grammar, 16384, &matcher), 0);
	at = matcher_start(matcher);
	for (int i = 0; i < 200; i++) {
		before = at;
		at = matcher_byte(matcher, at, '[');
		if (at != MATCHER_FULL)
			continue;
		assert_int_equal(matcher_compact(matcher, (uint32_t *[]){&before}, 1), 0);
		at = matcher_byte(matcher, before, '[');
		assert_int_not_equal(at, MATCHER_FULL);
		rounds++;
	}
	assert_true(rounds > 0);
	for (int i = 0; i < 200; i++) {
		before = at;
		at = matcher_byte(matcher, at, ']');
		if (at == MATCHER_FULL) {
			assert_int_equal(matcher_compact(matcher, (uint32_t *[]){&before}, 1), 0);
			at = matcher_byte(matcher, before, ']');
		}
	}
	assert_true(matcher_must_end(matcher, at));
	matcher_free(&matcher);
	grammar_free(&grammar);
}

static void ambiguity_does_not_multiply(void **state)
{
	struct rig rig;
	uint32_t at;

	(void)state;
	rig_open(&rig, GRAMMAR_GBNF,
		"root ::= a+\na ::= x | y | a2\nx ::= \"a\" root?\ny ::= \"a\" a?\na2 ::= \"aa\" "
		"root?");
	at = matcher_start(rig.matcher);
	for (int i = 0; i < 400; i++)
		at = matcher_byte(rig.matcher, at, 'a');
	assert_true(matcher_can_end(rig.matcher, at));
	assert_true(matcher_bytes(rig.matcher) < MATCHER_BYTES_DEFAULT / 2);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(texts_with_the_same_future_have_the_same_state),
		cmocka_unit_test(what_must_follow_is_known),
		cmocka_unit_test(a_text_that_may_end_is_not_forced_on),
		cmocka_unit_test(compaction_keeps_what_is_asked_for),
		cmocka_unit_test(depth_is_bounded_alike_each_time),
		cmocka_unit_test(without_room_it_says_so_and_goes_on_after_compaction),
		cmocka_unit_test(ambiguity_does_not_multiply),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
