#include "shared/base/error.h"

#include "shared/base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

int error_set(struct error *err, int code, const char *format, ...)
{
	if (err) {
		va_list args;
		va_start(args, format);
		vsnprintf(err->text, sizeof(err->text), format, args);
		va_end(args);
	}
	return -code;
}

int error_prefix(struct error *err, int code, const char *format, ...)
{
	if (!err)
		return code;
	char before[sizeof(err->text)];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(before, sizeof(before), format, args);
	va_end(args);
	if (n < 0)
		return code;
	size_t used = (size_t)n < sizeof(before) ? (size_t)n : sizeof(before) - 1;
	if (used + 2 < sizeof(err->text)) {
		/* The message moves to the right; what no longer fits is cut at its end. */
		size_t room = sizeof(err->text) - used - 3;
		size_t kept = strnlen(err->text, room);
		memmove(err->text + used + 2, err->text, kept);
		memcpy(err->text, before, used);
		memcpy(err->text + used, ": ", 2);
		err->text[used + 2 + kept] = '\0';
	}
	return code;
}

int error_refused(struct error *err, int code, const char *format, ...)
{
	char what[sizeof(err->text)], advice[MEMORY_ADVICE_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	return error_set(err, code, "%s: %s%s", what, strerror(code), memory_advice(advice));
}

int error_thread(struct error *err, int code, const char *what)
{
	(void)error_refused(err, code, "%s", what);
	return code == EAGAIN ? -ENOMEM : -code;
}

void error_tame(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			*text = '?';
}

int error_exit_status(int code)
{
	switch (code < 0 ? -code : code) {
	case 0:
		return EX_OK;
	case EINVAL:
	case ERANGE:
	case EBADMSG:
	case ENOTSUP:
	case EILSEQ:
	case E2BIG:
	case EMSGSIZE:
	case ENAMETOOLONG:
		return EX_DATAERR;
	case ENOENT:
	case ENOTDIR:
	case EISDIR:
		return EX_NOINPUT;
	case EACCES:
	case EPERM:
		return EX_NOPERM;
	case EROFS:
	case ENOSPC:
	case EEXIST:
	case EFBIG:
	case EDQUOT:
		return EX_CANTCREAT;
	case EIO:
		return EX_IOERR;
	case EPROTO:
	case EPROTONOSUPPORT:
		return EX_PROTOCOL;
	case EAGAIN:
	case EBUSY:
	case ETIMEDOUT:
	case ESTALE:
		return EX_TEMPFAIL;
	case ECONNREFUSED:
	case EADDRINUSE:
	case EHOSTUNREACH:
	case EREMOTEIO:
		return EX_UNAVAILABLE;
	case ENOMEM:
	case EMFILE:
	case ENFILE:
		return EX_OSERR;
	case ENOEXEC:
		return EX_CONFIG;
	default:
		return EX_SOFTWARE;
	}
}

bool error_status_is_final(int status)
{
	return status == EX_USAGE || status == EX_DATAERR || status == EX_OSERR ||
	       status == EX_NOPERM || status == EX_CONFIG;
}
