/* The line under a streamed answer. The terminal's scrolling region leaves the last line to us
 * (ECMA-48 and DECSTBM). */
#include "client/cli/answer.h"

#include "shared/base/clock.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define SHOW_NS UINT64_C(100000000) /* at most ten times a second */

enum { ROWS_MIN = 4 };

static struct {
	int rows; /* 0: off */
	uint64_t shown_ns;
	/* when the first tokens were shown, of which there were first_n; 0: not yet */
	uint64_t first_ns;
	size_t first_n;
} live;

static int terminal_rows(int *columns)
{
	struct winsize size;

	if (!isatty(STDOUT_FILENO) || !isatty(STDERR_FILENO) ||
		ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_row < ROWS_MIN)
		return 0;
	*columns = size.ws_col ? size.ws_col : 80;
	return size.ws_row;
}

static void set_region(int rows)
{
	/* The terminal grew, so our line is no longer its last. */
	if (live.rows && live.rows < rows)
		fprintf(stderr, "\0337\033[%d;1H\033[2K\0338", live.rows);
	live.rows = rows;
	/* A free line below, then the region without it; saving and restoring keeps the cursor in
	 * its place. */
	fprintf(stderr, "\n\033[A\0337\033[1;%dr\0338", rows - 1);
}

/* A signal ends the program in the middle: makes the whole screen scroll again, so that the shell
 * is usable. */
static void on_end(int number)
{
	static const char whole[] = "\0337\033[r\0338\r\n";

	signal(number, SIG_DFL);
	if (write(STDERR_FILENO, whole, sizeof whole - 1) < 0)
		_exit(128 + number);
	raise(number);
}

void live_begin(void)
{
	int columns = 80, rows = terminal_rows(&columns);

	live.shown_ns = live.first_ns = 0;
	live.rows = 0;
	if (!rows)
		return;
	signal(SIGTERM, on_end);
	signal(SIGHUP, on_end);
	set_region(rows);
}

/* Prints as much as fits on one line of the terminal: a line that wrapped would scroll the answer
 * away. */
static void print_cut(const char *text, int columns)
{
	fprintf(stderr, "\0337\033[%d;1H\033[2K\033[2m%.*s\033[0m\0338", live.rows, columns, text);
}

void live_show(const struct outrider_live *state, size_t n_tokens)
{
	uint64_t now = clock_ns(), looks = state->expert_hits + state->expert_misses;
	int rows, columns = 80;
	char text[256] = "";
	FILE *to;

	if (live.first_ns == 0) {
		live.first_ns = now;
		live.first_n = n_tokens;
	}
	if (!live.rows || now - live.shown_ns < SHOW_NS)
		return;
	live.shown_ns = now;
	fflush(stdout);
	rows = terminal_rows(&columns);
	if (rows && rows != live.rows)
		set_region(rows);
	to = fmemopen(text, sizeof text, "w");
	if (!to)
		return;
	fprintf(to, "%zu tokens", n_tokens);
	/* Counted as in the line at the end: without the queue and the prompt. */
	if (n_tokens > live.first_n && now > live.first_ns)
		fprintf(to, "  %.0f tokens/s",
			(double)(n_tokens - live.first_n) / ((double)(now - live.first_ns) / 1e9));
	fprintf(to, "  K %u (%s)", state->k,
		state->policy && *state->policy ? state->policy : "fixed");
	if (state->drafted)
		fprintf(to, "  accepted %.0f%%",
			100.0 * (double)state->accepted / (double)state->drafted);
	/* With K = 0 it is 1 by definition, and with a K that drafted nothing it is noise. */
	if (state->k > 0 && state->drafted > 0 && state->utility > 0)
		fprintf(to, "  utility %.2f", (double)state->utility);
	if (looks)
		fprintf(to, "  cache hits %.0f%%",
			100.0 * (double)state->expert_hits / (double)looks);
	fprintf(to, "%s%s%s", state->drafter_alive ? "" : "  drafter down",
		state->cache_alive ? "" : "  expert-cache down",
		state->policy_alive ? "" : "  policy down");
	fclose(to);
	print_cut(text, columns);
}

void live_end(void)
{
	if (!live.rows)
		return;
	fflush(stdout);
	fprintf(stderr, "\0337\033[r\033[%d;1H\033[2K\0338", live.rows);
	live.rows = 0;
	signal(SIGTERM, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
}
