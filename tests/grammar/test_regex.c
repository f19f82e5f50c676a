/* Regular expressions: what matches, what does not, and what is refused, with where. */
#include "tests/grammar/rig.h"

static const struct {
	const char *regex;
	const char *matches[4], *fails[4];
} cases[] = {
	{"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
	{"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
	{"a*b+c?", {"b", "aabbc", "bc"}, {"a", "c", "abcc"}},
	{"a{2}b{1,3}c{0,}", {"aab", "aabbbccc"}, {"ab", "aabbbb", "aaab"}},
	{"(ab|c){2,}?d", {"ababd", "cabcd"}, {"abd", "d"}},
	{"[a-c-]x[^a-c]", {"axz", "-x-", "bx\xC3\xA4"}, {"dxz", "axa", "ax"}},
	{"[\\d\\-.]+\\.\\w", {"1-.9._", "2.a"}, {"x.a", "1.-"}},
	{"\\D\\W\\S", {"a-b", "x x"}, {"1-b", "aab", "a- "}},
	{".", {"a", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}, {"", "\n", "ab", "\xE2\x82"}},
	{"\\u20ac\\u{1F600}\\x41\\t",
		{"\xE2\x82\xAC\xF0\x9F\x98\x80"
		 "A\t"},
		{"A\t"}},
	{"\\p{Lu}\\p{Ll}+", {"Abc", "\xC3\x84\xC3\xB6"}, {"abc", "AB", "A"}},
	{"^(?:a|(?<n>b))$", {"a", "b"}, {"", "ab"}},
	{"\\(\\[\\{\\^\\$\\|", {"([{^$|"}, {"("}},
	{"(a|b)*a(a|b){14}", {"aaaaaaaaaaaaaaa", "bbabbbbbbbbbbbbbb"}, {"bbbbbbbbbbbbbbbb", "ab"}},
};

static void regular_expressions_match_whole_texts(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct rig rig;

		rig_open(&rig, GRAMMAR_REGEX, cases[i].regex);
		for (int k = 0; k < 4 && cases[i].matches[k] != NULL; k++)
			if (!rig_matches(&rig, cases[i].matches[k]))
				fail_msg("/%s/ does not match \"%s\"", cases[i].regex,
					cases[i].matches[k]);
		for (int k = 0; k < 4 && cases[i].fails[k] != NULL; k++)
			if (rig_matches(&rig, cases[i].fails[k]))
				fail_msg("/%s/ matches \"%s\"", cases[i].regex, cases[i].fails[k]);
		rig_close(&rig);
	}
}

static const struct {
	const char *regex, *message;
} wrong[] = {
	{"a(b", "byte 2: ( without )"},
	{"a)b", "byte 2: ) without ("},
	{"a[b", "byte 2: [ without ]"},
	{"*a", "byte 1: nothing to repeat"},
	{"a{3,2}", "byte 2: a repetition whose minimum is above its maximum"},
	{"a{x}", "byte 2: { without a number"},
	{"(a)\\1", "byte 4: back references are not supported: no automaton can match them"},
	{"(?=a)b", "byte 1: look-around is not supported"},
	{"\\bword", "byte 1: word boundaries (\\b, \\B) are not supported"},
	{"[z-a]", "byte 2: a range that ends before it begins"},
	{"a\\", "byte 2: nothing behind a backslash"},
	{"a\xFF", "byte 2: not UTF-8"},
	{"\\p{Greek}", "byte 1: no such general category of Unicode; scripts and other properties "
		       "are not supported"},
	{"a$b", "byte 3: something behind $"},
	{"a{200000}", "a repetition counts to 100001; at most 100000"},
};

static void what_is_wrong_is_named_with_its_place(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		struct error err = {""};
		struct rig rig;

		assert_true(rig_try(&rig, GRAMMAR_REGEX, wrong[i].regex, &err) < 0);
		if (strncmp(wrong[i].message, "a repetition counts", 19) == 0)
			assert_non_null(strstr(err.text, "a repetition counts to"));
		else
			assert_string_equal(err.text, wrong[i].message);
		rig_close(&rig);
	}
}

/* Where a deterministic automaton would need 2^40 states, the others do. */
static void exponential_ones_stay_small(void **state)
{
	struct rig rig;
	char text[64];

	(void)state;
	rig_open(&rig, GRAMMAR_REGEX, "(a|b)*a(a|b){40}");
	memset(text, 'b', sizeof(text));
	text[10] = 'a';
	assert_true(rig_matches_bytes(&rig, text, 51));
	assert_false(rig_matches_bytes(&rig, text, 50));
	assert_false(rig_matches_bytes(&rig, text, 52));
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(regular_expressions_match_whole_texts),
		cmocka_unit_test(what_is_wrong_is_named_with_its_place),
		cmocka_unit_test(exponential_ones_stay_small),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
