/* The settings that may change while the verifier runs: the front reads its own where they are, the
 * engine gets a snapshot. */
#include "services/verifier/front/front.h"
#include "services/verifier/front/kv_change.h"

#include "services/knobs/of_device.h"
#include "shared/base/options.h"
#include "shared/ipc/daemon_knobs.h"

#include <stdlib.h>

static int rehearse(void *arg, const void *next, struct error *err)
{
	const struct front *front = arg;
	int rc = verifier_config_check_budget(next, front->model, err);

	return rc == 0 ? kv_change_check(front, next, err) : rc;
}

static int apply(void *arg, const void *next, struct error *err)
{
	struct front *front = arg;
	struct tuning *tuning = NULL;
	int rc = rehearse(arg, next, err);

	if (rc != 0)
		return rc;
	rc = tuning_create(next, &tuning, err);
	if (rc == 0)
		rc = kv_change_apply(front, next, err);
	if (rc == 0)
		engine_tune(front->engine, tuning);
	else
		free(tuning);
	return rc;
}

static int fits(void *arg, const void *next, struct error *err)
{
	const struct front *front = arg;

	return verifier_config_fits(next, front->config, front->model, err);
}

static const char *idle(void *arg, const struct config_key *key)
{
	const struct front *front = arg;

	return of_device_idle(key, front->backend->device);
}

int knobs_open(struct front *front, struct verifier_config *config, const struct options *options,
	struct error *err)
{
	const struct daemon_knobs knobs = {
		.keys = verifier_config_keys,
		.config = config,
		.config_bytes = sizeof(*config),
		.check = verifier_config_check,
		.fits = fits,
		.rehearse = rehearse,
		.apply = apply,
		.idle = idle,
		.arg = front,
		.config_path = options->config_path,
		.on_command_line = options->on_command_line,
	};

	return daemon_knobs_open(front->daemon, &knobs, err);
}
