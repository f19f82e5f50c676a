/*
 * Where `outrider up --detach` writes its messages: to up.log from the first line on and, until all
 * children are ready, to the terminal too. One per process.
 */
#pragma once

/* From now on the file gets everything that is written to stderr, too. If it cannot be opened,
 * there is no log, and a message on the terminal says why. -EEXIST, after a message, if the name
 * belongs to something that is not a file. */
int up_log_open(const char *path);
/* From now on standard output and error go to the file only or, if there is none, nowhere. */
void up_log_alone(void);
