/* The curves of `outriderctl policy plot`: a session's iterations, and two ways to draw them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

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

/* gnuplot's terminal for a file of this name; NULL: it is not a picture's name. */
const char *plot_format(const char *path);
/* Draws a picture with gnuplot, of width x height pixels: write prints the commands. The name is one
 * of a picture. Returns an exit status, after a message if it failed; else prints the name. */
int plot_picture(const char *path, int width, int height,
	void (*write)(FILE *gnuplot, const void *arg), const void *arg);

/* Each returns an exit status; plot_file prints what is wrong. */
int plot_terminal(const struct curves *curves);
int plot_file(const struct curves *curves, const char *path);
