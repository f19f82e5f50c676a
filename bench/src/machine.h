/*
 * Describes the machine on which a measurement is made, in the form that all results share; and
 * `outrider-bench machine`, which bench/facts.py calls. Main thread.
 */
#pragma once

#include "kernels/tensor.h"
#include "kernels/pool.h"

struct kernels;

/* Call before a measurement. *threads 0 becomes the best number here: one per core that this
 * process may use, within its quota of CPU time. Prints notices to standard error about what is
 * slow here, as outrider-model does. kernels: or NULL; asked: the option's value, or NULL. */
void machine_begin(const struct kernels *kernels, const char *asked, uint32_t *threads);

enum { MACHINE_THREADS_BYTES = 64 };
/* "2 threads", or "4 threads (2 active)" where there are fewer CPUs. The pool must have run. */
const char *machine_threads(const struct pool *pool, char out[static MACHINE_THREADS_BYTES]);

/* Prints to stdout; returns a sysexits status. argv[0] is the subcommand. */
int bench_machine(int argc, char **argv);
