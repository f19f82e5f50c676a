/* Curves in the terminal, and with gnuplot as a picture. */
#include "admin/ctl.h"
#include "admin/plot.h"

#include "shared/base/new_file.h"
#include "shared/base/proquint.h"

#include <errno.h>
#include <inttypes.h>
#include <langinfo.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { COLUMNS_MAX = 400, CURVE_ROWS = 5, MARGIN = 10, LOSSES_BYTES = 192 };

/* Labels of the axes: quantity and unit. */
static const char *const names[PLOT_SERIES] = {"K, drafted tokens asked for",
	"tokens emitted per iteration", "iteration time / that at K = 0",
	"utility of the last iterations with K > 0: above 1 drafts pay"};

/* The reason why a curve has no value. */
static const char *why_nothing(const struct curves *curves, int series)
{
	return series == PLOT_UTILITY && !curves->drafted ? "none, because nothing was drafted"
							  : "not measured";
}

/* Label of the axis below, which counts from the first iteration shown. */
static const char *axis_name(const struct curves *curves)
{
	return curves->whole ? "iteration, after the prompt" : "iteration, from the first one kept";
}

/* The range of the values. */
struct range {
	size_t n;
	double least, most, mean;
	double top; /* where the axis ends */
};

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* A single iteration that the machine delayed would flatten all others, so the axis ends at three
 * times the value below which 95 of 100 iterations are. */
static double axis_top(const double *values, size_t n, double most)
{
	double *sorted = malloc(n * sizeof *sorted), top = most;
	size_t measured = 0;

	for (size_t i = 0; sorted && i < n; i++)
		if (!isnan(values[i]))
			sorted[measured++] = values[i];
	if (sorted && measured > 0) {
		qsort(sorted, measured, sizeof *sorted, compare);
		top = 3 * sorted[measured * 95 / 100];
	}
	free(sorted);
	return top > 0 && top < most ? top : most;
}

static struct range range_of(const struct curves *curves, int series)
{
	const double *values = curves->value[series];
	struct range r = {0};

	for (size_t i = 0; i < curves->n; i++) {
		if (isnan(values[i]))
			continue;
		r.least = r.n == 0 || values[i] < r.least ? values[i] : r.least;
		r.most = r.n == 0 || values[i] > r.most ? values[i] : r.most;
		r.mean += values[i];
		r.n++;
	}
	r.mean = r.n > 0 ? r.mean / (double)r.n : 0;
	r.top = series == PLOT_TIME ? axis_top(values, curves->n, r.most) : r.most;
	return r;
}

/* "session ravin-dupiz: 12 iterations, 30 tokens, 25.0 tokens/s in them". */
static const char *title(const struct curves *curves, char *out, size_t bytes)
{
	size_t n = curves->n - curves->missing;

	snprintf(out, bytes, "session %s: %s%zu iteration%s, %.0f tokens, %.1f tokens/s in them",
		PROQUINT(curves->session), curves->whole ? "" : "the last ", n, plural(n),
		curves->tokens, curves->seconds > 0 ? curves->tokens / curves->seconds : 0);
	return out;
}

/* What was lost of the session, or "". */
static const char *losses(const struct curves *curves, char *out, size_t bytes)
{
	char behind[112] = "";

	if (curves->lost_behind > 0)
		snprintf(behind, sizeof behind,
			"its end may be missing: %" PRIu64
			" iterations of all sessions were lost after the last one shown",
			curves->lost_behind);
	if (curves->missing > 0)
		snprintf(out, bytes, "%zu more %s lost, where the curves have a gap%s%s",
			curves->missing, curves->missing == 1 ? "was" : "were", *behind ? "; " : "",
			behind);
	else
		snprintf(out, bytes, "%s", behind);
	return out;
}

/* ---- In the terminal. ---- */

/* The mean of the iterations in one column. */
static double column_value(const double *values, size_t n, unsigned column, unsigned columns)
{
	size_t first = n * column / columns, last = n * (column + 1) / columns;
	double sum = 0;
	size_t counted = 0;

	for (size_t i = first; i < last; i++)
		if (!isnan(values[i])) {
			sum += values[i];
			counted++;
		}
	return counted ? sum / (double)counted : NAN;
}

/* Prints a cell filled to this height, in eighths. */
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

/* Prints bars on a line, with gaps where nothing was measured, because 0 is a value too. */
static void print_bars(const double *column, unsigned columns, double top, bool utf8)
{
	for (int row = CURVE_ROWS - 1; row >= 0; row--) {
		if (row == CURVE_ROWS - 1)
			printf("%8.2f |", top);
		else
			printf("%8s |", "");
		for (unsigned c = 0; c < columns; c++)
			print_cell(isnan(column[c]) ? 0 : column[c] / top * CURVE_ROWS - row, utf8);
		putchar('\n');
	}
	printf("%8.2f +", 0.0);
	for (unsigned c = 0; c < columns; c++)
		putchar(isnan(column[c]) ? ' ' : '-');
	putchar('\n');
}

/* "1 iteration 377"; without the word if there is no room for it. */
static void print_axis(const struct curves *curves, unsigned columns)
{
	const char *name = axis_name(curves);
	char last[24];
	int room = (int)columns - 1 - snprintf(last, sizeof last, "%zu", curves->n);
	int n = (int)strlen(name);

	if (room >= n + 2)
		printf("%*s1%*s%*s%s\n", MARGIN, "", (room + n) / 2, name, room - (room + n) / 2,
			"", last);
	else
		printf("%*s1%*s%s\n", MARGIN, "", room > 1 ? room : 1, "", last);
}

static void print_curve(const struct curves *curves, int series, unsigned columns)
{
	bool utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
	struct range r = range_of(curves, series);
	double column[COLUMNS_MAX], top = 0;

	if (r.n == 0) {
		printf("\n%s; %s\n", names[series], why_nothing(curves, series));
		return;
	}
	if (r.least >= r.most) {
		printf("\n%s; %.4g in every iteration%s\n", names[series], r.most,
			r.n < curves->n ? " in which it was measured" : "");
		return;
	}
	for (unsigned c = 0; c < columns; c++) {
		column[c] = column_value(curves->value[series], curves->n, c, columns);
		top = column[c] > top ? column[c] : top;
	}
	printf("\n%s; %.4g to %.4g, mean %.2f\n", names[series], r.least, r.most, r.mean);
	print_bars(column, columns, top < r.top ? top : r.top, utf8);
	print_axis(curves, columns);
}

static unsigned terminal_columns(void)
{
	struct winsize size;
	unsigned columns = 80;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 30)
		columns = size.ws_col;
	columns -= MARGIN;
	return columns < COLUMNS_MAX ? columns : COLUMNS_MAX;
}

int plot_terminal(const struct curves *curves)
{
	unsigned columns = terminal_columns();
	char head[160], lost[LOSSES_BYTES];

	puts(title(curves, head, sizeof head));
	if (*losses(curves, lost, sizeof lost))
		puts(lost);
	if (curves->n <= columns)
		columns = (unsigned)curves->n;
	else
		printf("from left to right; a column is the mean of %.1f iterations\n",
			(double)curves->n / columns);
	for (int s = 0; s < PLOT_SERIES; s++)
		print_curve(curves, s, columns);
	puts("\n"
	     "utility: tokens divided by time, the two curves above it, in iterations with K > 0 "
	     "and drafts,\n"
	     "as moving means in which the newest iteration weighs an eighth\n"
	     "time: divided by the last time that was measured at K = 0 in a batch of the same "
	     "size");
	return EX_OK;
}

/* ---- As a picture. ---- */

static void write_axes(
	FILE *gnuplot, const struct curves *curves, int series, const struct range *r)
{
	bool ratio = series == PLOT_TIME || series == PLOT_UTILITY;
	double end = 1.15 * (ratio && r->top < 1 ? 1 : r->top); /* room above the curve */

	fprintf(gnuplot, "unset label\nunset arrow\nset label '%s' at graph 0, graph 1.07 left\n",
		names[series]);
	/* Otherwise a K of 0 would be on the frame. */
	if (series == PLOT_K)
		fprintf(gnuplot, "set yrange [-0.5:%g]\nset ytics %d\n", r->most + 0.5,
			r->most > 8 ? 4 : 1);
	else
		fprintf(gnuplot, "set yrange [0:%g]\nset ytics autofreq\n", end);
	if (ratio)
		fputs("set arrow from graph 0, first 1 to graph 1, first 1 nohead dashtype 2\n",
			gnuplot);
	if (end < r->most)
		fprintf(gnuplot, "set label 'up to %.4g' at graph 0.99, graph 0.9 right\n",
			r->most);
	if (r->n == 0)
		fprintf(gnuplot, "set label '%s' at graph 0.5, graph 0.5 center\n",
			why_nothing(curves, series));
}

static void write_series(FILE *gnuplot, const struct curves *curves, int series)
{
	struct range r = range_of(curves, series);

	write_axes(gnuplot, curves, series, &r);
	if (series == PLOT_SERIES - 1)
		fprintf(gnuplot, "set xlabel '%s'\n", axis_name(curves));
	fprintf(gnuplot, "plot %s with steps linewidth 1.5\n", r.n > 0 ? "'-'" : "NaN");
	if (r.n == 0)
		return;
	for (size_t i = 0; i < curves->n; i++) {
		if (isnan(curves->value[series][i]))
			fprintf(gnuplot, "%zu NaN\n", i + 1);
		else
			fprintf(gnuplot, "%zu %g\n", i + 1, curves->value[series][i]);
	}
	fputs("e\n", gnuplot);
}

/* Whether the name can be put into a gnuplot string without being read as a command. */
static bool name_is_plain(const char *path)
{
	return path[0] != '|' && !strpbrk(path, "'\"\\\n");
}

static void write_curves(FILE *gnuplot, const void *arg)
{
	const struct curves *curves = arg;
	char head[160], lost[LOSSES_BYTES];

	fprintf(gnuplot,
		"set multiplot layout %d,1 title \"%s%s%s\"\n"
		"set lmargin 7\nset tmargin 2\nset xrange [1:%zu]\nset grid\nunset key\n",
		PLOT_SERIES, title(curves, head, sizeof head),
		*losses(curves, lost, sizeof lost) ? "\\n" : "", lost,
		curves->n > 1 ? curves->n : 2);
	for (int s = 0; s < PLOT_SERIES; s++)
		write_series(gnuplot, curves, s);
	fputs("unset multiplot\n", gnuplot);
}

const char *plot_format(const char *path)
{
	const char *dot = strrchr(path, '.');

	if (dot && strcmp(dot, ".svg") == 0)
		return "svg background 'white'";
	return dot && strcmp(dot, ".png") == 0 ? "png" : NULL;
}

/* What is to be drawn. */
struct picture {
	const char *format;
	int width, height;
	void (*write)(FILE *gnuplot, const void *arg);
	const void *arg;
};

/* Draws the picture into the file with gnuplot. */
static int draw_file(const struct picture *picture, const char *part, struct error *err)
{
	FILE *gnuplot;

	fflush(stdout);
	gnuplot = popen("gnuplot", "we");
	if (!gnuplot)
		return error_set(err, errno, "gnuplot cannot be started: %s", strerror(errno));
	fprintf(gnuplot, "set terminal %s size %d,%d\nset output '%s'\n", picture->format,
		picture->width, picture->height, part);
	picture->write(gnuplot, picture->arg);
	if (pclose(gnuplot) == 0)
		return 0;
	return error_set(err, EHOSTUNREACH,
		"gnuplot failed; a picture needs it (Debian package gnuplot-nox)");
}

int plot_picture(const char *path, int width, int height,
	void (*write)(FILE *gnuplot, const void *arg), const void *arg)
{
	const struct picture picture = {plot_format(path), width, height, write, arg};
	struct new_file file;
	struct error err = {""};

	if (!name_is_plain(path))
		return ctl_fail(
			EX_USAGE, "%.64s: the name of a picture must not contain quotes", path);
	int code = new_file_open(&file, path, true, 0, &err);
	if (code < 0) {
		new_file_close(&file, code, NULL);
		return ctl_fail(EX_CANTCREAT, "%s", err.text);
	}
	/* A link may lead to a name with quotes. */
	if (name_is_plain(file.part))
		code = draw_file(&picture, file.part, &err);
	else
		code = error_set(&err, EEXIST, "%s is a link to a file with quotes in its name: %s",
			path, file.target);
	code = new_file_close(&file, code, &err);
	if (code < 0)
		return ctl_fail(error_exit_status(code), "%s", err.text);
	printf("%s\n", path);
	return EX_OK;
}

int plot_file(const struct curves *curves, const char *path)
{
	return plot_picture(path, 900, 1000, write_curves, curves);
}
