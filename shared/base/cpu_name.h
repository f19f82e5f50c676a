/*
 * The name of this machine's CPU for results. In a virtual machine the model's name may be just
 * "AMD EPYC", so the microarchitecture, family and model are added, which tell two CPUs of that
 * name apart. Any thread.
 */
#pragma once

#include <stddef.h>

enum { CPU_NAME_BYTES = 160 };

/* "AMD EPYC (Zen 4, family 25 model 17)". Without the microarchitecture if it is unknown here. Only
 * the name, or "unknown CPU", if the system tells no more. */
void cpu_name(char out[static CPU_NAME_BYTES]);

/* The same from another file than /proc/cpuinfo. */
void cpu_name_read(const char *cpuinfo, char out[static CPU_NAME_BYTES]);
