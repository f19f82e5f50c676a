/* outriderctl tolerance: whether drafts can pay, by size of the batch and length of the drafts, from
 * what the policy-controller has seen passes cost. */
#include "admin/ctl.h"
#include "admin/plot.h"
#include "admin/table.h"

#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { BAR_COLUMNS = 20, GAMMA_SHOWN = 7 /* in the terminal; longer ones if they were seen */ };

static const char *const heads[] = {"BATCH", "GAMMA", "PASS MS", "TAU", "0 TAU, 1/LAMBDA 1",
	"LAMBDA", "DELTA", "EXPECTED", "MEASURED", "ERROR", "CONTEXT", "PASSES", NULL};

/* The relative error of the expected speed-up; NAN: none was measured. */
static double error_of(const Outrider__TolerancePoint *p)
{
	return p->measured > 0 && p->predicted > 0 ? p->predicted / p->measured - 1 : NAN;
}

/* tau as a bar, and a mark at 1 / lambda: where the bar passes the mark, drafts that cost no wait
 * pay. */
static void bar_of(const Outrider__TolerancePoint *p, char out[BAR_COLUMNS + 1])
{
	int end = (int)lround(fmin(p->tau, 1) * BAR_COLUMNS);

	for (int i = 0; i < BAR_COLUMNS; i++)
		out[i] = i < end ? '=' : ' ';
	out[BAR_COLUMNS] = '\0';
	if (p->emitted >= 1 && p->gamma > 0) {
		int mark = (int)lround(BAR_COLUMNS / p->emitted);

		out[mark < BAR_COLUMNS ? mark : BAR_COLUMNS - 1] = '|';
	}
}

static void add_row(struct table *table, const Outrider__TolerancePoint *p)
{
	char bar[BAR_COLUMNS + 1], text[32];
	double error = error_of(p);

	bar_of(p, bar);
	table_add(table, "%u", p->sessions);
	table_add(table, "%u", p->gamma);
	table_add(table, "%.3f", p->pass_ms);
	table_add(table, "%.3f", p->tau);
	table_add(table, "%s", bar);
	table_add(table, "%s", ctl_measured(p->emitted, 2, text, sizeof text));
	table_add(table, "%s", ctl_measured(p->delta, 3, text, sizeof text));
	table_add(table, "%s", ctl_measured(p->predicted, 3, text, sizeof text));
	table_add(table, "%s", ctl_measured(p->measured, 3, text, sizeof text));
	if (isnan(error))
		table_add(table, "-");
	else
		table_add(table, "%+.1f%%", 100 * error);
	table_add(table, "%s", ctl_measured(p->context, 0, text, sizeof text));
	table_add(table, "%.0f", p->passes);
}

static bool is_shown(const Outrider__TolerancePoint *p)
{
	return p->gamma <= GAMMA_SHOWN || p->passes > 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The median of the errors' sizes; NAN: nothing was measured. */
static double median_error(const Outrider__Tolerance *t, size_t *n)
{
	double *errors = calloc(t->n_points + 1, sizeof *errors), middle = NAN;

	*n = 0;
	for (size_t i = 0; errors && i < t->n_points; i++)
		if (!isnan(error_of(t->points[i])))
			errors[(*n)++] = fabs(error_of(t->points[i]));
	if (*n > 0) {
		qsort(errors, *n, sizeof *errors, compare);
		middle = (errors[(*n - 1) / 2] + errors[*n / 2]) / 2;
	}
	free(errors);
	return middle;
}

static int print_table(const Outrider__Tolerance *t)
{
	struct table table;
	size_t n;

	table_init(&table, heads);
	for (size_t i = 0; i < t->n_points; i++)
		if (is_shown(t->points[i]))
			add_row(&table, t->points[i]);
	if (table.failed) {
		table_exit(&table);
		return ctl_fail(EX_OSERR, "no memory");
	}
	for (size_t i = 0, row = 0; i < t->n_points; i++) {
		if (t->points[i]->gamma == 0 && i > 0)
			putchar('\n');
		if (t->points[i]->gamma == 0)
			table_print_heads(&table);
		if (is_shown(t->points[i]))
			table_print_row(&table, row++);
	}
	table_exit(&table);
	double middle = median_error(t, &n);
	if (n > 0)
		printf("\nThe expected speed-up is off by %.1f%% in the median of %zu.\n",
			100 * middle, n);
	return EX_OK;
}

static json_t *point_json(const Outrider__TolerancePoint *p)
{
	double error = error_of(p);

	return json_pack("{s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "sessions",
		(int)p->sessions, "gamma", (int)p->gamma, "pass_ms", p->pass_ms, "tau", p->tau,
		"evidence", p->evidence, "passes", p->passes, "drafted", p->drafted, "lambda",
		ctl_measured_json(p->emitted), "needed_tau",
		ctl_measured_json(p->emitted > 0 ? 1 / p->emitted : 0), "delta",
		ctl_measured_json(p->delta), "expected", ctl_measured_json(p->predicted),
		"measured", ctl_measured_json(p->measured), "error",
		isnan(error) ? json_null() : json_real(error), "context",
		ctl_measured_json(p->context));
}

static int print_json(const Outrider__Tolerance *t)
{
	json_t *points = json_array();
	size_t n;
	double middle = median_error(t, &n);

	for (size_t i = 0; i < t->n_points; i++)
		json_array_append_new(points, point_json(t->points[i]));
	return ctl_print_json(json_pack("{s:o,s:o,s:i}", "points", points, "median_error",
		n > 0 ? json_real(middle) : json_null(), "measured", (int)n));
}

/* ---- As a picture. ---- */

static void write_curve(FILE *gnuplot, const Outrider__Tolerance *t, uint32_t sessions, bool needed)
{
	for (size_t i = 0; i < t->n_points; i++) {
		const Outrider__TolerancePoint *p = t->points[i];

		if (p->sessions == sessions && !needed)
			fprintf(gnuplot, "%u %g\n", p->gamma, p->tau);
		else if (p->sessions == sessions && p->gamma > 0 && p->emitted > 0)
			fprintf(gnuplot, "%u %g\n", p->gamma, 1 / p->emitted);
	}
	if (needed)
		fputs("NaN NaN\n", gnuplot); /* gnuplot wants a line */
	fputs("e\n", gnuplot);
}

/* Each size of the batch has a curve of tau, and points of 1 / lambda in its colour. */
static void write_picture(FILE *gnuplot, const void *arg)
{
	const Outrider__Tolerance *t = arg;
	int colour = 0;

	fputs("set xlabel 'gamma, drafted tokens of each session'\nset grid\n"
	      "set ylabel 'tau(gamma + 1)'\nset yrange [0:1.05]\nset key outside\nplot ",
		gnuplot);
	for (size_t i = 0; i < t->n_points; i++)
		if (t->points[i]->gamma == 0)
			fprintf(gnuplot,
				"%s'-' with lines lw 2 lt %d title 'tau, batch %u', '-' with "
				"points "
				"pt 7 lt %d title '1 / lambda, batch %u'",
				i > 0 ? ", " : "", colour + 1, t->points[i]->sessions, colour + 1,
				t->points[i]->sessions),
				colour++;
	fputc('\n', gnuplot);
	for (size_t i = 0; i < t->n_points; i++)
		if (t->points[i]->gamma == 0) {
			write_curve(gnuplot, t, t->points[i]->sessions, false);
			write_curve(gnuplot, t, t->points[i]->sessions, true);
		}
}

/* [FILE.svg|FILE.png] */
int ctl_tolerance(struct ctl *ctl, int argc, char **argv)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__ToleranceRequest body = OUTRIDER__TOLERANCE_REQUEST__INIT;
	const char *path = argc > 0 ? argv[0] : NULL;

	if (argc > 1)
		return ctl_fail(EX_USAGE, "unexpected argument \"%.64s\"", argv[1]);
	if (path && !plot_format(path))
		return ctl_fail(
			EX_USAGE, "%.200s: the name of a picture must end in .svg or .png", path);
	if (path && ctl->json)
		return ctl_fail(EX_USAGE, "%.200s: a picture and --json exclude each other", path);
	request.body_case = OUTRIDER__ENVELOPE__BODY_TOLERANCE_REQUEST;
	request.tolerance_request = &body;
	int status =
		ctl_call(ctl, PEER_POLICY, &request, OUTRIDER__ENVELOPE__BODY_TOLERANCE, &reply);
	if (status)
		return status;
	if (ctl->json)
		status = print_json(reply->tolerance);
	else if (reply->tolerance->n_points == 0)
		status = ctl_fail(EX_DATAERR, "no session has had an iteration yet");
	else if (path)
		status = plot_picture(path, 900, 500, write_picture, reply->tolerance);
	else
		status = print_table(reply->tolerance);
	bus_free(&reply);
	return status;
}
