/* How a request becomes a session. It is refused at once if its client, or all clients together,
 * ask for too much. Otherwise it waits in the inbox until its text was read and it has a place. */
#include "services/verifier/front/front.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/model/gguf/gguf_watch.h"

struct request_limits admission_limits(struct front *front)
{
	return (struct request_limits){
		.model = front->model,
		.tokenizer = front->tokenizer,
		.n_context = (uint32_t)front->config->context,
		.vocab = &front->vocab,
		.budget = verifier_config_budget(front->config, front->model),
	};
}

/* How many requests of a client have no answer yet; *bytes: of its messages in the inbox. */
static uint32_t n_requests(
	const struct front *front, const struct bus_address *client, size_t *bytes)
{
	uint32_t n = inbox_count(&front->inbox, client, bytes);

	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
		const struct front_session *fs = &front->sessions[i];

		n += fs->used && fs->attached && !fs->done_sent &&
		     inbox_same_client(&fs->client, client);
	}
	for (const struct shelved *kept = front->shelf.first; kept != NULL; kept = kept->next)
		n += kept->attached && !kept->returning && inbox_same_client(&kept->client, client);
	return n;
}

static int check_bytes(size_t bytes, size_t more, struct error *err)
{
	if (bytes + more <= LIMIT_INBOX_CLIENT_BYTES)
		return 0;
	return error_set(err, EAGAIN,
		"the requests of this client that wait to be read have %zu bytes; %zu more exceed "
		"the limit of %d",
		bytes, more, LIMIT_INBOX_CLIENT_BYTES);
}

static int check_client(
	struct front *front, const struct bus_address *from, size_t more, struct error *err)
{
	size_t bytes;
	uint32_t n = n_requests(front, from, &bytes);

	if (n >= front->config->client_requests)
		return error_set(err, EAGAIN,
			"%u requests of this client run or wait, the limit is %lld "
			"(client_requests)",
			n, (long long)front->config->client_requests);
	return check_bytes(bytes, more, err);
}

static int check_inbox(const struct inbox *inbox, size_t more, struct error *err)
{
	if (inbox->n >= LIMIT_INBOX_REQUESTS || inbox->bytes + more > LIMIT_INBOX_BYTES)
		return error_set(err, EAGAIN,
			"%u requests of %zu bytes wait to be read, the limits are %d and %d",
			inbox->n, inbox->bytes, LIMIT_INBOX_REQUESTS, LIMIT_INBOX_BYTES);
	return 0;
}

static int check_all(struct front *front, size_t more, struct error *err)
{
	const struct inbox *inbox = &front->inbox;
	int64_t waiting = places_waiting(front, inbox->n - inbox->n_questions);
	int rc = check_inbox(inbox, more, err);

	if (rc != 0)
		return rc;
	if (!front->config->admit)
		return error_set(err, EAGAIN,
			"this service accepts no new requests, because it is about to be stopped "
			"(admit = no)");
	if (waiting >= front->config->queue_max)
		return error_set(err, EAGAIN, "queue full: %lld waiting, limit %lld",
			(long long)waiting, (long long)front->config->queue_max);
	return 0;
}

static void refuse(struct front *front, const struct bus_address *from, uint64_t request_id,
	uint64_t uid, int rc, const struct error *err)
{
	log_session(LOG_LEVEL_INFO, uid, 0, "refused: %s", err->text);
	handlers_fail(front, from, request_id, uid, rc, err);
}

/* Begins the entry's session at the place `index`. */
static int begin(struct front *front, uint32_t index, struct inbox_entry *entry, struct error *err)
{
	struct shelved *kept = shelf_find(&front->shelf, entry->uid);
	int rc;

	if (kept != NULL) {
		rc = front_return(front, index, kept, err);
		if (rc != 0)
			shelf_waits_again(kept);
	} else {
		rc = front_begin(front, index, entry->uid, entry->reading, err);
	}
	if (rc != 0)
		return rc;
	/* Bound before the engine can start it, so that its first token finds the client. */
	bool done = journal_state(front->slots[index].page) == SESSION_DONE;
	front_bind(front, index, &entry->client, entry->request_id, entry->have, entry->credit);
	stream_accepted(front, index);
	if (done)
		stream_session(front, index);
	else
		engine_submit(front->engine, index);
	return 0;
}

/* Whether the entry has left the inbox, because it got a place or was refused. before: how many
 * wait for a place already. */
static bool place(
	struct front *front, struct inbox_entry *entry, uint32_t before, struct places_round *round)
{
	struct error err = {.text = ""};

	/* A session that was accepted before is not refused, however long the queue is. */
	if (entry->reading == NULL && !round->counted) {
		round->waiting = places_waiting(front, 0);
		round->counted = true;
	}
	if (entry->reading == NULL && round->waiting + 1 > front->config->queue_max)
		return false;
	int rc = places_take(front, before, round, &err);
	if (rc == -EINPROGRESS || (entry->reading == NULL && rc == -EAGAIN))
		return false;
	round->waiting += rc >= 0;
	if (rc >= 0)
		rc = begin(front, (uint32_t)rc, entry, &err);
	if (rc < 0)
		refuse(front, &entry->client, entry->request_id, entry->uid, rc, &err);
	inbox_remove(&front->inbox, entry);
	return true;
}

static uint32_t n_read(const struct front *front)
{
	uint32_t n = 0;

	for (const struct inbox_entry *e = front->inbox.first; e != NULL; e = e->next)
		n += e->read;
	return n;
}

static void send_answer(
	struct front *front, const struct inbox_entry *entry, const struct reading *reading)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;

	if (reading->rc != 0) {
		handlers_fail(
			front, &entry->client, entry->request_id, 0, reading->rc, &reading->err);
		return;
	}
	envelope.request_id = entry->request_id;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_TEXT;
	envelope.text = reading->answer;
	/* A client that does not read its answers does not get this one. */
	(void)bus_send_to(front->socket, &entry->client, &envelope);
}

/* Handles a text that was read. */
static void take_reading(struct front *front, struct reading *reading)
{
	struct inbox_entry *entry = reading->entry;
	uint32_t before = n_read(front);
	struct places_round round = {0};

	if (entry == NULL) {
		reading_free(&reading);
		return;
	}
	inbox_read(&front->inbox, entry);
	if (reading->is_question) {
		send_answer(front, entry, reading);
		inbox_remove(&front->inbox, entry);
		return;
	}
	if (reading->rc != 0) {
		refuse(front, &entry->client, entry->request_id, entry->uid, reading->rc,
			&reading->err);
		inbox_remove(&front->inbox, entry);
		return;
	}
	uint32_t n_prompt = (uint32_t)reading->input.n_prompt;
	if (!place(front, entry, before, &round))
		stream_accepted_entry(front, entry, n_prompt, 0);
}

/* Gives each idle lane the next text to read. */
static void give_texts(struct front *front)
{
	for (int lane = 0; lane < READER_LANES; lane++) {
		struct inbox_entry *entry;

		if (!reader_is_idle(front->reader, (enum reader_lane)lane))
			continue;
		entry = inbox_unread(&front->inbox, (enum reader_lane)lane);
		if (entry == NULL)
			continue;
		entry->begun = true;
		reader_start(front->reader, (enum reader_lane)lane, entry->reading);
	}
}

static void place_all(struct front *front)
{
	struct places_round round = {0};
	uint32_t before = 0;

	for (struct inbox_entry *e = front->inbox.first, *next; e != NULL; e = next) {
		next = e->next;
		if (e->read && !place(front, e, before, &round))
			before++;
	}
}

void admission_work(struct front *front)
{
	place_all(front);
	for (int lane = 0; lane < READER_LANES; lane++) {
		struct reading *reading = reader_take(front->reader, (enum reader_lane)lane);

		if (reading != NULL)
			take_reading(front, reading);
	}
	give_texts(front);
}

void admission_generate(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__Generate *generate)
{
	const struct request_limits limits = admission_limits(front);
	uint64_t uid = generate->session_uid;
	size_t bytes = outrider__generate__get_packed_size(generate);
	struct session_request unused;
	struct request_classes classes;
	struct request_class of_class;
	struct inbox_entry *entry = NULL;
	struct error err = {.text = ""};
	/* This process will end soon, and its successor will open the new file, so the client
	 * should try again. */
	int rc = gguf_lost(front->model->gguf, &err) == 0 ? 0 : -EAGAIN;

	if (rc == 0)
		rc = request_parameters(generate, &limits, clock_ns(), &unused, &err);
	if (rc == 0)
		rc = classes_read(front->config->classes, &classes, &err);
	if (rc == 0)
		rc = request_class(generate, &classes, &of_class, &err);
	if (rc == 0)
		rc = check_client(front, from, bytes, &err);
	if (rc == 0)
		rc = check_all(front, bytes, &err);
	if (rc == 0)
		entry = inbox_add(&front->inbox, from, uid, generate);
	if (rc == 0 && entry == NULL)
		rc = error_set(&err, ENOMEM, "no memory for a request");
	if (entry == NULL) {
		refuse(front, from, request_id, uid, rc, &err);
		return;
	}
	entry->request_id = request_id;
	entry->reading->of_class = of_class;
	entry->digest = request_digest(generate);
	entry->have = generate->have;
	entry->credit = generate->credit;
	give_texts(front);
}

void admission_ask(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__TextRequest *question)
{
	size_t bytes = outrider__text_request__get_packed_size(question), held;
	struct inbox_entry *entry = NULL;
	struct error err = {.text = ""};
	int rc;

	(void)inbox_count(&front->inbox, from, &held);
	rc = check_bytes(held, bytes, &err);
	if (rc == 0)
		rc = check_inbox(&front->inbox, bytes, &err);
	if (rc == 0 && (entry = inbox_ask(&front->inbox, from, question)) == NULL)
		rc = error_set(&err, ENOMEM, "no memory for a request");
	if (entry == NULL) {
		handlers_fail(front, from, request_id, 0, rc, &err);
		return;
	}
	entry->request_id = request_id;
	give_texts(front);
}

void admission_return(struct front *front, const struct bus_address *from, uint64_t request_id,
	struct shelved *kept, uint32_t have, uint32_t credit)
{
	uint32_t before = n_read(front), n_prompt = kept->page->n_prompt;
	uint32_t n_out = journal_n_tokens(kept->page) - n_prompt;
	struct inbox_entry *entry = inbox_add(&front->inbox, from, kept->uid, NULL);
	struct places_round round = {0};

	/* Memory is exhausted: its client will ask again. */
	if (entry == NULL)
		return;
	kept->returning = true;
	entry->request_id = request_id;
	entry->digest = kept->page->request.digest;
	entry->have = have;
	entry->credit = credit;
	if (!place(front, entry, before, &round))
		stream_accepted_entry(front, entry, n_prompt, n_out);
}

static struct shelved *takes_again(const struct front *front)
{
	struct shelved *kept = front->shelf.first;

	while (kept != NULL && (!kept->attached || kept->returning || kept->sent >= kept->credit ||
				       !bus_has_room(front->socket, &kept->client)))
		kept = kept->next;
	return kept;
}

void admission_resume(struct front *front)
{
	struct shelved *kept;

	/* Searched anew each time: a session that comes back may put another on the shelf, which
	 * may drop a third. */
	for (uint32_t n = front->shelf.n; n > 0 && (kept = takes_again(front)) != NULL; n--)
		admission_return(
			front, &kept->client, kept->request_id, kept, kept->sent, kept->credit);
}

void admission_dropped(void *arg, const struct shelved *kept)
{
	if (kept->attached)
		stream_cancelled(arg, &kept->client, kept->request_id, kept->uid, kept->sent);
}

void admission_gone(struct front *front, const struct bus_address *client)
{
	for (struct inbox_entry *e = front->inbox.first, *next; e != NULL; e = next) {
		next = e->next;
		if (!bus_same(&e->client, client))
			continue;
		struct shelved *kept = shelf_find(&front->shelf, e->uid);
		if (kept != NULL)
			shelf_waits_again(kept);
		inbox_remove(&front->inbox, e);
	}
}

void admission_cancel(struct front *front, struct inbox_entry *entry)
{
	struct shelved *kept = shelf_find(&front->shelf, entry->uid);

	stream_cancelled(front, &entry->client, entry->request_id, entry->uid, entry->have);
	if (kept != NULL)
		shelf_remove(&front->shelf, kept);
	inbox_remove(&front->inbox, entry);
}
