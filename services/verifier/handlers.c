/* The message switch of the client socket. A message is checked whole before anything changes. */
#include "services/verifier/front.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/model/gguf_watch.h"

#include <string.h>

static void fail(struct front *front, const struct bus_address *to, uint64_t request_id,
	uint64_t uid, int rc, const struct error *err)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Failure failure = OUTRIDER__FAILURE__INIT;

	failure.code = -rc;
	failure.message = (char *)err->text;
	failure.session_uid = uid;
	envelope.request_id = request_id;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_FAILURE;
	envelope.failure = &failure;
	/* Who does not read its answers does not get this one. */
	(void)bus_send_to(front->socket, to, &envelope);
}

static void accepted(struct front *front, uint32_t index)
{
	const struct front_session *fs = &front->sessions[index];
	const struct session_page *page = front->slots[index].page;
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Accepted body = OUTRIDER__ACCEPTED__INIT;

	body.session_uid = atomic_load_explicit(&page->uid, memory_order_relaxed);
	body.prompt_tokens = page->n_prompt;
	body.output_tokens = journal_n_tokens(page) - page->n_prompt;
	body.generation = daemon_generation(front->daemon);
	body.engine = front->model->fingerprint ^ front->regions->header.other_stamps ^
		      ((uint64_t)front->regions->kv_layout.type + 1 +
			      ((uint64_t)KERNELS_ARITHMETIC << 8)) *
			      0x9E3779B97F4A7C15u;
	envelope.request_id = fs->request_id;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_ACCEPTED;
	envelope.accepted = &body;
	(void)bus_send_to(front->socket, &fs->client, &envelope);
}

static void attach(struct front *front, uint32_t index, const struct bus_address *from,
	uint64_t request_id, uint32_t have, uint32_t credit)
{
	front_bind(front, index, from, request_id, have, credit);
	accepted(front, index);
	stream_session(front, index);
}

static void on_generate(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__Generate *generate)
{
	const struct request_limits limits = {
		.model = front->model,
		.tokenizer = front->tokenizer,
		.n_context = (uint32_t)front->config->context,
	};
	struct session_request request;
	struct request_input input = {0};
	struct error err = {.text = ""};
	/* The same uid is the same session: its client lost the connection and asks again. */
	int index = generate->session_uid != 0 ? front_find(front, generate->session_uid) : -1;

	if (index >= 0) {
		attach(front, (uint32_t)index, from, request_id, generate->have, generate->credit);
		return;
	}
	int rc = gguf_lost(front->model->gguf, &err) == 0 ? 0 : -EIO;
	if (rc == 0)
		rc = request_read(generate, &limits, clock_ns(), &request, &input, &err);
	if (rc == 0)
		rc = index = front_place(front, &err);
	if (rc >= 0)
		rc = front_begin(front, (uint32_t)index, generate->session_uid, &request, &input,
			generate->replay != NULL ? generate->replay->ids : NULL, &err);
	if (rc < 0) {
		log_session(LOG_LEVEL_INFO, generate->session_uid, 0, "refused: %s", err.text);
		fail(front, from, request_id, generate->session_uid, rc, &err);
	} else {
		/* Bound before the engine may start it: its first token finds the client. */
		front_bind(
			front, (uint32_t)index, from, request_id, generate->have, generate->credit);
		accepted(front, (uint32_t)index);
		engine_submit(front->engine, (uint32_t)index);
	}
	request_input_free(&input);
}

static void on_resume(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__Resume *resume)
{
	int index = resume->session_uid != 0 ? front_find(front, resume->session_uid) : -1;
	struct error err;

	if (index < 0) {
		int rc = error_set(&err, ENOENT, "no session %016llx here",
			(unsigned long long)resume->session_uid);
		fail(front, from, request_id, resume->session_uid, rc, &err);
	} else {
		attach(front, (uint32_t)index, from, request_id, resume->have, resume->credit);
	}
}

static void on_credit(struct front *front, const Outrider__Credit *credit)
{
	/* One that has just been let go of is no error. */
	int index = credit->session_uid != 0 ? front_find(front, credit->session_uid) : -1;

	if (index < 0)
		return;
	front_credit(front, (uint32_t)index, credit->credit);
	stream_session(front, (uint32_t)index);
}

static void on_cancel(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__Cancel *cancel)
{
	int index = cancel->session_uid != 0 ? front_find(front, cancel->session_uid) : -1;
	struct error err;

	if (index < 0) {
		int rc = error_set(&err, ENOENT, "no session %016llx here",
			(unsigned long long)cancel->session_uid);
		fail(front, from, request_id, cancel->session_uid, rc, &err);
		return;
	}
	front->sessions[index].heard_ns = clock_ns();
	atomic_store_explicit(&front->slots[index].cancel, true, memory_order_relaxed);
	engine_poke(front->engine);
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
		on_credit(front, envelope->credit);
		break;
	case OUTRIDER__ENVELOPE__BODY_CANCEL:
		on_cancel(front, from, envelope->request_id, envelope->cancel);
		break;
	default:
		log_limited(LOG_LEVEL_NOTICE,
			"a client sent message kind %d, which is none of a client's",
			(int)envelope->body_case);
		fail(front, from, envelope->request_id, 0,
			error_set(&err, EPROTO, "message kind %d is none of a client's",
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
		fail(front, &from, 0, 0, rc, &err);
		return;
	}
	if (rc != 0) {
		log_error("client socket: %s", strerror(-rc));
		return;
	}
	dispatch(front, &from, envelope);
	bus_free(&envelope);
}
