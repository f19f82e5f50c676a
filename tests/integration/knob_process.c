/*
 * A process with one knob, KEY, of 0 to 100, that stands for one of a service's:
 *
 *	knob-process RUNTIME_DIR NAME KEY
 *
 * It takes every value when it is asked before, and of those that are to be put in force refuses 66, and at 67 comes to
 * nothing: as one that runs out of memory in between, and one that hangs.
 */
#include "shared/base/log.h"
#include "shared/ipc/daemon.h"
#include "shared/ipc/daemon_knobs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { REFUSED = 66, HANGS = 67 };

struct config {
	int64_t value;
};

static int apply(void *arg, const void *next, struct error *err)
{
	const struct config *config = next;

	(void)arg;
	if (config->value == REFUSED)
		return error_set(err, ENOMEM, "no room for that after all");
	while (config->value == HANGS)
		pause();
	return 0;
}

int main(int argc, char **argv)
{
	struct config config;
	struct error err = {""};
	struct daemon *daemon;

	if (argc != 4) {
		fputs("usage: knob-process RUNTIME_DIR NAME KEY\n", stderr);
		return 64;
	}
	const struct config_key keys[] = {
		{"", argv[3], CONFIG_INT, 0, 0, 0, 100, NULL, "10", "things", "How many.",
			KNOB_LIVE, KNOB_GLOBAL},
		{.name = NULL},
	};
	const struct daemon_options options = {.name = argv[2], .runtime_dir = argv[1]};
	const struct daemon_knobs knobs = {
		.keys = keys, .config = &config, .config_bytes = sizeof config, .apply = apply};

	log_init(argv[2], 0);
	config_defaults(keys, &config);
	int r = daemon_create(&options, &daemon, &err);
	if (r == 0)
		r = daemon_knobs_open(daemon, &knobs, &err);
	if (r == 0)
		r = daemon_admin_open(daemon, NULL, NULL, &err);
	if (r < 0) {
		log_error("%s", err.text);
		return 1;
	}
	daemon_ready(daemon);
	r = daemon_run(daemon);
	daemon_destroy(&daemon);
	return r;
}
