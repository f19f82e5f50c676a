/*
 * `outrider-bench skip`: how well a model drafts for itself without some of its layers
 * (shared/model/arch/skip.h), and without which ones best. The engine alone, no service.
 *
 * The model's greedy answers are computed first. Then a part of its layers reads prompt and answer at
 * once and says which token it would have drafted in each place. A draft goes on as long as these are
 * the answer's, so the tokens of a pass follow exactly, for any length of drafts.
 */
#pragma once

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_skip(int argc, char **argv);
