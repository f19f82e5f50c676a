/*
 * What a device or its driver cannot be used for, in words: the same of a device and of the emulation,
 * which tests the messages and what becomes of them.
 */
#pragma once

#include "kernels/gpu/runtime.h"

#include <cstdio>

enum device_mode { MODE_SHARED, MODE_EXCLUSIVE, MODE_PROHIBITED };

/* A version as CUDA counts: 13020 is 13.2. */
static inline void write_version(int version, char *out, size_t bytes)
{
	snprintf(out, bytes, "%d.%d", version / 1000, version % 1000 / 10);
}

/* No driver (0), or one that is older than the toolkit. -ENODEV. */
static inline int unfit_driver(int driver, int toolkit, struct error *err)
{
	char has[16], needs[16];

	if (driver == 0)
		return error_set(err, ENODEV,
			"there is no usable GPU: NVIDIA's driver (libcuda.so.1) is not installed");
	write_version(driver, has, sizeof(has));
	write_version(toolkit, needs, sizeof(needs));
	return error_set(err, ENODEV,
		"there is no usable GPU: NVIDIA's driver is for CUDA %s, but "
		"outrider-backend-cuda.so was made with CUDA %s: install a newer driver, or run "
		"make cuda with an older toolkit",
		has, needs);
}

/* The four processes share a device, and any of them may be killed at any time. 0, or -ENOTSUP. */
static inline int unfit_sharing(
	const char *device, bool mps, enum device_mode mode, struct error *err)
{
	if (mode != MODE_SHARED)
		return error_set(err, ENOTSUP,
			"%s lets %s use it, but several processes of the service do: set its "
			"compute mode with nvidia-smi -c DEFAULT",
			device, mode == MODE_EXCLUSIVE ? "one process at a time" : "no process");
	if (mps)
		return error_set(err, ENOTSUP,
			"NVIDIA's MPS is on for %s: with it, a process that is killed may take the "
			"others' work with it. End it with: echo quit | nvidia-cuda-mps-control",
			device);
	return 0;
}

/* A device that failed in use. `where` is a kernel or "a copy". -ENODEV. */
static inline int lost_text(
	const char *device, const char *where, const char *why, struct error *err)
{
	return error_set(err, ENODEV, "%s was lost in %s: %s", device, where, why);
}
