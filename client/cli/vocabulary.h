/* Compares the tokens of a model and its draft model before anything is started, so that a wrong
 * draft model is an error of the command line, not a drafter that quietly does nothing. */
#pragma once

#include "shared/base/error.h"

/* 0 when the tokens that both have are the same strings; if one has more, a notice on standard
 * error says so. -EINVAL names both files and the first token that differs. 0 for a file that
 * cannot be read: the process that needs it will say why. */
int vocabulary_check(const char *model, const char *draft, struct error *err);
