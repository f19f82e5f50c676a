/* outriderctl drain: nothing new is started, and what runs or waits is finished. */
#include "admin/interrupt.h"
#include "admin/knob.h"

#include "shared/base/standard.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <poll.h>
#include <string.h>
#include <sysexits.h>

enum { LOOK_MS = 200 };

/* The sessions that run or wait, without finished ones that are kept for their clients. */
static size_t n_live(const Outrider__Sessions *all)
{
	size_t n = all->queued;

	for (size_t i = 0; i < all->n_sessions; i++) {
		const char *state = all->sessions[i]->state;

		n += strcmp(state, "prefill") == 0 || strcmp(state, "running") == 0;
	}
	return n;
}

/* Returns an exit status. */
static int ask_live(struct ctl *ctl, size_t *n)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__SessionsRequest body = OUTRIDER__SESSIONS_REQUEST__INIT;

	request.body_case = OUTRIDER__ENVELOPE__BODY_SESSIONS_REQUEST;
	request.sessions_request = &body;
	int status =
		ctl_call(ctl, PEER_VERIFIER, &request, OUTRIDER__ENVELOPE__BODY_SESSIONS, &reply);
	if (status)
		return status;
	*n = n_live(reply->sessions);
	bus_free(&reply);
	return 0;
}

static int say(const struct ctl *ctl, size_t n)
{
	if (ctl->json)
		return ctl_print_json(json_pack("{s:I}", "live", (json_int_t)n));
	if (n > 0)
		printf("%zu session%s still running or waiting\n", n, plural(n));
	else
		printf("drained: no session runs or waits\n");
	return 0;
}

int ctl_drain(struct ctl *ctl, int argc, char **argv)
{
	static struct knob_wishes wishes;
	size_t n, said = SIZE_MAX;

	(void)argc;
	(void)argv;
	int status = knob_add_wish(
		ctl, "drain", NULL, "admit", "no", knob_process_of(PEER_VERIFIER), &wishes);
	if (status == 0)
		status = knob_make(ctl, &wishes);
	interrupt_watch(false);
	while (status == 0) {
		status = ask_live(ctl, &n);
		if (status == 0 && n != said)
			status = say(ctl, said = n);
		if (status || n == 0 || ctl->once || !standard_flush())
			return status;
		if (interrupted() || poll(NULL, 0, LOOK_MS) < 0)
			return interrupt_status(ctl_fail(EX_TEMPFAIL,
				"%zu session%s not at an end yet; new "
				"requests are still refused",
				n, plural(n)));
	}
	return status;
}
