/* The command line of outrider-drafter. */
#pragma once

#include "services/drafter/config.h"

struct options {
	const char *runtime_dir, *config_path; /* NULL: the default */
	struct drafter_config config;
	bool check; /* -n */
	int verbosity;
};

/* Reads flags, the configuration file and --set. 1: go on; 0: all is done (help, version,
 * print-config, check); -errno with the reason, -EINVAL for the command line itself. */
int options_read(struct options *options, int argc, char **argv, struct error *err);
