/*
 * `outrider-bench kernels`: the products of the engine, each with the bytes and operations per second it reaches beside
 * what the machine gives in the same run (peaks.h). Needs no service and no model.
 */
#pragma once

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_kernels(int argc, char **argv);
