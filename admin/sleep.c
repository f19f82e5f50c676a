/* outriderctl session sleep and session wake. */
#include "admin/ctl.h"

#include "shared/base/proquint.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <sysexits.h>

/* Returns an exit status. */
static int tell(struct ctl *ctl, int argc, char **argv, bool wake)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__SessionSleep body = OUTRIDER__SESSION_SLEEP__INIT;
	char subject[80];

	if (argc != 1)
		return ctl_fail(EX_USAGE, "expected one session; outriderctl sessions lists them");
	body.wake = wake;
	int status = ctl_session(ctl, argv[0], &body.uid);
	if (status)
		return status;
	request.body_case = OUTRIDER__ENVELOPE__BODY_SESSION_SLEEP;
	request.session_sleep = &body;
	snprintf(subject, sizeof subject, "session %.63s", argv[0]);
	status = ctl_call_about(
		ctl, PEER_VERIFIER, subject, &request, OUTRIDER__ENVELOPE__BODY_SESSIONS, &reply);
	if (status)
		return status;
	if (ctl->json)
		status = ctl_print_json(ctl_sessions_json(reply->sessions));
	else if (reply->sessions->n_sessions == 1)
		printf("session %s is %s\n", PROQUINT(body.uid),
			reply->sessions->sessions[0]->state);
	bus_free(&reply);
	return status;
}

int ctl_session_sleep(struct ctl *ctl, int argc, char **argv)
{
	return tell(ctl, argc, argv, false);
}

int ctl_session_wake(struct ctl *ctl, int argc, char **argv)
{
	return tell(ctl, argc, argv, true);
}
