/* `outriderctl`: commands that use the admin endpoints of the processes. Each returns an exit
 * status. */
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
	uint64_t for_ns; /* --for; 0 = without an end */
	bool persist; /* --persist */
	bool next_start; /* --next-start */
	uint32_t last; /* --last; 0 = all */
	/* --if, each with the argument before it, or with the first argument if none is before it.
	 */
	struct {
		const char *argument, *value;
		bool used;
	} expected[CTL_EXPECTED_MAX];
	size_t n_expected;
	/* until when to wait for a process that is away; 0: there was none yet */
	uint64_t away_until_ns;
	/* the late process that a notice has named; NULL: there was no notice */
	const char *waits_for;
};

/* The value of --if for an argument, or NULL. argument: the pointer of the command line; the text
 * may have been cut at its '='. */
const char *ctl_take_expected(struct ctl *ctl, const char *argument);
/* 0 when each --if was used, else an exit status after a message: an unused one would have no
 * effect. */
int ctl_all_expected_taken(const struct ctl *ctl);

/* The arguments after the command's words. */
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
int ctl_tolerance(struct ctl *ctl, int argc, char **argv);
int ctl_top(struct ctl *ctl, int argc, char **argv);
int ctl_session_sleep(struct ctl *ctl, int argc, char **argv);
int ctl_session_wake(struct ctl *ctl, int argc, char **argv);
int ctl_drain(struct ctl *ctl, int argc, char **argv);

/* What a person may do when there is no service. */
#define CTL_NO_SERVICE "start a service with outrider up, or name its directory with --runtime-dir"

/* Prints "outriderctl: ..." to stderr; returns status. 0: it is a notice, not a failure. */
int ctl_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* From now on ctl_fail prints a line of JSON: {"error": ..., "status": ...}, or {"notice": ...}. */
void ctl_errors_as_json(void);

/* Prints that the process does not run, or that it alone is away; EX_UNAVAILABLE. */
int ctl_no_service(const struct ctl *ctl, const char *process);

/* Prints that the process accepted the connection but did not answer within timeout_ms;
 * EX_UNAVAILABLE. changes: the request was to change something, which may still happen. */
int ctl_no_answer(const char *process, int timeout_ms, bool changes);

/* Sends one request to one process; its reply must have the body `expected`. *reply is freed with
 * bus_free. -errno with *err; -ECONNREFUSED: no process listens. */
int ctl_ask(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, int timeout_ms, Outrider__Envelope **reply,
	struct error *err);
/* The same. While the process does not listen but others of the service do, it tries again, because
 * a process that died is started again; for some seconds, in all calls together. When there is no
 * answer after a second, a notice names the process. */
int ctl_ask_patiently(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, int timeout_ms, Outrider__Envelope **reply,
	struct error *err);
/* The same for a command: returns an exit status, after a message if it failed. */
int ctl_call(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, Outrider__Envelope **reply);

/* The same; the message of a refusal begins with what it is about, not with the process. */
int ctl_call_about(struct ctl *ctl, const char *process, const char *subject,
	Outrider__Envelope *request, Outrider__Envelope__BodyCase expected,
	Outrider__Envelope **reply);

/* Reads a number of decimal digits alone, up to max. */
bool ctl_number(const char *text, uint64_t max, uint64_t *number);
/* True when a text could name a session: a number, a name (proquint.h), or the beginning of a name.
 */
bool ctl_session_text(const char *text);
/* Prints that it could not; EX_USAGE. */
int ctl_session_bad(const char *text);
/* The session that a text names, among the sessions of the verifier and the policy-controller. A
 * number is taken as it is. Returns an exit status, after a message if it failed. */
int ctl_session(struct ctl *ctl, const char *text, uint64_t *session);
/* For a command whose first word may name a session (word NULL: it does not): that session, or
 * --session's, or 0. An exit status. */
int ctl_session_of(struct ctl *ctl, const char *word, uint64_t *session);

/* The last draft that was judged of a session, as JSON and as text: NULL, nothing is printed. */
json_t *ctl_tree_json(const Outrider__DraftTree *tree);
void ctl_print_tree(const Outrider__DraftTree *tree);

/* The content of a reply as JSON. */
json_t *ctl_sessions_json(const Outrider__Sessions *all);
json_t *ctl_cache_json(const Outrider__CacheStats *s);
json_t *ctl_cache_hot_json(const Outrider__CacheHot *hot);
/* The quality of hints, as a list and as lines (cache_hints.c). */
json_t *ctl_hints_json(Outrider__HintQuality *const *hints, size_t n);
void ctl_hints_text(Outrider__HintQuality *const *hints, size_t n);
/* sessions: the verifier's, which say whether each is live; NULL: not known, all count as live.
 * all: also the sessions that have ended. */
json_t *ctl_policy_json(
	const Outrider__PolicyState *state, const Outrider__Sessions *sessions, bool all);
/* Asks for the verifier's sessions; NULL when it does not answer. Freed with bus_free. */
Outrider__Envelope *ctl_ask_sessions(struct ctl *ctl);
/* True when the session is live. The policy-controller cannot tell, as it is not told of a
 * session's end. */
bool ctl_is_live(const Outrider__Sessions *sessions, uint64_t uid);
json_t *ctl_decision_json(const Outrider__PolicyDecision *d);
/* Prints and frees root. An exit status; if root is NULL because memory was exhausted, prints a
 * message instead. */
int ctl_print_json(json_t *root);
/* Bytes per second while there was something to copy; 0: not known. */
static inline double ctl_device_rate(uint64_t bytes, uint64_t busy_ns)
{
	return busy_ns > 0 ? (double)bytes * 1e9 / (double)busy_ns : 0;
}

/* How many prefetched experts were neither used nor evicted yet. The counters may be out of step,
 * as they are read one after the other. */
static inline uint64_t ctl_unused(uint64_t came, uint64_t used, uint64_t wasted)
{
	return came > used + wasted ? came - used - wasted : 0;
}
/* Such as "1.25", or "-" if it was not measured, for which the processes report 0. out has room for
 * `bytes`. */
const char *ctl_measured(double value, int digits, char *out, size_t bytes);
/* The same as JSON: a number, or null. */
json_t *ctl_measured_json(double value);
/* part of whole, such as "12.3%", or "-" when whole is 0. */
const char *ctl_share(double part, double whole, int digits, char *out, size_t bytes);
/* The same as JSON: 0.123, or null. */
json_t *ctl_share_json(double part, double whole);
/* Such as "2026-01-31 12:00:00", local time, from CLOCK_REALTIME. */
enum { CTL_WALL_BYTES = 32 };
const char *ctl_wall(uint64_t time_ns, char out[CTL_WALL_BYTES]);
/* Such as "K 3 -> 4", or for a trial "K 0 -> 3 for 1, then 0". */
enum { CTL_STEP_BYTES = 64 };
const char *ctl_step(const Outrider__PolicyDecision *d, char out[CTL_STEP_BYTES]);

static inline double ctl_mib(uint64_t bytes)
{
	return (double)bytes / 1048576;
}
