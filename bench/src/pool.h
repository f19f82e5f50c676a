/*
 * `outrider-bench pool`: what handing work to the threads of a pass costs, and what is lost when a busy process takes
 * one of their CPUs. Needs no service and no model.
 */
#pragma once

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_pool(int argc, char **argv);
