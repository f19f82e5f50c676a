/*
 * `outrider-bench ipc`: what communication between the processes costs. Two processes over one region, as verifier and
 * drafter or expert-cache have it, beside a ZeroMQ ipc:// round trip, interleaved in one run.
 */
#pragma once

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_ipc(int argc, char **argv);
