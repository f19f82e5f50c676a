/*
 * Errors are values. A function returns 0 or -errno. If a person will read the reason, it also
 * takes a struct error, which the place that knows the cause fills in: what failed, where, and the
 * allowed range.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>

struct error {
	char text[512]; /* one sentence without a newline; "": no error */
};

/* Formats the message and returns -code (code > 0), so that a function can `return error_set(err,
 * EINVAL, ...)`. err may be NULL. */
int error_set(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before a message that was set already; returns code unchanged. */
int error_prefix(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Like error_set, for memory, address space or threads that the kernel refused. Appends the
 * kernel's reason and the limit of this process that caused it. */
int error_refused(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* For the result `code` of pthread_create: sets "what: why". If the machine has no more threads the
 * error is -ENOMEM, which does not pass by waiting. */
int error_thread(struct error *err, int code, const char *what);

/* Replaces control characters with '?'. Names from a peer, a file or a person appear in messages;
 * they must not move a terminal's cursor or look like another line. */
void error_tame(char *text);

/* The exit status of sysexits.h (EX_DATAERR, EX_NOINPUT, EX_CONFIG, ...) for the kind of failure
 * that -errno is. */
int error_exit_status(int code);

/* True for exit statuses whose cause a person must remove: wrong usage, data, permissions or
 * settings, or a need for more memory than there is. Another start would end the same way. The
 * causes of all other statuses may pass: a file that is missing for a moment, a disk that fails.
 * systemd's units have the same list (RestartPreventExitStatus). */
bool error_status_is_final(int status);
