/*
 * outriderctl policy plot: K, ETR, cost and utility of a session over its iterations, from the policy-controller's journal: in
 * the terminal, or with gnuplot as an SVG or PNG file.
 */
#include "admin/ctl.h"

#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <errno.h>
#include <inttypes.h>
#include <langinfo.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { SERIES = 4, COLUMNS_MAX = 400, CURVE_ROWS = 6 };

static const char *const names[SERIES] = {
	"K", "tokens per iteration", "time / time at K = 0", "utility"};

/* One value per iteration and series; NAN: not measured. Prompt iterations are left out. */
struct curves {
	size_t n;
	double *value[SERIES];
	uint64_t session;
	double tokens, seconds;
};

static void curves_free(struct curves *curves)
{
	for (int i = 0; i < SERIES; i++)
		free(curves->value[i]);
}

static bool curves_make(struct curves *curves, const Outrider__PolicyRecords *records)
{
	*curves = (struct curves){0};
	for (int i = 0; i < SERIES; i++) {
		curves->value[i] = calloc(records->n_records + 1, sizeof(double));
		if (!curves->value[i]) {
			curves_free(curves);
			return false;
		}
	}
	for (size_t i = 0; i < records->n_records; i++) {
		const Outrider__PolicyRecord *r = records->records[i];

		if (r->emitted == 0 || r->prefill_tokens > 0)
			continue;
		curves->value[0][curves->n] = r->k;
		curves->value[1][curves->n] = r->emitted;
		curves->value[2][curves->n] =
			r->base_us > 0 ? r->iteration_us / (double)r->base_us : NAN;
		curves->value[3][curves->n] = r->utility > 0 ? (double)r->utility : NAN;
		curves->tokens += r->emitted;
		curves->seconds += r->iteration_us / 1e6;
		curves->n++;
	}
	return true;
}

/* The mean of the iterations that one column stands for. */
static double column_value(const double *values, size_t n, unsigned column, unsigned columns)
{
	size_t first = n * column / columns, last = n * (column + 1) / columns;
	double sum = 0;
	size_t counted = 0;

	for (size_t i = first; i < (last > first ? last : first + 1) && i < n; i++)
		if (!isnan(values[i])) {
			sum += values[i];
			counted++;
		}
	return counted ? sum / (double)counted : NAN;
}

/* Eighths of a character cell, from below. */
static void print_cell(double filled, bool utf8)
{
	static const char *const eighths[] = {" ", "\u2581", "\u2582", "\u2583", "\u2584", "\u2585",
		"\u2586", "\u2587", "\u2588"};
	int level = filled <= 0 ? 0 : filled >= 1 ? 8 : (int)(filled * 8);

	if (utf8)
		fputs(eighths[level], stdout);
	else
		putchar(" .:|#"[(level + 1) / 2]);
}

static void print_curve(const char *name, const double *values, size_t n, unsigned columns)
{
	bool utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
	double column[COLUMNS_MAX], most = 0;
	unsigned shown = n < columns ? (unsigned)n : columns;

	for (unsigned c = 0; c < shown; c++) {
		column[c] = column_value(values, n, c, shown);
		if (column[c] > most)
			most = column[c];
	}
	printf("%s\n", name);
	for (int row = CURVE_ROWS - 1; row >= 0; row--) {
		if (row == CURVE_ROWS - 1)
			printf("%8.2f |", most);
		else if (row == 0)
			printf("%8.2f |", 0.0);
		else
			printf("%8s |", "");
		for (unsigned c = 0; c < shown; c++) {
			double height =
				isnan(column[c]) || most <= 0 ? 0 : column[c] / most * CURVE_ROWS;
			print_cell(height - row, utf8);
		}
		putchar('\n');
	}
}

static unsigned terminal_columns(void)
{
	struct winsize size;
	unsigned columns = 80;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 30)
		columns = size.ws_col;
	columns -= 10;
	return columns < COLUMNS_MAX ? columns : COLUMNS_MAX;
}

static int plot_terminal(const struct curves *curves)
{
	printf("session %" PRIu64 ": %zu iterations, %.0f tokens, %.1f tokens/s in them\n",
		curves->session, curves->n, curves->tokens,
		curves->seconds > 0 ? curves->tokens / curves->seconds : 0);
	for (int i = 0; i < SERIES; i++)
		print_curve(names[i], curves->value[i], curves->n, terminal_columns());
	return EX_OK;
}

/* The name goes into a gnuplot string. */
static bool name_is_plain(const char *path)
{
	return !strpbrk(path, "'\"\\\n");
}

static int plot_file(const struct curves *curves, const char *path, const char *terminal)
{
	FILE *gnuplot;

	if (!name_is_plain(path))
		return ctl_fail(EX_USAGE, "the file's name must be without quotes: %.64s", path);
	/* A file that cannot be written is told apart from a missing gnuplot. */
	FILE *try = fopen(path, "ae");
	if (!try)
		return ctl_fail(EX_CANTCREAT, "%s: %s", path, strerror(errno));
	fclose(try);
	fflush(stdout);
	gnuplot = popen("gnuplot", "we");
	if (!gnuplot)
		return ctl_fail(EX_OSERR, "gnuplot cannot be started: %s", strerror(errno));
	fprintf(gnuplot,
		"set terminal %s size 900,900\nset output '%s'\n"
		"set multiplot layout %d,1 title 'session %" PRIu64 "'\n"
		"set xlabel 'iteration'\nset grid\nset yrange [0:*]\nunset key\n",
		terminal, path, SERIES, curves->session);
	for (int s = 0; s < SERIES; s++) {
		fprintf(gnuplot, "set ylabel '%s'\nplot '-' with steps linewidth 1.5\n", names[s]);
		for (size_t i = 0; i < curves->n; i++)
			if (!isnan(curves->value[s][i]))
				fprintf(gnuplot, "%zu %g\n", i, curves->value[s][i]);
		fputs("e\n", gnuplot);
	}
	fputs("unset multiplot\n", gnuplot);
	int status = pclose(gnuplot);
	if (status != 0)
		return ctl_fail(EX_UNAVAILABLE,
			"gnuplot failed; a file needs it (Debian package gnuplot-nox)");
	printf("%s\n", path);
	return EX_OK;
}

static int plot(const struct curves *curves, const char *path)
{
	const char *dot = path ? strrchr(path, '.') : NULL;

	if (!path)
		return plot_terminal(curves);
	if (dot && strcmp(dot, ".svg") == 0)
		return plot_file(curves, path, "svg background 'white'");
	if (dot && strcmp(dot, ".png") == 0)
		return plot_file(curves, path, "png");
	return ctl_fail(EX_USAGE, "%.200s: a picture is FILE.svg or FILE.png", path);
}

static json_t *record_json(const Outrider__PolicyRecord *r)
{
	char session[24];

	snprintf(session, sizeof session, "%" PRIu64, r->session_uid);
	return json_pack("{s:I,s:I,s:s,s:I,s:i,s:i,s:i,s:i,s:i,s:s,s:i,s:b,s:i,s:i,s:i,s:i,s:i,s:i,"
			 "s:I,s:i,s:i,s:i,s:i,s:f,s:f,s:f}",
		"number", (json_int_t)r->number, "time_ns", (json_int_t)r->time_ns, "session",
		session, "iteration", (json_int_t)r->iteration, "n_context", (int)r->n_context, "k",
		(int)r->k, "drafted", (int)r->drafted, "accepted", (int)r->accepted, "emitted",
		(int)r->emitted, "phase", r->phase, "k_next", (int)r->k_next, "k_fixed", r->k_fixed,
		"batch_sessions", (int)r->batch_sessions, "batch_tokens", (int)r->batch_tokens,
		"prefill_tokens", (int)r->prefill_tokens, "unique_experts", (int)r->unique_experts,
		"expert_hits", (int)r->expert_hits, "expert_misses", (int)r->expert_misses,
		"expert_bytes", (json_int_t)r->expert_bytes, "draft_us", (int)r->draft_us,
		"verify_us", (int)r->verify_us, "sample_us", (int)r->sample_us, "iteration_us",
		(int)r->iteration_us, "base_us", (double)r->base_us, "utility", (double)r->utility,
		"etr", (double)r->etr);
}

static int print_records(const Outrider__PolicyRecords *records)
{
	json_t *all = json_array();

	for (size_t i = 0; i < records->n_records; i++)
		json_array_append_new(all, record_json(records->records[i]));
	return ctl_print_json(json_pack("{s:s,s:I,s:o}", "journal", records->path, "lost",
		(json_int_t)records->lost, "records", all));
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

/* SESSION, or else the one with the newest entry. */
static int find_session(struct ctl *ctl, const char *text, uint64_t *session)
{
	Outrider__Envelope *reply;

	if (text)
		return ctl_session(text, session);
	int status = ask(ctl, 0, 1, &reply);
	if (status)
		return status;
	if (reply->policy_records->n_records)
		*session = reply->policy_records->records[0]->session_uid;
	bus_free(&reply);
	return 0;
}

int ctl_policy_plot(struct ctl *ctl, int argc, char **argv)
{
	const char *path = argc > 0 && strchr(argv[argc - 1], '.') ? argv[--argc] : NULL;
	Outrider__Envelope *reply;
	struct curves curves;
	uint64_t session = 0;

	if (argc > 1)
		return ctl_fail(EX_USAGE, "unexpected argument \"%.64s\"", argv[1]);
	int status = find_session(ctl, argc > 0 ? argv[0] : NULL, &session);
	if (status)
		return status;
	status = ask(ctl, session, 0, &reply);
	if (status)
		return status;
	const Outrider__PolicyRecords *records = reply->policy_records;
	if (ctl->json) {
		status = print_records(records);
	} else if (records->n_records == 0) {
		status = ctl_fail(EX_DATAERR, "%s",
			records->path[0] ? "the journal has nothing of this session"
					 : "no journal is kept (journal = 0 in policy.conf)");
	} else if (!curves_make(&curves, records)) {
		status = ctl_fail(EX_OSERR, "no memory");
	} else {
		curves.session = session;
		status = plot(&curves, path);
		curves_free(&curves);
	}
	bus_free(&reply);
	return status;
}
