/* Tokens and text from the session page to the client. */
#include "services/verifier/front/front.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"

#include <stdlib.h>
#include <string.h>

#define TOKENS_PER_MESSAGE 512u
/* Fewer with log probabilities, which are longer. */
#define SCORED_PER_MESSAGE 64u

void stream_reset(struct front *front, uint32_t index, uint32_t from)
{
	struct front_session *fs = &front->sessions[index];

	fs->fed = 0;
	fs->n_pending = 0;
	fs->sent = from;
}

/* The text that a token adds to the output. */
static struct gguf_string piece_of(
	const struct front *front, const struct session_request *request, int32_t token)
{
	bool control = request->control_text && !stop_match_ends(request, front->tokenizer, token);

	return tokenizer_piece(front->tokenizer, token, control);
}

/* Adds the text of the output tokens up to n; false when memory is exhausted. */
static bool feed(struct front *front, uint32_t index, uint32_t n)
{
	struct front_session *fs = &front->sessions[index];
	const struct session_page *page = front->slots[index].page;

	for (; fs->fed < n; fs->fed++) {
		struct gguf_string piece =
			piece_of(front, &page->request, page->tokens[page->n_prompt + fs->fed]);
		size_t room = fs->n_pending + piece.bytes;

		if (room > fs->capacity) {
			char *larger = realloc(fs->pending, 2 * room);
			if (larger == NULL)
				return false;
			fs->pending = larger;
			fs->capacity = 2 * room;
		}
		if (piece.bytes > 0)
			memcpy(fs->pending + fs->n_pending, piece.data, piece.bytes);
		fs->n_pending = room;
	}
	return true;
}

/* How many bytes of the unsent text may be sent: all but those that may be, or are, part of a stop
 * string. */
static size_t may_show(const struct front *front, uint32_t index)
{
	const struct front_session *fs = &front->sessions[index];
	size_t back = stop_match_back(front->slots[index].match, fs->fed);

	return fs->n_pending > back ? fs->n_pending - back : 0;
}

static void sent_text(struct front_session *fs, size_t bytes)
{
	if (bytes == 0)
		return;
	fs->n_pending -= bytes;
	memmove(fs->pending, fs->pending + bytes, fs->n_pending);
}

static void fill_live(struct front *front, uint32_t index, Outrider__Live *live)
{
	const struct slot *slot = &front->slots[index];
	static char policy_name[sizeof(front->policy->defaults.name)];
	struct policy_session knobs;

	live->k = atomic_load_explicit(&slot->page->k, memory_order_relaxed);
	live->drafted = atomic_load_explicit(&slot->page->drafted, memory_order_relaxed);
	live->accepted = atomic_load_explicit(&slot->page->accepted, memory_order_relaxed);
	live->iterations = atomic_load_explicit(&slot->iterations, memory_order_relaxed);
	live->expert_hits = atomic_load_explicit(&slot->expert_hits, memory_order_relaxed);
	live->expert_misses = atomic_load_explicit(&slot->expert_misses, memory_order_relaxed);
	live->drafter_alive = front->drafter_here;
	live->cache_alive = front->cache_link != NULL && link_alive(front->cache_link);
	live->policy_alive = front->policy_link != NULL && link_alive(front->policy_link);
	if (front->policy != NULL) {
		struct policy_defaults defaults;

		if (policy_lookup(front->policy, index,
			    atomic_load_explicit(&slot->page->uid, memory_order_relaxed), &knobs))
			live->utility = knobs.utility;
		if (page_read(&front->policy->defaults_lock, &front->policy->defaults, &defaults,
			    sizeof(defaults))) {
			memcpy(policy_name, defaults.name, sizeof(policy_name) - 1);
			live->policy = policy_name;
		}
	}
}

void stream_detach(struct front *front, uint32_t index)
{
	log_session(LOG_LEVEL_INFO,
		atomic_load_explicit(&front->slots[index].page->uid, memory_order_relaxed), 0,
		"its client is gone; kept for it to come back");
	front->sessions[index].attached = false;
	places_look(front, index, clock_ns());
}

/* 0, or the result of bus_send_to; a client that is gone is detached. */
static int send_to(struct front *front, uint32_t index, Outrider__Envelope *envelope)
{
	struct front_session *fs = &front->sessions[index];

	envelope->request_id = fs->request_id;
	int rc = bus_send_to(front->socket, &fs->client, envelope);
	fs->full = rc == -EAGAIN;
	if (rc == 0 || rc == -EAGAIN)
		return rc;
	stream_detach(front, index);
	return rc;
}

static void fill_accepted(struct front *front, Outrider__Accepted *out)
{
	enum kv_type type = verifier_config_kv_type(front->config, front->model);

	out->generation = daemon_generation(front->daemon);
	out->arithmetic = verifier_config_arithmetic(front->config);
	out->engine = front->model->fingerprint ^ front->regions->header.other_stamps ^
		      ((uint64_t)type + 1 + ((uint64_t)out->arithmetic << 8)) * 0x9E3779B97F4A7C15u;
}

void stream_accepted(struct front *front, uint32_t index)
{
	const struct session_page *page = front->slots[index].page;
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Accepted body = OUTRIDER__ACCEPTED__INIT;

	fill_accepted(front, &body);
	body.session_uid = atomic_load_explicit(&page->uid, memory_order_relaxed);
	body.prompt_tokens = page->n_prompt;
	body.output_tokens = front_outputs(&front->slots[index]);
	body.budgeted = page->request.budgeted != 0;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_ACCEPTED;
	envelope.accepted = &body;
	(void)send_to(front, index, &envelope);
}

void stream_accepted_entry(
	struct front *front, const struct inbox_entry *entry, uint32_t n_prompt, uint32_t n_out)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Accepted body = OUTRIDER__ACCEPTED__INIT;

	fill_accepted(front, &body);
	body.session_uid = entry->uid;
	body.prompt_tokens = n_prompt;
	body.output_tokens = n_out;
	envelope.request_id = entry->request_id;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_ACCEPTED;
	envelope.accepted = &body;
	(void)bus_send_to(front->socket, &entry->client, &envelope);
}

/* Adds the log probabilities of the message's tokens. They are valid until the next call. */
static void fill_logprobs(
	const struct front *front, const struct slot *slot, Outrider__Tokens *tokens)
{
	static int32_t ids[SCORED_PER_MESSAGE * (LIMIT_TOP_LOGPROBS + 1)];
	static float values[SCORED_PER_MESSAGE * (LIMIT_TOP_LOGPROBS + 1)];
	static ProtobufCBinaryData texts[SCORED_PER_MESSAGE * (LIMIT_TOP_LOGPROBS + 1)];
	const struct session_request *request = &slot->page->request;
	uint32_t each = request->logprobs;
	size_t n = tokens->n_ids * each;
	const struct token_logprob *from = slot->logprobs + (size_t)tokens->first * each;

	assert(tokens->n_ids <= SCORED_PER_MESSAGE);
	for (size_t i = 0; i < n; i++) {
		struct gguf_string piece =
			i % each > 0 ? tokenizer_piece(front->tokenizer, from[i].token, true)
				     : piece_of(front, request, from[i].token);

		ids[i] = from[i].token;
		values[i] = from[i].logprob;
		texts[i] = (ProtobufCBinaryData){piece.bytes, (uint8_t *)piece.data};
	}
	tokens->logprobs_each = each;
	tokens->logprob_ids = ids;
	tokens->logprobs = values;
	tokens->logprob_texts = texts;
	tokens->n_logprob_ids = tokens->n_logprobs = tokens->n_logprob_texts = n;
}

static int send_tokens(struct front *front, uint32_t index, bool recorded)
{
	struct front_session *fs = &front->sessions[index];
	const struct slot *slot = &front->slots[index];
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Tokens tokens = OUTRIDER__TOKENS__INIT;
	Outrider__Live live = OUTRIDER__LIVE__INIT;
	size_t complete = tokenizer_utf8_complete(fs->pending, may_show(front, index));

	fill_live(front, index, &live);
	tokens.session_uid = atomic_load_explicit(&slot->page->uid, memory_order_relaxed);
	tokens.first = fs->sent;
	tokens.n_ids = fs->fed - fs->sent;
	tokens.ids = slot->page->tokens + slot->page->n_prompt + fs->sent;
	tokens.text.data = (uint8_t *)fs->pending;
	tokens.text.len = complete;
	tokens.live = &live;
	if (recorded && slot->hashes != NULL) {
		tokens.n_logits_hash = tokens.n_ids;
		tokens.logits_hash = slot->hashes + fs->sent;
	}
	if (recorded && slot->logprobs != NULL)
		fill_logprobs(front, slot, &tokens);
	if (recorded && slot->picked != NULL) {
		tokens.n_picked = tokens.n_ids;
		tokens.picked = slot->picked + fs->sent;
	}
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_TOKENS;
	envelope.tokens = &tokens;
	int rc = send_to(front, index, &envelope);
	if (rc == 0) {
		fs->sent = fs->fed;
		sent_text(fs, complete);
	}
	return rc;
}

/* Says that the answer may not be the model's, and why. */
static void fill_lossy(
	const struct front *front, const struct slot *slot, uint32_t n_out, Outrider__Usage *out)
{
	static char text[LAYER_LIMITS_TEXT + 128], *texts[] = {text};
	const struct session_request *request = &slot->page->request;
	const struct model_config *config = &front->model->config;
	char experts[LAYER_LIMITS_TEXT];

	if (!request->budgeted)
		return;
	out->lossy_tokens = atomic_load_explicit(&slot->page->lossy, memory_order_relaxed);
	snprintf(text, sizeof(text),
		"expert budget %s of %u (%s, %s), which affected %u of %u tokens",
		layer_limits_text(request->budget_experts, config->n_layers, experts),
		config->n_experts, budget_ranking_names[request->budget_ranking],
		budget_coverage_names[request->budget_coverage], out->lossy_tokens, n_out);
	out->lossy = texts;
	out->n_lossy = 1;
}

static void fill_usage(const struct slot *slot, uint32_t n_out, Outrider__Usage *out)
{
	const struct slot_usage *u = &slot->usage;

	out->prompt_tokens = slot->page->n_prompt;
	out->output_tokens = n_out;
	out->iterations = u->iterations;
	out->drafted = u->drafted;
	out->accepted = u->accepted;
	if (u->started_ns != 0)
		out->queue_ns = u->started_ns - u->submitted_ns;
	if (u->first_ns != 0) {
		out->prefill_ns = u->first_ns - u->started_ns;
		out->decode_ns = u->last_ns - u->first_ns;
	}
	out->draft_ns = u->draft_ns;
	out->verify_ns = u->verify_ns;
	out->sample_ns = u->sample_ns;
	out->n_k_used = LIMIT_DRAFT_DEPTH + 1;
	out->k_used = (uint32_t *)u->k_used;
	out->n_drafted_at = out->n_accepted_at = LIMIT_DRAFT_DEPTH;
	out->drafted_at = (uint32_t *)u->drafted_at;
	out->accepted_at = (uint32_t *)u->accepted_at;
	out->unique_experts = u->unique_experts;
	out->expert_hits = u->expert_hits;
	out->expert_misses = u->expert_misses;
	out->restarts = slot->restarts;
	out->cached_tokens = atomic_load_explicit(&slot->page->cached, memory_order_relaxed);
	for (uint32_t i = 0; slot->picked != NULL && i < n_out; i++)
		out->changed_tokens +=
			slot->picked[i] != slot->page->tokens[slot->page->n_prompt + i];
}

static void note_end(struct front *front, uint64_t now_ns)
{
	uint64_t ns = now_ns - front->end_ns;

	if (front->end_ns != 0)
		front->end_interval_ns =
			front->end_interval_ns == 0 ? ns : (7 * front->end_interval_ns + ns) / 8;
	front->end_ns = now_ns;
}

uint32_t front_retry_ms(const struct front *front)
{
	uint64_t ms = (front->end_interval_ns + 999999) / 1000000;

	return ms < 3600000 ? (uint32_t)ms : 3600000;
}

static int send_done(struct front *front, uint32_t index, uint32_t n_out)
{
	struct front_session *fs = &front->sessions[index];
	const struct slot *slot = &front->slots[index];
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Done done = OUTRIDER__DONE__INIT;
	Outrider__Usage usage = OUTRIDER__USAGE__INIT;
	const char *stop = stop_match_found(slot->match);

	fill_usage(slot, n_out, &usage);
	fill_lossy(front, slot, n_out, &usage);
	done.session_uid = atomic_load_explicit(&slot->page->uid, memory_order_relaxed);
	done.end = atomic_load_explicit(&slot->page->end, memory_order_relaxed);
	if (done.end == SESSION_END_STOP && stop != NULL)
		done.stop = (char *)stop;
	done.usage = &usage;
	done.message = (char *)slot->usage.message;
	done.text.data = (uint8_t *)fs->pending;
	/* If no stop string was found, the text held back is part of the answer. */
	done.text.len = stop != NULL ? may_show(front, index) : fs->n_pending;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_DONE;
	envelope.done = &done;
	int rc = send_to(front, index, &envelope);
	if (rc == 0) {
		fs->done_sent = true;
		journal_tell(slot->page, slot->shared, true);
		fs->done_ns = clock_ns();
		note_end(front, fs->done_ns);
	}
	return rc;
}

void stream_cancelled(struct front *front, const struct bus_address *client, uint64_t request_id,
	uint64_t uid, uint32_t n_out)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Done done = OUTRIDER__DONE__INIT;
	Outrider__Usage usage = OUTRIDER__USAGE__INIT;

	usage.output_tokens = n_out;
	done.session_uid = uid;
	done.end = SESSION_END_CANCELLED;
	done.usage = &usage;
	envelope.request_id = request_id;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_DONE;
	envelope.done = &done;
	(void)bus_send_to(front->socket, client, &envelope);
}

/* False: the client takes no more for now, or memory is exhausted. */
static bool send_all(struct front *front, uint32_t index)
{
	struct front_session *fs = &front->sessions[index];
	const struct slot *slot = &front->slots[index];
	/* The state first: when it is DONE, the tokens that are there are all. */
	bool done = journal_state(slot->page) == SESSION_DONE;
	uint32_t n_out = journal_n_tokens(slot->page) - slot->page->n_prompt;
	uint32_t n_recorded = atomic_load_explicit(&slot->n_recorded, memory_order_acquire);

	if (!fs->attached || fs->done_sent)
		return true;
	/* After a restart the records are made again before the session counts as finished; see
	 * records_again. */
	if (slot_records(slot) && !done && n_recorded < n_out)
		n_out = n_recorded;
	/* After a resume: the text that the client has is skipped, except for what cannot be shown
	 * yet. */
	if (fs->fed < fs->sent) {
		if (!feed(front, index, n_out < fs->sent ? n_out : fs->sent))
			return false;
		sent_text(fs, tokenizer_utf8_complete(fs->pending, may_show(front, index)));
	}
	uint32_t upto = n_out < fs->credit ? n_out : fs->credit;
	uint32_t most = slot->logprobs != NULL ? SCORED_PER_MESSAGE : TOKENS_PER_MESSAGE;
	while (fs->sent < upto) {
		uint32_t next = upto - fs->sent < most ? upto : fs->sent + most;

		if (fs->fed < next && !feed(front, index, next))
			return false;
		if (send_tokens(front, index, n_recorded >= fs->fed) != 0)
			return false;
	}
	if (done && fs->sent >= n_out)
		return send_done(front, index, n_out) == 0;
	return true;
}

void stream_session(struct front *front, uint32_t index)
{
	if (!send_all(front, index))
		bits_set(front->again, index);
}
