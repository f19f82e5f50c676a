/* `outrider`: a table of commands. Each gets its own arguments (argv[0] is its name) and returns an
 * exit status. */
#pragma once

#include "shared/base/json_text.h"
#include "shared/base/error.h"
#include "shared/base/sampling.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

int command_up(int argc, char **argv);
int command_down(int argc, char **argv);
int command_run(int argc, char **argv);
int command_chat(int argc, char **argv);
int command_status(int argc, char **argv);
int command_doctor(int argc, char **argv);

/* Prints "outrider: ..." and a newline to stderr. Returns status. 0: it is a notice, not a failure.
 */
int cli_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* From now on cli_fail prints a line of JSON: {"error": ..., "status": ...}, or {"notice": ...}. */
void cli_errors_as_json(void);
/* Prints help to stdout: as `usage` writes it or, after cli_errors_as_json, as a line of JSON,
 * {"help": ...}. Returns EX_OK. */
int cli_help(void (*usage)(FILE *to));

/* For getopt_long's '?' and ':'. letters: its short options, which begin with ':'. Prints which
 * option is wrong. EX_USAGE. */
int cli_bad_option(const char *command, int flag, const char *letters, char **argv);

/* Reads a whole number; prints an error that names the flag. 0 or EX_USAGE. */
int cli_integer(const char *flag, const char *text, int64_t low, int64_t high, int64_t *out);
/* Reads a time: "3s", "500ms", "2m", or a number alone, in seconds; low_s is 0 or more. */
int cli_seconds(const char *flag, const char *text, double low_s, double high_s, double *out);
/* Reads a value of the kind that the SDK accepts, and refuses others with the SDK's words. */
int cli_sampling(const char *flag, const char *text, enum sampling_value what, double *out);
/* Reads "1,2,3" (spaces and newlines are allowed) into a malloc'd array; 0 or EX_DATAERR. */
int cli_tokens(const char *what, const char *text, int32_t **tokens, size_t *n);
/* Reads a whole file ("-": stdin) into malloc'd memory, with a NUL behind it. 0, or a sysexits
 * status after printing the reason. */
int cli_read_file(const char *path, char **text, size_t *bytes);
