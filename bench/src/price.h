/*
 * `outrider-bench price`: what one expert of a model costs, by the tokens that chose it: computed in
 * the device's slot where it is, computed there behind its copy over the link, or computed by the CPU
 * in the host's memory. These are the costs that decide who computes it (shared/spec/balance.h).
 */
#pragma once

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_price(int argc, char **argv);
