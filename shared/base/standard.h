/* Standard input, output and error of a program: there from its first line on, and what went to them known at its end. */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdio.h>

/* To be called before anything else in main. A descriptor of 0 to 2 that the caller closed would be given to the next file that
 * is opened: a lock or a log, into which messages would then go. Instead it becomes /dev/null, opened for reading: input is empty,
 * and a write to it fails, as it would to a closed descriptor, so that lost output is noticed. A reader that went away, or a
 * file at its limit, is a failed write too, not the signal SIGPIPE or SIGXFSZ. Ends the program, with 71, where not even that can be opened. */
void standard_begin(void);

/* For a program that goes on printing: flushes stdout; false from the first time that it could not. */
bool standard_flush(void);

/* Whether everything written to `to` has arrived. 0, or -EIO with "standard output: why". */
int standard_written(FILE *to, struct error *err);

/* The last line of main for a program that prints: its exit status, which is 74 (after a line on standard error that begins with
 * the program's name) when what it printed did not all arrive. Where it has failed with another status, that stays. */
int standard_end(const char *program, int status);
/* The same for a program that reports errors in its own way: fail prints the sentence and returns the status. */
int standard_end_with(int status, int (*fail)(int status, const char *format, ...));
