/*
 * `outrider-bench pool`: the cost of giving work to the threads of a pass, and the loss when a busy
 * process takes one of their CPUs. Needs neither service nor model.
 */
#pragma once

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_pool(int argc, char **argv);
