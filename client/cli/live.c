/* The line under a streamed answer. The terminal's scrolling region leaves the last line to us (ECMA-48 and DECSTBM). */
#include "client/cli/answer.h"

#include "shared/base/clock.h"

#include <sys/ioctl.h>
#include <unistd.h>

#define SHOW_NS UINT64_C(100000000) /* at most ten times a second */

enum { ROWS_MIN = 4 };

static struct {
	int rows; /* 0: off */
	uint64_t begun_ns, shown_ns;
} live;

static int terminal_rows(void)
{
	struct winsize size;

	if (!isatty(STDOUT_FILENO) || !isatty(STDERR_FILENO) ||
		ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_row < ROWS_MIN)
		return 0;
	return size.ws_row;
}

static void set_region(int rows)
{
	live.rows = rows;
	/* A free line below, then the region without it; saving and restoring keeps the cursor where it was. */
	fprintf(stderr, "\n\033[A\0337\033[1;%dr\0338", rows - 1);
}

void live_begin(void)
{
	int rows = terminal_rows();

	live.begun_ns = clock_ns();
	live.shown_ns = 0;
	live.rows = 0;
	if (rows)
		set_region(rows);
}

void live_show(const struct outrider_live *state, size_t n_tokens)
{
	uint64_t now = clock_ns(), looks = state->expert_hits + state->expert_misses;
	int rows;

	if (!live.rows || now - live.shown_ns < SHOW_NS)
		return;
	live.shown_ns = now;
	fflush(stdout);
	rows = terminal_rows();
	if (rows && rows != live.rows)
		set_region(rows);
	fprintf(stderr, "\0337\033[%d;1H\033[2K\033[2m%zu tokens  %.1f/s  K %u (%s)", live.rows,
		n_tokens, (double)n_tokens / ((double)(now - live.begun_ns) / 1e9), state->k,
		state->policy && *state->policy ? state->policy : "fixed");
	if (state->drafted)
		fprintf(stderr, "  accepted %.0f%%",
			100.0 * (double)state->accepted / (double)state->drafted);
	if (state->utility > 0)
		fprintf(stderr, "  utility %.2f", (double)state->utility);
	if (looks)
		fprintf(stderr, "  cache hits %.1f%%",
			100.0 * (double)state->expert_hits / (double)looks);
	fprintf(stderr, "%s%s%s\033[0m\0338", state->drafter_alive ? "" : "  drafter down",
		state->cache_alive ? "" : "  expert-cache down",
		state->policy_alive ? "" : "  policy down");
}

void live_end(void)
{
	if (!live.rows)
		return;
	fflush(stdout);
	fprintf(stderr, "\0337\033[r\033[%d;1H\033[2K\0338", live.rows);
	live.rows = 0;
}
