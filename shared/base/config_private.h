/* What config.c (reading) and config_value.c (writing) share. Nobody else includes it. */
#pragma once

#include "shared/base/config.h"

/* "K" times 1024. A list ends with text == NULL. */
struct config_suffix {
	const char *text;
	double factor;
	bool alias; /* is read, not written */
};
const struct config_suffix *config_suffixes(enum config_type type);
