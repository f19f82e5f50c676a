/*
 * Errors are values: a function returns 0 or -errno, and where a person will read the reason it also takes a
 * struct error that the place which knows the cause fills in: what, where, and the allowed range.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>

struct error {
	char text[512]; /* one sentence without a newline; "" when no error was set */
};

/* Formats the message and returns -code (code > 0), so that `return error_set(err, EINVAL, ...)` reads well.
 * err may be NULL. */
int error_set(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before a message that is already there; returns code unchanged. */
int error_prefix(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* For memory, address space or threads that the kernel did not give: as error_set, with why it says so and what limits this
 * process behind it. */
int error_refused(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* For pthread_create's `code`: "what: why". That the machine gives no more threads is -ENOMEM, nothing that
 * passes by waiting. */
int error_thread(struct error *err, int code, const char *what);

/* Control characters as '?': names that a peer, a file or a person gave come into messages, and must not move a terminal's
 * cursor or look like another line. */
void error_tame(char *text);

/* The sysexits status (EX_DATAERR, EX_NOINPUT, EX_CONFIG, ...) that says which kind of failure -errno is. */
int error_exit_status(int code);

/* Whether a person has to put right what a process ended with: wrong usage, data, permissions or settings, or more memory
 * than there is. Starting it again gives the same. All other statuses may pass: a file that is missing for a moment, a disk
 * that fails. systemd's units have the same list (RestartPreventExitStatus). */
bool error_status_is_final(int status);
