#include "client/model/check.h"
#include "shared/base/limits.h"
#include "shared/model/text/template/template.h"
#include "shared/model/text/tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "tokenizer.ggml."

/* Finds the array `key`: its element type and count; false when it is absent or of the wrong kind,
 * which is reported. */
static bool array_of(struct check *c, const struct gguf *gguf, const char *key, bool strings,
	uint64_t n_wanted, uint64_t *n)
{
	enum gguf_value_type type;
	struct error err = {""};
	int rc = gguf_get_array(gguf, key, &type, n, &err);
	if (rc == -ENOENT)
		return false;
	if (rc) {
		check_problem(c, err.text);
		return false;
	}
	if ((type == GGUF_STRING) != strings) {
		check_problem_format(
			c, "key %s is %s array of strings", key, strings ? "not an" : "an");
		return false;
	}
	if (n_wanted && *n != n_wanted)
		check_problem_format(c,
			"key %s has %" PRIu64 " elements, " PREFIX "tokens has %" PRIu64, key, *n,
			n_wanted);
	return true;
}

static void check_types(struct check *c, const struct gguf *gguf, uint64_t n_tokens)
{
	static const char key[] = PREFIX "token_type";
	uint64_t n, n_bad = 0, first = 0;
	if (!array_of(c, gguf, key, false, n_tokens, &n))
		return;
	for (uint64_t i = 0; i < n; i++) {
		int64_t type = gguf_array_i64(gguf, key, i);
		if ((type < 0 || type > 6) && n_bad++ == 0)
			first = i;
	}
	if (n_bad)
		check_problem_format(c,
			"key %s: element %" PRIu64 " is %" PRId64
			"; 0 to 6 are token types (%" PRIu64 " like that)",
			key, first, gguf_array_i64(gguf, key, first), n_bad);
}

static void check_scores(struct check *c, const struct gguf *gguf, uint64_t n_tokens)
{
	static const char key[] = PREFIX "scores";
	uint64_t n, n_bad = 0, first = 0;
	if (!array_of(c, gguf, key, false, n_tokens, &n))
		return;
	for (uint64_t i = 0; i < n; i++)
		if (!isfinite(gguf_array_f64(gguf, key, i)) && n_bad++ == 0)
			first = i;
	if (n_bad)
		check_problem_format(c, "key %s: element %" PRIu64 " is %g (%" PRIu64 " like that)",
			key, first, gguf_array_f64(gguf, key, first), n_bad);
}

static void check_merges(struct check *c, const struct gguf *gguf)
{
	static const char key[] = PREFIX "merges";
	uint64_t n, n_bad = 0, first = 0;
	if (!array_of(c, gguf, key, true, 0, &n))
		return;
	for (uint64_t i = 0; i < n; i++) {
		struct gguf_string s = gguf_array_string(gguf, key, i);
		if ((s.bytes < 3 || !memchr(s.data + 1, ' ', s.bytes - 1)) && n_bad++ == 0)
			first = i;
	}
	if (n_bad)
		check_problem_format(c,
			"key %s: element %" PRIu64 " is not two parts with a space between "
			"(%" PRIu64 " like that)",
			key, first, n_bad);
}

static int compare_strings(const void *a, const void *b)
{
	const struct gguf_string *x = a, *y = b;
	size_t n = x->bytes < y->bytes ? x->bytes : y->bytes;
	int order = n ? memcmp(x->data, y->data, n) : 0;
	return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Duplicates occur in official files and work: a text becomes the first one. */
static void note_duplicates(struct check *c, const struct gguf *gguf, uint64_t n)
{
	struct gguf_string *all = malloc((n + 1) * sizeof(*all));
	uint64_t twice = 0;
	if (!all)
		return;
	for (uint64_t i = 0; i < n; i++)
		all[i] = gguf_array_string(gguf, PREFIX "tokens", i);
	qsort(all, n, sizeof(*all), compare_strings);
	for (uint64_t i = 1; i < n; i++)
		twice += compare_strings(&all[i - 1], &all[i]) == 0;
	if (twice)
		check_note(
			c, "key " PREFIX "tokens: %" PRIu64 " strings occur more than once", twice);
	free(all);
}

/* Checks tokenizer.ggml.bos_token_id and the keys like it. */
static void check_ids(struct check *c, const struct gguf *gguf, uint64_t n_tokens)
{
	static const char suffix[] = "_token_id";
	for (size_t i = 0; i < gguf_n_keys(gguf); i++) {
		struct gguf_string key = gguf_key_at(gguf, i);
		char name[96];
		uint64_t id;
		struct error err = {""};
		if (key.bytes >= sizeof(name) || key.bytes < sizeof(PREFIX) + sizeof(suffix) ||
			memcmp(key.data, PREFIX, sizeof(PREFIX) - 1) != 0 ||
			memcmp(key.data + key.bytes - (sizeof(suffix) - 1), suffix,
				sizeof(suffix) - 1) != 0)
			continue;
		memcpy(name, key.data, key.bytes);
		name[key.bytes] = '\0';
		if (strlen(name) == key.bytes &&
			gguf_get_u64(gguf, name, 0, n_tokens - 1, &id, &err) < 0 && err.text[0])
			check_problem(c, err.text);
	}
}

void check_vocabulary(struct check *c, const struct gguf *gguf)
{
	uint64_t before = check_n_problems(c), n;
	struct error err = {""};
	struct tokenizer *tokenizer = NULL;
	if (!gguf_has(gguf, PREFIX "tokens")) {
		check_problem(c, "key " PREFIX "tokens is missing: the file has no vocabulary");
		return;
	}
	if (array_of(c, gguf, PREFIX "tokens", true, 0, &n)) {
		if (n == 0 || n > LIMIT_VOCAB) {
			check_problem_format(c,
				"key " PREFIX "tokens has %" PRIu64 " tokens; 1 to %d are allowed",
				n, LIMIT_VOCAB);
			return;
		}
		check_types(c, gguf, n);
		check_scores(c, gguf, n);
		check_merges(c, gguf);
		check_ids(c, gguf, n);
		note_duplicates(c, gguf, n);
	}
	/* The tokenizer reports what else it needs; of the problems above it would only report the
	 * first again. */
	if (check_n_problems(c) == before && tokenizer_load(gguf, &tokenizer, &err) < 0)
		check_problem(c, err.text);
	tokenizer_free(&tokenizer);
}

static void check_template_text(struct check *c, const char *key, const struct gguf_string *text)
{
	struct template *template = NULL;
	struct error err = {""};
	if (template_parse(text->data, text->bytes, &template, &err))
		check_problem_format(c, "key %s: %s", key, err.text);
	template_free(&template);
}

void check_template(struct check *c, const struct gguf *gguf)
{
	static const char key[] = "tokenizer.chat_template";
	struct gguf_string text;
	struct error err = {""};
	int rc = gguf_get_string(gguf, key, &text, &err);
	if (rc == -ENOENT)
		check_note(c, "key %s is missing: a model without a chat template continues text",
			key);
	else if (rc)
		check_problem(c, err.text);
	else if (text.bytes == 0)
		check_problem_format(c, "key %s is empty", key);
	else
		check_template_text(c, key, &text);
}
