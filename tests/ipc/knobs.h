/* A registry of knobs with a configuration of its own, for tests of it. */
#pragma once

#include "shared/base/clock.h"
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
	bool refuse_first; /* when it is asked before */
	struct error err;
};

static inline int check(const void *arg, struct error *err)
{
	const struct config *config = arg;
	if (config->low > config->high)
		return error_set(err, EINVAL, "low %d is above high %d", (int)config->low,
			(int)config->high);
	return 0;
}

static inline int apply(void *arg, const void *next, struct error *err)
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
	if (f->lose_drop_in && f->daemon.knobs->fresh.part)
		unlink(f->daemon.knobs->fresh.part);
	return 0;
}

static inline int rehearse(void *arg, const void *next, struct error *err)
{
	struct fixture *f = arg;
	assert_int_equal(check(next, NULL), 0);
	return f->refuse_first ? error_set(err, ENOMEM, "there will be no room for that") : 0;
}

static inline void stays(void *arg, const void *config)
{
	struct fixture *f = arg;
	memcpy(&f->stays, config, sizeof f->stays);
}

static inline int session_get(void *arg, uint64_t uid, void *out, struct error *err)
{
	struct fixture *f = arg;
	if (uid != SESSION)
		return error_set(err, ENOENT, "no such session");
	memcpy(out, &f->session, sizeof f->session);
	return 0;
}

static inline int session_apply(void *arg, uint64_t uid, const void *next, struct error *err)
{
	struct fixture *f = arg;
	if (uid != SESSION)
		return error_set(err, ENOENT, "no such session");
	memcpy(&f->session, next, sizeof f->session);
	return 0;
}

static inline void open_knobs(struct fixture *f)
{
	struct daemon_knobs knobs = {
		.keys = keys,
		.config = &f->config,
		.config_bytes = sizeof f->config,
		.check = check,
		.rehearse = rehearse,
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

static inline int setup(void **state)
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

static inline int teardown(void **state)
{
	struct fixture *f = *state;
	char command[128];
	daemon_knobs_close(&f->daemon);
	snprintf(command, sizeof command, "rm -rf %s", f->directory);
	free(f);
	return system(command); /* NOLINT(cert-env33-c): a fixed path of ours */
}

/* "low=5 high=7", or names alone with reset. */
static inline int set_with(struct fixture *f, struct knob_batch batch, const char *assignments)
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

static inline int set(struct fixture *f, const char *assignments)
{
	return set_with(f, (struct knob_batch){.n = 0}, assignments);
}

static inline int set_for(struct fixture *f, uint64_t ms, const char *assignments)
{
	return set_with(f, (struct knob_batch){.for_ns = ms * 1000000}, assignments);
}

static inline int persist(struct fixture *f, const char *assignments)
{
	return set_with(f, (struct knob_batch){.persist = true}, assignments);
}

/* What the loop would do until nothing is to come any more. */
static inline void run_timers(struct fixture *f)
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

static inline void read_file(const char *path, char *out, size_t bytes)
{
	FILE *file = fopen(path, "re");
	out[0] = '\0';
	if (!file)
		return;
	out[fread(out, 1, bytes - 1, file)] = '\0';
	fclose(file);
}

static inline void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

/* KnobSet with one change, as an administrator sends it. */
static inline Outrider__Envelope *ask(
	struct fixture *f, int step, uint64_t id, const char *name, const char *value)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply = malloc(sizeof *reply);
	Outrider__KnobSet body = OUTRIDER__KNOB_SET__INIT;
	Outrider__KnobChange change = OUTRIDER__KNOB_CHANGE__INIT, *list[] = {&change};
	struct bus_address from = {
		.connection = 1, .uid = 4294967290u, .pid = 4294967291u, .known = true};
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

static inline bool done(Outrider__Envelope *reply)
{
	bool was =
		reply->body_case == OUTRIDER__ENVELOPE__BODY_KNOB_DONE && !reply->knob_done->busy;
	outrider__envelope__free_unpacked(reply, NULL);
	return was;
}

static inline bool busy(Outrider__Envelope *reply)
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
	RELEASE = OUTRIDER__KNOB_SET__STEP__RELEASE,
	APPLY = OUTRIDER__KNOB_SET__STEP__APPLY
};

static inline void limit_files(rlim_t bytes)
{
	struct rlimit limit;
	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
