/* Standard input, output and error of a program: valid from its first line on, and with output
 * errors noticed at its end. */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdio.h>

/* Call before anything else in main. If the caller closed a descriptor of 0 to 2, the next file
 * that is opened would get that number: a lock or a log, into which messages would then go. Instead
 * it becomes /dev/null, opened for reading. Input is then empty, and a write fails as it would on a
 * closed descriptor, so that lost output is noticed. Also makes writing to a reader that is gone,
 * or to a file at its limit, fail instead of raising SIGPIPE or SIGXFSZ. Exits with 71 when not
 * even that can be opened. */
void standard_begin(void);

/* For a program that prints continuously: flushes stdout. False from the first failure on. */
bool standard_flush(void);

/* Checks that everything written to `to` has arrived. 0, or -EIO with "standard output: why". */
int standard_written(FILE *to, struct error *err);

/* The last line of main in a program that prints: returns its exit status. If printed text was
 * lost, it prints a line on standard error, which begins with the program's name, and the status
 * becomes 74; another failure status stays. */
int standard_end(const char *program, int status);
/* The same for a program that reports errors in its own way: fail prints the sentence and returns
 * the status. */
int standard_end_with(int status, int (*fail)(int status, const char *format, ...));
