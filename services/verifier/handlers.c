/* Dispatches the messages of the client socket. A message is checked as a whole before anything
 * changes. */
#include "services/verifier/front/front.h"

#include "shared/base/arithmetic.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"

#include <string.h>

void handlers_fail(struct front *front, const struct bus_address *to, uint64_t request_id,
	uint64_t uid, int rc, const struct error *err)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Failure failure = OUTRIDER__FAILURE__INIT;

	failure.code = -rc;
	failure.message = (char *)err->text;
	failure.session_uid = uid;
	failure.retry_ms = rc == -EAGAIN ? front_retry_ms(front) : 0;
	envelope.request_id = request_id;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_FAILURE;
	envelope.failure = &failure;
	/* A client that does not read its answers does not get this one. */
	(void)bus_send_to(front->socket, to, &envelope);
}

static void attach(struct front *front, uint32_t index, const struct bus_address *from,
	uint64_t request_id, uint32_t have, uint32_t credit)
{
	front_bind(front, index, from, request_id, have, credit);
	stream_accepted(front, index);
	stream_session(front, index);
}

/* A client asks again for a request in the inbox, perhaps by another connection. */
static void rebind(struct front *front, struct inbox_entry *entry, const struct bus_address *from,
	uint64_t request_id, uint32_t have, uint32_t credit)
{
	const struct shelved *kept = shelf_find(&front->shelf, entry->uid);

	entry->client = *from;
	entry->request_id = request_id;
	entry->have = have;
	entry->credit = credit;
	if (kept != NULL)
		stream_accepted_entry(front, entry, kept->page->n_prompt,
			journal_n_tokens(kept->page) - kept->page->n_prompt);
	else
		/* While the text is being read, its number of tokens is not known: the client
		 * learns only that its request is here. */
		stream_accepted_entry(front, entry,
			entry->read ? (uint32_t)entry->reading->input.n_prompt : 0, 0);
}

/* The digest of the request that a uid names, wherever its session is; false: it names none. */
static bool find_digest(const struct front *front, uint64_t uid, uint64_t *digest)
{
	int index = front_find(front, uid);
	const struct shelved *kept = shelf_find(&front->shelf, uid);
	const struct inbox_entry *entry = inbox_find(&front->inbox, uid);

	if (index >= 0)
		*digest = front->slots[index].page->request.digest;
	else if (kept != NULL)
		*digest = kept->page->request.digest;
	else if (entry != NULL)
		*digest = entry->digest;
	else
		return false;
	return true;
}

/* Continues the session from `have`, wherever it is; false: there is none. */
static bool find_and_go_on(struct front *front, const struct bus_address *from, uint64_t request_id,
	uint64_t uid, uint32_t have, uint32_t credit)
{
	int index = front_find(front, uid);
	struct inbox_entry *entry = inbox_find(&front->inbox, uid);
	struct shelved *kept = shelf_find(&front->shelf, uid);

	if (index >= 0)
		attach(front, (uint32_t)index, from, request_id, have, credit);
	else if (entry != NULL)
		rebind(front, entry, from, request_id, have, credit);
	else if (kept != NULL)
		admission_return(front, from, request_id, kept, have, credit);
	else
		return false;
	return true;
}

/* Whether the client has part of an answer that was computed with another arithmetic; if so, the
 * client is told. */
static bool refuse_arithmetic(struct front *front, const struct bus_address *from,
	uint64_t request_id, uint64_t uid, uint32_t have, uint32_t arithmetic)
{
	uint32_t own = verifier_config_arithmetic(front->config);
	char names[2][ARITHMETIC_TEXT];
	struct error err;

	if (have == 0 || arithmetic == 0 || arithmetic == own)
		return false;
	int rc = error_set(&err, ESTALE,
		"this answer was begun with arithmetic %s, but this verifier computes with "
		"arithmetic %s: the answer cannot go on after %u tokens",
		arithmetic_text(arithmetic, names[0]), arithmetic_text(own, names[1]), have);
	log_session(LOG_LEVEL_INFO, uid, 0, "refused: %s", err.text);
	handlers_fail(front, from, request_id, uid, rc, &err);
	return true;
}

static void on_generate(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__Generate *generate)
{
	uint64_t uid = generate->session_uid, digest;
	struct error err;

	if (refuse_arithmetic(front, from, request_id, uid, generate->have, generate->arithmetic))
		return;
	if (uid == 0 || !find_digest(front, uid, &digest)) {
		admission_generate(front, from, request_id, generate);
		return;
	}
	/* The same uid is the same session: its client lost the connection and asks again. */
	if (digest == request_digest(generate)) {
		(void)find_and_go_on(
			front, from, request_id, uid, generate->have, generate->credit);
		return;
	}
	int rc = error_set(&err, EEXIST,
		"session %016llx belongs to another request: its prompt or parameters differ, and "
		"a uid names only one request",
		(unsigned long long)uid);
	log_session(LOG_LEVEL_INFO, uid, 0, "refused: %s", err.text);
	handlers_fail(front, from, request_id, uid, rc, &err);
}

static int unknown(uint64_t uid, struct error *err)
{
	return error_set(err, ENOENT, "no session %016llx here", (unsigned long long)uid);
}

static void on_resume(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__Resume *resume)
{
	uint64_t uid = resume->session_uid;
	struct error err;

	if (refuse_arithmetic(front, from, request_id, uid, resume->have, resume->arithmetic))
		return;
	if (uid != 0 && find_and_go_on(front, from, request_id, uid, resume->have, resume->credit))
		return;
	handlers_fail(front, from, request_id, uid, unknown(uid, &err), &err);
}

/* Credit for a session that has just been freed is no error. */
static void on_credit(
	struct front *front, const struct bus_address *from, const Outrider__Credit *credit)
{
	uint64_t uid = credit->session_uid;
	int index = front_find(front, uid);

	if (uid == 0)
		return;
	if (index >= 0) {
		front_credit(front, (uint32_t)index, credit->credit);
		stream_session(front, (uint32_t)index);
		return;
	}
	struct inbox_entry *entry = inbox_find(&front->inbox, uid);
	struct shelved *kept = shelf_find(&front->shelf, uid);
	if (entry != NULL) {
		if (credit->credit > entry->credit)
			entry->credit = credit->credit;
	} else if (kept != NULL && kept->attached && bus_same(&kept->client, from) &&
		   credit->credit > kept->credit) {
		/* From another connection the client asks with Resume, which says what has arrived.
		 */
		admission_return(front, from, kept->request_id, kept, kept->sent, credit->credit);
	}
}

static void on_cancel(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__Cancel *cancel)
{
	uint64_t uid = cancel->session_uid;
	int index = uid != 0 ? front_find(front, uid) : -1;
	struct inbox_entry *entry = uid != 0 ? inbox_find(&front->inbox, uid) : NULL;
	struct shelved *kept = shelf_find(&front->shelf, uid);
	struct error err;

	if (entry != NULL) {
		admission_cancel(front, entry);
		return;
	}
	if (index < 0 && kept != NULL) {
		stream_cancelled(front, from, kept->request_id, uid, kept->sent);
		shelf_remove(&front->shelf, kept);
		return;
	}
	if (index < 0) {
		handlers_fail(front, from, request_id, uid, unknown(uid, &err), &err);
		return;
	}
	front->sessions[index].heard_ns = clock_ns();
	atomic_store_explicit(&front->slots[index].cancel, true, memory_order_relaxed);
	engine_changed(front->engine, (uint32_t)index);
}

static void dispatch(
	struct front *front, const struct bus_address *from, const Outrider__Envelope *envelope)
{
	struct error err;

	switch (envelope->body_case) {
	case OUTRIDER__ENVELOPE__BODY_GENERATE:
		on_generate(front, from, envelope->request_id, envelope->generate);
		break;
	case OUTRIDER__ENVELOPE__BODY_RESUME:
		on_resume(front, from, envelope->request_id, envelope->resume);
		break;
	case OUTRIDER__ENVELOPE__BODY_CREDIT:
		on_credit(front, from, envelope->credit);
		break;
	case OUTRIDER__ENVELOPE__BODY_CANCEL:
		on_cancel(front, from, envelope->request_id, envelope->cancel);
		break;
	case OUTRIDER__ENVELOPE__BODY_TEXT_REQUEST:
		admission_ask(front, from, envelope->request_id, envelope->text_request);
		break;
	default:
		log_limited(LOG_LEVEL_NOTICE,
			"a client sent message kind %d, which clients may not send",
			(int)envelope->body_case);
		handlers_fail(front, from, envelope->request_id, 0,
			error_set(&err, EPROTO, "clients may not send message kind %d",
				(int)envelope->body_case),
			&err);
		break;
	}
}

void handlers_client(void *arg)
{
	struct front *front = arg;
	struct bus_address from;
	Outrider__Envelope *envelope;
	struct error err = {.text = ""};
	int rc = bus_receive_from(front->socket, &from, &envelope, &err);

	if (rc == -EAGAIN)
		return;
	if (rc == -EPROTO) {
		log_limited(LOG_LEVEL_NOTICE, "a client's message was dropped: %s", err.text);
		handlers_fail(front, &from, 0, 0, rc, &err);
		return;
	}
	if (rc != 0) {
		log_error("client socket: %s", strerror(-rc));
		return;
	}
	dispatch(front, &from, envelope);
	bus_free(&envelope);
}
