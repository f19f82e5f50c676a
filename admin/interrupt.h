/* For commands that run until they are interrupted: they check for a signal between two steps, so
 * that what they print is complete. */
#pragma once

#include <stdbool.h>

/* From now on SIGINT, SIGTERM and SIGHUP are counted instead of ending the program; with `once`
 * only the first of each. */
void interrupt_watch(bool once);
bool interrupted(void);
/* The exit status of a command that may be left by Ctrl-C: `status`, also after Ctrl-C. After
 * another signal it ends the program by that signal, as without interrupt_watch. */
int interrupt_status(int status);
