/*
 * outriderctl trace: what all processes did during a few seconds, on one clock, as a JSON file that
 * Perfetto (ui.perfetto.dev) and chrome://tracing open. Format: "Trace Event Format", Google,
 * complete ("X"), instant ("i") and metadata ("M") events; times in microseconds.
 */
#include "admin/ctl.h"
#include "admin/interrupt.h"

#include "shared/base/clock.h"
#include "shared/base/new_file.h"
#include "shared/base/timeline.h"
#include "shared/base/units.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>

enum { PROCESSES_MAX = 8, LANES_MAX = 256 };
/* The ring of a busy process holds some seconds. */
#define POLL_NS 200000000ull
/* Longer than the gap between two polls, so that nothing is missed; short, so that tracing does not
 * stay on. */
#define ON_NS 3000000000ull
/* Length of a picture: the default in --help, and its bounds. */
#define LENGTH_NS 2000000000ull
#define LENGTH_NS_MIN 1000000ull
#define LENGTH_NS_MAX 60000000000ull

struct source {
	const char *process; /* PEER_... */
	bool there;
	uint32_t pid;
	uint64_t next, spans, lost;
	bool named[LANES_MAX]; /* lanes that have a name in the file */
};

struct picture {
	FILE *file;
	struct source sources[PROCESSES_MAX];
	size_t n_sources;
	uint64_t begin_ns, end_ns; /* spans outside of this interval are dropped */
	bool any; /* events so far */
};

static void event_begin(struct picture *picture)
{
	fputs(picture->any ? ",\n" : "\n", picture->file);
	picture->any = true;
}

static void name_process(struct picture *picture, const struct source *source)
{
	event_begin(picture);
	fprintf(picture->file,
		"{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}}",
		source->pid, source->process);
}

static void name_lane(struct picture *picture, struct source *source, uint32_t lane)
{
	const char *what = lane >= TIMELINE_DEVICE_LANE			 ? "device"
			   : strcmp(source->process, PEER_VERIFIER) == 0 ? "passes"
			   : strcmp(source->process, PEER_DRAFTER) == 0	 ? "drafts"
			   : strcmp(source->process, PEER_CACHE) == 0	 ? "link"
									 : "decisions";
	if (lane >= LANES_MAX || source->named[lane])
		return;
	source->named[lane] = true;
	event_begin(picture);
	fprintf(picture->file,
		"{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_name\",\"args\":{\"name\":"
		"\"%s %u\"}}",
		source->pid, lane, what, lane);
}

static void draw_span(
	struct picture *picture, struct source *source, const Outrider__TraceSpan *span)
{
	const struct timeline_info *info = timeline_info(span->kind);
	const uint64_t value[2] = {span->value0, span->value1};

	/* A newer process may have kinds that this program does not know. */
	if (!info || span->start_ns > picture->end_ns ||
		span->start_ns + span->length_ns < picture->begin_ns)
		return;
	name_lane(picture, source, span->lane);
	event_begin(picture);
	fprintf(picture->file, "{\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,", info->name,
		source->pid, span->lane, (double)span->start_ns / 1e3);
	if (span->kind == TIMELINE_DECISION)
		fputs("\"ph\":\"i\",\"s\":\"p\",", picture->file);
	else
		fprintf(picture->file, "\"ph\":\"X\",\"dur\":%.3f,", (double)span->length_ns / 1e3);
	fputs("\"args\":{", picture->file);
	const char *comma = "";
	for (int i = 0; i < 2; i++) {
		if (!info->value[i])
			continue;
		fprintf(picture->file, "%s\"%s\":%" PRIu64, comma, info->value[i], value[i]);
		comma = ",";
	}
	/* As text, because a number in JSON is exact only up to 53 bits. */
	if (span->session)
		fprintf(picture->file, "%s\"session\":\"%" PRIu64 "\"", comma, span->session);
	fputs("}}", picture->file);
	source->spans++;
}

/* Reads one reply of a process; *more: ask again at once. */
static int collect_once(struct ctl *ctl, struct picture *picture, struct source *source, bool *more)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__TraceRequest body = OUTRIDER__TRACE_REQUEST__INIT;
	struct error err = {""};

	uint64_t now_ns = clock_ns();
	body.on_ns = now_ns < picture->end_ns ? ON_NS : 0;
	/* At first: from the present on, whatever an earlier trace has left. */
	body.next = source->there ? source->next : UINT64_MAX;
	request.body_case = OUTRIDER__ENVELOPE__BODY_TRACE_REQUEST;
	request.trace_request = &body;
	int code = ctl_ask(
		ctl, source->process, &request, OUTRIDER__ENVELOPE__BODY_TRACE, 1000, &reply, &err);
	*more = false;
	if (code < 0)
		return code;
	const Outrider__Trace *trace = reply->trace;
	if (!source->there || source->pid != trace->pid) {
		/* The first reply, or a successor's, whose spans count from 0 again. */
		*more = source->there;
		source->next = source->there ? 0 : trace->next;
		source->there = true;
		source->pid = trace->pid;
		memset(source->named, 0, sizeof(source->named));
		name_process(picture, source);
	} else {
		for (size_t i = 0; i < trace->n_spans; i++)
			draw_span(picture, source, trace->spans[i]);
		source->next = trace->next;
		source->lost += trace->lost;
		*more = trace->more;
	}
	bus_free(&reply);
	return 0;
}

static void collect(struct ctl *ctl, struct picture *picture)
{
	for (size_t i = 0; i < picture->n_sources; i++) {
		bool more = true;
		while (more && collect_once(ctl, picture, &picture->sources[i], &more) == 0)
			;
	}
}

static void sleep_until(uint64_t until_ns)
{
	uint64_t now_ns = clock_ns(), left = until_ns > now_ns ? until_ns - now_ns : 0;
	struct timespec time = {
		.tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000)};
	nanosleep(&time, NULL);
}

static int take_length(const char *text, uint64_t *ns)
{
	if (units_read_time(text, ns) < 0 || *ns < LENGTH_NS_MIN || *ns > LENGTH_NS_MAX)
		return ctl_fail(EX_USAGE,
			"trace [TIME] [FILE]: TIME \"%.64s\": allowed are times from 1ms to 1m, "
			"such as 500ms or 5s; a number without a unit is seconds",
			text);
	return 0;
}

static int summary(const struct ctl *ctl, const struct picture *picture, const char *path)
{
	json_t *all = json_object();
	uint64_t spans = 0;

	for (size_t i = 0; i < picture->n_sources; i++) {
		const struct source *s = &picture->sources[i];

		spans += s->spans;
		if (ctl->json)
			json_object_set_new(all, s->process,
				json_pack("{s:b,s:I,s:I}", "there", s->there, "spans",
					(json_int_t)s->spans, "lost", (json_int_t)s->lost));
		else if (!s->there)
			printf("%-14s does not answer\n", s->process);
		else
			printf("%-14s %" PRIu64 " span%s, %" PRIu64 " lost\n", s->process, s->spans,
				plural(s->spans), s->lost);
	}
	if (ctl->json) {
		json_object_set_new(all, "file", json_text(path));
		ctl_print_json(all);
	} else {
		json_decref(all);
		if (spans == 0)
			printf("%s is empty: the service did nothing meanwhile; trace again while "
			       "it answers a request\n",
				path);
		else
			printf("%s: open it at ui.perfetto.dev or chrome://tracing\n", path);
	}
	return EX_OK;
}

static bool any_there(const struct picture *picture)
{
	bool any = false;

	for (size_t i = 0; i < picture->n_sources; i++)
		any |= picture->sources[i].there;
	return any;
}

/* -ECONNREFUSED at once if no process answers. */
static int record(struct ctl *ctl, struct picture *picture, uint64_t length_ns, struct error *err)
{
	picture->begin_ns = clock_ns();
	picture->end_ns = picture->begin_ns + length_ns;
	fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", picture->file);
	collect(ctl, picture);
	if (!any_there(picture))
		return error_set(err, ECONNREFUSED, "no process answers in %s; " CTL_NO_SERVICE,
			ctl->runtime_dir);
	for (uint64_t now_ns = clock_ns(); now_ns < picture->end_ns; now_ns = clock_ns()) {
		sleep_until(
			now_ns + POLL_NS < picture->end_ns ? now_ns + POLL_NS : picture->end_ns);
		/* Ctrl-C and other signals end the picture early; the file is complete all the
		 * same. */
		if (interrupted())
			picture->end_ns = clock_ns();
		collect(ctl, picture);
	}
	fputs("\n]}\n", picture->file);
	return ferror(picture->file) ? error_set(err, EIO, "the trace cannot be written") : 0;
}

int ctl_trace(struct ctl *ctl, int argc, char **argv)
{
	static struct picture picture;
	const char *path = argc > 1 ? argv[1] : "outrider-trace.json";
	struct new_file file;
	struct error err = {""};
	uint64_t length_ns = LENGTH_NS;
	int code;

	if (argc > 2)
		return ctl_fail(EX_USAGE, "unexpected argument \"%.64s\"", argv[2]);
	code = argc > 0 ? take_length(argv[0], &length_ns) : 0;
	if (code != 0)
		return code;
	interrupt_watch(false);
	code = new_file_open(&file, path, true, 0, &err);
	if (code < 0) {
		new_file_close(&file, code, NULL);
		return ctl_fail(EX_CANTCREAT, "%s", err.text);
	}
	picture.file = file.file;
	for (; peers_all[picture.n_sources]; picture.n_sources++)
		picture.sources[picture.n_sources].process = peers_all[picture.n_sources];
	code = record(ctl, &picture, length_ns, &err);
	code = new_file_close(&file, code, &err);
	if (code < 0)
		return ctl_fail(error_exit_status(code), "%s", err.text);
	return summary(ctl, &picture, path);
}
