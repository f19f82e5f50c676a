#include "client/summary/look.h"

#include "client/summary/process.h"
#include "shared/base/clock.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <string.h>

/* NULL: there was no answer, or not the expected one. */
static Outrider__Envelope *ask(const char *runtime_dir, void *zmq, const char *process,
	Outrider__Envelope *request, Outrider__Envelope__BodyCase expected, int timeout_ms)
{
	Outrider__Envelope *reply = NULL;
	char endpoint[300];

	peers_admin_endpoint(runtime_dir, process, endpoint, sizeof endpoint);
	if (bus_call(zmq, endpoint, request, timeout_ms, NULL, &reply, NULL) < 0)
		return NULL;
	if (reply->body_case != expected)
		bus_free(&reply);
	return reply;
}

int look_at(const char *runtime_dir, void *zmq, int timeout_ms, struct look *look)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__SessionsRequest sessions = OUTRIDER__SESSIONS_REQUEST__INIT;
	Outrider__PolicyGet policy = OUTRIDER__POLICY_GET__INIT;
	Outrider__CacheStatsRequest cache = OUTRIDER__CACHE_STATS_REQUEST__INIT;
	int code;

	memset(look, 0, sizeof *look);
	code = outrider_status(runtime_dir, timeout_ms, &look->status);
	if (code < 0)
		return code;
	look->at_ns = clock_ns();
	request.body_case = OUTRIDER__ENVELOPE__BODY_SESSIONS_REQUEST;
	request.sessions_request = &sessions;
	if (process_find(look->status, PEER_VERIFIER))
		look->sessions = ask(runtime_dir, zmq, PEER_VERIFIER, &request,
			OUTRIDER__ENVELOPE__BODY_SESSIONS, timeout_ms);
	request = (Outrider__Envelope)OUTRIDER__ENVELOPE__INIT;
	request.body_case = OUTRIDER__ENVELOPE__BODY_POLICY_GET;
	request.policy_get = &policy;
	if (process_find(look->status, PEER_POLICY))
		look->policy = ask(runtime_dir, zmq, PEER_POLICY, &request,
			OUTRIDER__ENVELOPE__BODY_POLICY_STATE, timeout_ms);
	request = (Outrider__Envelope)OUTRIDER__ENVELOPE__INIT;
	request.body_case = OUTRIDER__ENVELOPE__BODY_CACHE_STATS_REQUEST;
	request.cache_stats_request = &cache;
	if (process_find(look->status, PEER_CACHE))
		look->cache = ask(runtime_dir, zmq, PEER_CACHE, &request,
			OUTRIDER__ENVELOPE__BODY_CACHE_STATS, timeout_ms);
	return 0;
}

void look_free(struct look *look)
{
	outrider_status_free(&look->status);
	bus_free(&look->sessions);
	bus_free(&look->policy);
	bus_free(&look->cache);
}

const Outrider__Sessions *look_sessions(const struct look *look)
{
	return look->sessions ? look->sessions->sessions : NULL;
}

const Outrider__PolicyState *look_policy(const struct look *look)
{
	return look->policy ? look->policy->policy_state : NULL;
}

const Outrider__CacheStats *look_cache(const struct look *look)
{
	return look->cache ? look->cache->cache_stats : NULL;
}

const Outrider__PolicySession *look_session(const struct look *look, uint64_t uid)
{
	const Outrider__PolicyState *state = look_policy(look);

	for (size_t i = 0; state && i < state->n_sessions; i++)
		if (state->sessions[i]->session_uid == uid)
			return state->sessions[i];
	return NULL;
}

bool look_drafts(const Outrider__PolicySession *session)
{
	return (double)session->drafted >= LOOK_DRAFTED_LEAST;
}

double look_utility(const Outrider__PolicySession *session)
{
	return session->iteration_ms > 0 && look_drafts(session)
		       ? (double)session->etr * session->base_ms / session->iteration_ms
		       : 0;
}
