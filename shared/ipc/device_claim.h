/*
 * Which services use a device. Each process that does binds an abstract socket with the device's UUID,
 * its service, its name and its pid in the socket's name, which the kernel removes when the process
 * ends, however it ends. Another service's process finds the name, and so knows who is there. The
 * names are those of the network namespace: a service in another one is not seen.
 *
 * A service is its runtime directory.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>

/* uuid: of the device; "" where nobody knows it, and then nothing is claimed. shared: another service
 * may be there too. It may in any case if a process of this service is: that one was there first, or
 * was allowed to. *fd is the claim, the caller's to close; -1: none was needed. -EBUSY names the
 * process that is there, and what to do. */
int device_claim(const char *uuid, const char *device_name, const char *runtime_dir,
	const char *process, bool shared, int *fd, struct error *err);
