#include "services/policy-controller/journal.h"

#include "shared/base/clock.h"
#include "shared/spec/session.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = JOURNAL_BYTES_MIN, CAPACITY = (BYTES - 4096) / JOURNAL_ENTRY_BYTES, READ = 1000 };

static char path[] = "/tmp/outrider-journal-XXXXXX";
static struct journal journal;
static struct journal_entry out[READ];

static int begin(void **state)
{
	(void)state;
	strcpy(path + strlen(path) - 6, "XXXXXX");
	int fd = mkstemp(path);
	if (fd < 0)
		return -1;
	close(fd);
	journal_open(&journal, path, BYTES);
	return journal.file.fd >= 0 ? 0 : -1;
}

static int end(void **state)
{
	(void)state;
	journal_close(&journal);
	char old[sizeof(path) + 4];
	snprintf(old, sizeof(old), "%s.old", path);
	unlink(old);
	return unlink(path);
}

/* Any byte there is. */
static uint8_t confidence_of(uint64_t iteration, uint32_t position)
{
	return (uint8_t)(iteration * 37 + position * 17);
}

static void add(uint64_t session, uint64_t iteration)
{
	struct iteration_record record = {.session = session,
		.iteration = iteration,
		.k = 3,
		.accepted = (uint8_t)(iteration % 4),
		.iteration_ns = 1000 * iteration,
		.foreseen = 8,
		.foreseen_drafted = 7,
		.foreseen_right = (uint8_t)(iteration % 7),
		.foreseen_method = DRAFT_MODEL,
		.batch_sessions = LIMIT_RUNNING,
		.expert_bytes = iteration << 40};
	for (uint32_t i = 0; i < LIMIT_DRAFT_DEPTH; i++)
		record.confidence[i] = confidence_of(iteration, i);
	struct policy_state s = {.utility = 1.5f, .k = 5, .phase = PHASE_SET, .base_ns = 2e6};
	journal_add(&journal, &record, iteration % 2 ? &s : NULL);
}

static void expect(uint32_t n, uint64_t first, uint64_t step)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t iteration = first + i * step;
		assert_int_equal(out[i].iteration, iteration);
		assert_int_equal(out[i].accepted, iteration % 4);
		assert_int_equal(out[i].iteration_us, iteration);
		assert_int_equal(out[i].expert_bytes, iteration << 40);
		assert_int_equal(out[i].k_next, iteration % 2 ? 5 : 0);
		assert_true(out[i].foreseen == 8 && out[i].foreseen_drafted == 7);
		assert_int_equal(out[i].foreseen_right, iteration % 7);
		assert_int_equal(out[i].foreseen_method, DRAFT_MODEL);
		assert_int_equal(out[i].batch_sessions, LIMIT_RUNNING);
		for (uint32_t j = 0; j < LIMIT_DRAFT_DEPTH; j++)
			assert_int_equal(out[i].confidence[j], confidence_of(iteration, j));
	}
}

static void entries_come_back_oldest_first_and_by_session(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 100; i++)
		add(7 + i % 2, i);
	assert_int_equal(journal_read(&journal, 0, out, READ), 100);
	expect(100, 0, 1);
	assert_int_equal(journal_read(&journal, 8, out, READ), 50);
	expect(50, 1, 2);
	assert_int_equal(journal_read(&journal, 7, out, 10), 10);
	expect(10, 80, 2);
	assert_int_equal(journal_read(&journal, 9, out, READ), 0);
}

static void the_oldest_are_overwritten_and_the_file_does_not_grow(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 3 * CAPACITY + 17; i++) {
		add(1, i);
		if (i % 100 == 0)
			journal_flush(&journal);
	}
	assert_int_equal(journal_read(&journal, 0, out, READ), CAPACITY);
	expect(CAPACITY, 2 * CAPACITY + 17, 1);
	assert_true(lseek(journal.file.fd, 0, SEEK_END) <= BYTES);
}

static void a_successor_goes_on_where_the_file_ends(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < CAPACITY + 50; i++)
		add(1, i);
	journal_close(&journal);
	journal_open(&journal, path, BYTES);
	for (uint64_t i = CAPACITY + 50; i < CAPACITY + 60; i++)
		add(1, i);
	assert_int_equal(journal_read(&journal, 0, out, READ), CAPACITY);
	expect(CAPACITY, 60, 1);
}

static void torn_and_foreign_bytes_are_skipped(void **state)
{
	(void)state;
	srand(1);
	for (uint64_t i = 0; i < 200; i++)
		add(1, i);
	journal_flush(&journal);
	uint64_t number = 40, huge = UINT64_MAX;
	off_t place = 4096 + (off_t)(number % CAPACITY) * JOURNAL_ENTRY_BYTES;
	assert_int_equal(pwrite(journal.file.fd, &huge, sizeof(huge), place + 8), sizeof(huge));
	assert_int_equal(journal_read(&journal, 0, out, READ), 199);
	expect(39, 0, 1);
	assert_int_equal(out[39].iteration, 40);
	/* Whatever is in the file: nothing it says is believed unchecked. */
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < 200; i++) {
			uint8_t byte = (uint8_t)rand();
			assert_int_equal(pwrite(journal.file.fd, &byte, 1, rand() % BYTES), 1);
		}
		journal_close(&journal);
		journal_open(&journal, path, BYTES);
		add(1, 1000 + (uint64_t)round);
		uint32_t n = journal_read(&journal, 0, out, READ);
		assert_true(n >= 1 && n <= CAPACITY);
		assert_int_equal(out[n - 1].iteration, 1000 + round);
	}
}

static void one_of_another_size_is_kept_and_a_new_one_begun(void **state)
{
	(void)state;
	char old[sizeof(path) + 4];
	struct journal_entry *kept = NULL;
	size_t n = 0;
	struct error err = {""};
	struct iteration_record record = {
		.session = 1, .iteration = 9, .batch_sessions = 1, .emitted = 1};
	journal_add(&journal, &record, NULL);
	journal_close(&journal);
	journal_open(&journal, path, 2 * BYTES);
	assert_int_equal(journal_read(&journal, 0, out, READ), 0);
	add(1, 2);
	assert_int_equal(journal_read(&journal, 0, out, READ), 1);
	snprintf(old, sizeof(old), "%s.old", path);
	assert_int_equal(journal_load(old, &kept, &n, &err), 0);
	assert_int_equal(n, 1);
	assert_int_equal(kept[0].iteration, 9);
	free(kept);
}

static void one_of_another_version_is_kept_and_not_read(void **state)
{
	(void)state;
	char old[sizeof(path) + 4];
	struct journal_entry *all = NULL;
	struct error err = {""};
	uint32_t version = 1;
	size_t n = 0;
	add(1, 1);
	journal_flush(&journal);
	assert_int_equal(pwrite(journal.file.fd, &version, sizeof(version), 8), sizeof(version));
	assert_int_equal(journal_load(path, &all, &n, &err), -EINVAL);
	assert_non_null(strstr(err.text, "a journal of version 1; only those of version 3"));
	journal_close(&journal);
	journal_open(&journal, path, BYTES);
	assert_int_equal(journal_read(&journal, 0, out, READ), 0);
	add(1, 2);
	assert_int_equal(journal_read(&journal, 0, out, READ), 1);
	snprintf(old, sizeof(old), "%s.old", path);
	assert_int_equal(journal_load(old, &all, &n, &err), -EINVAL);
	assert_non_null(strstr(err.text, "a journal of version 1"));
}

static void a_file_that_is_no_journal_is_kept_too(void **state)
{
	(void)state;
	static const char words[] = "somebody's notes, which are longer than a journal's head";
	char old[sizeof(path) + 4], read[sizeof(words)] = "";
	journal_close(&journal);
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	assert_int_equal(fwrite(words, 1, sizeof(words), file), sizeof(words));
	fclose(file);
	journal_open(&journal, path, BYTES);
	add(1, 2);
	assert_int_equal(journal_read(&journal, 0, out, READ), 1);
	snprintf(old, sizeof(old), "%s.old", path);
	file = fopen(old, "r");
	assert_non_null(file);
	assert_int_equal(fread(read, 1, sizeof(read), file), sizeof(read));
	fclose(file);
	assert_string_equal(read, words);
}

static uint64_t wall_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void what_finds_no_room_in_memory_is_counted(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < JOURNAL_PENDING + 5; i++)
		add(1, i);
	assert_int_equal(journal_lost(&journal), 5);
	/* Where they would be it says so, once there is room. */
	journal_flush(&journal);
	add(1, 1);
	struct journal_loss loss[4];
	assert_int_equal(journal_losses(&journal, 0, loss, 4), 1);
	assert_int_equal(loss[0].lost, 5);
	assert_int_equal(loss[0].number, JOURNAL_PENDING + 1);
	assert_int_equal(loss[0].iteration, JOURNAL_PENDING - 1);
}

static void what_was_lost_before_it_came_is_told_where_it_would_be(void **state)
{
	(void)state;
	struct journal_loss loss[4];
	struct journal_entry *all = NULL;
	struct error err = {""};
	size_t n = 0;
	uint64_t before_ns = wall_ns();
	journal_add_loss(&journal, 2);
	for (uint64_t i = 0; i < 4; i++)
		add(7 + i % 2, i);
	journal_add_loss(&journal, 0);
	journal_add_loss(&journal, 7213);
	journal_add_loss(&journal, 1);
	add(7, 4);
	/* No session's, and not the newest iteration of all. */
	assert_int_equal(journal_read(&journal, 0, out, READ), 5);
	expect(5, 0, 1);
	assert_int_equal(journal_read(&journal, 8, out, READ), 2);
	assert_int_equal(journal_losses(&journal, 0, loss, 4), 3);
	assert_true(loss[0].lost == 2 && loss[1].lost == 7213 && loss[2].lost == 1);
	assert_true(loss[0].number == 1 && loss[1].number == 6 && loss[2].number == 7);
	/* With the newest iteration before. */
	assert_true(loss[0].iteration == 0 && loss[1].iteration == 3 && loss[2].iteration == 3);
	assert_true(loss[1].time_ns + 1000000000u > before_ns);
	/* The newest, those above a number. */
	assert_int_equal(journal_losses(&journal, 0, loss, 1), 1);
	assert_true(loss[0].lost == 1 && loss[0].iteration == 3);
	assert_int_equal(journal_losses(&journal, 6, loss, 4), 1);
	assert_true(loss[0].lost == 1 && loss[0].iteration == 3);
	assert_int_equal(journal_losses(&journal, 7, loss, 4), 0);
	/* What replays the file has iterations alone. */
	journal_flush(&journal);
	assert_int_equal(journal_load(path, &all, &n, &err), 0);
	for (size_t i = 0; i < n; i++)
		assert_int_not_equal(all[i].session, 0);
	free(all);
}

static void a_record_of_no_session_is_not_taken_for_a_loss(void **state)
{
	(void)state;
	struct journal_loss loss;
	struct iteration_record record = {.iteration = 1, .expert_bytes = 99};
	journal_add(&journal, &record, NULL);
	assert_int_equal(journal_losses(&journal, 0, &loss, 1), 0);
}

static void an_entry_has_the_time_of_its_iteration_not_of_its_arrival(void **state)
{
	(void)state;
	static const uint64_t second = 1000000000u;
	/* Half a minute ago, now, and what cannot be. */
	const uint64_t before_ns = wall_ns();
	const uint64_t now_ns = clock_ns();
	const uint64_t finished_ns[] = {now_ns - 30 * second, now_ns, UINT64_MAX};
	const uint64_t age_ns[] = {30 * second, 0, 0};
	if (now_ns < 30 * second)
		skip();
	for (uint64_t i = 0; i < 3; i++) {
		struct iteration_record record = {.session = 1, .finished_ns = finished_ns[i]};
		journal_add(&journal, &record, NULL);
	}
	const uint64_t after_ns = wall_ns();
	assert_int_equal(journal_read(&journal, 0, out, READ), 3);
	for (uint64_t i = 0; i < 3; i++) {
		/* The two clocks do not run at quite the same rate. */
		assert_true(out[i].time_ns + second > before_ns - age_ns[i]);
		assert_true(out[i].time_ns < after_ns - age_ns[i] + second);
	}
}

static void without_a_path_nothing_is_kept(void **state)
{
	(void)state;
	journal_close(&journal);
	journal_open(&journal, "", BYTES);
	add(1, 1);
	journal_flush(&journal);
	assert_int_equal(journal_read(&journal, 0, out, READ), 0);
	assert_int_equal(journal_lost(&journal), 0);
}

/* As on a full disk: the file cannot be written for a while. */
static void a_full_disk_loses_entries_and_nothing_else(void **state)
{
	(void)state;
	struct rlimit before, none;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	add(1, 1);
	journal_flush(&journal);
	none = before;
	none.rlim_cur = 1024;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
	add(1, 2);
	journal_flush(&journal);
	add(1, 3);
	journal_flush(&journal);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(journal_lost(&journal), 2);
	assert_true(journal.failing);
	add(1, 4);
	assert_int_equal(journal_read(&journal, 0, out, READ), 2);
	assert_false(journal.failing);
	assert_int_equal(out[1].iteration, 4);
	struct journal_loss loss[4];
	assert_int_equal(journal_losses(&journal, 0, loss, 4), 1);
	assert_true(loss[0].lost == 2 && loss[0].iteration == 1 && loss[0].number == 2);
}

static void a_folder_that_is_not_there_is_no_reason_to_stop(void **state)
{
	(void)state;
	journal_close(&journal);
	journal_open(&journal, "/no/such/folder/policy.journal", BYTES);
	add(1, 1);
	journal_flush(&journal);
	assert_int_equal(journal_lost(&journal), 1);
	assert_int_equal(journal_read(&journal, 0, out, READ), 0);
}

static void a_file_is_loaded_without_being_changed(void **state)
{
	(void)state;
	struct journal_entry *all = NULL;
	struct error err = {""};
	size_t n = 0;
	assert_int_equal(journal_load(path, &all, &n, &err), -EINVAL);
	assert_non_null(strstr(err.text, "nothing in it"));
	for (uint64_t i = 0; i < CAPACITY + 50; i++) {
		struct iteration_record record = {.session = 7,
			.iteration = i,
			.k = i % 10 ? 3
				    : LIMIT_DRAFT_DEPTH + 1, /* one in ten cannot have happened */
			.emitted = 1,
			.batch_sessions = 1};
		journal_add(&journal, &record, NULL);
	}
	journal_flush(&journal);
	assert_int_equal(journal_load(path, &all, &n, &err), 0);
	assert_in_range(n, CAPACITY * 9 / 10 - 1, CAPACITY * 9 / 10 + 1);
	for (size_t i = 0; i < n; i++) {
		assert_true(all[i].iteration % 10 != 0 && all[i].iteration >= 50);
		assert_true(i == 0 || all[i].number > all[i - 1].number);
	}
	free(all);
	/* A head that claims more than there is. */
	uint64_t claim = UINT64_MAX / JOURNAL_ENTRY_BYTES;
	assert_int_equal(pwrite(journal.file.fd, &claim, sizeof(claim), 16), sizeof(claim));
	assert_int_equal(journal_load(path, &all, &n, &err), -EINVAL);
	assert_null(all);
	assert_int_equal(journal_load("/no/such.journal", &all, &n, &err), -ENOENT);
}

static void *load(void *arg)
{
	struct journal_entry *all = NULL;
	struct error err = {""};
	size_t *n = arg;
	(void)journal_load(path, &all, n, &err);
	free(all);
	return NULL;
}

/* Whoever loads one need not be the main thread. */
static void a_small_stack_is_enough_to_load_one(void **state)
{
	(void)state;
	pthread_attr_t small;
	pthread_t thread;
	size_t n = 0;
	journal_add(&journal,
		&(struct iteration_record){.session = 7, .emitted = 1, .batch_sessions = 1}, NULL);
	journal_flush(&journal);
	assert_int_equal(pthread_attr_init(&small), 0);
	assert_int_equal(pthread_attr_setstacksize(&small, 512 << 10), 0);
	assert_int_equal(pthread_create(&thread, &small, load, &n), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	pthread_attr_destroy(&small);
	assert_int_equal(n, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
		TEST(entries_come_back_oldest_first_and_by_session),
		TEST(the_oldest_are_overwritten_and_the_file_does_not_grow),
		TEST(a_successor_goes_on_where_the_file_ends),
		TEST(torn_and_foreign_bytes_are_skipped),
		TEST(one_of_another_size_is_kept_and_a_new_one_begun),
		TEST(one_of_another_version_is_kept_and_not_read),
		TEST(a_file_that_is_no_journal_is_kept_too),
		TEST(what_finds_no_room_in_memory_is_counted),
		TEST(what_was_lost_before_it_came_is_told_where_it_would_be),
		TEST(a_record_of_no_session_is_not_taken_for_a_loss),
		TEST(an_entry_has_the_time_of_its_iteration_not_of_its_arrival),
		TEST(without_a_path_nothing_is_kept),
		TEST(a_full_disk_loses_entries_and_nothing_else),
		TEST(a_folder_that_is_not_there_is_no_reason_to_stop),
		TEST(a_file_is_loaded_without_being_changed),
		TEST(a_small_stack_is_enough_to_load_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
