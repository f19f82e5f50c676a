/* outriderctl knob set, reset; cache set, and the parts that policy set shares with them. A batch
 * over several processes is reserved in each of them before any applies it, and applied in each
 * before any commits. */
#include "admin/knob.h"

#include "shared/base/clock.h"
#include "shared/base/proquint.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/daemon_knobs.h"
#include "shared/ipc/peers.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sysexits.h>
#include <time.h>

enum { TIMEOUT_MS = KNOBS_STEP_NS / 1000000, RELEASE_MS = 1000, AGAIN_MS = 50 };
/* A second batch waits for the first, whose reservation expires if its program ended in the middle.
 */
#define BUSY_NS (KNOBS_RESERVED_NS + UINT64_C(3000000000))
static_assert(KNOBS_RESERVED_NS > (KNOB_PROCESSES - 1) * KNOBS_STEP_NS,
	"a reservation must last while every other process is asked once");

/* The request to one process. */
struct part {
	const struct knob_process *process;
	Outrider__KnobSet set;
	Outrider__KnobChange changes[KNOB_WISHES_MAX], *list[KNOB_WISHES_MAX];
	Outrider__Envelope *done; /* NULL: not done */
};

struct batch {
	struct part parts[KNOB_PROCESSES];
	size_t n;
};

static int make_batch(struct ctl *ctl, const struct knob_wishes *wishes, struct batch *batch)
{
	static char program[] = "outriderctl";

	memset(batch, 0, sizeof *batch);
	for (size_t p = 0; p < KNOB_PROCESSES; p++) {
		struct part *part = &batch->parts[batch->n];

		outrider__knob_set__init(&part->set);
		part->process = &knob_processes[p];
		part->set.changes = part->list;
		part->set.reset = wishes->reset;
		part->set.for_ns = ctl->for_ns;
		part->set.persist = ctl->persist;
		part->set.at_start = ctl->next_start;
		part->set.session_uid = ctl->session;
		part->set.program = program;
		for (size_t i = 0; i < wishes->n; i++) {
			const struct knob_wish *wish = &wishes->of[i];
			Outrider__KnobChange *change = &part->changes[part->set.n_changes];

			if (wish->knob.process != part->process)
				continue;
			outrider__knob_change__init(change);
			change->name = (char *)wish->knob.name;
			change->value = (char *)(wish->value ? wish->value : "");
			change->has_expected = wish->expected != NULL;
			change->expected = (char *)(wish->expected ? wish->expected : "");
			part->list[part->set.n_changes++] = change;
		}
		batch->n += part->set.n_changes > 0;
	}
	return batch->n > 0 ? 0 : ctl_fail(EX_USAGE, "no knob was named");
}

/* One step with one process. Returns an exit status; also 0 when the reply says that another batch
 * has the knobs reserved. */
static int ask(struct ctl *ctl, struct part *part, Outrider__KnobSet__Step step,
	Outrider__Envelope **reply)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	struct error err = {""};
	int code;

	part->set.step = step;
	request.body_case = OUTRIDER__ENVELOPE__BODY_KNOB_SET;
	request.knob_set = &part->set;
	code = ctl_ask_patiently(ctl, part->process->name, &request,
		OUTRIDER__ENVELOPE__BODY_KNOB_DONE, TIMEOUT_MS, reply, &err);
	if (code == -EREMOTEIO)
		return ctl_fail(EX_DATAERR, "%s", err.text);
	if (code == -ECONNREFUSED)
		return ctl_no_service(ctl, part->process->name);
	if (code == -ETIMEDOUT)
		/* A change that is only applied by then is taken back. */
		return ctl_no_answer(part->process->name, TIMEOUT_MS,
			step == OUTRIDER__KNOB_SET__STEP__NOW ||
				step == OUTRIDER__KNOB_SET__STEP__COMMIT);
	if (code < 0)
		return ctl_fail(EX_UNAVAILABLE, "%s: %s", part->process->name, err.text);
	return 0;
}

/* A process that does not get this message takes the change back on its own, a little later. */
static void release(struct ctl *ctl, struct batch *batch, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++) {
		Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
		Outrider__KnobSet set = OUTRIDER__KNOB_SET__INIT;

		set.step = OUTRIDER__KNOB_SET__STEP__RELEASE;
		set.reservation = batch->parts[i].set.reservation;
		request.body_case = OUTRIDER__ENVELOPE__BODY_KNOB_SET;
		request.knob_set = &set;
		if (ctl_ask(ctl, batch->parts[i].process->name, &request,
			    OUTRIDER__ENVELOPE__BODY_KNOB_DONE, RELEASE_MS, &reply, NULL) == 0)
			bus_free(&reply);
	}
}

/* One step with each process; *n of them have done it. Keeps the replies of the last step. Returns
 * an exit status. While another batch has the knobs of one process reserved, the reservations
 * before it are released, because they would expire or stand in the other's way; then all processes
 * are asked again. */
static int all_take(struct ctl *ctl, struct batch *batch, Outrider__KnobSet__Step step, size_t *n)
{
	const struct timespec pause = {.tv_nsec = AGAIN_MS * 1000000};
	const bool begins =
		step == OUTRIDER__KNOB_SET__STEP__NOW || step == OUTRIDER__KNOB_SET__STEP__RESERVE;
	const uint64_t end_ns = clock_ns() + BUSY_NS;

	for (*n = 0; *n < batch->n;) {
		struct part *part = &batch->parts[*n];

		bus_free(&part->done);
		int status = ask(ctl, part, step, &part->done);
		if (status)
			return status;
		if (!part->done->knob_done->busy) {
			++*n;
			continue;
		}
		/* For a batch that has begun: its own reservation has expired. */
		if (!begins || clock_ns() >= end_ns)
			return ctl_fail(EX_TEMPFAIL, "%s", part->done->knob_done->message);
		release(ctl, batch, 0, *n);
		*n = 0;
		nanosleep(&pause, NULL);
	}
	return 0;
}

/* "verifier, drafter" */
static void name_parts(const struct batch *batch, size_t n, char *out, size_t bytes)
{
	size_t used = 0;

	out[0] = '\0';
	for (size_t i = 0; i < n && used < bytes; i++)
		used += (size_t)snprintf(out + used, bytes - used, "%s%s", i ? ", " : "",
			batch->parts[i].process->name);
}

/* Three steps: every process checks its part, and accepts no other change, before the first applies
 * its part; all apply their parts before the first commits. Until then all of it can be taken back
 * without a trace. */
static int make_all(struct ctl *ctl, struct batch *batch)
{
	uint64_t id = 0;
	size_t reserved, applied, committed = 0;
	char names[64];

	while (id == 0)
		if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id)
			id = clock_ns();
	for (size_t i = 0; i < batch->n; i++)
		batch->parts[i].set.reservation = id;
	int status = all_take(ctl, batch, OUTRIDER__KNOB_SET__STEP__RESERVE, &reserved);
	if (status == 0)
		status = all_take(ctl, batch, OUTRIDER__KNOB_SET__STEP__APPLY, &applied);
	if (status == 0)
		status = all_take(ctl, batch, OUTRIDER__KNOB_SET__STEP__COMMIT, &committed);
	if (status == 0)
		return 0;
	release(ctl, batch, committed, reserved);
	if (committed > 0) {
		name_parts(batch, committed, names, sizeof names);
		ctl_fail(status,
			"%s had already committed its changes: outriderctl knob history shows them",
			names);
	}
	return status;
}

static json_t *result_json(
	const struct ctl *ctl, const struct part *part, const Outrider__KnobResult *r)
{
	return json_pack("{s:s,s:o,s:o,s:o,s:o,s:b,s:b,s:o,s:f,s:o,s:o,s:o}", "process",
		part->process->name, "name", json_text(r->name), "session",
		ctl->session ? json_sprintf("%" PRIu64, ctl->session) : json_null(), "old",
		json_text(r->old_value), "new", json_text(r->new_value), "at_start", r->at_start,
		"lasting", !part->set.reset && (ctl->persist || ctl->next_start), "drop_in",
		json_text(part->done->knob_done->drop_in), "for_s", (double)ctl->for_ns / 1e9,
		"note", json_text(r->note), "removed",
		r->has_removed ? json_text(r->removed) : json_null(), "no_longer_back_to",
		r->has_stays_for ? json_text(r->stays_for) : json_null());
}

static void print_result(
	const struct ctl *ctl, const struct part *part, const Outrider__KnobResult *r)
{
	const char *old_value = *r->old_value ? r->old_value : "(empty)";
	const char *new_value = *r->new_value ? r->new_value : "(empty)";
	bool same = strcmp(old_value, new_value) == 0;
	char period[CONFIG_TIME_BYTES];

	printf("%s.%s: ", part->process->name, r->name);
	if (same)
		printf("%s, as before", new_value);
	else if (r->at_start)
		printf("%s until outrider-%s restarts, then %s", old_value, part->process->name,
			new_value);
	else
		printf("%s -> %s", old_value, new_value);
	if (!r->at_start && ctl->persist)
		printf(", now and from the next start on");
	else if (!r->at_start && ctl->for_ns)
		printf(", for %s", config_time(ctl->for_ns, period, sizeof period));
	if (ctl->session)
		printf(", for session %s only", PROQUINT(ctl->session));
	if (*part->done->knob_done->drop_in)
		printf("; %s %s", part->set.reset ? "removed from" : "stored in",
			part->done->knob_done->drop_in);
	if (r->has_removed)
		printf(", where it was %s", *r->removed ? r->removed : "(empty)");
	if (r->has_stays_for)
		printf("; it no longer goes back to %s", *r->stays_for ? r->stays_for : "(empty)");
	if (*r->note)
		printf(" (%s)", r->note);
	putchar('\n');
}

static int print_batch(const struct ctl *ctl, const struct batch *batch)
{
	json_t *all = ctl->json ? json_array() : NULL;

	for (size_t p = 0; p < batch->n; p++) {
		const Outrider__KnobDone *done = batch->parts[p].done->knob_done;

		for (size_t i = 0; i < done->n_results; i++) {
			if (all)
				json_array_append_new(
					all, result_json(ctl, &batch->parts[p], done->results[i]));
			else
				print_result(ctl, &batch->parts[p], done->results[i]);
		}
	}
	return all ? ctl_print_json(json_pack("{s:o}", "changes", all)) : 0;
}

int knob_make(struct ctl *ctl, struct knob_wishes *wishes)
{
	static struct batch batch;
	size_t made;
	int status = ctl_all_expected_taken(ctl);

	if (status)
		return status;
	status = make_batch(ctl, wishes, &batch);
	if (status == 0 && batch.n == 1)
		status = all_take(ctl, &batch, OUTRIDER__KNOB_SET__STEP__NOW, &made);
	else if (status == 0)
		status = make_all(ctl, &batch);
	if (status == 0)
		status = print_batch(ctl, &batch);
	for (size_t p = 0; p < batch.n; p++)
		bus_free(&batch.parts[p].done);
	return status;
}

int knob_add_wish(struct ctl *ctl, const char *command, const char *argument, const char *name,
	const char *value, const struct knob_process *in, struct knob_wishes *wishes)
{
	struct knob_wish *wish = &wishes->of[wishes->n];

	if (wishes->n == KNOB_WISHES_MAX)
		return ctl_fail(EX_USAGE, "%s: at most %d knobs", command, KNOB_WISHES_MAX);
	wish->value = value;
	wish->expected = ctl_take_expected(ctl, argument);
	wishes->n++;
	return knob_resolve(name, in, &wish->knob);
}

int knob_add_assignment(struct ctl *ctl, const char *command, char *argument,
	const struct knob_process *in, struct knob_wishes *wishes)
{
	char *equals = strchr(argument, '=');

	if (!equals)
		return ctl_fail(EX_USAGE, "%s: \"%.64s\": expected KNOB=VALUE", command, argument);
	*equals = '\0';
	return knob_add_wish(ctl, command, argument, argument, equals + 1, in, wishes);
}

/* The device's memory is shared by the verifier and the expert-cache, and one of them has its
 * settings. */
static const struct knob_process *owner(const char *argument, const struct knob_process *in)
{
	static const char *const shared[] = {"device_memory=", "device_kv="};

	for (size_t i = 0; in && i < sizeof shared / sizeof shared[0]; i++)
		if (strncmp(argument, shared[i], strlen(shared[i])) == 0)
			return knob_process_of(PEER_VERIFIER);
	return in;
}

static int set(
	struct ctl *ctl, const char *command, int argc, char **argv, const struct knob_process *in)
{
	static struct knob_wishes wishes;
	int status = argc > 0 ? 0 : ctl_fail(EX_USAGE, "%s: expected KNOB=VALUE", command);

	for (int i = 0; status == 0 && i < argc; i++)
		status = knob_add_assignment(ctl, command, argv[i], owner(argv[i], in), &wishes);
	return status ? status : knob_make(ctl, &wishes);
}

int ctl_knob_set(struct ctl *ctl, int argc, char **argv)
{
	return set(ctl, "knob set", argc, argv, NULL);
}

int ctl_cache_set(struct ctl *ctl, int argc, char **argv)
{
	return set(ctl, "cache set", argc, argv, knob_process_of(PEER_CACHE));
}

int ctl_knob_reset(struct ctl *ctl, int argc, char **argv)
{
	static struct knob_wishes wishes = {.reset = true};
	int status = argc > 0 ? 0 : ctl_fail(EX_USAGE, "knob reset: expected a knob");

	for (int i = 0; status == 0 && i < argc; i++)
		status = knob_add_wish(ctl, "knob reset", argv[i], argv[i], NULL, NULL, &wishes);
	return status ? status : knob_make(ctl, &wishes);
}
