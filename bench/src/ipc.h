/*
 * `outrider-bench ipc`: the cost of communication between the processes. Two processes share a
 * region, as the verifier does with the drafter or the expert cache; a ZeroMQ ipc:// round trip is
 * measured for comparison, alternately in the same run.
 */
#pragma once

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_ipc(int argc, char **argv);
