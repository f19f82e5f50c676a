/*
 * `outrider-bench model`: the engine alone on a model file: prefill, decode, and T(n), what a pass over n tokens costs,
 * which decides whether speculation pays. Every figure has its floor beside it: the time its bytes need at the read
 * bandwidth measured in the same rounds. Needs no service.
 */
#pragma once

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_model(int argc, char **argv);
