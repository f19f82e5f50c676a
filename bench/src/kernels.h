/*
 * `outrider-bench kernels`: the products of the engine. Reports the bytes and operations per second
 * of each, next to what the machine can do in the same run (peaks.h). Needs neither service nor
 * model.
 */
#pragma once

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_kernels(int argc, char **argv);
