/* The sentence about the SDK's last error, one per thread. */
#pragma once

#include "shared/base/error.h"

#include <stdint.h>

/* Sets the thread's message and returns -code. */
int failure_set(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds to the last message after how many ms the same request may succeed; 0: not known. */
void failure_retry(uint32_t ms);
/* For a NULL that the caller passed as `what`: returns -EINVAL. */
int failure_null(const char *what);
/* The errno for a refusal by the service: EREMOTEIO if `said` is no errno, EBUSY for EAGAIN,
 * because the SDK's callers understand EAGAIN in another way. */
int failure_code(int said);
/* Takes over the message of a lower layer. code is negative and returned. */
int failure_take(int code, const struct error *err);
