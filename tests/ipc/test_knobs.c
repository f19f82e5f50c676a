/* The registry of knobs: what a batch changes, what it never changes, what lasts, what goes back, what is written down. */
#include "shared/base/clock.h"
#include "shared/base/rand.h"
#include "shared/ipc/daemon_private.h"
#include "shared/ipc/knobs_private.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct config {
	int64_t low, high, size, wait;
	double share;
	bool on;
	int mode;
	char name[64];
	int64_t threads;
	int64_t made_for; /* no key: what the process made for itself */
};

static const char *const modes[] = {"slow", "fast", "auto", NULL};
#define AT(field) offsetof(struct config, field), sizeof(((struct config *)0)->field)
static const struct config_key keys[] = {
	{"", "low", CONFIG_INT, AT(low), 0, 100, NULL, "10", "things", "The least.", KNOB_LIVE,
		KNOB_SESSION},
	{"", "high", CONFIG_INT, AT(high), 0, 100, NULL, "20", "things", "The most.", KNOB_LIVE,
		KNOB_SESSION},
	{"", "size", CONFIG_BYTES, AT(size), 0, 1e12, NULL, "64K", "bytes", "How large.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "wait", CONFIG_NS, AT(wait), 0, 60e9, NULL, "5ms", "time", "How long.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "share", CONFIG_DOUBLE, AT(share), 0, 1, NULL, "0.1", NULL, "How much.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "on", CONFIG_BOOL, AT(on), 0, 0, NULL, "no", NULL, "Whether.", KNOB_LIVE, KNOB_GLOBAL},
	{"deep", "mode", CONFIG_ENUM, AT(mode), 0, 0, modes, "slow", NULL, "Which way.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "name", CONFIG_STRING, AT(name), 0, 0, NULL, "", NULL, "Called what.", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "threads", CONFIG_INT, AT(threads), 1, 64, NULL, "2", NULL, "How many.", KNOB_AT_START,
		KNOB_GLOBAL},
	{.name = NULL},
};
enum { SESSION = 77 };

struct fixture {
	struct daemon daemon;
	struct config config, session;
	char directory[64], path[80], drop_in[128], journal[128];
	bool on_command_line[16];
	struct config stays; /* what was said to stay */
	struct config running; /* what apply has put in force, by what differed from config */
	const struct config *started;
	bool lose_drop_in; /* the next apply takes it from under the registry */
	int applied, refuse; /* calls; those to come that fail */
	struct error err;
};

static int check(const void *arg, struct error *err)
{
	const struct config *config = arg;
	if (config->low > config->high)
		return error_set(err, EINVAL, "low %d is above high %d", (int)config->low,
			(int)config->high);
	return 0;
}

static int apply(void *arg, const void *next, struct error *err)
{
	struct fixture *f = arg;
	assert_int_equal(check(next, NULL), 0);
	if (f->refuse > 0) {
		f->refuse--;
		return error_set(err, ENOMEM, "no room for that");
	}
	f->applied++;
	for (const struct config_key *key = keys; key->name; key++)
		if (!config_equal(key, &f->config, next))
			config_copy(key, next, &f->running);
	if (f->lose_drop_in)
		unlink(f->daemon.knobs->fresh);
	return 0;
}

static void stays(void *arg, const void *config)
{
	struct fixture *f = arg;
	memcpy(&f->stays, config, sizeof f->stays);
}

static int session_get(void *arg, uint64_t uid, void *out, struct error *err)
{
	struct fixture *f = arg;
	if (uid != SESSION)
		return error_set(err, ENOENT, "no such session");
	memcpy(out, &f->session, sizeof f->session);
	return 0;
}

static int session_apply(void *arg, uint64_t uid, const void *next, struct error *err)
{
	struct fixture *f = arg;
	if (uid != SESSION)
		return error_set(err, ENOENT, "no such session");
	memcpy(&f->session, next, sizeof f->session);
	return 0;
}

static void open_knobs(struct fixture *f)
{
	struct daemon_knobs knobs = {
		.keys = keys,
		.config = &f->config,
		.config_bytes = sizeof f->config,
		.check = check,
		.apply = apply,
		.stays = stays,
		.arg = f,
		.started = f->started,
		.config_path = f->path,
		.on_command_line = f->on_command_line,
		.session_get = session_get,
		.session_apply = session_apply,
	};
	assert_int_equal(daemon_knobs_open(&f->daemon, &knobs, &f->err), 0);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	signal(SIGXFSZ, SIG_IGN);
	strcpy(f->directory, "/tmp/outrider-test-XXXXXX");
	assert_non_null(mkdtemp(f->directory));
	snprintf(f->path, sizeof f->path, "%s/test.conf", f->directory);
	snprintf(f->drop_in, sizeof f->drop_in, "%s.d/90-knobs.conf", f->path);
	snprintf(f->journal, sizeof f->journal, "%s/test.knobs.jsonl", f->directory);
	strcpy(f->daemon.name, "test");
	strcpy(f->daemon.runtime_dir, f->directory);
	unsetenv("STATE_DIRECTORY");
	config_defaults(keys, &f->config);
	config_defaults(keys, &f->session);
	config_defaults(keys, &f->running);
	open_knobs(f);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	char command[128];
	daemon_knobs_close(&f->daemon);
	snprintf(command, sizeof command, "rm -rf %s", f->directory);
	free(f);
	return system(command); /* NOLINT(cert-env33-c): a fixed path of ours */
}

/* "low=5 high=7", or names alone with reset. */
static int set_with(struct fixture *f, struct knob_batch batch, const char *assignments)
{
	char text[1024], *rest = NULL;
	struct knob_outcomes outcomes = {.n = 0};
	snprintf(text, sizeof text, "%s", assignments);
	batch.what = batch.reset ? "reset" : "set";
	for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
		struct knob_change *change = &batch.changes[batch.n++];
		char *equals = strchr(word, '='), *question = strchr(word, '?');
		if (equals)
			*equals++ = '\0';
		if (question)
			*question++ = '\0';
		*change = (struct knob_change){
			.name = word, .value = equals ? equals : "", .expected = question};
	}
	f->err.text[0] = '\0';
	int r = knobs_set(f->daemon.knobs, &batch, &outcomes, &f->err);
	assert_true(r == 0 || f->err.text[0]);
	knobs_outcomes_free(&outcomes);
	return r;
}

static int set(struct fixture *f, const char *assignments)
{
	return set_with(f, (struct knob_batch){.n = 0}, assignments);
}

static int set_for(struct fixture *f, uint64_t ms, const char *assignments)
{
	return set_with(f, (struct knob_batch){.for_ns = ms * 1000000}, assignments);
}

static int persist(struct fixture *f, const char *assignments)
{
	return set_with(f, (struct knob_batch){.persist = true}, assignments);
}

/* What the loop would do until nothing is to come any more. */
static void run_timers(struct fixture *f)
{
	for (bool any = true; any;) {
		any = false;
		for (size_t i = 0; i < TIMERS_MAX; i++) {
			struct timer *timer = &f->daemon.timers[i];
			any |= timer->used;
			if (timer->used && timer->next_ns <= clock_ns())
				timer->handler(timer->arg);
		}
		usleep(500);
	}
}

static void read_file(const char *path, char *out, size_t bytes)
{
	FILE *file = fopen(path, "re");
	out[0] = '\0';
	if (!file)
		return;
	out[fread(out, 1, bytes - 1, file)] = '\0';
	fclose(file);
}

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

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

static void limit_files(rlim_t bytes)
{
	struct rlimit limit;
	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
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
	assert_int_equal(access(f->daemon.knobs->fresh, F_OK), -1);
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

/* KnobSet with one change, as an administrator sends it. */
static Outrider__Envelope *ask(
	struct fixture *f, int step, uint64_t id, const char *name, const char *value)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply = malloc(sizeof *reply);
	Outrider__KnobSet body = OUTRIDER__KNOB_SET__INIT;
	Outrider__KnobChange change = OUTRIDER__KNOB_CHANGE__INIT, *list[] = {&change};
	struct bus_address from = {.peer = "localhost:4294967290:0:4294967291"};
	outrider__envelope__init(reply);
	change.name = (char *)name;
	change.value = (char *)value;
	body.step = (Outrider__KnobSet__Step)step;
	body.reservation = id;
	body.changes = list;
	body.n_changes = name ? 1 : 0;
	request.body_case = OUTRIDER__ENVELOPE__BODY_KNOB_SET;
	request.knob_set = &body;
	assert_true(knobs_answer(f->daemon.knobs, &from, &request, reply));
	return reply;
}

static bool done(Outrider__Envelope *reply)
{
	bool was =
		reply->body_case == OUTRIDER__ENVELOPE__BODY_KNOB_DONE && !reply->knob_done->busy;
	outrider__envelope__free_unpacked(reply, NULL);
	return was;
}

static bool busy(Outrider__Envelope *reply)
{
	bool was = reply->body_case == OUTRIDER__ENVELOPE__BODY_KNOB_DONE &&
		   reply->knob_done->busy && strstr(reply->knob_done->message, "4294967291");
	outrider__envelope__free_unpacked(reply, NULL);
	return was;
}

enum {
	NOW = OUTRIDER__KNOB_SET__STEP__NOW,
	RESERVE = OUTRIDER__KNOB_SET__STEP__RESERVE,
	COMMIT = OUTRIDER__KNOB_SET__STEP__COMMIT,
	RELEASE = OUTRIDER__KNOB_SET__STEP__RELEASE
};

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
	/* As if the two seconds were over. */
	f->daemon.knobs->reserved.until_ns = clock_ns();
	assert_false(done(ask(f, COMMIT, 9, "low", "5")));
	knobs_reverts_schedule(f->daemon.knobs);
	run_timers(f);
	assert_int_equal(f->config.low, 10);
}

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
static const char *const values[] = {"0", "1", "5", "15", "20", "40", "100", "101", "-1", "0.5",
	"yes", "no", "fast", "auto", "64K", "3ms", "60s", "61s", "nan", "1e3", "x", "0x10",
	"99999999999999999999"};

static uint32_t dice(uint64_t seed, uint32_t n)
{
	return (uint32_t)(rand_uniform(seed, RAND_REPLAY, 0, 0) * n);
}

static void a_journal_that_does_not_end_stops_no_start(void **state)
{
	struct fixture *f = *state;
	daemon_knobs_close(&f->daemon);
	/* Without a writer, opening it would wait for one. */
	assert_int_equal(mkfifo(f->journal, 0600), 0);
	alarm(60);
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
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
		TEST(a_full_disk_leaves_the_drop_in_as_it_was),
		TEST(a_lasting_change_that_fails_at_the_last_moment_is_undone),
		TEST(what_a_file_cannot_say_cannot_last),
		TEST(a_drop_in_that_was_edited_badly_is_left_alone),
		TEST(reset_goes_back_to_the_start_and_with_persist_to_the_configuration),
		TEST(reset_goes_back_to_the_start_of_who_went_on_with_another_configuration),
		TEST(a_session_has_its_own_values),
		TEST(who_has_reserved_the_knobs_finds_them_as_they_were),
		TEST(a_reservation_ends_by_itself_and_returns_wait_for_it),
		TEST(the_journal_says_who_what_and_when),
		TEST(the_journal_is_bounded_and_rubbish_in_it_is_passed_over),
		TEST(a_disk_that_takes_nothing_stops_no_change),
		TEST(a_journal_that_is_no_file_stops_no_change),
		TEST(a_journal_that_does_not_end_stops_no_start),
		TEST(whatever_is_asked_the_configuration_is_one_that_was_allowed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
