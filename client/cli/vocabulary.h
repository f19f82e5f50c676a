/* Whether a model and its draft speak of the same tokens: asked before anything is started, so that a wrong draft is an
 * error of the command line and not a drafter that quietly stays out. */
#pragma once

#include "shared/base/error.h"

/* 0 when the tokens that both have are the same strings; where one has more, a notice on standard error says so. -EINVAL
 * names both files and the first token that differs. A file that cannot be read is left to the process that needs it: it
 * says why. */
int vocabulary_check(const char *model, const char *draft, struct error *err);
