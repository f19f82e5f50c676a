/* Chat templates: what is rendered, what is refused and where, what may be a special token, and limits. */
#include "shared/model/text/template/template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct tm noon(void)
{
	struct tm now = {.tm_year = 126, .tm_mday = 15, .tm_hour = 12};
	time_t seconds = timegm(&now);
	gmtime_r(&seconds, &now);
	return now;
}

static int render_with(const char *source, const json_t *data, const json_t *trusted,
	const struct template_limits *limits, struct template_text *out, struct error *err)
{
	struct tm now = noon();
	struct template *template;
	struct template_input input = {data, trusted, &now};
	memset(out, 0, sizeof(*out));
	int rc = template_parse(source, strlen(source), &template, err);
	if (!rc)
		rc = template_render(template, &input, limits, out, err);
	template_free(&template);
	assert_null(template);
	return rc;
}

static json_t *load(const char *path)
{
	json_error_t error;
	json_t *json = json_load_file(path, 0, &error);
	if (!json)
		fail_msg("%s: %s", path, error.text);
	return json;
}

static void test_behaviours_are_those_of_jinja2(void **state)
{
	(void)state;
	json_t *json = load("tests/data/templates/behaviours.json"), *test;
	const json_t *data = json_object_get(json, "data");
	size_t i, wrong = 0;
	json_array_foreach(json_object_get(json, "cases"), i, test)
	{
		struct template_text out;
		struct error err = {""};
		const char *expected = json_string_value(json_object_get(test, "text"));
		const char *name = json_string_value(json_object_get(test, "name"));
		int rc = render_with(json_string_value(json_object_get(test, "template")), data,
			NULL, NULL, &out, &err);
		size_t bytes = json_string_length(json_object_get(test, "text"));
		if (expected ? rc || out.bytes != bytes || memcmp(out.data, expected, bytes) != 0
			     : rc != -EINVAL || strncmp(err.text, "template line ", 14) != 0) {
			print_error("%s: expected %s, got %s\n", name,
				expected ? expected : "an error", rc ? err.text : out.data);
			wrong++;
		}
		template_text_free(&out);
	}
	assert_true(i >= 60);
	assert_int_equal(wrong, 0);
	json_decref(json);
}

/* One rendering of the golden data. */
static bool matches(const json_t *template, const json_t *conversations, const json_t *tokens,
	const json_t *test)
{
	struct template_text out;
	struct error err = {""};
	const json_t *conversation = json_array_get(
		conversations, (size_t)json_integer_value(json_object_get(test, "conversation")));
	json_t *data = json_object();
	static const char *const copied[] = {"messages", "tools"};
	for (size_t i = 0; i < 2; i++)
		if (json_object_get(conversation, copied[i]))
			json_object_set(data, copied[i], json_object_get(conversation, copied[i]));
	static const char *const flags[] = {"add_generation_prompt", "enable_thinking"};
	for (size_t i = 0; i < 2; i++)
		if (json_object_get(test, flags[i]))
			json_object_set(data, flags[i], json_object_get(test, flags[i]));
	int rc = render_with(json_string_value(json_object_get(template, "source")), data, tokens,
		NULL, &out, &err);
	const char *expected = json_string_value(json_object_get(test, "text"));
	bool same = expected ? !rc && strcmp(out.data, expected) == 0 : rc == -EINVAL;
	if (!same)
		print_error("%s: expected %s, got %s\n",
			json_string_value(json_object_get(template, "name")),
			expected ? expected : "an error", rc ? err.text : out.data);
	template_text_free(&out);
	json_decref(data);
	return same;
}

static void test_templates_of_models_render_as_transformers_does(void **state)
{
	(void)state;
	char path[600];
	const char *golden = getenv("OUTRIDER_GOLDEN");
	golden = golden ? golden : "../shared/golden";
	snprintf(path, sizeof(path), "%.500s/templates/templates.json", golden);
	json_t *json = json_load_file(path, 0, NULL), *template, *test;
	if (!json) {
		print_message(
			"skipped: %s is not there (OUTRIDER_GOLDEN names the golden data)\n", path);
		skip();
	}
	size_t t, i, n = 0, wrong = 0;
	json_array_foreach(json_object_get(json, "templates"), t, template)
	{
		json_array_foreach(json_object_get(template, "renders"), i, test)
		{
			n++;
			wrong += !matches(template, json_object_get(json, "conversations"),
				json_object_get(json, "tokens"), test);
		}
	}
	assert_true(n > 50);
	assert_int_equal(wrong, 0);
	json_decref(json);
}

static void test_errors_say_where_and_what(void **state)
{
	(void)state;
	static const struct {
		const char *source, *message;
	} cases[] = {
		{"a\n {{ x.y }}", "template line 2, column 6: 'x' is undefined"},
		{"{% set a = 'é' %}{{ a|frob }}",
			"template line 1, column 23: the filter \"frob\" is not supported"},
		{"{{ 1 is frob }}",
			"template line 1, column 9: the test \"frob\" is not supported"},
		{"\n\n{% include 'x' %}",
			"template line 3, column 4: the tag \"include\" is not supported here"},
		{"{{ 'a'.translate({}) }}", "template line 1, column 7: the string method "
					    "\"translate\" is not supported"},
		{"{{ raise_exception('no\nway') }}", "template line 1, column 19: no way"},
		{"{% if x %}", "template line 1, column 4: \"if\" has no {% endif %}"},
		{"{{ 1 + }}", "template line 1, column 8: expected an expression, got \"}}\""},
		{"{{ 1", "template line 1, column 1: this tag does not end"},
		{"{# x", "template line 1, column 1: this comment does not end"},
		{"{{ 99999999999999999999 }}", "does not fit 64 bits"},
		{"{{ 9223372036854775807 + 1 }}",
			"template line 1, column 24: an integer does not fit 64 bits"},
		{"{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", "has no argument 'b'"},
		{"{{ 'a'|replace('b') }}", "replace needs 2 arguments (old,new,count)"},
		{"{{ {}.x.y }}", "'dict' has no attribute 'x'"},
		{"{% set true = 1 %}", "a constant cannot be assigned to"},
		{"{{ ' '|tojson(indent='a', frob=1) }}", "tojson has no argument 'frob'"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct template_text out;
		struct error err = {""};
		assert_int_equal(
			render_with(cases[i].source, NULL, NULL, NULL, &out, &err), -EINVAL);
		if (!strstr(err.text, cases[i].message))
			fail_msg("%s: %s", cases[i].source, err.text);
		assert_null(out.data);
	}
}

static void test_what_does_not_end_is_ended(void **state)
{
	(void)state;
	static const char *const sources[] = {
		"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"{% macro f(x) %}{{ f([x]) ~ f([x]) }}{% endmacro %}{{ f(1) }}",
		"{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}"
		"{% endfor %}",
		"{% for a in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
		"{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}"
		"{% endfor %}",
		"{% set n = namespace() %}{% set n.n = n %}{{ n }}",
		"{{ [1] * 1000000000000 }}",
		"{{ '%1000000000d' % 1 }}",
		"{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"{% set n = namespace(x=[]) %}{% for i in range(5000) %}{% set n.x = [n.x] %}"
		"{% endfor %}{{ n.x }}",
	};
	const struct template_limits limits = {1000000, 800, 1 << 20, 64 << 20};
	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
		struct template_text out;
		struct error err = {""};
		int rc = render_with(sources[i], NULL, NULL, &limits, &out, &err);
		if (rc != -E2BIG && rc != -EINVAL)
			fail_msg("%s: %d", sources[i], rc);
		if (strncmp(err.text, "template line 1, column ", 24) != 0)
			fail_msg("%s: %s", sources[i], err.text);
	}
}

/* What one turn of a loop of 1000 reads is counted, though little is written. */
static void test_reading_is_work(void **state)
{
	static const char text[] =
		"{% set n = namespace(x='ab', y='é') %}{% for i in range(16) %}"
		"{% set n.x = n.x ~ n.x %}{% set n.y = n.y ~ n.y %}{% endfor %}"
		"{% set s, e = n.x, n.y %}{% set d = {0:0,1:1,2:2,3:3,4:4,5:5,6:6,7:7,8:8,9:9} %}"
		"{% set t = ('x',) * 4000 %}{% set b = 'b' ~ s[:65536] %}{% set u = s.upper() %}"
		"{% for i in range(1000) %}{% set v = ";
	static const char *const expressions[] = {"u is upper", "s is lower", "u.isupper()",
		"e.islower()", "'x' is in e", "s|trim('ab')", "s.strip('ba')",
		"(s ~ ' ')|trim('-ab ')", "s.partition('x')", "s.rpartition('x')", "s.rfind(b)",
		"s.rpartition(b)", "s.rsplit(b)", "s.find('x')", "s.rfind('x')", "e.count('x')",
		"s|title", "s.title()", "s.swapcase()", "s.capitalize()", "e.startswith('x', 1)",
		"s.startswith(s)", "s.endswith(t)", "s.removeprefix(b)", "s.removesuffix(s)",
		"d[s]", "d[t]", "s in d", "s|safe|center(1)", "e.ljust(1)", "e.zfill(1)",
		"e|truncate(10)", "s|int", "s|float", "s.format()", "s % ()", "s|urlencode",
		"s|wordcount", "s|escape", "e[9]", "e[3:5]", "s|tojson", "[s]|string",
		"s.isalpha()", "e|length", "s < s ~ 'x'", "s.split('x')", "s.splitlines()",
		"s.replace('x', 'y')", "s is in t", "1 in t",
		"'%.300f%.300f%.300f' % (0.1, 0.1, 0.1)", "0.1|round(300)|round(300)|round(300)",
		"[0.1, 0.1, 0.1, 0.1]|string"};
	const struct template_limits limits = {100000, 800, 32 << 20, 256 << 20};
	(void)state;
	for (size_t i = 0; i < sizeof(expressions) / sizeof(expressions[0]); i++) {
		char source[1000];
		struct template_text out;
		struct error err = {""};
		snprintf(source, sizeof(source), "%s%s %%}{%% endfor %%}", text, expressions[i]);
		int rc = render_with(source, NULL, NULL, &limits, &out, &err);
		template_text_free(&out);
		if (rc != -E2BIG || !strstr(err.text, "takes more than 100000 steps"))
			fail_msg("%s: %d %s", expressions[i], rc, err.text);
	}
}

static void test_names_and_arguments_are_work(void **state)
{
	static const char *const ends[] = {
		/* a name of 30,000 bytes, another of the same length before it */
		"{% for i in range(999) %}{% set y = z %}{% endfor %}",
		/* 500 arguments for 500 parameters */
		"{% for i in range(99) %}{% set y = m(",
	};
	const struct template_limits limits = {100000, 800, 1 << 20, 64 << 20};
	enum { BYTES = 200000, LONG = 30000 };
	char *source = malloc(BYTES), *name = malloc(LONG + 1);
	(void)state;
	assert_non_null(source);
	assert_non_null(name);
	memset(name, 'a', LONG);
	name[LONG] = '\0';
	for (size_t i = 0; i < 2; i++) {
		struct template_text out;
		struct error err = {""};
		size_t n = 0;
		if (i == 0) {
			n += (size_t)snprintf(source, BYTES,
				"{%% set %sx = 1 %%}{%% set %sy = 1 %%}"
				"{%% for i in range(999) %%}{%% set z = %sy %%}{%% endfor %%}",
				name, name, name);
		} else {
			n += (size_t)snprintf(source, BYTES, "{%% macro m(");
			for (int k = 0; k < 500; k++)
				n += (size_t)snprintf(source + n, BYTES - n, "p%d%s", k,
					k < 499 ? "," : ") %}{% endmacro %}");
			n += (size_t)snprintf(source + n, BYTES - n, "%s", ends[1]);
			for (int k = 499; k >= 0; k--)
				n += (size_t)snprintf(source + n, BYTES - n, "p%d=1%s", k,
					k ? "," : ") %}{% endfor %}");
		}
		assert_true(n < BYTES);
		int rc = render_with(source, NULL, NULL, &limits, &out, &err);
		template_text_free(&out);
		if (rc != -E2BIG || !strstr(err.text, "steps"))
			fail_msg("%zu: %d %s", i, rc, err.text);
	}
	free(source);
	free(name);
}

static void test_ranges_may_span_64_bits(void **state)
{
	static const struct {
		const char *source, *text;
	} cases[] = {
		{"{{ range(-9223372036854775807, 9223372036854775807, 4611686018427387904)|list }}",
			"[-9223372036854775807, -4611686018427387903, 1, 4611686018427387905]"},
		{"{{ range(9223372036854775807, -9223372036854775807, -9223372036854775807)|list "
		 "}}",
			"[9223372036854775807, 0]"},
		{"{{ range(-9223372036854775807, 9223372036854775807, 4611686018427387904)"
		 "[1::2]|list }}",
			"[-4611686018427387903, 4611686018427387905]"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct template_text out;
		struct error err = {""};
		if (render_with(cases[i].source, NULL, NULL, NULL, &out, &err))
			fail_msg("%s: %s", cases[i].source, err.text);
		assert_string_equal(out.data, cases[i].text);
		template_text_free(&out);
	}
}

static void test_deep_nesting_is_refused(void **state)
{
	(void)state;
	static const char *const parts[] = {"{{ ", "(", "[", "{% if 1 %}", "not ", "-", "{{ 1 if ",
		"a.b|c(", "{1:", "{% for a in "};
	for (size_t i = 1; i < sizeof(parts) / sizeof(parts[0]); i++) {
		char source[80000] = "";
		size_t n = parts[i][0] == '{' && parts[i][1] != '1' ? 0 : 3;
		memcpy(source, "{{ ", n);
		for (int k = 0; k < 5000; k++, n += strlen(parts[i]))
			memcpy(source + n, parts[i], strlen(parts[i]) + 1);
		struct template_text out;
		struct error err = {""};
		assert_int_equal(render_with(source, NULL, NULL, NULL, &out, &err), -EINVAL);
		assert_true(strncmp(err.text, "template line 1, ", 17) == 0);
	}
}

/* Every byte of the rendering as t (the template's) or d (data). */
static void test_data_stays_data_through_every_operation(void **state)
{
	(void)state;
	static const struct {
		const char *source, *text, *origin;
	} cases[] = {
		{"<a>{{ x }}", "<a>D<b>", "tttdddd"},
		{"{{ '<a>' + x + '<c>' }}", "<a>D<b><c>", "tttddddttt"},
		{"{{ '<a>' ~ x }}{{ x|upper }}", "<a>D<b>D<B>", "tttdddddddd"},
		{"{{ (' <a>' ~ x ~ ' ')|trim }}", "<a>D<b>", "tttdddd"},
		{"{{ ('-' ~ x)[::-1] }}", ">b<D-", "ddddt"},
		{"{{ ('-' ~ x)[1] }}{{ ('-' ~ x)[0] }}", "D-", "dt"},
		{"{{ x.replace('D', 'T') }}", "T<b>", "tddd"},
		{"{{ '<|>'.replace('|', x) }}", "<D<b>>", "tddddt"},
		{"{{ x.split('D')[1] }}", "<b>", "ddd"},
		{"{{ ['<', x]|join('|') }}", "<|D<b>", "ttdddd"},
		{"{{ '|'.join([x, '>']) }}", "D<b>|>", "ddddtt"},
		{"{{ '<{}>'.format(x) }}{{ '<%s>' % x }}", "<D<b>><D<b>>", "tddddttddddt"},
		{"{{ x|tojson }}", "\"D<b>\"", "tddddt"},
		{"{{ {'k': x} }}", "{'k': 'D<b>'}", "tttttttddddtt"},
		{"{{ [x]|string }}", "['D<b>']", "ttddddtt"},
		{"{% set y %}<{{ x }}{% endset %}{{ y }}", "<D<b>", "tdddd"},
		{"{% macro m(a) %}<{{ a }}{% endmacro %}{{ m(x) }}", "<D<b>", "tdddd"},
		{"{% filter upper %}a{{ x }}{% endfilter %}", "AD<B>", "tdddd"},
		{"{% for c in x %}{{ c }}.{% endfor %}", "D.<.b.>.", "dtdtdtdt"},
		{"{{ x|default('t') }}{{ z|default('t') }}", "D<b>t", "ddddt"},
		{"{{ x|indent(1, true) }}", " D<b>", "tdddd"},
		{"{{ x * 2 }}", "D<b>D<b>", "dddddddd"},
		{"{{ x|escape }}", "D&lt;b&gt;", "dddddddddd"},
		{"{% for k in d %}{{ k }}{% endfor %}", "<k>", "ddd"},
		{"{{ bos }}{{ m.role }}{{ m.content }}", "<s>useruser", "tttttttdddd"},
		{"{{ '<|' + n.role + '|>' }}", "<|end|>", "ttdddtt"},
		{"{{ x|list|first }}{{ x|title }}", "DD<B>", "ddddd"},
		{"{{ x.center(6, '*') }}", "*D<b>*", "tddddt"},
	};
	json_t *data = json_pack("{s:s, s:{s:i}, s:{s:s,s:s}, s:{s:s}}", "x", "D<b>", "d", "<k>", 1,
		"m", "role", "user", "content", "user", "n", "role", "end");
	json_t *trusted = json_pack("{s:s}", "bos", "<s>");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct template_text out;
		struct error err = {""};
		if (render_with(cases[i].source, data, trusted, NULL, &out, &err))
			fail_msg("%s: %s", cases[i].source, err.text);
		assert_string_equal(out.data, cases[i].text);
		assert_int_equal(strlen(cases[i].origin), out.bytes);
		for (size_t k = 0; k < out.bytes; k++)
			if (out.literal[k] != (cases[i].origin[k] == 't'))
				fail_msg("%s: byte %zu", cases[i].source, k);
		template_text_free(&out);
	}
	json_decref(data);
	json_decref(trusted);
}

static void test_bytes_that_are_not_utf8_pass_through(void **state)
{
	(void)state;
	static const char odd[] = "a\xff\xc3(\xed\xa0\x80z";
	struct template_text out;
	struct error err = {""};
	json_t *data = json_pack("{s:o}", "x", json_stringn_nocheck(odd, sizeof(odd) - 1));
	assert_int_equal(
		render_with("{{ x|trim }}{{ x|length }}", data, NULL, NULL, &out, &err), 0);
	assert_int_equal(out.bytes, sizeof(odd));
	assert_memory_equal(out.data, odd, sizeof(odd) - 1);
	assert_int_equal(out.data[sizeof(odd) - 1], '8');
	template_text_free(&out);
	json_decref(data);
}

static void test_without_a_time_it_is_now(void **state)
{
	(void)state;
	static const char source[] = "{{ strftime_now('%Y') }}";
	struct template *template;
	struct template_input input = {NULL, NULL, NULL};
	struct template_text out;
	struct error err = {""};
	assert_int_equal(template_parse(source, sizeof(source) - 1, &template, &err), 0);
	assert_int_equal(template_render(template, &input, NULL, &out, &err), 0);
	assert_int_equal(out.bytes, 4);
	assert_true(strtol(out.data, NULL, 10) >= 2024);
	template_text_free(&out);
	/* A template can be rendered again. */
	assert_int_equal(template_render(template, &input, NULL, &out, &err), 0);
	template_text_free(&out);
	template_free(&template);
}

static void test_a_template_too_long_is_refused(void **state)
{
	(void)state;
	size_t bytes = (1 << 20) + 1;
	char *source = calloc(bytes, 1);
	struct template *template;
	struct error err = {""};
	assert_non_null(source);
	assert_int_equal(template_parse(source, bytes, &template, &err), -E2BIG);
	assert_null(template);
	free(source);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_behaviours_are_those_of_jinja2),
		cmocka_unit_test(test_templates_of_models_render_as_transformers_does),
		cmocka_unit_test(test_errors_say_where_and_what),
		cmocka_unit_test(test_what_does_not_end_is_ended),
		cmocka_unit_test(test_reading_is_work),
		cmocka_unit_test(test_names_and_arguments_are_work),
		cmocka_unit_test(test_ranges_may_span_64_bits),
		cmocka_unit_test(test_deep_nesting_is_refused),
		cmocka_unit_test(test_data_stays_data_through_every_operation),
		cmocka_unit_test(test_bytes_that_are_not_utf8_pass_through),
		cmocka_unit_test(test_without_a_time_it_is_now),
		cmocka_unit_test(test_a_template_too_long_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
