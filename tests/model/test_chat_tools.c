/* Conversations with calls, in the form that each template takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "shared/model/text/chat_tools.h"

static const char conversation[] =
	"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"messages\":[{"
	"\"role\":\"developer\",\"content\":\"D\"},"
	"{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\",\"content\":null,\"tool_"
	"calls\":[{\"id\":\"1\",\"type\":\"function\","
	"\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": "
	"1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"R\"}]}";

#define TOOLS "{% if tools %}T{% endif %}"
#define EACH "{% for m in messages %}{% for c in m.tool_calls %}"
#define END "{% endfor %}{% endfor %}"

static void templates_get_what_they_take(void **state)
{
	static const char *const cases[][2] = {
		{TOOLS EACH "{{ c.function.arguments | tojson }}" END, "T{\"x\": 1}"},
		{TOOLS EACH "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% "
			    "endfor %}" END,
			"Tx=1"},
		{TOOLS EACH "{{ 'a:' + c.function.arguments }}" END, "Ta:{\"x\": 1}"},
		{TOOLS EACH "{{ c.function.arguments }}" END, "T{\"x\": 1}"},
		{TOOLS "{% for m in messages %}{{ m.content }}{% endfor %}", "TDUR"},
		{TOOLS "{% for m in messages %}{% if m.content is none %}-{% else %}{{ m.content "
		       "}}{% endif %}{% endfor %}",
			"TDU-R"},
		{TOOLS "{{ messages[0].role }}", "Tsystem"},
		{TOOLS "{% if messages[0].role == 'developer' %}d{% endif %}", "Td"},
		/* Without tools of its own. */
		{"{% for m in messages %}{{ m.role }}:{{ m.content + '|' }}{% endfor %}",
			"system:D\n\nYou may call these functions:\n{\"name\": \"f\"}\nTo call "
			"one, write its name and arguments:\n<tool_call>\n"
			"{\"name\": ..., \"arguments\": "
			"{...}}\n</tool_call>|user:U|assistant:<tool_call>\n{\"name\": \"f\", "
			"\"arguments\": "
			"{\"x\": 1}}\n</tool_call>|user:<tool_response>\nR\n</tool_response>|"},
	};
	json_t *data = json_loads(conversation, 0, NULL);

	(void)state;
	assert_non_null(data);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct template_input input = {data, NULL, NULL};
		size_t bytes = strlen(cases[i][0]);
		struct error err = {""};
		struct template *template;
		struct template_text text;
		json_t *before = json_deep_copy(data);

		assert_int_equal(template_parse(cases[i][0], bytes, &template, &err), 0);
		if (chat_render_tools(template, cases[i][0], bytes, &input, &text, &err) != 0)
			fail_msg("%s: %s", cases[i][0], err.text);
		assert_string_equal(text.data, cases[i][1]);
		assert_true(json_equal(before, data));
		template_text_free(&text);
		template_free(&template);
		json_decref(before);
	}
	json_decref(data);
}

static void a_template_that_takes_nothing_says_why(void **state)
{
	static const char source[] =
		"{% if tools %}{{ raise_exception('no tools here') }}{% endif %}";
	json_t *data = json_loads(conversation, 0, NULL);
	const struct template_input input = {data, NULL, NULL};
	struct error err = {""};
	struct template *template;
	struct template_text text;

	(void)state;
	assert_int_equal(template_parse(source, strlen(source), &template, &err), 0);
	assert_int_equal(
		chat_render_tools(template, source, strlen(source), &input, &text, &err), -EINVAL);
	assert_non_null(strstr(err.text, "no tools here"));
	template_free(&template);
	json_decref(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(templates_get_what_they_take),
		cmocka_unit_test(a_template_that_takes_nothing_says_why),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
