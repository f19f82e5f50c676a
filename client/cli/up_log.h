/*
 * Where `outrider up --detach` says what it says: up.log, from its first line on, and until all are ready the terminal too.
 * One per process.
 */
#pragma once

/* From now on what is written to stderr goes to the file as well. Where it cannot be opened there is none, and the terminal
 * is told why. -EEXIST, after saying so, where something else than a file has its name. */
int up_log_open(const char *path);
/* The terminal gets nothing any more: standard output and error are the file, or, where there is none, nothing. */
void up_log_alone(void);
