/* How pre-tokenizers cut, against an implementation of its own (tests/tools/make_splits.py), and what that costs. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "shared/model/text/pretokenizer.h"

#include <dlfcn.h>
#include <jansson.h>
#include <pcre2.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <cmocka.h>

/* PCRE2's, which services that may not make code (systemd's MemoryDenyWriteExecute) do without. */
static bool without_jit;

int pcre2_jit_compile(pcre2_code *code, uint32_t options);
int pcre2_jit_compile(pcre2_code *code, uint32_t options)
{
	int (*real)(pcre2_code *, uint32_t);
	*(void **)&real = dlsym(RTLD_NEXT, "pcre2_jit_compile_8");
	return without_jit || !real ? PCRE2_ERROR_NOMEMORY : real(code, options);
}

enum { NAMES = 64 };

struct joined {
	const char *text;
	size_t at;
};

static int join_word(void *arg, const char *text, size_t bytes)
{
	struct joined *j = arg;
	assert_ptr_equal(text, j->text + j->at);
	j->at += bytes;
	return 0;
}

/* Whether words together are the text. */
static void assert_split(const char *name, const struct pretokenizer *p,
	struct pretokenizer_scratch *scratch, const char *text, size_t bytes)
{
	struct joined joined = {text, 0};
	struct error err = {""};
	if (pretokenizer_split(p, scratch, text, bytes, join_word, &joined, &err))
		fail_msg("%s, %c, %.3s: %s", name, text[0], text + bytes - 3, err.text);
	assert_int_equal(joined.at, bytes);
}

/* The first name of every recipe, as the refusal of an unknown one lists them. */
static size_t recipe_names(char *list, size_t list_bytes, const char *names[NAMES])
{
	struct error err = {""};
	struct pretokenizer *p;
	assert_int_equal(pretokenizer_create("?", 1, &p, &err), -ENOTSUP);
	const char *from = strstr(err.text, "(supported: "), *to = from ? strrchr(from, ')') : NULL;
	assert_non_null(to);
	snprintf(list, list_bytes, "%.*s", (int)(to - from - 12), from + 12);
	size_t n = 0;
	for (char *name = strtok(list, ", "); name && n < NAMES; name = strtok(NULL, ", "))
		names[n++] = name;
	return n;
}

static void split_runs_by_every_recipe(void)
{
	static const char *const runs[] = {" ", "\t", "\n", "\r", "a", "A", "0", ".", "'",
		"\xcc\x81", "\xd7\x90", "\xe4\xb8\x80", "\xe3\x80\x80", " \n", "a ", "\n\t"};
	static const char *const ends[] = {"", "0", "a", "A", ".", "\n", " ", "\xe4\xb8\x80"};
	enum { BYTES = 1 << 16 };
	/* Of processor time. A quadratic expression takes some ten seconds for each of its runs and ends, all others together as
	 * long. */
	const struct itimerval patience = {.it_value.tv_sec = 60}, none = {.it_value.tv_sec = 0};
	char list[600], *text = malloc(BYTES + 8);
	const char *names[NAMES];
	size_t n = recipe_names(list, sizeof(list), names);
	assert_non_null(text);
	assert_true(n >= 35);
	setitimer(ITIMER_PROF, &patience, NULL);
	for (size_t i = 0; i < n; i++) {
		struct error err = {""};
		struct pretokenizer *p;
		struct pretokenizer_scratch *scratch;
		assert_int_equal(pretokenizer_create(names[i], strlen(names[i]), &p, &err), 0);
		assert_int_equal(pretokenizer_scratch_create(&scratch, &err), 0);
		for (size_t r = 0; r < sizeof(runs) / sizeof(runs[0]); r++)
			for (size_t e = 0; e < sizeof(ends) / sizeof(ends[0]); e++) {
				size_t unit = strlen(runs[r]), bytes = 0;
				for (; bytes + unit <= BYTES; bytes += unit)
					memcpy(text + bytes, runs[r], unit);
				memcpy(text + bytes, ends[e], strlen(ends[e]));
				assert_split(names[i], p, scratch, text, bytes + strlen(ends[e]));
			}
		pretokenizer_scratch_free(&scratch);
		pretokenizer_free(&p);
	}
	setitimer(ITIMER_PROF, &none, NULL);
	free(text);
}

static void test_a_run_and_its_end_are_linear_in_every_recipe(void **state)
{
	(void)state;
	split_runs_by_every_recipe();
	without_jit = true;
	split_runs_by_every_recipe();
	without_jit = false;
}

struct lengths {
	const json_t *wanted;
	size_t n;
	bool equal;
};

static int count_word(void *arg, const char *text, size_t bytes)
{
	struct lengths *l = arg;
	(void)text;
	l->equal &= bytes == (size_t)json_integer_value(json_array_get(l->wanted, l->n));
	l->n++;
	return 0;
}

static int show_word(void *arg, const char *text, size_t bytes)
{
	(void)arg;
	print_message("%.*s|", (int)bytes, text);
	return 0;
}

/* All strings, cut as one name says; returns how many are cut otherwise. */
static size_t check_name(const char *name, const json_t *strings, const json_t *all)
{
	struct error err = {""};
	struct pretokenizer *p;
	struct pretokenizer_scratch *scratch;
	size_t i, wrong = 0;
	json_t *string;
	if (pretokenizer_create(name, strlen(name), &p, &err))
		fail_msg("%s", err.text);
	assert_int_equal(pretokenizer_scratch_create(&scratch, &err), 0);
	json_array_foreach(strings, i, string)
	{
		const char *text = json_string_value(string);
		size_t bytes = json_string_length(string);
		struct lengths l = {json_array_get(all, i), 0, true};
		if (pretokenizer_split(p, scratch, text, bytes, count_word, &l, &err))
			fail_msg("%s", err.text);
		if (l.equal && l.n == json_array_size(l.wanted))
			continue;
		wrong++;
		print_message("%s cuts string %zu otherwise: ", name, i);
		(void)pretokenizer_split(p, scratch, text, bytes, show_word, NULL, &err);
		print_message("\n");
	}
	pretokenizer_scratch_free(&scratch);
	pretokenizer_free(&p);
	return wrong;
}

static void every_name_cuts_as_its_reference(void **state)
{
	json_error_t error;
	json_t *golden =
		json_load_file("tests/data/tokenizers/splits.json", JSON_ALLOW_NUL, &error);
	char list[600];
	const char *known[NAMES];
	bool tested[NAMES] = {false};
	size_t n = recipe_names(list, sizeof(list), known), wrong = 0, i, k;
	json_t *split, *name;
	(void)state;
	if (!golden)
		fail_msg("%s", error.text);
	for (int jit = 1; jit >= 0; jit--) {
		without_jit = !jit;
		json_array_foreach(json_object_get(golden, "splits"), i, split)
			json_array_foreach(json_object_get(split, "names"), k, name)
		{
			for (size_t r = 0; r < n; r++)
				tested[r] |= !strcmp(known[r], json_string_value(name));
			wrong += check_name(json_string_value(name),
				json_object_get(golden, "strings"),
				json_object_get(split, "words"));
		}
	}
	without_jit = false;
	assert_int_equal(wrong, 0);
	for (size_t r = 0; r < n; r++)
		if (!tested[r])
			fail_msg("%s has no reference", known[r]);
	json_decref(golden);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_name_cuts_as_its_reference),
		cmocka_unit_test(test_a_run_and_its_end_are_linear_in_every_recipe),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
