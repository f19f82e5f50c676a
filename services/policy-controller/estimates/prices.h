/*
 * What a pass's rows, experts and missing experts cost: its time is fitted as
 *
 *   time = base + row * rows + expert * distinct experts + load * missing experts
 *
 * by least squares over all passes, of which older ones count less. The time model of whole passes
 * (cost.h) tells what a draft costs on average; this one tells a node with resident experts from
 * one with experts that must be loaded. No price is negative. Where the passes do not tell prices
 * apart (rows and experts grow together), a weak prior does: most of a pass's time goes to its
 * experts, and a missing one costs more than a resident one. Pure: no clock, no allocation.
 */
#pragma once

#include <stdbool.h>

enum { PRICES_TERMS = 3 }; /* rows, experts, missing experts */

struct prices {
	double n; /* passes, faded */
	double x[PRICES_TERMS], y; /* sums; y: time in ns */
	double xx[PRICES_TERMS][PRICES_TERMS], xy[PRICES_TERMS];
};

void prices_init(struct prices *prices);
/* Adds a pass without prompt tokens. ns: without the wait for drafts. */
void prices_observe(struct prices *prices, double rows, double experts, double missing, double ns);
/* The prices in ns: of a row, an expert, and what an expert costs more when it is missing. False,
 * and all are 0, while too few passes were seen. */
bool prices_get(const struct prices *prices, double out[PRICES_TERMS]);
