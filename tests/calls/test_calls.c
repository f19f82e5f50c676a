/* Answers in the notations that models write, as their makers document them: what is found in them, cut anywhere; and that the grammar
 * of a notation takes what its parser reads. */
#include "tests/grammar/rig.h"

#include "shared/model/calls/calls.h"

#define SEP "\xEF\xBD\x9C"
#define LOW "\xE2\x96\x81"
#define CALLS "<" SEP "tool" LOW "calls" LOW "begin" SEP ">"
#define CALLS_END "<" SEP "tool" LOW "calls" LOW "end" SEP ">"
#define CALL "<" SEP "tool" LOW "call" LOW "begin" SEP ">"
#define CALL_END "<" SEP "tool" LOW "call" LOW "end" SEP ">"
#define TSEP "<" SEP "tool" LOW "sep" SEP ">"

static const char tools_source[] =
	"[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":"
	"\"object\",\"properties\":{"
	"\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}},\"required\":[\"city\"],"
	"\"additionalProperties\":false}}},"
	"{\"type\":\"function\",\"function\":{\"name\":\"run\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{"
	"\"code\":{\"type\":\"string\"},\"env\":{\"type\":\"object\"},\"limit\":{\"anyOf\":[{"
	"\"type\":\"integer\"},{\"type\":\"null\"}]}"
	"}}}}]";

/* Templates: what tells a notation from another. */
static const char hermes[] = "tools <tool_call>", qwen3[] = "tools <tool_call> </think>",
		  coder[] = "<tool_call>\n<function=", glm[] = "<tool_call> <arg_key> </think>",
		  harmony[] = "<|channel|> <|message|>", deepseek[] = CALL " </think>",
		  deepseek_old[] = CALL "```json </think>", mistral[] = "[TOOL_CALLS] [ARGS]",
		  mistral_old[] = "[TOOL_CALLS]", magistral[] = "[TOOL_CALLS] [ARGS] [/THINK]",
		  llama[] = "<|start_header_id|> \"parameters\"", plain[] = "no notation";

struct recorded {
	const char *template;
	bool thinking;
	const char *answer;
	/* (thought)content, then name{arguments} of each call. */
	const char *expected;
	bool free; /* the grammar of free answers takes it too */
};

static const struct recorded recorded[] = {
	{hermes, false, "Hello.", "Hello.", true},
	{hermes, false, "Hello.\n", "Hello.\n", true},
	{hermes, false, "", "", true},
	{plain, false, "<tool_call>{\"name\": \"weather\"}</tool_call>",
		"<tool_call>{\"name\": \"weather\"}</tool_call>", true},
	{hermes, false,
		"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
		"\"Rome\"}}\n</tool_call>",
		"|weather{\"city\": \"Rome\"}", true},
	{hermes, false,
		"I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
		"\"Rome\"}}\n</tool_call>\n<tool_call>\n"
		"{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": "
		"2}}\n</tool_call>",
		"I look.|weather{\"city\": \"Rome\"}|weather{\"city\": \"Oslo\", \"days\": 2}",
		true},
	{hermes, false,
		"<tool_call>{\"name\":\"weather\",\"arguments\":\"{\\\"city\\\": "
		"\\\"</tool_call>\\\"}\"}</tool_call>",
		"|weather{\"city\": \"</tool_call>\"}", false},
	{hermes, false,
		"<tool_call>{\"arguments\":{\"city\":\"a\"},\"name\":\"weather\"} </tool_call> and "
		"so on",
		"and so on|weather{\"city\":\"a\"}", false},
	/* What is no call stays what it was. */
	{hermes, false, "<tool_call>\n{\"name\": \"nothing\", \"arguments\": {}}\n</tool_call>",
		"<tool_call>\n{\"name\": \"nothing\", \"arguments\": {}}\n</tool_call>", false},
	{hermes, false,
		"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\"}}\n</tool_call> x",
		"x|weather{\"city\"}", false},
	/* A call that began stays one: broken off, or followed by something else. */
	{hermes, false, "<tool_call>{\"name\": \"run\", \"arguments\": {\"code\": \"a </tool",
		"|run{\"code\": \"a </tool", false},
	{hermes, false, "<tool_call>{\"name\": \"run\", \"arguments\": {\"a\": [1, #}} x",
		"#}} x|run{\"a\": [1, ", false},
	{hermes, false,
		"<tool_call>{\"id\": \"1\", \"name\": \"run\", \"arguments\": {\"code\": "
		"\"\\\"}\\\\\"}, \"x\": {}}</tool_call>",
		"|run{\"code\": \"\\\"}\\\\\"}", false},
	{coder, false, "<tool_call>\n<function=run>\n<parameter=code>\nab\n</para",
		"|run{\"code\": \"ab", false},
	{coder, false, "<tool_call>\n<function=run>\n<parameter=code>\n\n\n</parameter>\nrest",
		"rest|run{\"code\": \"\\n\"", false},
	{coder, false,
		"<tool_call>\n<function=run>\n<parameter=code>\n\n\ta\n\n</parameter>\n"
		"<parameter=env>\n{}\n</parameter>\n</function>\n</tool_call>",
		"|run{\"code\": \"\\n\\ta\\n\", \"env\": {}}", true},
	{glm, false, "<tool_call>run\n<arg_key>limit</arg_key>\n<arg_value>12</arg",
		"|run{\"limit\": ", false},
	{mistral, false, "[TOOL_CALLS]run[ARGS]{\"code\": \"a", "|run{\"code\": \"a", false},
	{hermes, false, "a <tool_call> b <tool_call>{\"name\": \"weather\"}</tool_call>",
		"a <tool_call> b|weather{}", false},
	{hermes, false, "<tool_call>\n{\"name\": \"weather\", \"argum",
		"<tool_call>\n{\"name\": \"weather\", \"argum", false},
	{hermes, false, "a < b <tool < c <tool_call", "a < b <tool < c <tool_call", true},
	/* Thoughts. */
	{qwen3, false, "<think>\nHm. <tool_call> is a word.\n</think>\n\nYes.",
		"(Hm. <tool_call> is a word.)Yes.", true},
	{qwen3, true,
		"\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
		"\"x\"}}\n</tool_call>",
		"(Hm.)|weather{\"city\": \"x\"}", true},
	{qwen3, true, "never ends </thin", "(never ends </thin)", false},
	{qwen3, false, "No thought, but <think> in a text.", "No thought, but <think> in a text.",
		true},
	{qwen3, false, "<think>\n\n</think>\n\nAt once.", "At once.", true},
	/* Qwen3-Coder. */
	{coder, false,
		"<tool_call>\n<function=run>\n<parameter=code>\nif a < b:\n    "
		"print(\"</function>\")\n</parameter>\n<parameter=env>\n"
		"{\"A\": 1}\n</parameter>\n</function>\n</tool_call>",
		"|run{\"code\": \"if a < b:\\n    print(\\\"</function>\\\")\", \"env\": {\"A\": "
		"1}}",
		true},
	{coder, false,
		"<function=weather><parameter=city>12</parameter><parameter=days>3</parameter></"
		"function>",
		"|weather{\"city\": \"12\", \"days\": 3}", false},
	{coder, false,
		"<tool_call>\n<function=run>\n<parameter=limit>\nnull\n</parameter>\n</"
		"function>\n</tool_call>",
		"|run{\"limit\": null}", true},
	{coder, false, "<tool_call>\n<function=run>\nprint\n</function>\n</tool_call>",
		"<tool_call>\n<function=run>\nprint\n</function>\n</tool_call>", false},
	/* GLM. */
	{glm, false,
		"\n<think>I "
		"ask.</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</"
		"arg_value>\n<arg_key>days</arg_key>\n"
		"<arg_value>2</arg_value>\n</tool_call>",
		"(I ask.)|weather{\"city\": \"Rome\", \"days\": 2}", false},
	{glm, false,
		"<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</"
		"tool_call>",
		"|weather{\"city\": \"Rome\"}", true},
	{glm, false,
		"<tool_call>weather<arg_key>city</arg_key><arg_value>a\nb</arg_value></tool_call>",
		"|weather{\"city\": \"a\\nb\"}", false},
	{glm, false, "<tool_call>run\n</tool_call>", "|run{}", true},
	/* Harmony. */
	{harmony, false, "<|channel|>final<|message|>Hi.<|return|>", "Hi.", false},
	{harmony, false, "<|channel|>final<|message|>Hi.", "Hi.", true},
	{harmony, false,
		"<|channel|>analysis<|message|>Need "
		"it.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
		"<|constrain|>json<|message|>{\"city\":\"Rome\"}<|call|>",
		"(Need it.)|weather{\"city\":\"Rome\"}", false},
	{harmony, false,
		"<|channel|>analysis<|message|>Need "
		"it.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
		"<|constrain|>json<|message|>{\"city\":\"Rome\"}",
		"(Need it.)|weather{\"city\":\"Rome\"}", true},
	{harmony, false, " to=functions.run<|channel|>commentary json<|message|>{}", "|run{}",
		false},
	{harmony, false,
		"<|channel|>commentary<|message|>First I "
		"look.<|end|><|start|>assistant<|channel|>final<|message|>Done.",
		"First I look.Done.", false},
	{harmony, false, "<|channel|>commentary to=python<|message|>print(1)<|call|>",
		"<|channel|>commentary to=python<|message|>print(1)", false},
	{harmony, false, "<|channel|>commentary to=functions.run<|message|>{\"code\": <|call|>",
		"|run{\"code\": ", false},
	{harmony, false, "<|channel|>commentary to=functions.run<|message|>[1]<|call|>",
		"<|channel|>commentary to=functions.run<|message|>[1]", false},
	{harmony, false, "No channel at all.", "No channel at all.", false},
	{harmony, false, "<|channel|>fin", "<|channel|>fin", false},
	/* DeepSeek. */
	{deepseek_old, true,
		"Hm.</think>\n\n" CALLS CALL "function" TSEP
		"weather\n```json\n{\"city\": \"Rome\"}\n```" CALL_END "\n" CALL "function" TSEP
		"run\n```json\n{}\n```" CALL_END CALLS_END,
		"(Hm.)|weather{\"city\": \"Rome\"}|run{}", true},
	{deepseek, false,
		CALLS CALL "weather" TSEP "{\"city\": \"Rome\"}" CALL_END CALL "run" TSEP
			   "{}" CALL_END CALLS_END,
		"|weather{\"city\": \"Rome\"}|run{}", true},
	{deepseek, false, "x " CALLS CALL "weather" TSEP "{\"city\": " CALL_END CALLS_END,
		"x" CALL_END CALLS_END "|weather{\"city\": ", false},
	/* Mistral. */
	{mistral_old, false,
		"[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}, "
		"{\"name\": \"run\", \"arguments\": {}}]",
		"|weather{\"city\": \"Rome\"}|run{}", true},
	{mistral_old, false,
		"[TOOL_CALLS] [{\"name\": \"run\", \"arguments\": {\"code\": \"a]}\"}, \"id\": "
		"\"abcdefghi\"}]",
		"|run{\"code\": \"a]}\"}", false},
	{mistral_old, false, "[TOOL_CALLS] [{\"name\": \"other\", \"arguments\": {}}]",
		"[TOOL_CALLS] [{\"name\": \"other\", \"arguments\": {}}]", false},
	{mistral, false,
		"Yes.[TOOL_CALLS]weather[ARGS]{\"city\": "
		"\"Rome\"}[TOOL_CALLS]run[CALL_ID]123456789[ARGS]{}",
		"Yes.|weather{\"city\": \"Rome\"}|run{}", false},
	{mistral, false, "[TOOL_CALLS]weather[ARGS]{\"city\": \"Rome\"}",
		"|weather{\"city\": \"Rome\"}", true},
	{magistral, false, "[THINK]So.[/THINK]Then.", "(So.)Then.", true},
	/* Llama. */
	{llama, false, "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}",
		"|weather{\"city\": \"Rome\"}", true},
	{llama, false,
		"<|python_tag|>{\"name\": \"run\", \"parameters\": {}}; {\"name\": \"run\", "
		"\"parameters\": {}}",
		"|run{}|run{}", false},
	{llama, false, "{\"name\": \"Rome\", \"size\": 3} is JSON.",
		"{\"name\": \"Rome\", \"size\": 3} is JSON.", false},
	{llama, false, "In JSON: {\"name\": \"run\", \"parameters\": {}}",
		"In JSON: {\"name\": \"run\", \"parameters\": {}}", true},
};
enum { RECORDED = sizeof(recorded) / sizeof(recorded[0]) };

/* What was found, as `expected` is written. */
struct found {
	char thought[2048], content[2048], calls[2048];
	bool open; /* a call */
	unsigned pieces; /* of arguments */
};

static void add(char *to, const char *text, size_t bytes)
{
	size_t n = strlen(to);

	assert_true(n + bytes < 2048);
	memcpy(to + n, text, bytes);
	to[n + bytes] = '\0';
}

static void on_content(void *arg, const char *text, size_t bytes)
{
	add(((struct found *)arg)->content, text, bytes);
}

static void on_thought(void *arg, const char *text, size_t bytes)
{
	add(((struct found *)arg)->thought, text, bytes);
}

static void on_call(void *arg, const char *name)
{
	struct found *found = arg;

	assert_false(found->open);
	found->open = true;
	add(found->calls, "|", 1);
	add(found->calls, name, strlen(name));
}

static void on_arguments(void *arg, const char *text, size_t bytes)
{
	struct found *found = arg;

	assert_true(found->open && bytes > 0);
	found->pieces++;
	add(found->calls, text, bytes);
}

static void on_call_end(void *arg)
{
	struct found *found = arg;

	assert_true(found->open);
	found->open = false;
}

/* The answer in pieces of up to `most` bytes; seed 0: all of that many. */
static void parse(
	const struct recorded *r, const json_t *tools, size_t most, unsigned seed, char out[8192])
{
	struct found found = {"", "", "", false, 0};
	struct calls_sink sink = {
		&found, on_content, on_thought, on_call, on_arguments, on_call_end};
	struct calls_format format;
	size_t bytes = strlen(r->answer);

	calls_detect(r->template, strlen(r->template), &format);
	struct calls_parser *parser = calls_new(&format, tools, r->thinking, &sink);
	assert_non_null(parser);
	srand(seed);
	for (size_t at = 0, n; at < bytes; at += n) {
		n = seed ? (size_t)rand() % most + 1 : most;
		n = n < bytes - at ? n : bytes - at;
		/* From memory of its own, so that reading beyond it is seen. */
		char *piece = malloc(n);
		memcpy(piece, r->answer + at, n);
		assert_true(calls_feed(parser, piece, n));
		free(piece);
	}
	assert_true(calls_finish(parser));
	calls_free(&parser);
	assert_null(parser);
	assert_false(found.open);
	snprintf(out, 8192, "%s%s%s%s%s", found.thought[0] ? "(" : "", found.thought,
		found.thought[0] ? ")" : "", found.content, found.calls);
}

static void answers_are_read_however_they_are_cut(void **state)
{
	json_t *tools = json_loads(tools_source, 0, NULL);
	char whole[8192], cut[8192];

	(void)state;
	assert_non_null(tools);
	for (size_t i = 0; i < RECORDED; i++) {
		parse(&recorded[i], tools, 1 << 20, 0, whole);
		if (strcmp(whole, recorded[i].expected) != 0)
			fail_msg("%s\nis read as %s", recorded[i].answer, whole);
		for (unsigned seed = 0; seed < 200; seed++) {
			parse(&recorded[i], tools, seed % 7 + 1, seed / 7, cut);
			if (strcmp(cut, whole) != 0)
				fail_msg("%s\nin pieces (%u): %s", recorded[i].answer, seed, cut);
		}
	}
	json_decref(tools);
}

/* Each notation, a byte at a time: the arguments come as they are written. */
static void arguments_come_in_pieces(void **state)
{
	static const char *const answers[][2] = {
		{hermes, "<tool_call>{\"name\": \"run\", \"arguments\": {\"code\": \"abcdef\"}}"},
		{coder, "<tool_call><function=run><parameter=code>abcdef</parameter></function>"},
		{glm, "<tool_call>run<arg_key>code</arg_key><arg_value>abcdef</arg_value></"
		      "tool_call>"},
		{harmony, " to=functions.run<|message|>{\"code\": \"abcdef\"}<|call|>"},
		{deepseek, CALLS CALL "run" TSEP "{\"code\": \"abcdef\"}" CALL_END},
		{deepseek_old, CALLS CALL "function" TSEP
					  "run\n```json\n{\"code\": \"abcdef\"}\n```" CALL_END},
		{mistral, "[TOOL_CALLS]run[ARGS]{\"code\": \"abcdef\"}"},
		{mistral_old,
			"[TOOL_CALLS][{\"name\": \"run\", \"arguments\": {\"code\": \"abcdef\"}}]"},
		{llama, "{\"name\": \"run\", \"parameters\": {\"code\": \"abcdef\"}}"},
	};
	json_t *tools = json_loads(tools_source, 0, NULL);

	(void)state;
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		struct found found = {"", "", "", false, 0};
		struct calls_sink sink = {
			&found, on_content, on_thought, on_call, on_arguments, on_call_end};
		struct calls_format format;

		calls_detect(answers[i][0], strlen(answers[i][0]), &format);
		struct calls_parser *parser = calls_new(&format, tools, false, &sink);
		assert_non_null(parser);
		for (const char *at = answers[i][1]; *at; at++) {
			assert_true(calls_feed(parser, at, 1));
			if (*at == 'c' && strchr(at, 'd') && at[1] == 'd')
				assert_non_null(strstr(found.calls, "\"code\": \"abc"));
		}
		assert_true(calls_finish(parser));
		assert_string_equal(found.calls, "|run{\"code\": \"abcdef\"}");
		assert_true(found.pieces > 6);
		calls_free(&parser);
	}
	json_decref(tools);
}

static void without_tools_nothing_is_a_call(void **state)
{
	struct recorded r = {
		hermes, false, "a\n<tool_call>{\"name\": \"run\"}</tool_call>", "", false};
	char out[8192];

	(void)state;
	parse(&r, NULL, 3, 0, out);
	assert_string_equal(out, r.answer);
}

/* The grammar, compiled, and whether it takes the answer. */
static bool takes(const struct calls_rules *rules, const char *answer)
{
	char why[200];
	struct rig rig;
	json_t *parts = calls_grammar(rules, why);
	char *source;
	bool matches;

	if (parts == NULL)
		fail_msg("%s", why);
	source = json_dumps(parts, JSON_COMPACT);
	rig_open(&rig, GRAMMAR_PARTS, source);
	matches = rig_matches(&rig, answer);
	rig_close(&rig);
	free(source);
	json_decref(parts);
	return matches;
}

/* Free answers, and those that must call: as many as may. */
static void grammars_take_what_parsers_read(void **state)
{
	json_t *tools = json_loads(tools_source, 0, NULL);

	(void)state;
	for (size_t i = 0; i < RECORDED; i++) {
		const struct recorded *r = &recorded[i];
		struct calls_format format;
		const char *content =
			r->expected[0] == '(' ? strchr(r->expected, ')') + 1 : r->expected;
		bool calls = strchr(r->expected, '|') != NULL;

		if (!r->free)
			continue;
		calls_detect(r->template, strlen(r->template), &format);
		if (format.notation == CALLS_NONE)
			continue;
		struct calls_rules rules = {.format = &format,
			.tools = tools,
			.parallel = true,
			.thinking = r->thinking};
		if (!takes(&rules, r->answer))
			fail_msg("not taken: %s", r->answer);
		rules.required = true;
		if (takes(&rules, r->answer) != (calls && *content == '|'))
			fail_msg("required: %s", r->answer);
		rules.only = "weather";
		if (takes(&rules, r->answer) != (calls && strncmp(content, "|weather", 8) == 0 &&
							strchr(content + 1, '|') == NULL))
			fail_msg("weather alone: %s", r->answer);
	}
	json_decref(tools);
}

/* Arguments are those of the schema where calls are required, or the function is strict. */
static void arguments_match_their_schema(void **state)
{
	static const char good[] = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
				   "\"Rome\", \"days\": 1}}\n</tool_call>",
			  bad[] = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": "
				  "\"Rome\"}}\n</tool_call>";
	json_t *tools = json_loads(tools_source, 0, NULL);
	struct calls_format format;

	(void)state;
	calls_detect(hermes, strlen(hermes), &format);
	struct calls_rules rules = {.format = &format, .tools = tools};
	assert_true(takes(&rules, good));
	assert_true(takes(&rules, bad));
	rules.required = true;
	assert_true(takes(&rules, good));
	assert_false(takes(&rules, bad));
	rules.required = false;
	json_object_set_new(
		json_object_get(json_array_get(tools, 0), "function"), "strict", json_true());
	assert_true(takes(&rules, "It is warm."));
	assert_true(takes(&rules, good));
	assert_false(takes(&rules, bad));
	/* And the content its own, where the answer has a form. */
	json_t *content = json_loads("{\"schema\":{\"type\":\"integer\"}}", 0, NULL);
	rules.content = content;
	assert_true(takes(&rules, "17"));
	assert_true(takes(&rules, good));
	assert_false(takes(&rules, "warm"));
	json_decref(content);
	json_decref(tools);
}

/* Strings that stand without quotes. */
static void bare_strings_match_their_schema(void **state)
{
	static const char start[] = "<tool_call>\n<function=f>\n<parameter=s>\n",
			  end[] = "\n</parameter>\n</function>\n</tool_call>";
	static const struct {
		const char *schema, *good, *bad;
	} cases[] = {{"{\"enum\":[\"a\",\"b\",7]}", "b", "c"},
		{"{\"type\":\"string\",\"maxLength\":2}", "ab", "abc"},
		{"{\"type\":\"string\",\"pattern\":\"^[0-9]+$\"}", "12", "x"},
		{"{\"$ref\":\"#/$defs/t\"}", "any text", NULL},
		{"{\"type\":\"boolean\"}", "true", "yes"},
		{"{\"type\":[\"string\",\"null\"]}", "null", NULL}};
	struct calls_format format;
	char text[1000];

	(void)state;
	calls_detect(coder, strlen(coder), &format);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *tools = json_pack("[{s:s,s:{s:s,s:{s:s,s:{s:o},s:[s],s:{s:{s:s}}}}}]",
			"type", "function", "function", "name", "f", "parameters", "type", "object",
			"properties", "s", json_loads(cases[i].schema, 0, NULL), "required", "s",
			"$defs", "t", "type", "string");
		struct calls_rules rules = {.format = &format, .tools = tools, .required = true};

		assert_non_null(tools);
		snprintf(text, sizeof(text), "%s%s%s", start, cases[i].good, end);
		if (!takes(&rules, text))
			fail_msg("not taken: %s", text);
		snprintf(text, sizeof(text), "%s%s%s", start,
			cases[i].bad ? cases[i].bad : "a\n</parameter>", end);
		assert_false(takes(&rules, text));
		json_decref(tools);
	}
}

static void what_a_notation_cannot_hold_is_refused_by_name(void **state)
{
	json_t *tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\","
				   "\"parameters\":{\"type\":\"object\",\"properties\":"
				   "{\"s\":{\"type\":\"string\",\"format\":\"uuid\"}}}}}]",
		0, NULL);
	struct calls_format format;
	char why[200];

	(void)state;
	calls_detect(glm, strlen(glm), &format);
	struct calls_rules rules = {.format = &format, .tools = tools, .required = true};
	assert_null(calls_grammar(&rules, why));
	assert_non_null(strstr(why, "tools[0].function.parameters.properties.s: the format"));
	json_decref(tools);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(answers_are_read_however_they_are_cut),
		cmocka_unit_test(arguments_come_in_pieces),
		cmocka_unit_test(without_tools_nothing_is_a_call),
		cmocka_unit_test(grammars_take_what_parsers_read),
		cmocka_unit_test(arguments_match_their_schema),
		cmocka_unit_test(bare_strings_match_their_schema),
		cmocka_unit_test(what_a_notation_cannot_hold_is_refused_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
