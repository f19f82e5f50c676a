/* The sentence behind the SDK's last error, one per thread. */
#pragma once

#include "shared/base/error.h"

/* Sets the thread's message and returns -code. */
int failure_set(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* -EINVAL: a caller gave NULL for this. */
int failure_null(const char *what);
/* The errno of a refusal by the service: EREMOTEIO for what is none, and EBUSY for EAGAIN, which means something else to the callers of
 * the SDK. */
int failure_code(int said);
/* Takes a message that a lower layer wrote; code is negative and returned. */
int failure_take(int code, const struct error *err);
