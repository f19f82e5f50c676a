/*
 * `outrider-bench attention`: attention at depth, cut for the threads as the engine does it, with the bytes of keys and
 * values and the operations per second it reaches beside what the machine gives in the same run (peaks.h). Needs no
 * service and no model.
 */
#pragma once

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_attention(int argc, char **argv);
