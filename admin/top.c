/* outriderctl top: a live screen; one plain print where there is no terminal. */
#include "admin/ctl.h"
#include "admin/interrupt.h"

#include "client/include/outrider.h"
#include "client/summary/look.h"
#include "client/summary/process.h"
#include "client/summary/summary.h"
#include "shared/base/columns.h"
#include "shared/base/proquint.h"
#include "shared/base/units.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <ncurses.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

enum { TIMEOUT_MS = 300, REFRESH_MS = 500, INDENT = 8 };

static int take_look(struct ctl *ctl, struct look *look)
{
	int code = look_at(ctl->runtime_dir, ctl->zmq, TIMEOUT_MS, look);

	return code < 0 ? ctl_fail(error_exit_status(code), "%s", outrider_error()) : 0;
}

/* Where lines go: to the screen or to stdout. */
struct sink {
	bool screen;
	int row;
};

static void line(struct sink *sink, bool bold, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static void line(struct sink *sink, bool bold, const char *format, ...)
{
	char text[256];
	const char *rest = text;
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	if (!sink->screen) {
		puts(text);
		return;
	}
	if (bold)
		attron(A_BOLD);
	/* On a narrow screen the rest of a line goes below it, not over the edge. */
	for (int indent = 0; indent == 0 || *rest; indent = INDENT) {
		size_t n = columns_fit(rest, COLS > indent ? COLS - indent : 1);

		if (sink->row < LINES)
			mvaddnstr(sink->row, indent, rest, (int)n);
		sink->row++;
		rest += n + (rest[n] == ' ');
	}
	if (bold)
		attroff(A_BOLD);
}

static void draw_processes(struct sink *sink, const struct look *look)
{
	line(sink, true, "%-13s %8s %8s %11s  %s", "PROCESS", "PID", "UPTIME", "MEMORY", "STATE");
	for (size_t i = 0; i < outrider_status_count(look->status); i++) {
		const struct outrider_process *p = outrider_status_process(look->status, i);

		char pid[16] = "-", uptime[UNITS_BYTES] = "-", memory[UNITS_BYTES] = "-";

		if (p->pid)
			snprintf(pid, sizeof pid, "%u", p->pid);
		if (p->answers) {
			units_period(p->uptime_ns, uptime);
			units_memory(p->rss_bytes, memory);
		}
		line(sink, false, "%-13s %8s %8s %11s  %s", p->name, pid, uptime, memory, p->state);
	}
}

static void draw_device(
	struct sink *sink, const Outrider__CacheDevice *d, const Outrider__CacheDevice *before)
{
	uint64_t hits = d->hits, others = d->waits + d->misses;
	uint64_t bytes = d->bytes_loaded, busy_ns = d->busy_ns;
	char now[16], loaded[UNITS_BYTES], memory[UNITS_BYTES], free_now[UNITS_BYTES];

	if (before && d->hits >= before->hits && others >= before->waits + before->misses &&
		hits + others > before->hits + before->waits + before->misses) {
		hits -= before->hits;
		others -= before->waits + before->misses;
	}
	if (before && bytes > before->bytes_loaded && busy_ns > before->busy_ns) {
		bytes -= before->bytes_loaded;
		busy_ns -= before->busy_ns;
	}
	line(sink, false,
		"device  %s, %u/%u slots%s, hits %s, %s copied, %.2f GB/s, %" PRIu64
		" layers waited, %s of %s free",
		d->name, d->in_use, d->slots, d->all_pinned ? ", every expert" : "",
		ctl_share((double)hits, (double)(hits + others), 1, now, sizeof now),
		units_size(d->bytes_loaded, loaded), ctl_device_rate(bytes, busy_ns) / 1e9,
		d->slot_waits, units_size(d->free_bytes, free_now),
		units_size(d->memory_bytes, memory));
}

static void draw_cache(struct sink *sink, const struct look *look, const struct look *before)
{
	const Outrider__CacheStats *c = look_cache(look);
	const Outrider__CacheStats *b = look_cache(before);
	uint64_t hits = c->hits, misses = c->misses;
	char now[16], ever[16], loaded[UNITS_BYTES];

	/* Counters go back when the region is a new one. */
	if (b && c->hits >= b->hits && c->misses >= b->misses &&
		c->hits + c->misses > b->hits + b->misses) {
		hits -= b->hits;
		misses -= b->misses;
	}
	line(sink, false, "cache   %s, %u/%u slots, hits %s (%s in all), %s loaded, %u loading",
		c->policy, c->resident, c->slots,
		ctl_share((double)hits, (double)(hits + misses), 1, now, sizeof now),
		ctl_share((double)c->hits, (double)(c->hits + c->misses), 1, ever, sizeof ever),
		units_size(c->bytes_loaded, loaded), c->queue_depth);
	if (c->device)
		draw_device(sink, c->device, b ? b->device : NULL);
}

static void draw_totals(struct sink *sink, const struct look *look, const struct look *before)
{
	const Outrider__Sessions *s = look_sessions(look);
	const Outrider__Sessions *b = look_sessions(before);
	double seconds = (double)(look->at_ns - before->at_ns) / 1e9;

	if (s && b && seconds > 0 && s->output_tokens_total >= b->output_tokens_total)
		line(sink, false,
			"tokens  %.1f/s, %" PRIu64 " in %" PRIu64 " iterations, %u queued",
			(double)(s->output_tokens_total - b->output_tokens_total) / seconds,
			s->output_tokens_total, s->iterations_total, s->queued);
	else if (s)
		line(sink, false, "tokens  %" PRIu64 " in %" PRIu64 " iterations, %u queued",
			s->output_tokens_total, s->iterations_total, s->queued);
	if (look->cache)
		draw_cache(sink, look, before);
	if (look->policy)
		line(sink, false, "policy  %s, %" PRIu64 " decisions, %" PRIu64 " records lost",
			look_policy(look)->policy, look_policy(look)->decisions,
			look_policy(look)->records_lost);
}

static void draw_session(
	struct sink *sink, const struct look *look, const Outrider__Session *session)
{
	const Outrider__Session *s = session;
	const Outrider__PolicySession *p = look_session(look, s->uid);
	char utility[16], rate[16], share[16];

	line(sink, false, "%-11s %-8s %5u/%-5u %2u %-6s %4s %5s %-7s %7s", PROQUINT(s->uid),
		s->state, s->output_tokens, s->max_tokens, s->k, s->draft_method,
		ctl_share((double)s->accepted, (double)s->drafted, 0, share, sizeof share),
		ctl_measured(p ? look_utility(p) : 0, 2, utility, sizeof utility),
		p ? p->phase : "-", ctl_measured((double)s->tokens_per_s, 1, rate, sizeof rate));
}

/* Ended sessions come last: they are kept for a while, and a screen has few lines. */
static void draw_sessions(struct sink *sink, const struct look *look)
{
	const Outrider__Sessions *all = look_sessions(look);

	line(sink, true, "%-11s %-8s %11s %2s %-6s %4s %5s %-7s %7s", "SESSION", "STATE", "TOKENS",
		"K", "DRAFT", "ACC", "UTIL", "PHASE", "TOK/S");
	for (int ended = 0; all && ended <= 1; ended++)
		for (size_t i = 0; i < all->n_sessions; i++)
			if ((strcmp(all->sessions[i]->state, "done") == 0) == ended)
				draw_session(sink, look, all->sessions[i]);
}

static void draw(struct sink *sink, const struct look *look, const struct look *before)
{
	char lines[SUMMARY_LINES][SUMMARY_BYTES];
	size_t n = summary(look->status, lines);

	for (size_t i = 0; i < n; i++)
		line(sink, false, "%s", lines[i]);
	line(sink, false, "%s", "");
	draw_processes(sink, look);
	line(sink, false, "%s", "");
	draw_totals(sink, look, before);
	line(sink, false, "%s", "");
	draw_sessions(sink, look);
}

/* Prints what the four commands print separately; null for a process that does not answer. */
static void print_json(const struct look *look)
{
	ctl_print_json(json_pack("{s:o,s:o,s:o,s:o}", "processes", processes_json(look->status),
		"sessions",
		look->sessions ? ctl_sessions_json(look->sessions->sessions) : json_null(),
		"policy",
		look->policy
			? ctl_policy_json(look->policy->policy_state, look_sessions(look), true)
			: json_null(),
		"cache", look->cache ? ctl_cache_json(look->cache->cache_stats) : json_null()));
}

static bool any_up(const struct look *look)
{
	for (size_t i = 0; i < outrider_status_count(look->status); i++)
		if (outrider_status_process(look->status, i)->answers)
			return true;
	return false;
}

static int print_once(struct ctl *ctl)
{
	struct sink sink = {.screen = false};
	struct look look, none = {.status = NULL};
	int status;

	status = take_look(ctl, &look);
	if (status == 0 && ctl->json)
		print_json(&look);
	else if (status == 0)
		draw(&sink, &look, &none);
	if (status == 0 && !any_up(&look))
		status = EX_UNAVAILABLE;
	look_free(&look);
	return status;
}

static int run_screen(struct ctl *ctl)
{
	struct look look, before = {.status = NULL};
	int status, key = 0;

	/* Before ncurses takes the screen, so that an error can be read. */
	status = take_look(ctl, &look);
	if (status == 0 && !any_up(&look))
		status = ctl_fail(EX_UNAVAILABLE, "no process answers in %s; " CTL_NO_SERVICE,
			ctl->runtime_dir);
	if (status) {
		look_free(&look);
		return status;
	}
	/* ncurses installs handlers for signals that have none yet, which end the program with
	 * status 1. */
	interrupt_watch(false);
	initscr();
	cbreak();
	noecho();
	curs_set(0);
	keypad(stdscr, TRUE);
	timeout(REFRESH_MS);
	while (status == 0 && key != 'q' && !interrupted()) {
		struct sink sink = {.screen = true};

		erase();
		draw(&sink, &look, &before);
		move(LINES - 1, 0);
		clrtoeol();
		addnstr("q leaves   ", COLS);
		addnstr(ctl->runtime_dir, COLS - getcurx(stdscr));
		refresh();
		key = getch();
		look_free(&before);
		before = look;
		memset(&look, 0, sizeof look);
		if (key != 'q' && !interrupted())
			status = take_look(ctl, &look);
	}
	endwin();
	look_free(&look);
	look_free(&before);
	return interrupt_status(status);
}

int ctl_top(struct ctl *ctl, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	if (ctl->once || ctl->json || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
		return print_once(ctl);
	return run_screen(ctl);
}
