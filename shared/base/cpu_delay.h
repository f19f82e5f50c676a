/* How long a thread has waited for a CPU since it began, which others had. The calling thread's. */
#pragma once

#include <stdint.h>

/* A descriptor for cpu_delay_ns, which the caller closes; -1: the kernel does not tell. */
int cpu_delay_open(void);
/* Of the thread that opened fd, which may be -1; 0: nobody tells. Any thread. */
uint64_t cpu_delay_ns(int fd);
