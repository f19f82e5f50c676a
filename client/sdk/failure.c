#include "client/sdk/failure.h"
#include "client/include/outrider.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char text[sizeof(((struct error *)0)->text)];
static _Thread_local uint32_t retry_ms;

int failure_set(int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	retry_ms = 0;
	return -code;
}

void failure_retry(uint32_t ms)
{
	retry_ms = ms;
}

int failure_null(const char *what)
{
	return failure_set(EINVAL, "expected a %s, got NULL", what);
}

int failure_code(int said)
{
	if (said <= 0 || said >= 4096)
		return EREMOTEIO;
	return said == EAGAIN ? EBUSY : said;
}

int failure_take(int code, const struct error *err)
{
	return failure_set(-code, "%s", err->text[0] ? err->text : strerror(-code));
}

const char *outrider_error(void)
{
	return text;
}

uint32_t outrider_retry_ms(void)
{
	return retry_ms;
}

const char *outrider_version(void)
{
	return OUTRIDER_VERSION;
}
