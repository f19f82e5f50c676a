/*
 * The name of this machine's CPU as results carry it: the model's name, which in a virtual machine may be no more than
 * "AMD EPYC", and with it the microarchitecture, family and model, which tell two of that name apart. Any thread.
 */
#pragma once

#include <stddef.h>

enum { CPU_NAME_BYTES = 160 };

/* "AMD EPYC (Zen 4, family 25 model 17)"; without the microarchitecture where it is not one we know; the name alone, or
 * "unknown CPU", where the system says no more. */
void cpu_name(char out[static CPU_NAME_BYTES]);

/* The same of another file than /proc/cpuinfo. */
void cpu_name_read(const char *cpuinfo, char out[static CPU_NAME_BYTES]);
