/* Sessions as a person names them: by number, by name, or by the beginning of a name. */
#include "admin/ctl.h"

#include "shared/base/proquint.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <inttypes.h>
#include <sysexits.h>

enum { TIMEOUT_MS = 1000 };

/* The sessions of a service that a text may name. */
struct named {
	const char *text;
	uint64_t uid; /* the first one found; 0: none so far */
	uint64_t other; /* a second one; 0: the text is not ambiguous */
};

static void see(struct named *named, uint64_t uid)
{
	if (!proquint_begins(uid, named->text) || uid == named->uid)
		return;
	if (!named->uid)
		named->uid = uid;
	else
		named->other = uid;
}

static void see_policy(struct ctl *ctl, struct named *named)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT, *reply;
	Outrider__PolicyGet body = OUTRIDER__POLICY_GET__INIT;

	request.body_case = OUTRIDER__ENVELOPE__BODY_POLICY_GET;
	request.policy_get = &body;
	if (ctl_ask(ctl, PEER_POLICY, &request, OUTRIDER__ENVELOPE__BODY_POLICY_STATE, TIMEOUT_MS,
		    &reply, NULL) < 0)
		return;
	for (size_t i = 0; i < reply->policy_state->n_sessions; i++)
		see(named, reply->policy_state->sessions[i]->session_uid);
	bus_free(&reply);
}

/* 0 is no session: an unset variable of a script must not select all sessions. */
bool ctl_session_text(const char *text)
{
	uint64_t number;

	return proquint_is_prefix(text) || (ctl_number(text, UINT64_MAX, &number) && number != 0);
}

int ctl_session_bad(const char *text)
{
	return ctl_fail(EX_USAGE,
		"session \"%.32s\": expected the name or the number of a session; outriderctl "
		"sessions lists them",
		text);
}

int ctl_session(struct ctl *ctl, const char *text, uint64_t *session)
{
	struct named named = {.text = text};

	if (ctl_number(text, UINT64_MAX, session) && *session != 0)
		return 0;
	if (!proquint_is_prefix(text))
		return ctl_session_bad(text);
	Outrider__Envelope *reply = ctl_ask_sessions(ctl);
	for (size_t i = 0; reply && i < reply->sessions->n_sessions; i++)
		see(&named, reply->sessions->sessions[i]->uid);
	bus_free(&reply);
	see_policy(ctl, &named);
	if (!named.uid)
		return ctl_fail(EX_DATAERR,
			"no session has a name that begins with \"%s\"; outriderctl sessions "
			"lists them",
			text);
	if (named.other)
		return ctl_fail(EX_DATAERR,
			"more than one session has a name that begins with \"%s\": %s and %s, for "
			"example",
			text, PROQUINT(named.uid), PROQUINT(named.other));
	*session = named.uid;
	return 0;
}

int ctl_session_of(struct ctl *ctl, const char *word, uint64_t *session)
{
	*session = ctl->session;
	if (!word)
		return 0;
	int status = ctl_session(ctl, word, session);
	if (status == 0 && ctl->session && ctl->session != *session)
		status = ctl_fail(EX_USAGE, "session %.32s and --session %s exclude each other",
			word, ctl->session_text);
	return status;
}
