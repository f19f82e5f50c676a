/* Commands that go on until they are interrupted: a signal is looked for between two steps, so that what was printed is whole. */
#pragma once

#include <stdbool.h>

/* From now on SIGINT, SIGTERM and SIGHUP are counted instead of ending the program; with once only the first of each. */
void interrupt_watch(bool once);
bool interrupted(void);
/* The exit status of a command that is left by Ctrl-C: status, also after it. After another signal the program ends by that, as it
 * would have without interrupt_watch. */
int interrupt_status(int status);
