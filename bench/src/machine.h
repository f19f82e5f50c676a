/*
 * The machine that a measurement is of, as all results name it; and `outrider-bench machine`, which bench/facts.py asks.
 */
#pragma once

#include "kernels/tensor.h"
#include "kernels/pool.h"

struct kernels;

/* Before a measurement: 0 threads becomes one per core that this process may use, within its CPU time; notices on standard
 * error of what is slow here, as outrider-model has them. kernels: or NULL; asked: what the option said, or NULL. */
void machine_begin(const struct kernels *kernels, const char *asked, uint32_t *threads);

enum { MACHINE_THREADS_BYTES = 64 };
/* "2 threads", or "4 threads (2 active)" where there are fewer CPUs. Of a pool that has run. */
const char *machine_threads(const struct pool *pool, char out[static MACHINE_THREADS_BYTES]);

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_machine(int argc, char **argv);
