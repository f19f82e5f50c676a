/* What `outriderctl policy plot` draws: a session's iterations as curves, and the two ways to draw them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PLOT_K, PLOT_TOKENS, PLOT_TIME, PLOT_UTILITY, PLOT_SERIES };

/* One value per iteration and series; NAN: not measured, or the iteration is missing. Iterations of the prompt are left out. */
struct curves {
	size_t n;
	double *value[PLOT_SERIES];
	size_t missing; /* of n, iterations whose records were lost */
	uint64_t lost_behind; /* iterations of all sessions where the next would be */
	uint64_t session;
	double tokens, seconds;
	bool drafted; /* in any iteration */
	bool whole; /* from the session's first iteration; else the journal begins later */
};

/* Each an exit status; plot_file says what is wrong, and `format` is gnuplot's terminal. */
int plot_terminal(const struct curves *curves);
int plot_file(const struct curves *curves, const char *path, const char *format);
