/* outrider-bench policy; policy_sim.h describes it. */
#pragma once

/* Runs the subcommand; returns a sysexits status. */
int bench_policy(int argc, char **argv);
