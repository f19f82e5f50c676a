/* The registry of knobs: what a batch changes, what it never changes, what lasts, what goes back. */
#include "shared/base/rand.h"
#include "tests/ipc/knobs.h"

#include <sys/stat.h>

static void a_batch_is_all_or_nothing(void **state)
{
	struct fixture *f = *state;
	struct config before = f->config;
	assert_int_equal(set(f, "low=5 size=2M wait=3s on=yes"), 0);
	assert_int_equal(f->config.low, 5);
	assert_int_equal(f->config.size, 2 << 20);
	assert_int_equal(f->config.wait, 3000000000);
	assert_true(f->config.on);
	assert_int_equal(f->applied, 1);
	assert_int_equal(set(f, "low=10 size=64K wait=5ms on=no"), 0);
	assert_memory_equal(&f->config, &before, sizeof before);
	const char *const bad[] = {"low=6 high=101", "low=6 share=nan", "low=6 bogus=1",
		"high=7 low=8", "low=6 on=maybe", "low=6 deep.mode=quick", "low=6 low=7",
		"low=6 threads=3", "low=6 wait=5", "low=6 size=-1", "", "low=6 high"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		int applied = f->applied;
		assert_true(set(f, bad[i]) < 0);
		assert_memory_equal(&f->config, &before, sizeof before);
		assert_int_equal(f->applied, applied);
	}
}

static void what_apply_refuses_changes_nothing(void **state)
{
	struct fixture *f = *state;
	struct config before = f->config;
	char text[256];
	f->refuse = 1;
	assert_int_equal(persist(f, "low=5"), -ENOMEM);
	assert_memory_equal(&f->config, &before, sizeof before);
	read_file(f->drop_in, text, sizeof text);
	assert_string_equal(text, "");
	assert_int_equal(knobs_journal_count(&f->daemon.knobs->journal), 0);
}

static void what_is_refused_is_named_with_what_would_do(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(set(f, "hihg=3"), -EINVAL);
	assert_non_null(strstr(f->err.text, "did you mean high"));
	set(f, "high=300");
	assert_non_null(strstr(f->err.text, "0 to 100 things"));
	set(f, "threads=3");
	assert_non_null(strstr(f->err.text, "--persist"));
	assert_non_null(strstr(f->err.text, "restart outrider-test"));
	set(f, "name=a\nb");
	assert_non_null(strstr(f->err.text, "control characters"));
}

static void a_change_may_ask_what_is_there(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(set(f, "low?10=5"), 0);
	assert_int_equal(set(f, "low?10=6"), -ESTALE);
	assert_int_equal(f->config.low, 5);
	struct knob_batch batch = {.what = "set", .n = 1};
	struct knob_outcomes outcomes;
	batch.changes[0] =
		(struct knob_change){.name = "wait", .value = "7ms", .expected = "5000us"};
	assert_int_equal(knobs_set(f->daemon.knobs, &batch, &outcomes, &f->err), 0);
	assert_string_equal(outcomes.of[0].old_value, "5ms");
	assert_string_equal(outcomes.of[0].new_value, "7ms");
	knobs_outcomes_free(&outcomes);
	assert_int_equal(knobs_set(f->daemon.knobs, &batch, &outcomes, &f->err), -ESTALE);
	assert_non_null(strstr(f->err.text, "7ms, not 5000us"));
	knobs_outcomes_free(&outcomes);
	batch.changes[0].expected = "soon";
	assert_true(knobs_set(f->daemon.knobs, &batch, &outcomes, &f->err) < 0);
	knobs_outcomes_free(&outcomes);
	assert_int_equal(f->config.wait, 7000000);
}

static void a_change_for_a_time_goes_back_by_itself(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(set_for(f, 5, "low=15 name=for-now"), 0);
	assert_int_equal(f->config.low, 15);
	run_timers(f);
	assert_int_equal(f->config.low, 10);
	assert_string_equal(f->config.name, "");
	size_t n = knobs_journal_count(&f->daemon.knobs->journal);
	assert_int_equal(n, 4);
	assert_string_equal(knobs_journal_at(&f->daemon.knobs->journal, n - 1)->what, "revert");
}

static void a_later_change_is_not_overwritten_when_the_time_is_over(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(set_for(f, 5, "low=15 high=30"), 0);
	assert_int_equal(set(f, "low=16"), 0);
	run_timers(f);
	assert_int_equal(f->config.low, 16);
	assert_int_equal(f->config.high, 20);
}

static void a_second_time_ends_at_the_value_that_was_to_stay(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(set_for(f, 3000, "low=15"), 0);
	assert_int_equal(set_for(f, 5, "low=17"), 0);
	run_timers(f);
	assert_int_equal(f->config.low, 10);
}

static void what_went_together_goes_back_together(void **state)
{
	struct fixture *f = *state;
	/* Neither could go back alone without low being above high. */
	assert_int_equal(set_for(f, 5, "low=50 high=60"), 0);
	run_timers(f);
	assert_int_equal(f->config.low, 10);
	assert_int_equal(f->config.high, 20);
}

static void a_return_that_does_not_fit_any_more_is_written_down(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(set_for(f, 5, "high=60"), 0);
	assert_int_equal(set(f, "low=50"), 0);
	run_timers(f);
	assert_int_equal(f->config.high, 60);
	size_t n = knobs_journal_count(&f->daemon.knobs->journal);
	const struct knob_event *last = knobs_journal_at(&f->daemon.knobs->journal, n - 1);
	assert_string_equal(last->what, "kept");
	assert_non_null(strstr(last->reason, "above high"));
}

static void what_stays_is_said_without_what_is_for_a_time(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(set(f, "low=12"), 0);
	assert_int_equal(set_for(f, 5, "low=15 high=60"), 0);
	assert_int_equal(f->stays.low, 12);
	assert_int_equal(f->stays.high, 20);
	assert_int_equal(set(f, "low=50"), 0);
	assert_int_equal(f->stays.low, 50);
	assert_int_equal(f->stays.high, 20);
	run_timers(f);
	/* It could not go back: now it is there to stay. */
	assert_int_equal(f->stays.high, 60);
}

static void there_is_a_bound_on_changes_for_a_time(void **state)
{
	struct fixture *f = *state;
	struct knobs *knobs = f->daemon.knobs;
	assert_int_equal(knobs_reverts_room(knobs, KNOBS_REVERTS_MAX, &f->err), 0);
	assert_int_equal(knobs_reverts_room(knobs, KNOBS_REVERTS_MAX + 1, &f->err), -ENOSPC);
	assert_int_equal(
		set_with(f, (struct knob_batch){.for_ns = KNOBS_FOR_NS_MAX + 1}, "low=1"), -EINVAL);
}

static void a_lasting_change_is_there_after_a_restart(void **state)
{
	struct fixture *f = *state;
	struct config next;
	assert_int_equal(persist(f, "low=3 deep.mode=fast name=two,words share=0.3"), 0);
	assert_int_equal(persist(f, "low=4 threads=7"), 0);
	assert_int_equal(f->config.low, 4);
	assert_int_equal(f->config.threads, 2);
	config_defaults(keys, &next);
	assert_int_equal(config_load(f->path, true, keys, &next, &f->err), 0);
	assert_int_equal(next.low, 4);
	assert_int_equal(next.mode, 1);
	assert_string_equal(next.name, "two,words");
	assert_true(next.share == 0.3);
	assert_int_equal(next.threads, 7);
	assert_int_equal(next.high, 20);
}

static void a_change_for_the_next_start_waits_for_it(void **state)
{
	struct fixture *f = *state;
	struct config next;
	assert_int_equal(
		set_with(f, (struct knob_batch){.persist = true, .at_start = true}, "low=5"), 0);
	assert_int_equal(f->config.low, 10);
	assert_int_equal(f->applied, 0);
	config_defaults(keys, &next);
	assert_int_equal(config_load(f->path, true, keys, &next, &f->err), 0);
	assert_int_equal(next.low, 5);
	/* A start that would fail is refused now. */
	assert_int_equal(
		set_with(f, (struct knob_batch){.persist = true, .at_start = true}, "low=25"),
		-EINVAL);
}

static void what_comes_later_than_the_drop_in_is_said(void **state)
{
	struct fixture *f = *state;
	struct knob_batch batch = {.what = "set", .n = 2, .persist = true};
	struct knob_outcomes outcomes;
	char later[128];
	batch.changes[0] = (struct knob_change){.name = "low", .value = "3"};
	batch.changes[1] = (struct knob_change){.name = "high", .value = "30"};
	f->on_command_line[0] = true;
	snprintf(later, sizeof later, "%s.d", f->path);
	mkdir(later, 0755);
	snprintf(later, sizeof later, "%s.d/95-mine.conf", f->path);
	write_file(later, "high = 40\n");
	assert_int_equal(knobs_set(f->daemon.knobs, &batch, &outcomes, &f->err), 0);
	assert_non_null(strstr(outcomes.of[0].note, "command line"));
	assert_non_null(strstr(outcomes.of[1].note, "another drop-in"));
	knobs_outcomes_free(&outcomes);
}

static void where_nothing_can_be_written_a_lasting_change_is_not_made(void **state)
{
	struct fixture *f = *state;
	char directory[128];
	snprintf(directory, sizeof directory, "%s.d", f->path);
	write_file(directory, "a file where the folder should be");
	assert_true(persist(f, "low=5") < 0);
	assert_non_null(strstr(f->err.text, directory));
	assert_int_equal(f->config.low, 10);
	assert_int_equal(f->applied, 0);
	daemon_knobs_close(&f->daemon);
	f->path[0] = '\0';
	open_knobs(f);
	assert_true(persist(f, "low=5") < 0);
	assert_non_null(strstr(f->err.text, "without a configuration file"));
}

/* Nothing is left of a drop-in that was being written. */
static void assert_no_part(const struct fixture *f)
{
	char part[160];
	snprintf(part, sizeof part, "%s.part", f->drop_in);
	assert_int_equal(access(part, F_OK), -1);
}

static void what_a_person_wrote_into_the_drop_in_stays(void **state)
{
	struct fixture *f = *state;
	/* What is there, what changes, what is there then. */
	static const struct {
		const char *before, *change, *after;
	} cases[] = {
		{"# mine\n\n low=3 ; why\n; of two\nhigh : 30\n", "low=4",
			"# mine\n\n low=4 ; why\n; of two\nhigh : 30\n"},
		{"low = 3\r\nhigh = 30\r\n", "high=31", "low = 3\r\nhigh = 31\r\n"},
		{"# no end", "low=4", "# no end\nlow = 4\n"},
		{"low = 3\n# between\nlow = 5", "low=6", "low = 6\n# between\nlow = 6\n"},
		{"[deep]\n# ways\nmode = fast\n", "low=4 deep.mode=auto",
			"low = 4\n[deep]\n# ways\nmode = auto\n"},
		{"high = 30\n", "deep.mode=auto", "high = 30\n[deep]\nmode = auto\n"},
		{"[deep]\nmode = fast\n[]\nhigh = 30\n", "low=4",
			"low = 4\n[deep]\nmode = fast\n[]\nhigh = 30\n"},
		{"name = a b ; who\n", "name=c", "name = c ; who\n"},
		{"name =\n", "name=c", "name =c\n"},
		{"name = a;b\n", "name=c", "name = c\n"},
	};
	assert_int_equal(persist(f, "low=3"), 0);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char text[512];
		write_file(f->drop_in, cases[i].before);
		assert_int_equal(persist(f, cases[i].change), 0);
		read_file(f->drop_in, text, sizeof text);
		assert_string_equal(text, cases[i].after);
		assert_no_part(f);
	}
}

static void a_reset_takes_out_its_lines_alone(void **state)
{
	struct fixture *f = *state;
	char text[512];
	assert_int_equal(persist(f, "low=3 high=33"), 0);
	write_file(f->drop_in, "# mine\nlow = 3 ; and this\n# theirs\nhigh = 33\n");
	struct knob_batch reset = {.reset = true, .persist = true};
	assert_int_equal(set_with(f, reset, "low"), 0);
	read_file(f->drop_in, text, sizeof text);
	assert_string_equal(text, "# mine\n# theirs\nhigh = 33\n");
	assert_int_equal(set_with(f, reset, "high"), 0);
	read_file(f->drop_in, text, sizeof text);
	assert_string_equal(text, "# mine\n# theirs\n");
}

static void a_drop_in_that_is_a_link_is_written_through(void **state)
{
	struct fixture *f = *state;
	char elsewhere[128], text[512];
	struct stat st;
	assert_int_equal(persist(f, "low=3"), 0);
	snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", f->directory);
	assert_int_equal(rename(f->drop_in, elsewhere), 0);
	assert_int_equal(symlink(elsewhere, f->drop_in), 0);
	assert_int_equal(persist(f, "low=4"), 0);
	read_file(elsewhere, text, sizeof text);
	assert_non_null(strstr(text, "\nlow = 4\n"));
	assert_int_equal(
		set_with(f, (struct knob_batch){.reset = true, .persist = true}, "low"), 0);
	assert_int_equal(lstat(f->drop_in, &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(unlink(elsewhere), 0);
	assert_true(persist(f, "low=5") < 0);
	assert_non_null(strstr(f->err.text, "symbolic link to a file that does not exist"));
	assert_int_equal(f->config.low, 10);
	assert_int_equal(unlink(f->drop_in), 0);
}

static void a_full_disk_leaves_the_drop_in_as_it_was(void **state)
{
	struct fixture *f = *state;
	char before[512], after[512];
	assert_int_equal(persist(f, "low=3"), 0);
	read_file(f->drop_in, before, sizeof before);
	limit_files(20);
	int r = persist(f, "low=4");
	limit_files(RLIM_INFINITY);
	assert_int_equal(r, -EFBIG);
	read_file(f->drop_in, after, sizeof after);
	assert_string_equal(before, after);
	assert_int_equal(f->config.low, 3);
	assert_no_part(f);
}

static void a_lasting_change_that_fails_at_the_last_moment_is_undone(void **state)
{
	struct fixture *f = *state;
	f->lose_drop_in = true;
	assert_true(persist(f, "low=3 high=33") < 0);
	assert_int_equal(f->config.low, 10);
	assert_int_equal(f->config.high, 20);
	assert_int_equal(f->running.low, 10);
	assert_int_equal(f->running.high, 20);
	assert_int_equal(access(f->drop_in, F_OK), -1);
}

static void what_a_file_cannot_say_cannot_last(void **state)
{
	struct fixture *f = *state;
	struct knob_batch batch = {.what = "set", .n = 1, .persist = true};
	struct knob_outcomes outcomes;
	const char *const bad[] = {"a ;b", " a", "a "};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		batch.changes[0] = (struct knob_change){.name = "name", .value = bad[i]};
		assert_true(knobs_set(f->daemon.knobs, &batch, &outcomes, &f->err) < 0);
		knobs_outcomes_free(&outcomes);
		assert_string_equal(f->config.name, "");
	}
}

static void a_drop_in_that_was_edited_badly_is_left_alone(void **state)
{
	struct fixture *f = *state;
	char text[256];
	assert_int_equal(persist(f, "low=3"), 0);
	write_file(f->drop_in, "lwo = 3\n");
	assert_true(persist(f, "high=30") < 0);
	assert_non_null(strstr(f->err.text, "lwo"));
	read_file(f->drop_in, text, sizeof text);
	assert_string_equal(text, "lwo = 3\n");
	assert_int_equal(f->config.high, 20);
}

static void reset_goes_back_to_the_start_and_with_persist_to_the_configuration(void **state)
{
	struct fixture *f = *state;
	write_file(f->path, "low = 7\n");
	assert_int_equal(persist(f, "low=3 high=33"), 0);
	daemon_knobs_close(&f->daemon);
	config_defaults(keys, &f->config);
	assert_int_equal(config_load(f->path, false, keys, &f->config, &f->err), 0);
	open_knobs(f);
	assert_int_equal(set(f, "low=5"), 0);
	assert_int_equal(set_with(f, (struct knob_batch){.reset = true}, "low"), 0);
	assert_int_equal(f->config.low, 3);
	assert_int_equal(
		set_with(f, (struct knob_batch){.reset = true, .persist = true}, "low"), 0);
	assert_int_equal(f->config.low, 7);
	assert_int_equal(f->config.high, 33);
	assert_int_equal(
		set_with(f, (struct knob_batch){.reset = true, .persist = true}, "high"), 0);
	assert_int_equal(f->config.high, 20);
	assert_int_equal(access(f->drop_in, F_OK), -1);
}

static void a_reset_says_which_stored_value_it_takes_out(void **state)
{
	struct fixture *f = *state;
	const struct knob_batch next = {.persist = true, .at_start = true},
				reset = {.reset = true, .persist = true, .at_start = true};
	assert_int_equal(set_with(f, next, "low=7"), 0);
	assert_int_equal(set_with(f, reset, "low"), 0);
	assert_int_equal(set_with(f, reset, "low"), 0);
	/* Written down too. */
	daemon_knobs_close(&f->daemon);
	open_knobs(f);
	const struct knob_journal *journal = &f->daemon.knobs->journal;
	assert_int_equal(knobs_journal_count(journal), 3);
	assert_null(knobs_journal_at(journal, 0)->removed);
	assert_string_equal(knobs_journal_at(journal, 1)->removed, "7");
	assert_null(knobs_journal_at(journal, 2)->removed);
}

static void reset_goes_back_to_the_start_of_who_went_on_with_another_configuration(void **state)
{
	struct fixture *f = *state;
	struct config started = f->config;
	daemon_knobs_close(&f->daemon);
	f->config.low = 5;
	f->started = &started;
	open_knobs(f);
	assert_int_equal(set_with(f, (struct knob_batch){.reset = true}, "low"), 0);
	assert_int_equal(f->config.low, 10);
}

static void a_session_has_its_own_values(void **state)
{
	struct fixture *f = *state;
	struct knob_batch one = {.session = SESSION}, none = {.session = 5};
	assert_int_equal(set_with(f, one, "low=12"), 0);
	assert_int_equal(f->session.low, 12);
	assert_int_equal(f->config.low, 10);
	assert_true(set_with(f, one, "size=1M") < 0);
	assert_true(set_with(f, one, "low=90") < 0);
	assert_int_equal(set_with(f, none, "low=12"), -ENOENT);
	one.for_ns = 5000000;
	assert_int_equal(set_with(f, one, "high=40 low=13"), 0);
	/* What was no other than all sessions' follows theirs again; its own value comes back. */
	assert_int_equal(set(f, "high=22"), 0);
	run_timers(f);
	assert_int_equal(f->session.high, 22);
	assert_int_equal(f->session.low, 12);
	one = (struct knob_batch){.session = SESSION, .reset = true};
	assert_int_equal(set_with(f, one, "low"), 0);
	assert_int_equal(f->session.low, 10);
}

static void who_has_reserved_the_knobs_finds_them_as_they_were(void **state)
{
	struct fixture *f = *state;
	assert_true(done(ask(f, RESERVE, 9, "low", "5")));
	assert_int_equal(f->config.low, 10);
	assert_true(busy(ask(f, NOW, 0, "low", "6")));
	assert_true(busy(ask(f, RESERVE, 8, "low", "6")));
	assert_true(busy(ask(f, COMMIT, 8, "low", "6")));
	assert_true(done(ask(f, COMMIT, 9, "low", "5")));
	assert_int_equal(f->config.low, 5);
	assert_true(done(ask(f, NOW, 0, "low", "6")));
	assert_false(done(ask(f, COMMIT, 9, "low", "5")));
	assert_false(done(ask(f, RESERVE, 0, "low", "5")));
	assert_false(done(ask(f, RESERVE, 9, "low", "500")));
	assert_true(done(ask(f, RESERVE, 9, "low", "7")));
	assert_true(done(ask(f, RELEASE, 9, NULL, NULL)));
	assert_true(done(ask(f, NOW, 0, "low", "8")));
	assert_int_equal(f->config.low, 8);
}

static void a_reservation_ends_by_itself_and_returns_wait_for_it(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(set_for(f, 1, "low=15"), 0);
	assert_true(done(ask(f, RESERVE, 9, "low", "5")));
	knobs_reverts_schedule(f->daemon.knobs);
	usleep(20000);
	for (size_t i = 0; i < TIMERS_MAX; i++)
		if (f->daemon.timers[i].used)
			f->daemon.timers[i].handler(f->daemon.timers[i].arg);
	assert_int_equal(f->config.low, 15);
	/* As if its time were over. */
	f->daemon.knobs->reserved.until_ns = clock_ns();
	assert_false(done(ask(f, COMMIT, 9, "low", "5")));
	knobs_reverts_schedule(f->daemon.knobs);
	run_timers(f);
	assert_int_equal(f->config.low, 10);
}

static void what_is_known_to_be_refused_is_not_reserved(void **state)
{
	struct fixture *f = *state;
	f->refuse_first = true;
	assert_false(done(ask(f, RESERVE, 9, "low", "5")));
	assert_int_equal(f->daemon.knobs->reserved.id, 0);
	assert_int_equal(f->applied, 0);
	/* What is for the next start alone is not for now. */
	assert_int_equal(knobs_try(f->daemon.knobs,
				 &(struct knob_batch){.changes = {{"low", "5", NULL, NULL}},
					 .n = 1,
					 .persist = true,
					 .at_start = true},
				 &f->err),
		0);
	assert_int_equal(knobs_journal_count(&f->daemon.knobs->journal), 0);
}

static const struct knob_event *newest(const struct fixture *f)
{
	const struct knob_journal *journal = &f->daemon.knobs->journal;
	return knobs_journal_at(journal, knobs_journal_count(journal) - 1);
}

static void what_is_applied_is_in_force_and_for_good_when_it_is_committed(void **state)
{
	struct fixture *f = *state;
	assert_false(done(ask(f, APPLY, 9, "low", "5")));
	assert_true(done(ask(f, RESERVE, 9, "low", "5")));
	assert_true(done(ask(f, APPLY, 9, "low", "5")));
	assert_int_equal(f->running.low, 5);
	assert_int_equal(f->config.low, 5);
	assert_true(busy(ask(f, NOW, 0, "low", "6")));
	assert_false(done(ask(f, APPLY, 9, "low", "6")));
	assert_false(done(ask(f, RESERVE, 9, "low", "6")));
	assert_false(done(ask(f, NOW, 9, "low", "6")));
	assert_int_equal(knobs_journal_count(&f->daemon.knobs->journal), 0);
	Outrider__Envelope *reply = ask(f, COMMIT, 9, NULL, NULL);
	assert_int_equal(reply->body_case, OUTRIDER__ENVELOPE__BODY_KNOB_DONE);
	assert_int_equal(reply->knob_done->n_results, 1);
	assert_string_equal(reply->knob_done->results[0]->old_value, "10");
	assert_string_equal(reply->knob_done->results[0]->new_value, "5");
	outrider__envelope__free_unpacked(reply, NULL);
	assert_int_equal(knobs_journal_count(&f->daemon.knobs->journal), 1);
	assert_string_equal(newest(f)->what, "set");
	assert_true(done(ask(f, NOW, 0, "low", "6")));
	assert_int_equal(f->config.low, 6);
}

static void what_is_taken_back_leaves_an_earlier_change_its_time(void **state)
{
	struct fixture *f = *state;
	struct knobs *knobs = f->daemon.knobs;
	assert_int_equal(set_for(f, 3600000, "low=15"), 0);
	const struct knob_revert before = *knobs_revert_of(knobs, &keys[0], 0);
	assert_true(done(ask(f, RESERVE, 9, "low", "16")));
	assert_true(done(ask(f, APPLY, 9, "low", "16")));
	assert_int_equal(f->running.low, 16);
	assert_true(done(ask(f, RELEASE, 9, NULL, NULL)));
	assert_int_equal(f->running.low, 15);
	assert_int_equal(f->config.low, 15);
	const struct knob_revert *after = knobs_revert_of(knobs, &keys[0], 0);
	assert_non_null(after);
	assert_true(after->due_ns == before.due_ns && after->serial == before.serial);
	assert_string_equal(after->value, "10");
	assert_int_equal(f->stays.low, 10);
	/* One entry, of what was in force for that while. */
	assert_int_equal(knobs_journal_count(&knobs->journal), 2);
	assert_string_equal(newest(f)->what, "undone");
	assert_string_equal(newest(f)->old_value, "15");
	assert_string_equal(newest(f)->new_value, "16");
	assert_non_null(strstr(newest(f)->reason, "all or nothing"));
	assert_int_equal(newest(f)->who.pid, 4294967291);
}

static void what_is_applied_and_never_committed_is_taken_back(void **state)
{
	struct fixture *f = *state;
	assert_true(done(ask(f, RESERVE, 9, "low", "5")));
	assert_true(done(ask(f, APPLY, 9, "low", "5")));
	/* As if its time were over: nobody has asked for anything since. */
	f->daemon.knobs->reserved.until_ns = clock_ns() + 1000000;
	knobs_reverts_schedule(f->daemon.knobs);
	run_timers(f);
	assert_int_equal(f->config.low, 10);
	assert_int_equal(f->running.low, 10);
	assert_string_equal(newest(f)->what, "undone");
	assert_false(done(ask(f, COMMIT, 9, NULL, NULL)));
}

static void what_is_taken_back_is_not_stored(void **state)
{
	struct fixture *f = *state;
	struct knobs *knobs = f->daemon.knobs;
	struct knob_batch batch = {.what = "set", .n = 2, .persist = true};
	struct knob_outcomes outcomes = {.n = 0};
	char before[512], text[512];
	assert_int_equal(persist(f, "high=33"), 0);
	read_file(f->drop_in, before, sizeof before);
	batch.changes[0] = (struct knob_change){.name = "low", .value = "3"};
	batch.changes[1] = (struct knob_change){.name = "threads", .value = "9"};
	assert_int_equal(knobs_apply(knobs, &batch, &f->err), 0);
	assert_int_equal(f->running.low, 3);
	/* Whoever lists them reads the drop-in meanwhile. */
	assert_int_equal(knobs_drop_in_read(knobs, &f->err), 0);
	knobs_take_back(knobs, "no more");
	read_file(f->drop_in, text, sizeof text);
	assert_string_equal(text, before);
	assert_no_part(f);
	assert_int_equal(f->config.low, 10);
	/* What waits for the next start was never in force. */
	assert_int_equal(knobs_journal_count(&knobs->journal), 2);
	assert_string_equal(newest(f)->name, "low");
	assert_int_equal(knobs_apply(knobs, &batch, &f->err), 0);
	assert_int_equal(knobs_drop_in_read(knobs, &f->err), 0);
	assert_int_equal(knobs_commit(knobs, &outcomes, &f->err), 0);
	knobs_outcomes_free(&outcomes);
	read_file(f->drop_in, text, sizeof text);
	assert_non_null(strstr(text, "\nlow = 3\n"));
	assert_non_null(strstr(text, "\nhigh = 33\n"));
}

static void what_cannot_be_taken_back_is_written_down_as_it_is(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(set_for(f, 5, "low=15"), 0);
	assert_true(done(ask(f, RESERVE, 9, "low", "16")));
	assert_true(done(ask(f, APPLY, 9, "low", "16")));
	f->refuse = 1;
	assert_true(done(ask(f, RELEASE, 9, NULL, NULL)));
	assert_int_equal(f->config.low, 16);
	assert_string_equal(newest(f)->what, "set");
	assert_string_equal(newest(f)->new_value, "16");
	assert_non_null(strstr(newest(f)->reason, "no room"));
	/* The earlier change still ends. */
	run_timers(f);
	assert_int_equal(f->config.low, 10);
}

static void a_sessions_own_values_are_taken_back_too(void **state)
{
	struct fixture *f = *state;
	struct knob_batch batch = {.what = "set", .n = 1, .session = SESSION};
	batch.changes[0] = (struct knob_change){.name = "low", .value = "12"};
	assert_int_equal(knobs_apply(f->daemon.knobs, &batch, &f->err), 0);
	assert_int_equal(f->session.low, 12);
	knobs_take_back(f->daemon.knobs, "no more");
	assert_int_equal(f->session.low, 10);
	assert_int_equal(newest(f)->session, SESSION);
	assert_int_equal(f->config.low, 10);
}

static const char *const values[] = {"0", "1", "5", "15", "20", "40", "100", "101", "-1", "0.5",
	"yes", "no", "fast", "auto", "64K", "3ms", "60s", "61s", "nan", "1e3", "x", "0x10",
	"99999999999999999999"};

static uint32_t dice(uint64_t seed, uint32_t n)
{
	return (uint32_t)(rand_uniform(seed, RAND_REPLAY, 0, 0) * n);
}

static void whatever_is_asked_the_configuration_is_one_that_was_allowed(void **state)
{
	struct fixture *f = *state;
	uint64_t seed = 7;
	int taken = 0;
	for (int round = 0; round < 20000; round++) {
		struct knob_batch batch = {.what = "set", .n = 1 + dice(++seed, 3)};
		struct knob_outcomes outcomes;
		struct config before = f->config, wanted = before;
		bool good = true;
		for (size_t i = 0; i < batch.n; i++) {
			const struct config_key *key = &keys[dice(++seed, 8)];
			const char *value = values[dice(++seed, sizeof values / sizeof values[0])];
			batch.changes[i] =
				(struct knob_change){.name = key->name, .value = value, .key = key};
			for (size_t j = 0; j < i; j++)
				good &= batch.changes[j].key != key;
			good = good && config_assign(key, value, "", &wanted, NULL) == 0;
		}
		good = good && check(&wanted, NULL) == 0;
		int r = knobs_set(f->daemon.knobs, &batch, &outcomes, &f->err);
		knobs_outcomes_free(&outcomes);
		assert_int_equal(r == 0, good);
		for (const struct config_key *key = keys; key->name; key++)
			assert_true(config_equal(key, &f->config, good ? &wanted : &before));
		taken += good;
	}
	assert_true(taken > 1000 && taken < 19000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_batch_is_all_or_nothing),
		TEST(what_apply_refuses_changes_nothing),
		TEST(what_is_refused_is_named_with_what_would_do),
		TEST(a_change_may_ask_what_is_there),
		TEST(a_change_for_a_time_goes_back_by_itself),
		TEST(a_later_change_is_not_overwritten_when_the_time_is_over),
		TEST(a_second_time_ends_at_the_value_that_was_to_stay),
		TEST(what_went_together_goes_back_together),
		TEST(a_return_that_does_not_fit_any_more_is_written_down),
		TEST(what_stays_is_said_without_what_is_for_a_time),
		TEST(there_is_a_bound_on_changes_for_a_time),
		TEST(a_lasting_change_is_there_after_a_restart),
		TEST(a_change_for_the_next_start_waits_for_it),
		TEST(what_comes_later_than_the_drop_in_is_said),
		TEST(where_nothing_can_be_written_a_lasting_change_is_not_made),
		TEST(what_a_person_wrote_into_the_drop_in_stays),
		TEST(a_reset_takes_out_its_lines_alone),
		TEST(a_drop_in_that_is_a_link_is_written_through),
		TEST(a_full_disk_leaves_the_drop_in_as_it_was),
		TEST(a_lasting_change_that_fails_at_the_last_moment_is_undone),
		TEST(what_a_file_cannot_say_cannot_last),
		TEST(a_drop_in_that_was_edited_badly_is_left_alone),
		TEST(reset_goes_back_to_the_start_and_with_persist_to_the_configuration),
		TEST(a_reset_says_which_stored_value_it_takes_out),
		TEST(reset_goes_back_to_the_start_of_who_went_on_with_another_configuration),
		TEST(a_session_has_its_own_values),
		TEST(who_has_reserved_the_knobs_finds_them_as_they_were),
		TEST(a_reservation_ends_by_itself_and_returns_wait_for_it),
		TEST(what_is_known_to_be_refused_is_not_reserved),
		TEST(what_is_applied_is_in_force_and_for_good_when_it_is_committed),
		TEST(what_is_taken_back_leaves_an_earlier_change_its_time),
		TEST(what_is_applied_and_never_committed_is_taken_back),
		TEST(what_is_taken_back_is_not_stored),
		TEST(what_cannot_be_taken_back_is_written_down_as_it_is),
		TEST(a_sessions_own_values_are_taken_back_too),
		TEST(whatever_is_asked_the_configuration_is_one_that_was_allowed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
