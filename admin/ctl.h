/* `outriderctl`: a table of commands over the admin endpoints. Each returns an exit status. */
#pragma once

#include "proto/envelope.pb-c.h"
#include "shared/base/json_text.h"
#include "shared/base/error.h"
#include "shared/base/plural.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

struct outrider_status;

enum { CTL_EXPECTED_MAX = 64 };

struct ctl {
	void *zmq;
	char runtime_dir[256];
	bool json;
	bool layers; /* --layers */
	bool once; /* --once */
	bool all; /* --all */
	const char *session_text; /* --session; NULL = not given */
	uint64_t session; /* the session that it names; 0 = not given */
	uint64_t for_ns; /* --for; 0 = to stay */
	bool persist; /* --persist */
	bool next_start; /* --next-start */
	uint32_t last; /* --last; 0 = all */
	/* --if, each with the argument before it, or with the first where none was. */
	struct {
		const char *argument, *value;
		bool used;
	} expected[CTL_EXPECTED_MAX];
	size_t n_expected;
	uint64_t
		away_until_ns; /* until when a process that is away is waited for; 0: none was yet */
	const char *waits_for; /* the process whose answer is late, as was said; NULL: none was */
};

/* What --if says about an argument, the pointer of the command line, which may have been cut at its '='; NULL. */
const char *ctl_take_expected(struct ctl *ctl, const char *argument);
/* 0 when each --if was taken, or an exit status: it would be as if it were not there. */
int ctl_all_expected_taken(const struct ctl *ctl);

/* Arguments behind the command's words. */
int ctl_status(struct ctl *ctl, int argc, char **argv);
int ctl_sessions(struct ctl *ctl, int argc, char **argv);
int ctl_policy_get(struct ctl *ctl, int argc, char **argv);
int ctl_policy_set(struct ctl *ctl, int argc, char **argv);
int ctl_policy_explain(struct ctl *ctl, int argc, char **argv);
int ctl_policy_plot(struct ctl *ctl, int argc, char **argv);
int ctl_policy_watch(struct ctl *ctl, int argc, char **argv);
int ctl_cache_set(struct ctl *ctl, int argc, char **argv);
int ctl_knob_list(struct ctl *ctl, int argc, char **argv);
int ctl_knob_get(struct ctl *ctl, int argc, char **argv);
int ctl_knob_set(struct ctl *ctl, int argc, char **argv);
int ctl_knob_reset(struct ctl *ctl, int argc, char **argv);
int ctl_knob_history(struct ctl *ctl, int argc, char **argv);
int ctl_knob_complete(struct ctl *ctl, int argc, char **argv);
int ctl_cache_stats(struct ctl *ctl, int argc, char **argv);
int ctl_cache_top(struct ctl *ctl, int argc, char **argv);
int ctl_cache_hot(struct ctl *ctl, int argc, char **argv);
int ctl_trace(struct ctl *ctl, int argc, char **argv);
int ctl_top(struct ctl *ctl, int argc, char **argv);
int ctl_drain(struct ctl *ctl, int argc, char **argv);

/* What a person may do about a service that is not there. */
#define CTL_NO_SERVICE "start a service with outrider up, or name its directory with --runtime-dir"

/* "outriderctl: ..." to stderr; returns status. 0: it is no failure, something to know meanwhile. */
int ctl_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* From now on it writes a line of JSON: {"error": ..., "status": ...}, or {"notice": ...}. */
void ctl_errors_as_json(void);

/* Says that the process does not run, or that it alone is away; EX_UNAVAILABLE. */
int ctl_no_service(const struct ctl *ctl, const char *process);

/* Says that the process took the connection, but no answer came in so long; EX_UNAVAILABLE. changes: the request was to change
 * something, which may yet happen. */
int ctl_no_answer(const char *process, int timeout_ms, bool changes);

/* One request to one process; its reply must have this body. *reply is freed with bus_free. -errno with *err;
 * -ECONNREFUSED: nobody listens. */
int ctl_ask(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, int timeout_ms, Outrider__Envelope **reply,
	struct error *err);
/* The same, and while nobody listens but others of the service do, again for some seconds, of all calls together: a process
 * that died is started again. When an answer is not there after a second, stderr says who is waited for. */
int ctl_ask_patiently(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, int timeout_ms, Outrider__Envelope **reply,
	struct error *err);
/* The same for a command: an exit status, after saying why. */
int ctl_call(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, Outrider__Envelope **reply);

/* Decimal digits and nothing else, up to max. */
bool ctl_number(const char *text, uint64_t max, uint64_t *number);
/* Whether a text could name a session: a number, a name (proquint.h), or the beginning of a name. */
bool ctl_session_text(const char *text);
/* Says that it could not; EX_USAGE. */
int ctl_session_bad(const char *text);
/* The session that a text names, among those that the verifier and the policy-controller know. A number is taken as it is. An exit
 * status, after saying what is wrong. */
int ctl_session(struct ctl *ctl, const char *text, uint64_t *session);
/* The session of a command that may also name it as its first word (NULL: it does not): that one or --session's, else 0. An
 * exit status. */
int ctl_session_of(struct ctl *ctl, const char *word, uint64_t *session);

/* What a reply says, as JSON. */
json_t *ctl_sessions_json(const Outrider__Sessions *all);
json_t *ctl_cache_json(const Outrider__CacheStats *s);
json_t *ctl_cache_hot_json(const Outrider__CacheHot *hot);
/* The quality of hints, as a list and as lines (cache_hints.c). */
json_t *ctl_hints_json(Outrider__HintQuality *const *hints, size_t n);
void ctl_hints_text(Outrider__HintQuality *const *hints, size_t n);
/* sessions: the verifier's, which say of each whether it lives; NULL: not known, all are taken to. all: also those that have
 * ended. */
json_t *ctl_policy_json(
	const Outrider__PolicyState *state, const Outrider__Sessions *sessions, bool all);
/* The verifier's sessions; NULL when it does not say. Freed with bus_free. */
Outrider__Envelope *ctl_ask_sessions(struct ctl *ctl);
/* The policy-controller hears of iterations, not of a session's end. */
bool ctl_is_live(const Outrider__Sessions *sessions, uint64_t uid);
json_t *ctl_decision_json(const Outrider__PolicyDecision *d);
/* Prints and frees. An exit status: without a document (NULL, where memory ran out) nothing is printed and that is said. */
int ctl_print_json(json_t *root);
/* Of prefetches that came, those that were neither used nor evicted yet; the counters are read one after the other. */
static inline uint64_t ctl_unused(uint64_t came, uint64_t used, uint64_t wasted)
{
	return came > used + wasted ? came - used - wasted : 0;
}
/* "1.25", or "-" where nothing was measured, which the processes say as 0. *out has room for bytes. */
const char *ctl_measured(double value, int digits, char *out, size_t bytes);
/* The same as JSON: a number, or null. */
json_t *ctl_measured_json(double value);
/* part of whole as "12.3%", or "-" when whole is 0: the share of nothing is not known. */
const char *ctl_share(double part, double whole, int digits, char *out, size_t bytes);
/* The same as JSON: 0.123, or null. */
json_t *ctl_share_json(double part, double whole);
/* "2026-01-31 12:00:00", local, of CLOCK_REALTIME. */
enum { CTL_WALL_BYTES = 32 };
const char *ctl_wall(uint64_t time_ns, char out[CTL_WALL_BYTES]);
/* "K 3 -> 4", or "K 0 -> 3 for 1, then 0" of a trial. */
enum { CTL_STEP_BYTES = 64 };
const char *ctl_step(const Outrider__PolicyDecision *d, char out[CTL_STEP_BYTES]);

static inline double ctl_mib(uint64_t bytes)
{
	return (double)bytes / 1048576;
}
