/* GBNF: llama.cpp's notation, what it matches, and where it is wrong. */
#include "tests/grammar/rig.h"

static const struct {
	const char *grammar;
	const char *matches[4], *fails[4];
} cases[] = {
	{"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "maybe", "yesno"}},
	{"# of lists\nroot ::= item (\", \" item)* \".\"\nitem ::= [a-z]+ # a word\n",
		{"a.", "ab, c."}, {"", "a, .", "A."}},
	{"root ::= (\n  \"a\" |\n  \"b\"\n) \"\\n\"", {"a\n", "b\n"}, {"a", "ab\n"}},
	{"root ::= [^\\]\\x41\\u00e4\"]{2,3} .?", {"bc", "bcde", "xyz\xC3\xA4"},
		{"b", "AA", "bcdef"}},
	{"root ::= x{2} y{1,} z{0,2}\nx ::= \"x\"\ny ::= \"y\"\nz ::= \"z\"", {"xxy", "xxyyzz"},
		{"xy", "xxyzzz"}},
	{"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())"}},
	{"root ::= a b\na ::= \"\" | \"a\" a\nb ::= \"b\" |", {"", "aab", "b", "aa"},
		{"ba", "abb"}},
	/* Ambiguous in more ways than there are atoms. */
	{"root ::= \"a\" root root | \"a\"", {"a", "aaa", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
		{"", "aa", "b"}},
	{"root ::= expr\nexpr ::= term ([-+] term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
		{"1", "(1+2)-3", "((4))"}, {"1+", "(1", "1)"}},
	{"root ::= \"\\U0001F600\\t\\\\\\\"\"", {"\xF0\x9F\x98\x80\t\\\""}, {"x"}},
};

static void grammars_match_whole_texts(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct rig rig;

		rig_open(&rig, GRAMMAR_GBNF, cases[i].grammar);
		for (int k = 0; k < 4 && cases[i].matches[k] != NULL; k++)
			if (!rig_matches(&rig, cases[i].matches[k]))
				fail_msg("%s does not match \"%s\"", cases[i].grammar,
					cases[i].matches[k]);
		for (int k = 0; k < 4 && cases[i].fails[k] != NULL; k++)
			if (rig_matches(&rig, cases[i].fails[k]))
				fail_msg("%s matches \"%s\"", cases[i].grammar, cases[i].fails[k]);
		rig_close(&rig);
	}
}

static const struct {
	const char *grammar, *message;
} wrong[] = {
	{"", "line 1, column 1: there is no rule \"root\""},
	{"a ::= \"b\"", "line 1, column 1: there is no rule \"root\""},
	{"root ::= x\ny ::= \"a\"\n", "line 1, column 10: there is no rule \"x\""},
	{"root ::= \"a\nb", "line 1, column 10: a literal without its closing \""},
	{"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: a rule of this name exists already"},
	{"root = \"a\"", "line 1, column 6: ::= is missing behind the name of a rule"},
	{"root ::= (\"a\"", "line 1, column 10: ( without )"},
	{"root ::= [a", "line 1, column 10: [ without ]"},
	{"root ::= \"a\" )", "line 1, column 14: this text belongs to no rule"},
	{"root ::= \"\\q\"", "line 1, column 11: an escape that GBNF does not have"},
	{"root ::= <think>", "line 1, column 10: tokens (<...>) are not supported: write the text"},
	{"root ::= \"a\"{3,1}",
		"line 1, column 13: a repetition whose minimum is above its maximum"},
	{"root ::= root \"a\" | \"a\"", "rule \"root\" begins with itself, or with a rule that "
					"does: left recursion is not supported"},
	{"root ::= a\na ::= b? c\nb ::= \"b\"\nc ::= a \"c\" | \"d\"",
		"rule \"a\" begins with itself, or with a rule that does: left recursion is not "
		"supported"},
	{"root ::= \"a\" root", "the grammar matches no text"},
};

static void what_is_wrong_is_named_with_its_place(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		struct error err = {""};
		struct rig rig;

		assert_true(rig_try(&rig, GRAMMAR_GBNF, wrong[i].grammar, &err) < 0);
		assert_string_equal(err.text, wrong[i].message);
		rig_close(&rig);
	}
}

static void limits_are_named(void **state)
{
	struct error err = {""};
	struct rig rig;
	char nested[1000];

	(void)state;
	snprintf(nested, sizeof(nested), "root ::= %0200d", 0);
	memset(nested + 9, '(', 200);
	assert_true(rig_try(&rig, GRAMMAR_GBNF, nested, &err) < 0);
	assert_string_equal(err.text, "line 1, column 138: brackets are nested too deep");
	rig_close(&rig);
	assert_int_equal(rig_try(&rig, GRAMMAR_GBNF,
				 "root ::= [ab]{100000} [bc]{100000} [cd]{100000}", &err),
		-E2BIG);
	assert_non_null(strstr(err.text, "the grammar is too large"));
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grammars_match_whole_texts),
		cmocka_unit_test(what_is_wrong_is_named_with_its_place),
		cmocka_unit_test(limits_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
