/* The registry of knobs: what it writes down of who changed what, and what a journal that is not well does to it. */
#include "tests/ipc/knobs.h"

#include <sys/stat.h>

static void the_journal_says_who_what_and_when(void **state)
{
	struct fixture *f = *state;
	struct timespec now;
	assert_true(done(ask(f, NOW, 0, "wait", "6ms")));
	clock_gettime(CLOCK_REALTIME, &now);
	daemon_knobs_close(&f->daemon);
	open_knobs(f);
	const struct knob_journal *journal = &f->daemon.knobs->journal;
	assert_int_equal(knobs_journal_count(journal), 1);
	const struct knob_event *e = knobs_journal_at(journal, 0);
	assert_string_equal(e->name, "wait");
	assert_string_equal(e->old_value, "5ms");
	assert_string_equal(e->new_value, "6ms");
	assert_true(e->who.has_uid);
	assert_int_equal(e->who.uid, 4294967290);
	assert_int_equal(e->who.pid, 4294967291);
	assert_true(e->time_ns / 1000000000 + 60 > (uint64_t)now.tv_sec);
}

static void the_journal_is_bounded_and_rubbish_in_it_is_passed_over(void **state)
{
	struct fixture *f = *state;
	char assignment[160];
	struct stat st;
	write_file(f->journal,
		"{\"time_ns\":1,\"knob\":\n\xff\xfe{}\n[1,2]\nnull\n{\"time_ns\":-4}\n");
	daemon_knobs_close(&f->daemon);
	open_knobs(f);
	assert_int_equal(knobs_journal_count(&f->daemon.knobs->journal), 0);
	for (int i = 0; i < 20000; i++) {
		snprintf(assignment, sizeof assignment, "name=%050d", i);
		assert_int_equal(set(f, assignment), 0);
	}
	assert_int_equal(stat(f->journal, &st), 0);
	assert_true(st.st_size > 0 && st.st_size <= (2 << 20) + 4096);
	assert_int_equal(knobs_journal_count(&f->daemon.knobs->journal), KNOBS_EVENTS);
	daemon_knobs_close(&f->daemon);
	open_knobs(f);
	assert_int_equal(knobs_journal_count(&f->daemon.knobs->journal), KNOBS_EVENTS);
	assert_string_equal(
		knobs_journal_at(&f->daemon.knobs->journal, KNOBS_EVENTS - 1)->new_value,
		"00000000000000000000000000000000000000000000019999");
}

static void a_disk_that_takes_nothing_stops_no_change(void **state)
{
	struct fixture *f = *state;
	char text[4096];
	assert_int_equal(set(f, "low=1"), 0);
	limit_files(40);
	assert_int_equal(set(f, "low=2"), 0);
	assert_int_equal(set(f, "low=3"), 0);
	limit_files(RLIM_INFINITY);
	assert_int_equal(f->config.low, 3);
	assert_true(f->daemon.knobs->journal.failing);
	read_file(f->journal, text, sizeof text);
	assert_null(strstr(text, "\"new\":\"2\""));
	assert_int_equal(set(f, "low=4"), 0);
	assert_false(f->daemon.knobs->journal.failing);
	read_file(f->journal, text, sizeof text);
	for (int i = 1; i <= 4; i++) {
		char new_value[32];
		snprintf(new_value, sizeof new_value, "\"new\":\"%d\"", i);
		assert_non_null(strstr(text, new_value));
	}
}

static void a_journal_that_is_no_file_stops_no_change(void **state)
{
	struct fixture *f = *state;
	mkdir(f->journal, 0700);
	assert_int_equal(set(f, "low=2"), 0);
	assert_int_equal(f->config.low, 2);
	assert_int_equal(knobs_journal_count(&f->daemon.knobs->journal), 1);
	rmdir(f->journal);
	/* A link leads elsewhere: not followed. */
	assert_int_equal(symlink("/dev/null", f->journal), 0);
	assert_int_equal(set(f, "low=3"), 0);
}

/* Values that are right, wrong or odd for any key. */
static void a_journal_that_does_not_end_stops_no_start(void **state)
{
	struct fixture *f = *state;
	daemon_knobs_close(&f->daemon);
	/* Without a writer, opening it would wait for one. */
	assert_int_equal(mkfifo(f->journal, 0600), 0);
	alarm(600);
	open_knobs(f);
	daemon_knobs_close(&f->daemon);
	unlink(f->journal);
	assert_int_equal(symlink("/dev/zero", f->journal), 0);
	open_knobs(f);
	daemon_knobs_close(&f->daemon);
	unlink(f->journal);
	write_file(f->journal, "");
	assert_int_equal(truncate(f->journal, (off_t)1 << 40), 0);
	open_knobs(f);
	alarm(0);
	assert_int_equal(knobs_journal_count(&f->daemon.knobs->journal), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_journal_says_who_what_and_when),
		TEST(the_journal_is_bounded_and_rubbish_in_it_is_passed_over),
		TEST(a_disk_that_takes_nothing_stops_no_change),
		TEST(a_journal_that_is_no_file_stops_no_change),
		TEST(a_journal_that_does_not_end_stops_no_start),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
