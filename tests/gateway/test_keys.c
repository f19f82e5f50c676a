/* The file of API keys: what it may say, which header is allowed, and a file that changes while requests hold a key. */
#include "services/gateway/keys.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int read_text(const char *text, struct keys *keys, struct error *err)
{
	char path[] = "/tmp/outrider-keys-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	int code = keys_read(keys, path, err);
	unlink(path);
	return code;
}

static void a_key_on_each_line(void **state)
{
	struct error err = {""};
	struct keys keys;
	struct key *key;

	(void)state;
	assert_int_equal(read_text("# mine\n\nsk-one\r\nsk-two==\n", &keys, &err), 0);
	assert_int_equal(keys.n, 2);
	assert_true(keys_allow(&keys, "Bearer sk-one", &key) && key == keys.list[0]);
	keys_release(key);
	assert_true(keys_allow(&keys, "bearer sk-two==", &key) && key == keys.list[1]);
	keys_release(key);
	static const char *const wrong[] = {NULL, "", "Bearer", "Bearer ", "Bearer sk-on",
		"Bearer sk-onee", "Basic sk-one", "sk-one", "Bearer # mine", "Bearer  sk-one"};
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		assert_false(keys_allow(&keys, wrong[i], &key));
	keys_free(&keys);
}

static void without_keys_none_is_asked_for(void **state)
{
	struct error err = {""};
	struct keys keys;
	struct key *key;

	(void)state;
	assert_int_equal(keys_read(&keys, "", &err), 0);
	assert_true(keys_allow(&keys, NULL, &key) && !key);
	assert_int_equal(keys_read(&keys, "/nowhere/keys", &err), -ENOENT);
	assert_int_equal(read_text("# nothing\n", &keys, &err), -EINVAL);
}

static void limits_stand_behind_a_key(void **state)
{
	struct error err = {""};
	struct keys keys;

	(void)state;
	assert_int_equal(read_text("a requests_per_minute=60 concurrent=2\n"
				   "b\ttokens_per_minute=1000000000  \nc\n",
				 &keys, &err),
		0);
	assert_int_equal(keys.list[0]->limits.requests_per_minute, 60);
	assert_int_equal(keys.list[0]->limits.concurrent, 2);
	assert_int_equal(keys.list[0]->limits.tokens_per_minute, 0);
	assert_int_equal(keys.list[1]->limits.tokens_per_minute, 1000000000);
	keys_free(&keys);
	static const struct {
		const char *text, *word;
	} wrong[] = {
		{"a\nb rpm=3\n", "line 2"},
		{"a concurrent=0\n", "1 to 1000000000"},
		{"a concurrent=-1\n", "1 to"},
		{"a concurrent=99999999999\n", "1 to"},
		{"a concurrent=\n", "1 to"},
		{"a concurrent\n", "expected"},
		{"a two words\n", "expected"},
	};
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		assert_int_equal(read_text(wrong[i].text, &keys, &err), -EINVAL);
		assert_non_null(strstr(err.text, wrong[i].word));
	}
}

static void a_new_file_keeps_what_a_key_has_left(void **state)
{
	struct error err = {""};
	struct keys keys, fresh;
	struct key *first, *second;
	double retry_s;

	(void)state;
	assert_int_equal(read_text("a concurrent=1\nb\n", &keys, &err), 0);
	assert_true(keys_allow(&keys, "Bearer a", &first));
	assert_int_equal(limits_begin(&first->limits, &first->left, 1, &retry_s), LIMITS_NONE);
	assert_true(keys_allow(&keys, "Bearer b", &second));
	assert_int_equal(read_text("c\na concurrent=2\n", &fresh, &err), 0);
	keys_replace(&keys, &fresh);
	assert_int_equal(keys.n, 2);
	assert_ptr_equal(keys.list[1], first);
	assert_int_equal(first->limits.concurrent, 2);
	assert_int_equal(first->left.open, 1);
	/* b is no longer allowed, but its request still holds it. */
	assert_string_equal(second->text, "b");
	keys_release(second);
	assert_false(keys_allow(&keys, "Bearer b", &second));
	keys_release(first);
	keys_free(&keys);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_key_on_each_line),
		cmocka_unit_test(without_keys_none_is_asked_for),
		cmocka_unit_test(limits_stand_behind_a_key),
		cmocka_unit_test(a_new_file_keeps_what_a_key_has_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
