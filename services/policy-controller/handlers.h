/* The admin messages of the policy-controller: PolicyGet, PolicySet, PolicyWatch. Run in the
 * loop thread. */
#pragma once

#include "proto/envelope.pb-c.h"
#include "services/policy-controller/records.h"

/* daemon_admin; arg is the struct records. */
bool handle_admin(
	void *arg, const struct Outrider__Envelope *request, struct Outrider__Envelope *reply);
