/* The registry of knobs: what it writes down of who changed what, and what a journal that is not well does to
 * it, and what a restart adds. */
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

/* The process ends, and another begins with what is configured: one that takes its place, as the manager's
 * store says, or a later one. */
static void restart_as(struct fixture *f, bool successor)
{
	assert_int_equal(successor ? setenv("LISTEN_FDNAMES", "sessions:ready", 1)
				   : unsetenv("LISTEN_FDNAMES"),
		0);
	daemon_knobs_close(&f->daemon);
	config_defaults(keys, &f->config);
	assert_int_equal(config_load(f->path, true, keys, &f->config, &f->err), 0);
	f->running = f->config;
	open_knobs(f);
	unsetenv("LISTEN_FDNAMES");
}

static void restart(struct fixture *f)
{
	restart_as(f, true);
}

static size_t count(const struct fixture *f)
{
	return knobs_journal_count(&f->daemon.knobs->journal);
}

static const struct knob_event *newest(const struct fixture *f, size_t back)
{
	const struct knob_journal *journal = &f->daemon.knobs->journal;
	size_t n = knobs_journal_count(journal);
	assert_true(n > back);
	return knobs_journal_at(journal, n - 1 - back);
}

static void assert_lost(
	const struct knob_event *e, const char *name, const char *was, const char *is)
{
	assert_string_equal(e->what, "restart");
	assert_string_equal(e->name, name);
	assert_string_equal(e->old_value, was);
	assert_string_equal(e->new_value, is);
	assert_false(e->who.has_uid);
	assert_string_equal(e->who.program, "");
	assert_non_null(strstr(e->reason, "started again"));
}

static void what_ended_with_the_process_is_written_down_once(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(set(f, "low=3 name=two,words"), 0);
	assert_int_equal(set_for(f, 3600000, "high=33"), 0);
	assert_int_equal(persist(f, "wait=7ms"), 0);
	assert_int_equal(set(f, "share=0.5"), 0);
	assert_int_equal(set(f, "share=0.1"), 0);
	restart(f);
	assert_int_equal(count(f), 9);
	assert_lost(newest(f, 2), "low", "3", "10");
	assert_non_null(strstr(newest(f, 2)->reason, "without --persist"));
	assert_lost(newest(f, 1), "high", "33", "20");
	assert_non_null(strstr(newest(f, 1)->reason, "for a time"));
	assert_lost(newest(f, 0), "name", "two,words", "");
	restart(f);
	assert_int_equal(count(f), 9);
	assert_int_equal(set(f, "low=4"), 0);
	restart(f);
	assert_int_equal(count(f), 11);
	assert_lost(newest(f, 0), "low", "4", "10");
	assert_int_equal(set(f, "low=4"), 0);
	restart_as(f, false);
	assert_int_equal(count(f), 13);
	assert_string_equal(newest(f, 0)->reason,
		"the service was started anew, and a change without --persist ends with the "
		"process");
}

static void what_was_stored_for_the_next_start_is_in_force_from_then_on(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(set_with(f, (struct knob_batch){.persist = true, .at_start = true},
				 "low=5 threads=7"),
		0);
	assert_int_equal(f->config.low, 10);
	restart(f);
	assert_int_equal(count(f), 4);
	assert_lost(newest(f, 1), "low", "10", "5");
	assert_non_null(strstr(newest(f, 1)->reason, "stored"));
	assert_lost(newest(f, 0), "threads", "2", "7");
	restart(f);
	assert_int_equal(count(f), 4);
}

static void what_was_never_in_force_or_a_sessions_own_is_not_compared(void **state)
{
	struct fixture *f = *state;
	struct knob_batch own = {.session = SESSION};
	assert_int_equal(set_with(f, own, "low=12"), 0);
	/* It cannot go back, and then the other can. */
	assert_int_equal(set_for(f, 5, "high=60"), 0);
	assert_int_equal(set(f, "low=50"), 0);
	run_timers(f);
	assert_string_equal(newest(f, 0)->what, "kept");
	assert_int_equal(set(f, "low=10"), 0);
	assert_int_equal(set(f, "high=20"), 0);
	assert_true(done(ask(f, RESERVE, 9, "low", "16")));
	assert_true(done(ask(f, APPLY, 9, "low", "16")));
	assert_true(done(ask(f, RELEASE, 9, NULL, NULL)));
	assert_string_equal(newest(f, 0)->what, "undone");
	size_t n = count(f);
	restart(f);
	assert_int_equal(count(f), n);
}

static void a_value_that_the_journal_cuts_is_compared_as_it_has_it(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(persist(f, "name=caf\xc3\xa9"), 0);
	restart(f);
	assert_int_equal(count(f), 1);
}

static void a_full_journal_says_what_ended_too(void **state)
{
	struct fixture *f = *state;
	char assignment[64];
	/* Its entry is the oldest, whose place another knob's takes. */
	assert_int_equal(set(f, "high=21"), 0);
	for (int i = 1; i < KNOBS_EVENTS; i++) {
		snprintf(assignment, sizeof assignment, "low=%d", 11 + i % 2);
		assert_int_equal(set(f, assignment), 0);
	}
	restart(f);
	assert_lost(newest(f, 1), "low", "12", "10");
	assert_lost(newest(f, 0), "high", "21", "20");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_journal_says_who_what_and_when),
		TEST(the_journal_is_bounded_and_rubbish_in_it_is_passed_over),
		TEST(a_disk_that_takes_nothing_stops_no_change),
		TEST(a_journal_that_is_no_file_stops_no_change),
		TEST(a_journal_that_does_not_end_stops_no_start),
		TEST(what_ended_with_the_process_is_written_down_once),
		TEST(what_was_stored_for_the_next_start_is_in_force_from_then_on),
		TEST(what_was_never_in_force_or_a_sessions_own_is_not_compared),
		TEST(a_value_that_the_journal_cuts_is_compared_as_it_has_it),
		TEST(a_full_journal_says_what_ended_too),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
