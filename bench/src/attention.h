/*
 * `outrider-bench attention`: attention over long contexts, divided among the threads as the engine
 * does it. Reports the bytes of keys and values and the operations per second, next to what the
 * machine can do in the same run (peaks.h). Needs neither service nor model.
 */
#pragma once

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_attention(int argc, char **argv);
