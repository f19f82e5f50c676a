/* An open model's file that is changed: who looks is told, who computes goes on with zeros. */
#include "shared/model/gguf_guard.h"
#include "shared/model/gguf_watch.h"

#include <fcntl.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SEED "tests/fuzz/corpus/fuzz_gguf/packed-q8_0"

struct opened {
	char path[64], other[80];
	struct gguf *gguf;
};

static void copy(const char *to)
{
	char command[256];
	snprintf(command, sizeof(command), "cp %s %s", SEED, to);
	assert_int_equal(system(command), 0);
}

static int open_copy(void **state)
{
	struct opened *o = calloc(1, sizeof(*o));
	struct error err = {.text = ""};
	snprintf(o->path, sizeof(o->path), "/var/tmp/outrider-watch-%d", (int)getpid());
	snprintf(o->other, sizeof(o->other), "%s.other", o->path);
	copy(o->path);
	*state = o;
	return gguf_open(o->path, &o->gguf, &err);
}

static int close_copy(void **state)
{
	struct opened *o = *state;
	gguf_close(&o->gguf);
	unlink(o->path);
	unlink(o->other);
	free(o);
	return 0;
}

static uint64_t stamps_now(const struct opened *o)
{
	struct error err = {.text = ""};
	struct gguf *again;
	assert_int_equal(gguf_open(o->path, &again, &err), 0);
	uint64_t stamps = gguf_stamps(again);
	gguf_close(&again);
	return stamps;
}

/* A copy of the file's bytes that somebody keeps is known to be of another state of it. */
static void stamps_tell_states_of_a_file_apart(void **state)
{
	const struct opened *o = *state;
	uint64_t first = gguf_stamps(o->gguf);
	assert_true(stamps_now(o) == first);
	/* The same bytes, written again. */
	const struct timespec times[] = {{.tv_sec = 1}, {.tv_sec = 1}};
	assert_int_equal(utimensat(AT_FDCWD, o->path, times, 0), 0);
	uint64_t second = stamps_now(o);
	assert_true(second != first);
	copy(o->other);
	assert_int_equal(utimensat(AT_FDCWD, o->other, times, 0), 0);
	assert_int_equal(rename(o->other, o->path), 0);
	assert_true(stamps_now(o) != second);
}

static void expect_lost(const struct opened *o, const char *how)
{
	struct error err = {.text = ""};
	assert_int_equal(gguf_watch(o->gguf, &err), -ESTALE);
	assert_non_null(strstr(err.text, how));
	assert_non_null(strstr(err.text, o->path));
	/* For good. */
	err.text[0] = '\0';
	assert_int_equal(gguf_lost(o->gguf, &err), -ESTALE);
	assert_non_null(strstr(err.text, how));
}

static void a_file_that_is_left_alone_is_whole(void **state)
{
	struct opened *o = *state;
	assert_int_equal(gguf_watch(o->gguf, NULL), 0);
	assert_int_equal(gguf_lost(o->gguf, NULL), 0);
	assert_int_equal(chmod(o->path, 0600), 0);
	assert_int_equal(gguf_watch(o->gguf, NULL), 0);
	/* What was opened is still there. */
	assert_int_equal(unlink(o->path), 0);
	assert_int_equal(gguf_watch(o->gguf, NULL), 0);
}

static void a_file_that_is_cut_is_lost(void **state)
{
	struct opened *o = *state;
	assert_int_equal(truncate(o->path, 5000), 0);
	expect_lost(o, "became shorter");
	/* What came first is what is said. */
	gguf_lose(o->gguf, GGUF_REPORTED, 0);
	copy(o->path);
	expect_lost(o, "became shorter");
}

static void a_file_that_is_written_to_is_lost(void **state)
{
	struct opened *o = *state;
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
	assert_int_equal(utimensat(AT_FDCWD, o->path, times, 0), 0);
	expect_lost(o, "was written to");
}

static void a_file_that_grows_is_lost(void **state)
{
	struct opened *o = *state;
	assert_int_equal(truncate(o->path, 1 << 20), 0);
	expect_lost(o, "was written to");
}

static void a_file_that_is_replaced_is_lost(void **state)
{
	struct opened *o = *state;
	copy(o->other);
	assert_int_equal(rename(o->other, o->path), 0);
	expect_lost(o, "was replaced");
}

static void what_another_process_found_is_believed(void **state)
{
	struct opened *o = *state;
	gguf_lose(o->gguf, GGUF_REPORTED, 0);
	expect_lost(o, "says the expert-cache");
}

static void bytes_in_memory_cannot_be_lost(void **state)
{
	struct opened *o = *state;
	struct gguf *gguf;
	struct error err;
	assert_int_equal(gguf_open_memory(gguf_data(o->gguf), gguf_bytes(o->gguf), &gguf, &err), 0);
	assert_int_equal(truncate(o->path, 0), 0);
	assert_int_equal(gguf_watch(gguf, &err), 0);
	gguf_close(&gguf);
}

/* Reads everything while the file is cut; 0 when it came through, saw zeros where nothing is left, and was told. */
static int read_on(const struct opened *o)
{
	const unsigned char *data = gguf_data(o->gguf);
	size_t bytes = gguf_bytes(o->gguf);
	unsigned sum = 0;
	gguf_guard_start("");
	gguf_guard_survive();
	if (truncate(o->path, 4096) != 0)
		return 1;
	for (size_t i = 4096; i < bytes; i++)
		sum |= data[i];
	if (sum != 0)
		return 2;
	if (data[0] != 'G') /* what is left is as it was */
		return 3;
	return gguf_lost(o->gguf, NULL) == -ESTALE ? 0 : 4;
}

static void who_computes_with_it_goes_on_with_zeros_and_is_told(void **state)
{
	struct opened *o = *state;
	int status;
	pid_t pid = fork();
	if (pid == 0)
		_exit(read_on(o));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_copy, close_copy)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_file_that_is_left_alone_is_whole),
		TEST(a_file_that_is_cut_is_lost),
		TEST(a_file_that_is_written_to_is_lost),
		TEST(a_file_that_grows_is_lost),
		TEST(a_file_that_is_replaced_is_lost),
		TEST(what_another_process_found_is_believed),
		TEST(stamps_tell_states_of_a_file_apart),
		TEST(bytes_in_memory_cannot_be_lost),
		TEST(who_computes_with_it_goes_on_with_zeros_and_is_told),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
