#include "services/verifier/front/front.h"
#include "services/verifier/front/kv_change.h"
#include "services/verifier/state/device.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/model/gguf/gguf_watch.h"

#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

/* A process whose model is lost stays for at least this long, so that new clients are told, and
 * until all clients with an answer in progress are told; but not longer than TELL_NS_MAX. */
#define TELL_NS_MIN 1000000000u
#define TELL_NS_MAX 5000000000u

/* Opens the slot of a page that will be filled, or was found. */
static int slot_open(struct front *front, uint32_t index, uint32_t restarts)
{
	struct slot *slot = &front->slots[index];

	memset(slot, 0, sizeof(*slot));
	slot->page = journal_page(front->regions->header.n_context);
	slot->shared = regions_page(front->regions, index);
	slot->restarts = restarts;
	slot->usage.submitted_ns = clock_ns();
	return slot->page != NULL ? 0 : -ENOMEM;
}

/* Makes room for the records that the request asks for. */
static int make_records(const struct front *front, struct slot *slot)
{
	const struct session_request *request = &slot->page->request;
	size_t n = (size_t)front->config->context;

	if (request->logits_hash != 0)
		slot->hashes = calloc(n, sizeof(*slot->hashes));
	if (request->logprobs != 0)
		slot->logprobs = calloc(n * request->logprobs, sizeof(*slot->logprobs));
	if (request->audit != 0)
		slot->picked = calloc(n, sizeof(*slot->picked));
	return (request->logits_hash != 0 && slot->hashes == NULL) ||
			       (request->logprobs != 0 && slot->logprobs == NULL) ||
			       (request->audit != 0 && slot->picked == NULL)
		       ? -ENOMEM
		       : 0;
}

/* Makes what the request in the page needs: takes over its stop strings and its grammar, and makes
 * room for records. */
static int slot_prepare(struct front *front, uint32_t index, struct stop_match **match,
	struct constraint **constraint)
{
	struct slot *slot = &front->slots[index];

	slot->match = *match;
	slot->constraint = *constraint;
	*match = NULL;
	*constraint = NULL;
	return make_records(front, slot);
}

static void session_open(struct front *front, uint32_t index)
{
	struct front_session *fs = &front->sessions[index];

	memset(fs, 0, sizeof(*fs));
	fs->used = true;
	fs->uid = atomic_load_explicit(&front->slots[index].page->uid, memory_order_relaxed);
	bits_clear(front->free, index);
	front->n_used++;
	uids_put(&front->uids, fs->uid, index);
	fs->heard_ns = front->slots[index].usage.submitted_ns;
}

static void session_release(struct front *front, uint32_t index)
{
	if (front->sessions[index].used) {
		bits_set(front->free, index);
		bits_clear(front->again, index);
		front->n_used--;
		front->n_yielding -= front->sessions[index].yielding;
		uids_remove(&front->uids, front->sessions[index].uid);
	}
	free(front->sessions[index].pending);
	free(front->slots[index].hashes);
	free(front->slots[index].logprobs);
	free(front->slots[index].picked);
	stop_match_free(&front->slots[index].match);
	constraint_free(&front->slots[index].constraint);
	free(front->slots[index].page);
	memset(&front->sessions[index], 0, sizeof(front->sessions[index]));
	memset(&front->slots[index], 0, sizeof(front->slots[index]));
}

void front_release(struct front *front, uint32_t index)
{
	const struct slot *slot = &front->slots[index];

	/* Until then it belongs to the engine. */
	assert(journal_state(slot->page) == SESSION_DONE ||
		atomic_load_explicit(&slot->yielded, memory_order_acquire));
	journal_free(slot->page, slot->shared);
	session_release(front, index);
}

void front_shelve(struct front *front, uint32_t index)
{
	const struct front_session *fs = &front->sessions[index];
	struct slot *slot = &front->slots[index];
	uint64_t uid = atomic_load_explicit(&slot->page->uid, memory_order_relaxed);
	struct shelved *kept =
		shelf_put(&front->shelf, &front->regions->header, slot->page, slot->shared);

	if (kept == NULL) {
		log_session(
			LOG_LEVEL_ERROR, uid, 0, "dropped: no memory to keep it without a place");
		if (fs->attached)
			stream_cancelled(front, &fs->client, fs->request_id, uid, fs->sent);
	} else {
		kept->client = fs->client;
		kept->attached = fs->attached;
		kept->request_id = fs->request_id;
		kept->sent = fs->sent;
		kept->credit = fs->credit;
		kept->restarts = slot->restarts;
		kept->usage = slot->usage;
		kept->match = slot->match;
		kept->constraint = slot->constraint;
		slot->match = NULL;
		slot->constraint = NULL;
		log_session(LOG_LEVEL_INFO, uid, 0,
			"has no place until its client is back: others wait");
	}
	front_release(front, index);
}

int front_return(struct front *front, uint32_t index, struct shelved *kept, struct error *err)
{
	struct slot *slot = &front->slots[index];

	if (slot_open(front, index, kept->restarts) == 0) {
		journal_restore(&front->regions->header, slot->page, slot->shared, kept->page,
			++front->admitted);
		if (slot_prepare(front, index, &kept->match, &kept->constraint) == 0) {
			slot->usage = kept->usage;
			sleep_restore(front, index);
			session_open(front, index);
			front->sessions[index].heard_ns = clock_ns();
			if (journal_state(slot->page) == SESSION_DONE)
				front->sessions[index].done_ns = clock_ns();
			shelf_remove(&front->shelf, kept);
			return 0;
		}
		journal_free(slot->page, slot->shared);
		kept->match = slot->match;
		kept->constraint = slot->constraint;
		slot->match = NULL;
		slot->constraint = NULL;
	}
	session_release(front, index);
	return error_set(err, ENOMEM, "no memory for a session");
}

/* Copies a predecessor's page if it is sound, otherwise gives it up. */
static void adopt_page(struct front *front, uint32_t i)
{
	struct slot *slot = &front->slots[i];
	struct session_page *shared = regions_page(front->regions, i);
	uint64_t uid = atomic_load_explicit(&shared->uid, memory_order_acquire);
	struct stop_match *match = NULL;
	struct constraint *constraint = NULL;
	struct error err;
	int rc = 0;

	if (uid == 0)
		return;
	if (slot_open(front, i, 1) != 0)
		rc = error_set(&err, ENOMEM, "no memory for it");
	if (rc == 0)
		rc = journal_adopt(&front->regions->header, shared, front->model->config.n_vocab,
			slot->page, &err);
	if (rc == 0 && front_find(front, atomic_load(&slot->page->uid)) >= 0)
		rc = error_set(&err, EINVAL, "another page belongs to the same session");
	if (rc == 0)
		rc = constraint_create(&slot->page->request, &front->vocab, &constraint, &err);
	if (rc == 0 && (stop_match_create(&slot->page->request, front->regions->header.n_context,
				&match) != 0 ||
			       slot_prepare(front, i, &match, &constraint) != 0))
		rc = error_set(&err, ENOMEM, "no memory for it");
	if (rc == 0) {
		/* The engine may not get the session; if it does, it uses what is matched here. */
		stop_match_page(
			slot->match, front->tokenizer, slot->page, journal_n_tokens(slot->page));
		session_open(front, i);
		return;
	}
	constraint_free(&constraint);
	log_session(
		LOG_LEVEL_ERROR, uid, 0, "the predecessor's page %u is given up: %s", i, err.text);
	if (slot->page != NULL)
		journal_free(slot->page, shared);
	session_release(front, i);
}

/* Goes on with a page that was copied. */
static void take_over(struct front *front, uint32_t i)
{
	struct slot *slot = &front->slots[i];
	struct session_page *page = slot->page;

	/* What its client had granted is not known: the session may go on for ahead_max tokens
	 * until the client is back. */
	atomic_store_explicit(&slot->credit, front_outputs(slot), memory_order_relaxed);
	journal_number(page, slot->shared, ++front->admitted);
	sleep_restore(front, i);
	places_look(front, i, clock_ns());
	if (journal_state(page) != SESSION_DONE)
		engine_recover(front->engine, i, front->regions->kv_recovered);
	if (journal_state(page) == SESSION_DONE) {
		front->sessions[i].done_sent =
			atomic_load_explicit(&page->told, memory_order_relaxed) != 0;
		front->sessions[i].done_ns = clock_ns();
	}
}

void front_init(struct front *front)
{
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		bits_set(front->free, i);
}

void front_recover(struct front *front)
{
	struct session_page *pages[LIMIT_SESSIONS] = {NULL};
	uint32_t order[LIMIT_SESSIONS];

	for (uint32_t i = 0;
		(i = regions_next_page(front->regions, i)) < front->regions->header.n_sessions;
		i++) {
		adopt_page(front, i);
		pages[i] = front->slots[i].page;
	}
	/* The engine's oldest session is the one that it gets first. */
	uint32_t n = journal_order(pages, LIMIT_SESSIONS, order);
	for (uint32_t i = 0; i < n; i++)
		take_over(front, order[i]);
	engine_recovered(front->engine);
	if (n > 0)
		log_notice("took over %u sessions of the predecessor, with %llu tokens in the KV "
			   "cache",
			n, (unsigned long long)engine_kept_tokens(front->engine));
}

void front_close(struct front *front)
{
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		if (front->sessions[i].used)
			session_release(front, i);
	inbox_clear(&front->inbox);
	shelf_clear(&front->shelf);
	reader_destroy(&front->reader);
	constraint_vocab_exit(&front->vocab);
	if (front->policy_region.header != NULL)
		region_close(&front->policy_region);
}

int front_find(const struct front *front, uint64_t uid)
{
	return uids_find(&front->uids, uid);
}

/* The budget of a request that leaves it to the service. */
static void default_budget(const struct front *front, struct session_request *request)
{
	const struct verifier_config *config = front->config;
	struct error err;

	if (request->budget_default && verifier_config_read_budget(config, front->model,
					       request->budget_experts, &err) == 0) {
		request->budgeted =
			layer_limits_any(request->budget_experts, front->model->config.n_layers);
		request->budget_ranking = (uint32_t)config->budget_ranking;
		request->budget_coverage = (uint32_t)config->budget_coverage;
	}
	request->budget_default = 0;
}

static void admit(
	struct front *front, struct slot *slot, uint64_t uid, const struct reading *reading)
{
	const struct sessions_header *header = &front->regions->header;
	const struct session_request *request = &reading->request;
	const struct request_input *input = &reading->input;
	uint32_t n_prompt = (uint32_t)input->n_prompt;

	front->admitted++;
	if (request->audit)
		journal_admit_audit(header, slot->page, slot->shared, uid, front->admitted, request,
			input->prompt, n_prompt, input->audit);
	else
		journal_admit(header, slot->page, slot->shared, uid, front->admitted, request,
			input->prompt, n_prompt, input->replay);
}

int front_begin(struct front *front, uint32_t index, uint64_t uid, struct reading *reading,
	struct error *err)
{
	struct slot *slot = &front->slots[index];

	default_budget(front, &reading->request);
	if (slot_open(front, index, 0) == 0) {
		admit(front, slot, uid, reading);
		if (slot_prepare(front, index, &reading->match, &reading->constraint) == 0) {
			session_open(front, index);
			return 0;
		}
		journal_free(slot->page, slot->shared);
	}
	session_release(front, index);
	return error_set(err, ENOMEM, "no memory for a session");
}

/* A finished answer's records were lost with the predecessor. They are made again only for a client
 * that asks for tokens that it does not have. A client that has everything, or is gone, takes
 * neither time nor a place from new requests. */
static void records_again(struct front *front, uint32_t index, uint32_t have)
{
	struct slot *slot = &front->slots[index];
	uint32_t n_recorded = atomic_load_explicit(&slot->n_recorded, memory_order_acquire);

	/* With an expert budget other logits would be recorded than those that decided. */
	if (!slot_records(slot) || slot->page->request.budgeted ||
		journal_state(slot->page) != SESSION_DONE || have >= front_outputs(slot) ||
		n_recorded >= front_outputs(slot))
		return;
	/* It belongs to the engine from here on, until it is DONE again. The client that cancelled
	 * it before has asked again. */
	atomic_store_explicit(&slot->cancel, false, memory_order_relaxed);
	journal_again(slot->page, slot->shared, ++front->admitted);
	engine_submit(front->engine, index);
}

void front_bind(struct front *front, uint32_t index, const struct bus_address *client,
	uint64_t request_id, uint32_t have, uint32_t credit)
{
	struct front_session *fs = &front->sessions[index];

	fs->client = *client;
	fs->request_id = request_id;
	fs->attached = true;
	fs->done_sent = fs->full = false;
	places_number(front, index);
	/* A client that asks has not received the end, whatever a predecessor sent. */
	journal_tell(front->slots[index].page, front->slots[index].shared, false);
	fs->credit = 0;
	stream_reset(front, index, have);
	front_credit(front, index, credit);
	records_again(front, index, have);
	places_look(front, index, clock_ns());
}

void front_credit(struct front *front, uint32_t index, uint32_t credit)
{
	struct front_session *fs = &front->sessions[index];
	struct slot *slot = &front->slots[index];

	fs->heard_ns = clock_ns();
	if (credit > fs->credit) {
		fs->credit = credit;
		/* Not when a client asks again for what it has, and for no more. */
		if (credit > fs->sent)
			fs->blocked_ns = 0;
		places_look(front, index, fs->heard_ns);
	}
	if (fs->credit > atomic_load_explicit(&slot->credit, memory_order_relaxed)) {
		atomic_store_explicit(&slot->credit, fs->credit, memory_order_relaxed);
		engine_changed(front->engine, index);
	}
}

/* Sends a session's news, or what could not be sent before. */
static void look(struct front *front, uint32_t index)
{
	struct front_session *fs = &front->sessions[index];

	if (fs->used && fs->yielding)
		places_settle(front, index);
	if (!fs->used || !fs->attached)
		return;
	if (fs->full && !bus_takes(front->socket, &fs->client))
		bits_set(front->again, index);
	else
		stream_session(front, index);
}

void front_pump(void *arg)
{
	struct front *front = arg;

	for (uint32_t w = 0; w < BITS_WORDS(LIMIT_SESSIONS); w++) {
		/* Pairs with the release in engine_mark: the news is there. */
		uint64_t left = front->again[w];

		if (atomic_load_explicit(&front->changed[w], memory_order_relaxed) != 0)
			left |= atomic_exchange_explicit(
				&front->changed[w], 0, memory_order_acquire);
		front->again[w] = 0;
		for (; left != 0; left &= left - 1)
			look(front, w * 64 + (uint32_t)__builtin_ctzll(left));
	}
	admission_work(front);
}

/* Whether nothing can be sent until the client acts, and it has done nothing for timeout_ns: it
 * neither sent a message nor read what fills its socket. Time in which it waited for us does not
 * count. */
static bool is_silent(struct front_session *fs, uint64_t timeout_ns, uint64_t now_ns)
{
	uint64_t since_ns;

	if (fs->attached && !fs->full && fs->sent < fs->credit) {
		fs->blocked_ns = 0;
		return false;
	}
	if (fs->blocked_ns == 0)
		fs->blocked_ns = now_ns;
	since_ns = fs->blocked_ns > fs->heard_ns ? fs->blocked_ns : fs->heard_ns;
	return now_ns - since_ns > timeout_ns;
}

/* A client that takes nothing, or is gone, keeps its session for client_timeout, or for sleep_timeout
 * while the session has been told to sleep. A finished session whose answer was sent is kept for
 * linger, in case the client did not receive it after all. */
static void reap(struct front *front, uint32_t index, uint64_t now_ns)
{
	struct front_session *fs = &front->sessions[index];
	struct slot *slot = &front->slots[index];
	uint64_t timeout_ns =
		sleep_patience(front, atomic_load_explicit(&slot->asleep, memory_order_relaxed));
	bool silent = is_silent(fs, timeout_ns, now_ns);

	places_look(front, index, now_ns);
	if (journal_state(slot->page) == SESSION_DONE) {
		if (fs->done_ns == 0)
			fs->done_ns = now_ns;
		uint64_t since_ns = now_ns - fs->done_ns;
		if ((fs->done_sent || silent) && since_ns > (uint64_t)front->config->linger)
			front_release(front, index);
		return;
	}
	if (silent && !atomic_load_explicit(&slot->cancel, memory_order_relaxed)) {
		log_session(LOG_LEVEL_NOTICE, atomic_load(&slot->page->uid), 0,
			"cancelled: its client has accepted nothing for %lld s",
			(long long)(timeout_ns / 1000000000));
		atomic_store_explicit(&slot->cancel, true, memory_order_relaxed);
		engine_changed(front->engine, index);
	}
}

/* Logs what happened to the file's name, and to its bytes after something touched it. */
static void say_file(struct front *front, enum proof_verdict verdict)
{
	const struct gguf *gguf = front->model->gguf;
	char text[512], sample[GGUF_SAMPLE_TEXT];

	if (gguf_news(gguf, &front->news, text, sizeof(text)))
		log_notice("%s", text);
	if (front->file_state != gguf_state(gguf)) {
		front->file_state = gguf_state(gguf);
		front->proof_awaited = true;
		log_notice("%s: something touched the file; the parts that were compared are the "
			   "same: %s; %s",
			gguf_path(gguf), gguf_sample_text(gguf, sample),
			verdict == PROOF_NONE
				? "there is no digest yet to compare the rest with"
				: "answers wait, for 2 s at most, until every byte was compared");
	}
	if (front->proof_awaited && verdict == PROOF_SAME) {
		front->proof_awaited = false;
		log_notice("%s: every byte was compared by its digest and is the same",
			gguf_path(gguf));
	}
}

/* Whether all clients have been told that the model is lost. */
static bool all_told(const struct front *front)
{
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
		const struct front_session *fs = &front->sessions[i];

		if (fs->used && fs->attached && !fs->done_sent)
			return false;
	}
	return true;
}

/* The service manager starts this process again, with the file that is there then. */
static void leave_when_told(struct front *front)
{
	uint64_t since_ns = clock_ns() - front->lost_ns;

	if ((since_ns > TELL_NS_MIN && all_told(front)) || since_ns > TELL_NS_MAX)
		daemon_stop(front->daemon, EX_TEMPFAIL);
}

/* Also called while nothing is computed, so that an administrator hears of it before a client does.
 */
static void front_watch(struct front *front)
{
	const struct gguf *gguf = front->model->gguf;
	struct error err;

	if (front->model_lost) {
		leave_when_told(front);
		return;
	}
	if (gguf_watch(gguf, &err) == 0) {
		say_file(front, proof_look(&front->proof, gguf));
		/* A successor may use the present files, whose bytes are all known to be the same.
		 */
		if (gguf_proven(gguf))
			regions_stamp(front->regions, front->packed, front->model);
	}
	if (gguf_lost(gguf, &err) == 0)
		return;
	front->model_lost = true;
	front->lost_ns = clock_ns();
	log_error("%s", err.text);
	engine_poke(front->engine); /* sessions that wait for their clients end too */
}

/* When the device is lost, the process goes. Where the CPU goes on that is at once; otherwise
 * clients first hear why their sessions ended. */
static void watch_device(struct front *front)
{
	enum { TICKS = 4 };
	struct error err;

	if (!engine_device_lost(front->engine, &err))
		return;
	if (front->config->device_lost == VERIFIER_DEVICE_LOST_CPU) {
		int rc = device_restart_on_cpu(front->daemon, err.text, front->argv);
		log_error("the program cannot be run anew: %s", strerror(-rc));
		daemon_stop(front->daemon, EX_UNAVAILABLE);
	} else if (++front->lost_ticks == TICKS) {
		daemon_stop(front->daemon, EX_UNAVAILABLE);
	}
}

void front_tick(void *arg)
{
	struct front *front = arg;
	uint64_t now_ns;

	watch_device(front);
	front_watch(front);
	front_pump(front);
	/* Not read earlier: what was just sent would be in the future, and its linger over. */
	now_ns = clock_ns();
	rate_note(&front->rate, now_ns,
		atomic_load_explicit(&front->engine->output_total, memory_order_relaxed));
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		if (front->sessions[i].used)
			reap(front, i, now_ns);
	shelf_expire(&front->shelf, now_ns, sleep_patience(front, SLEEP_NOT),
		sleep_patience(front, SLEEP_TOLD));
	admission_resume(front);
	links_needs(front);
	kv_change_tick(front);
	links_state(front);
}

bool front_alive(void *arg)
{
	struct front *front = arg;

	return engine_alive(front->engine, &front->alive_seen);
}

bool front_keeps(void *arg, const struct bus_address *client)
{
	const struct front *front = arg;

	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
		const struct front_session *fs = &front->sessions[i];

		if (fs->used && fs->attached && !fs->done_sent && bus_same(&fs->client, client))
			return true;
	}
	for (const struct inbox_entry *e = front->inbox.first; e != NULL; e = e->next)
		if (bus_same(&e->client, client))
			return true;
	for (const struct shelved *kept = front->shelf.first; kept != NULL; kept = kept->next)
		if (kept->attached && bus_same(&kept->client, client))
			return true;
	return false;
}

void front_gone(void *arg, const struct bus_address *client)
{
	struct front *front = arg;

	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++) {
		const struct front_session *fs = &front->sessions[i];

		if (fs->used && fs->attached && bus_same(&fs->client, client))
			stream_detach(front, i);
	}
	for (struct shelved *kept = front->shelf.first; kept != NULL; kept = kept->next)
		if (bus_same(&kept->client, client))
			kept->attached = false;
	admission_gone(front, client);
}
