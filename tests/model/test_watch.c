/* An open model's file that is changed: who looks is told, who computes goes on with zeros. */
#include "shared/model/gguf/gguf_guard.h"
#include "shared/model/gguf/gguf_watch.h"

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

/* One byte of every tensor's middle, as another model of the same shape has it; size and st_mtim stay as they are. */
static void write_other_weights(const struct opened *o)
{
	struct stat status;
	int fd = open(o->path, O_WRONLY);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &status), 0);
	for (size_t i = 0; i < gguf_n_tensors(o->gguf); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(o->gguf, i);
		const unsigned char *data = gguf_tensor_data(o->gguf, t);
		for (uint64_t at = 0; at < t->bytes; at++) {
			unsigned char other = data[at] ^ 1;
			off_t place = (off_t)(t->offset + at);
			assert_int_equal(pwrite(fd, &other, 1, place), 1);
		}
	}
	const struct timespec times[2] = {status.st_atim, status.st_mtim};
	assert_int_equal(futimens(fd, times), 0);
	close(fd);
}

static void what_is_done_to_a_file_but_writing_loses_nothing(void **state)
{
	struct opened *o = *state;
	struct error err = {.text = ""};
	struct stat before, after;
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
	(void)gguf_fingerprint(o->gguf);
	assert_true(gguf_proven(o->gguf));
	uint64_t stamps = gguf_stamps(o->gguf);
	assert_int_equal(stat(o->path, &before), 0);
	assert_int_equal(chmod(o->path, 0640), 0);
	assert_int_equal(link(o->path, o->other), 0);
	assert_int_equal(stat(o->path, &after), 0);
	if (memcmp(&before.st_ctim, &after.st_ctim, sizeof(before.st_ctim)) == 0)
		skip(); /* a clock that did not tick meanwhile */
	assert_int_equal(gguf_watch(o->gguf, &err), 0);
	/* A copy that was made before is known as one of what is there now. */
	assert_true(gguf_stamps(o->gguf) != stamps);
	/* A sample was looked at; whoever has compared every byte says so. */
	assert_false(gguf_proven(o->gguf));
	gguf_prove(o->gguf, gguf_state(o->gguf));
	assert_true(gguf_proven(o->gguf));
	assert_int_equal(utimensat(AT_FDCWD, o->path, times, 0), 0);
	assert_int_equal(gguf_watch(o->gguf, &err), 0);
	assert_false(gguf_proven(o->gguf));
	assert_int_equal(unlink(o->other), 0);
	assert_int_equal(gguf_watch(o->gguf, &err), 0);
	assert_int_equal(rename(o->path, o->other), 0);
	assert_int_equal(gguf_watch(o->gguf, &err), 0);
	assert_int_equal(rename(o->other, o->path), 0);
	assert_int_equal(gguf_watch(o->gguf, &err), 0);
	assert_true(stamps_now(o) == gguf_stamps(o->gguf));
}

static void other_weights_behind_the_same_times_are_found(void **state)
{
	struct opened *o = *state;
	(void)gguf_fingerprint(o->gguf);
	uint64_t stamps = gguf_stamps(o->gguf);
	usleep(20000); /* file systems' clocks tick */
	write_other_weights(o);
	assert_true(stamps_now(o) != stamps);
	expect_lost(o, "was written to");
}

/* A byte where the sample does not look. */
static void write_beside_the_sample(const struct opened *o)
{
	const struct gguf_tensor *t = gguf_tensor_at(o->gguf, 0);
	for (size_t i = 1; i < gguf_n_tensors(o->gguf); i++)
		if (gguf_tensor_at(o->gguf, i)->bytes > t->bytes)
			t = gguf_tensor_at(o->gguf, i);
	/* The sample's places lie in the middle of each part of a tensor. */
	unsigned char other = *(const unsigned char *)gguf_tensor_data(o->gguf, t) ^ 1;
	int fd = open(o->path, O_WRONLY);
	assert_int_equal(pwrite(fd, &other, 1, (off_t)t->offset), 1);
	close(fd);
}

/* A sample is no proof, and says how little it is. */
static void a_byte_beside_the_sample_is_not_proven(void **state)
{
	struct opened *o = *state;
	struct error err = {.text = ""};
	char text[GGUF_SAMPLE_TEXT];
	(void)gguf_fingerprint(o->gguf);
	usleep(20000); /* file systems' clocks tick */
	write_beside_the_sample(o);
	assert_int_equal(gguf_watch(o->gguf, &err), 0);
	assert_false(gguf_proven(o->gguf));
	assert_non_null(strstr(
		gguf_sample_text(o->gguf, text), "places of 64 bytes in each tensor (1 byte in "));
}

/* What no time of the file would say. */
static void who_is_told_of_another_model_looks_at_the_weights(void **state)
{
	struct opened *o = *state;
	struct error err = {.text = ""};
	(void)gguf_fingerprint(o->gguf);
	assert_int_equal(gguf_look_again(o->gguf, &err), 0);
	write_other_weights(o);
	assert_int_equal(gguf_lost(o->gguf, &err), 0);
	assert_int_equal(gguf_look_again(o->gguf, &err), -ESTALE);
	assert_non_null(strstr(err.text, "was written to"));
	assert_int_equal(gguf_lost(o->gguf, &err), -ESTALE);
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
	(void)gguf_fingerprint(o->gguf);
	usleep(20000); /* file systems' clocks tick */
	write_other_weights(o);
	expect_lost(o, "was written to");
}

static void a_file_that_grows_is_lost(void **state)
{
	struct opened *o = *state;
	assert_int_equal(truncate(o->path, 1 << 20), 0);
	expect_lost(o, "was written to");
}

static void expect_news(const struct opened *o, struct gguf_news *news, const char *text)
{
	char out[512] = "";
	assert_true(gguf_news(o->gguf, news, out, sizeof(out)));
	assert_non_null(strstr(out, text));
	assert_non_null(strstr(out, o->path));
	/* Once. */
	assert_false(gguf_news(o->gguf, news, out, sizeof(out)));
	assert_int_equal(gguf_watch(o->gguf, NULL), 0);
}

/* However its name changes, the open file is what it was. */
static void a_file_whose_name_changes_is_whole_and_said(void **state)
{
	struct opened *o = *state;
	struct gguf_news news = {0};
	char out[512], away[100];
	(void)gguf_fingerprint(o->gguf);
	snprintf(away, sizeof(away), "%s.away", o->path);
	assert_false(gguf_news(o->gguf, &news, out, sizeof(out)));
	assert_int_equal(rename(o->path, away), 0);
	expect_news(o, &news, "no file has this name any more");
	copy(o->path);
	expect_news(o, &news, "another file has this name now");
	/* A name that is a link, and is switched over. */
	assert_int_equal(unlink(o->path), 0);
	assert_int_equal(symlink(away, o->path), 0);
	expect_news(o, &news, "has its name again");
	copy(o->other);
	assert_int_equal(unlink(o->path), 0);
	assert_int_equal(symlink(o->other, o->path), 0);
	expect_news(o, &news, "another file has this name now");
	/* What is done to the other file is nothing to us. */
	assert_int_equal(truncate(o->other, 100), 0);
	assert_int_equal(gguf_watch(o->gguf, NULL), 0);
	assert_int_equal(unlink(away), 0);
	assert_int_equal(gguf_watch(o->gguf, NULL), 0);
}

static void what_another_process_found_is_believed(void **state)
{
	struct opened *o = *state;
	gguf_lose(o->gguf, GGUF_REPORTED, 0);
	expect_lost(o, "as the expert-cache found");
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
		TEST(what_is_done_to_a_file_but_writing_loses_nothing),
		TEST(other_weights_behind_the_same_times_are_found),
		TEST(who_is_told_of_another_model_looks_at_the_weights),
		TEST(a_file_that_is_cut_is_lost),
		TEST(a_file_that_is_written_to_is_lost),
		TEST(a_file_that_grows_is_lost),
		TEST(a_file_whose_name_changes_is_whole_and_said),
		TEST(a_byte_beside_the_sample_is_not_proven),
		TEST(what_another_process_found_is_believed),
		TEST(stamps_tell_states_of_a_file_apart),
		TEST(bytes_in_memory_cannot_be_lost),
		TEST(who_computes_with_it_goes_on_with_zeros_and_is_told),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
