/* The command line of outrider-policy. */
#pragma once

#include "services/policy-controller/settings.h"

struct options {
	const char *runtime_dir, *config; /* NULL: the default */
	struct settings settings;
	bool check; /* -n */
	int verbosity;
};

/* Reads flags, the configuration file and --set. 1: go on; 0: all is done (help, version,
 * print-config, check); -errno with the reason. */
int options_read(struct options *options, int argc, char **argv, struct error *err);
