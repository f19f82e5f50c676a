/* The curves of `outriderctl policy plot`: a session's iterations, and two ways to draw them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PLOT_K, PLOT_TOKENS, PLOT_TIME, PLOT_UTILITY, PLOT_SERIES };

/* One value per iteration and series; NAN: not measured, or the iteration is missing. Iterations of
 * the prompt are not included. */
struct curves {
	size_t n;
	double *value[PLOT_SERIES];
	size_t missing; /* of n, iterations whose records were lost */
	uint64_t lost_behind; /* iterations of all sessions whose records were lost at the end */
	uint64_t session;
	double tokens, seconds;
	bool drafted; /* in any iteration */
	bool whole; /* from the session's first iteration; else the journal begins later */
};

/* Each returns an exit status; plot_file prints what is wrong. format: gnuplot's terminal. */
int plot_terminal(const struct curves *curves);
int plot_file(const struct curves *curves, const char *path, const char *format);
