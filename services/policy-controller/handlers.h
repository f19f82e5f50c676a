/* The admin messages of the policy-controller: PolicyGet, PolicyWatch, PolicyExplain,
 * PolicyRecordsRequest; and the effect of its knobs. Runs in the loop thread. */
#pragma once

#include "proto/envelope.pb-c.h"
#include "services/policy-controller/records.h"
#include "shared/base/options.h"
#include "shared/ipc/daemon.h"

/* A daemon_admin function; arg is the struct records. */
int handle_admin(
	void *arg, const struct Outrider__Envelope *request, struct Outrider__Envelope *reply);

/* settings: in force for new sessions. options: of the start. Both are borrowed. */
int handlers_knobs(struct records *records, struct daemon *daemon, struct settings *settings,
	const struct options *options, struct error *err);
