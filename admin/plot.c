/* outriderctl policy plot: K, ETR, cost and utility of a session over its iterations, from the
 * policy-controller's journal. */
#include "admin/ctl.h"
#include "admin/plot.h"

#include "client/summary/look.h"
#include "shared/base/limits.h"
#include "shared/base/proquint.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

static void curves_free(struct curves *curves)
{
	for (int i = 0; i < PLOT_SERIES; i++)
		free(curves->value[i]);
}

/* Weight of the newest iteration in the means, as in the policy-controller. */
#define NEWEST_WEIGHT 0.125

/* Means of the last iterations, so that no single one flattens the curve; utility is computed from
 * them. */
struct means {
	double tokens, time, drafted;
	bool any;
};

/* Tokens and time of the same iterations: those with K > 0, for which alone there is a utility,
 * with what each cost, also when no draft came. NAN where the time is not known, and where no draft
 * has come lately. */
static double add_to_means(struct means *means, const Outrider__PolicyRecord *r, double time)
{
	double weight = means->any ? NEWEST_WEIGHT : 1;

	if (isnan(time))
		return NAN;
	means->tokens += weight * (r->emitted - means->tokens);
	means->time += weight * (time - means->time);
	means->drafted += weight * (r->drafted - means->drafted);
	means->any = true;
	return means->time > 0 && means->drafted >= LOOK_DRAFTED_LEAST ? means->tokens / means->time
								       : NAN;
}

/* The context limits the iterations of a session, so a larger number of missing ones is not
 * believed. */
static uint32_t missing_before(const Outrider__PolicyRecord *r)
{
	return r->missing < LIMIT_CONTEXT ? r->missing : LIMIT_CONTEXT;
}

/* For missing iterations the curves have a gap of that length. */
static void add_gap(struct curves *curves, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		for (int s = 0; s < PLOT_SERIES; s++)
			curves->value[s][curves->n] = NAN;
		curves->n++;
	}
	curves->missing += n;
}

static bool curves_make(struct curves *curves, const Outrider__PolicyRecords *records)
{
	struct means means = {.any = false};
	size_t most = records->n_records + 1;

	*curves = (struct curves){.session = records->records[0]->session_uid,
		.lost_behind = records->lost_behind,
		.whole = records->records[0]->prefill_tokens > 0};
	for (size_t i = 0; i < records->n_records; i++)
		most += missing_before(records->records[i]);
	for (int i = 0; i < PLOT_SERIES; i++) {
		curves->value[i] = calloc(most, sizeof(double));
		if (!curves->value[i]) {
			curves_free(curves);
			return false;
		}
	}
	for (size_t i = 0; i < records->n_records; i++) {
		const Outrider__PolicyRecord *r = records->records[i];

		add_gap(curves, missing_before(r));
		if (r->emitted == 0 || r->prefill_tokens > 0)
			continue;
		double time = r->base_us > 0 ? r->iteration_us / (double)r->base_us : NAN;
		curves->value[PLOT_K][curves->n] = r->k;
		curves->value[PLOT_TOKENS][curves->n] = r->emitted;
		curves->value[PLOT_TIME][curves->n] = time;
		/* Without a draft the ratio to the time at K = 0 is noise. */
		curves->value[PLOT_UTILITY][curves->n] =
			r->k > 0 ? add_to_means(&means, r, time) : NAN;
		curves->drafted |= r->drafted > 0;
		curves->tokens += r->emitted;
		curves->seconds += r->iteration_us / 1e6;
		curves->n++;
	}
	return true;
}

static int plot(const Outrider__PolicyRecords *records, const char *path)
{
	struct curves curves;
	int status;

	if (!curves_make(&curves, records))
		return ctl_fail(EX_OSERR, "no memory");
	if (curves.n == curves.missing)
		status = ctl_fail(EX_DATAERR, "session %s has had no iteration after its prompt",
			PROQUINT(curves.session));
	else
		status = path ? plot_file(&curves, path) : plot_terminal(&curves);
	curves_free(&curves);
	return status;
}

static json_t *record_json(const Outrider__PolicyRecord *r)
{
	return json_pack("{s:I,s:I,s:o,s:I,s:i,s:i,s:i,s:i,s:i,s:o,s:i,s:b,s:i,s:i,s:i,s:i,s:i,s:i,"
			 "s:I,s:i,s:i,s:i,s:i,s:o,s:o,s:o,s:i,s:i}",
		"number", (json_int_t)r->number, "time_ns", (json_int_t)r->time_ns, "session",
		json_sprintf("%" PRIu64, r->session_uid), "iteration", (json_int_t)r->iteration,
		"n_context", (int)r->n_context, "k", (int)r->k, "drafted", (int)r->drafted,
		"accepted", (int)r->accepted, "emitted", (int)r->emitted, "phase",
		json_text(r->phase), "k_next", (int)r->k_next, "k_fixed", r->k_fixed,
		"batch_sessions", (int)r->batch_sessions, "batch_tokens", (int)r->batch_tokens,
		"prefill_tokens", (int)r->prefill_tokens, "unique_experts", (int)r->unique_experts,
		"expert_hits", (int)r->expert_hits, "expert_misses", (int)r->expert_misses,
		"expert_bytes", (json_int_t)r->expert_bytes, "draft_us", (int)r->draft_us,
		"verify_us", (int)r->verify_us, "sample_us", (int)r->sample_us, "iteration_us",
		(int)r->iteration_us, "base_us", ctl_measured_json((double)r->base_us),
		"decided_utility", ctl_measured_json((double)r->utility), "etr",
		ctl_measured_json((double)r->etr), "foreseen", (int)r->foreseen, "foreseen_right",
		(int)r->foreseen_right);
}

static json_t *gap_json(const Outrider__PolicyRecord *before, const Outrider__PolicyRecord *r)
{
	return json_pack("{s:I,s:I,s:i,s:i}", "after", (json_int_t)before->iteration, "before",
		(json_int_t)r->iteration, "iterations", (int)r->missing, "tokens",
		(int)r->missing_tokens);
}

static int print_records(const Outrider__PolicyRecords *records)
{
	json_t *all = json_array(), *gaps = json_array();
	json_int_t missing = 0;

	for (size_t i = 0; i < records->n_records; i++) {
		const Outrider__PolicyRecord *r = records->records[i];

		json_array_append_new(all, record_json(r));
		if (i > 0 && r->missing > 0)
			json_array_append_new(gaps, gap_json(records->records[i - 1], r));
		missing += r->missing;
	}
	return ctl_print_json(json_pack("{s:o,s:I,s:I,s:I,s:I,s:o,s:o}", "journal",
		json_text(records->path), "lost", (json_int_t)records->lost, "records_lost",
		(json_int_t)records->records_lost, "missing", missing, "lost_behind",
		(json_int_t)records->lost_behind, "gaps", gaps, "records", all));
}

static int ask(struct ctl *ctl, uint64_t session, uint32_t max, Outrider__Envelope **reply)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__PolicyRecordsRequest body = OUTRIDER__POLICY_RECORDS_REQUEST__INIT;

	body.session_uid = session;
	body.max = max;
	request.body_case = OUTRIDER__ENVELOPE__BODY_POLICY_RECORDS_REQUEST;
	request.policy_records_request = &body;
	return ctl_call(ctl, PEER_POLICY, &request, OUTRIDER__ENVELOPE__BODY_POLICY_RECORDS, reply);
}

/* The named session, or else the one with the newest entry; 0: there is none. */
static int find_session(struct ctl *ctl, const char *text, uint64_t *session)
{
	Outrider__Envelope *reply;
	int status = ctl_session_of(ctl, text, session);

	if (status || *session)
		return status;
	status = ask(ctl, 0, 1, &reply);
	if (status)
		return status;
	*session = reply->policy_records->n_records ? reply->policy_records->records[0]->session_uid
						    : 0;
	bus_free(&reply);
	return 0;
}

static int show(const struct ctl *ctl, uint64_t session, const Outrider__PolicyRecords *records,
	const char *path)
{
	if (!records->path[0])
		return ctl_fail(EX_DATAERR, "no journal is kept (journal = 0 in policy.conf)");
	if (!session && records->lost > 0)
		return ctl_fail(EX_DATAERR,
			"%s is empty: %" PRIu64
			" iterations could not be written to it; outrider-policy's log says why",
			records->path, records->lost);
	if (!session)
		return ctl_fail(
			EX_DATAERR, "%s: no session has had an iteration yet", records->path);
	if (records->n_records == 0 && records->records_lost > 0)
		return ctl_fail(EX_DATAERR,
			"session %" PRIu64 " (%s): %s has no entry about it (outriderctl sessions "
			"lists sessions); %" PRIu64
			" iterations of all sessions were lost because the ring of records was "
			"full",
			session, PROQUINT(session), records->path, records->records_lost);
	if (records->n_records == 0)
		return ctl_fail(EX_DATAERR,
			"session %" PRIu64
			" (%s): %s has no entry about it (outriderctl sessions lists sessions)",
			session, PROQUINT(session), records->path);
	return ctl->json ? print_records(records) : plot(records, path);
}

/* [SESSION] [FILE]: one word is a file when it has a dot. */
int ctl_policy_plot(struct ctl *ctl, int argc, char **argv)
{
	bool has_path = argc > 1 || (argc == 1 && strchr(argv[0], '.'));
	const char *path = has_path ? argv[--argc] : NULL;
	Outrider__Envelope *reply;
	uint64_t session = 0;

	if (argc > 1)
		return ctl_fail(EX_USAGE, "unexpected argument \"%.64s\"", argv[1]);
	if (path && !plot_format(path))
		return ctl_fail(
			EX_USAGE, "%.200s: the name of a picture must end in .svg or .png", path);
	if (path && ctl->json)
		return ctl_fail(EX_USAGE, "%.200s: a picture and --json exclude each other", path);
	int status = find_session(ctl, argc > 0 ? argv[0] : NULL, &session);
	if (status == 0)
		status = ask(ctl, session, 0, &reply);
	if (status)
		return status;
	status = show(ctl, session, reply->policy_records, path);
	bus_free(&reply);
	return status;
}
