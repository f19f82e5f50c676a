/* outrider-bench policy: policy_sim.h says what it does. */
#pragma once

/* The subcommand; returns a sysexits status. */
int bench_policy(int argc, char **argv);
