#include "client/sdk/stream.h"

#include "client/sdk/failure.h"
#include "client/sdk/ready.h"
#include "client/sdk/request.h"
#include "shared/base/clock.h"
#include "shared/base/limits.h"
#include "shared/ipc/bus.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

enum {
	POLL_MS = 50, /* the interval at which silence is checked while waiting */
	/* how long outrider_stream_free waits for the end that it asked for */
	CANCEL_WAIT_MS = 200,
};

static int new_uid(uint64_t *uid)
{
	do {
		if (getrandom(uid, sizeof *uid, 0) != sizeof *uid)
			return failure_set(
				errno, "random number for the session: %s", strerror(errno));
	} while (*uid == 0);
	return 0;
}

/* A client cannot have two streams of one session: each would take the tokens of the other. */
static int check_free(struct outrider *client, uint64_t uid)
{
	return client_find(client, uid) ? failure_set(EEXIST,
						  "this client has a stream of session %016llx "
						  "already: free it first",
						  (unsigned long long)uid)
					: 0;
}

static struct outrider_stream *new_stream(struct outrider *client, uint64_t uid, uint32_t have)
{
	struct outrider_stream *stream = calloc(1, sizeof *stream);

	if (!stream)
		return NULL;
	stream->client = client;
	stream->uid = uid;
	stream->last = &stream->first;
	stream->window = client->window;
	stream->arrived = stream->taken = have;
	stream->credit = have < UINT32_MAX - client->window ? have + client->window : UINT32_MAX;
	stream->ask_after_ns = 250 * MS;
	return stream;
}

static void link_stream(struct outrider *client, struct outrider_stream *stream)
{
	/* The time before now does not count as the stream's silence. */
	client_pump(client, 0);
	client_add(client, stream);
}

static void free_items(struct stream_item **first)
{
	while (*first) {
		struct stream_item *item = *first;

		*first = item->next;
		bus_free(&item->envelope);
		free(item);
	}
}

static void destroy(struct outrider_stream *stream)
{
	if (stream->shown)
		stream->shown->next = NULL;
	free_items(&stream->shown);
	free_items(&stream->first);
	free(stream->logprobs);
	if (stream->generate)
		outrider__generate__free_unpacked(stream->generate, NULL);
	free(stream);
}

int outrider_start(struct outrider *client, const struct outrider_request *request,
	struct outrider_stream **out)
{
	struct outrider_stream *stream;
	uint64_t uid;
	int code;

	if (!out)
		return failure_null("place for a stream");
	*out = NULL;
	code = client_check(client);
	if (code < 0)
		return code;
	if (!request)
		return failure_null("request");
	if (request->generate.input_case == OUTRIDER__GENERATE__INPUT__NOT_SET)
		return failure_set(
			EINVAL, "the request has neither prompt nor tokens nor messages");
	uid = request->generate.session_uid;
	code = uid != 0 ? check_free(client, uid) : new_uid(&uid);
	if (code < 0)
		return code;
	stream = new_stream(client, uid, 0);
	if (stream)
		stream->generate = request_copy(request);
	if (!stream || !stream->generate) {
		free(stream);
		return failure_set(ENOMEM, "no memory for a stream");
	}
	stream->generate->session_uid = uid;
	link_stream(client, stream);
	code = stream_send_start(stream);
	/* A full queue is tried again for as long as outrider_set_wait() allows; a message that is
	 * too large never fits. */
	if (code < 0 && code != -EAGAIN) {
		client_remove(stream);
		destroy(stream);
		ready_arm(client);
		return code == -EMSGSIZE
			       ? failure_set(E2BIG, "request of %zu bytes: at most %d are allowed",
					 request_bytes(request), LIMIT_MESSAGE_BYTES)
			       : failure_set(-code, "cannot send the request: %s", strerror(-code));
	}
	ready_arm(client);
	*out = stream;
	return 0;
}

int outrider_resume(
	struct outrider *client, uint64_t uid, uint32_t have, struct outrider_stream **out)
{
	struct outrider_stream *stream;
	int code;

	if (!out)
		return failure_null("place for a stream");
	*out = NULL;
	code = client_check(client);
	if (code < 0)
		return code;
	if (uid == 0)
		return failure_set(EINVAL, "session 0: allowed are 1 to 2^64 - 1");
	stream = new_stream(client, uid, have);
	if (!stream)
		return failure_set(ENOMEM, "no memory for a stream");
	link_stream(client, stream);
	stream_send_start(stream);
	ready_arm(client);
	*out = stream;
	return 0;
}

uint64_t outrider_stream_uid(const struct outrider_stream *stream)
{
	return stream ? stream->uid : 0;
}

/* Makes room so that the oldest message can become the event. */
static int make_room(struct outrider_stream *stream)
{
	const Outrider__Envelope *envelope = stream->first->envelope;
	size_t n = envelope->body_case == OUTRIDER__ENVELOPE__BODY_TOKENS
			   ? envelope->tokens->n_logprob_ids
			   : 0;

	if (n <= stream->n_logprobs)
		return 0;
	struct outrider_logprob *grown = realloc(stream->logprobs, n * sizeof *stream->logprobs);
	if (!grown)
		return failure_set(ENOMEM, "no memory for %zu log probabilities", n);
	stream->logprobs = grown;
	stream->n_logprobs = n;
	return 0;
}

static void show_logprobs(struct outrider_stream *stream, const Outrider__Tokens *tokens)
{
	for (size_t i = 0; i < tokens->n_logprob_ids; i++) {
		const ProtobufCBinaryData *text = &tokens->logprob_texts[i];

		stream->logprobs[i] = (struct outrider_logprob){
			.token = tokens->logprob_ids[i],
			.logprob = tokens->logprobs[i],
			.text = text->len ? (const char *)text->data : "",
			.text_bytes = text->len,
		};
	}
	stream->event.n_logprobs = tokens->logprobs_each;
	stream->event.logprobs = stream->logprobs;
}

static void show_tokens(struct outrider_event *event, const Outrider__Tokens *tokens)
{
	event->type = OUTRIDER_EVENT_TOKENS;
	event->first = tokens->first;
	event->n_tokens = tokens->n_ids;
	event->tokens = tokens->ids;
	event->text = tokens->text.len ? (const char *)tokens->text.data : "";
	event->text_bytes = tokens->text.len;
	event->n_logits_hash = tokens->n_logits_hash;
	event->logits_hash = tokens->logits_hash;
	event->picked = tokens->n_picked > 0 ? tokens->picked : NULL;
	if (!tokens->live)
		return;
	event->live = (struct outrider_live){
		.k = tokens->live->k,
		.drafted = tokens->live->drafted,
		.accepted = tokens->live->accepted,
		.iterations = tokens->live->iterations,
		.utility = tokens->live->utility,
		.expert_hits = tokens->live->expert_hits,
		.expert_misses = tokens->live->expert_misses,
		.policy = tokens->live->policy,
		.drafter_alive = tokens->live->drafter_alive,
		.cache_alive = tokens->live->cache_alive,
		.policy_alive = tokens->live->policy_alive,
	};
}

static void show_done(struct outrider_event *event, const Outrider__Done *done)
{
	event->type = OUTRIDER_EVENT_DONE;
	event->end =
		done->end <= OUTRIDER_END_ERROR ? (enum outrider_end)done->end : OUTRIDER_END_ERROR;
	event->stop = done->stop;
	event->message = done->message;
	event->text = done->text.len ? (const char *)done->text.data : "";
	event->text_bytes = done->text.len;
}

/* Takes the oldest message out of the queue and makes it the event. */
static void show_first(struct outrider_stream *stream)
{
	struct stream_item *item = stream->first;
	struct outrider_event *event = &stream->event;

	stream->first = item->next;
	if (!stream->first)
		stream->last = &stream->first;
	item->next = NULL;
	stream->shown = item;
	memset(event, 0, sizeof *event);
	event->live.policy = event->stop = event->message = "";
	event->first = stream->taken;
	if (item->envelope->body_case == OUTRIDER__ENVELOPE__BODY_TOKENS) {
		show_tokens(event, item->envelope->tokens);
		show_logprobs(stream, item->envelope->tokens);
		stream->taken = event->first + (uint32_t)event->n_tokens;
		if (!stream->ended && stream->credit != UINT32_MAX &&
			stream->credit - stream->taken <= stream->window / 2)
			stream_send_credit(stream);
	} else {
		show_done(event, item->envelope->done);
		stream->told = true;
	}
}

/* For a stream that has ended without a message for that: returns its end or failure. */
static int tell_end(struct outrider_stream *stream)
{
	if (stream->told)
		return failure_set(ENODATA, "the stream has ended");
	if (stream->error != ECANCELED) {
		stream->failure_told = true;
		failure_set(stream->error, "%s", stream->reason);
		failure_retry(stream->retry_ms);
		return -stream->error;
	}
	stream->told = true;
	memset(&stream->event, 0, sizeof stream->event);
	stream->event.type = OUTRIDER_EVENT_DONE;
	stream->event.end = OUTRIDER_END_CANCELLED;
	stream->event.first = stream->taken;
	stream->event.text = stream->event.stop = stream->event.message = "";
	stream->event.live.policy = "";
	return 0;
}

/* The next event of a stream that has one, or the reason why it has no more. */
static int take_event(struct outrider_stream *stream, const struct outrider_event **event)
{
	/* Done stays, because outrider_usage reads it. */
	if (stream->shown && stream->shown->envelope != stream->done)
		free_items(&stream->shown);
	int code = stream->first ? make_room(stream) : tell_end(stream);

	if (code < 0)
		return code;
	if (stream->first)
		show_first(stream);
	*event = &stream->event;
	return 0;
}

/* Waits for a message from the service, at most until `end`. -EAGAIN: the time is over. */
static int wait_until(struct outrider *client, uint64_t end, int timeout_ms)
{
	uint64_t now = clock_ns(), left;

	if (now >= end)
		return failure_set(EAGAIN, "nothing arrived in %d ms", timeout_ms);
	left = (end - now) / MS + 1;
	client_pump(client, left < POLL_MS ? (int)left : POLL_MS);
	return 0;
}

static uint64_t end_of(int timeout_ms)
{
	return timeout_ms < 0 ? UINT64_MAX : clock_ns() + (uint64_t)timeout_ms * MS;
}

int outrider_next(
	struct outrider_stream *stream, int timeout_ms, const struct outrider_event **event)
{
	uint64_t end = end_of(timeout_ms);
	int code;

	if (!event)
		return failure_null("place for an event");
	*event = NULL;
	if (!stream)
		return failure_null("stream");
	code = client_check(stream->client);
	if (code < 0)
		return code;
	/* Looks once without waiting, whatever the time limit is. */
	if (!stream->first && !stream->ended)
		client_pump(stream->client, 0);
	while (code == 0 && !stream->first && !stream->ended)
		code = wait_until(stream->client, end, timeout_ms);
	if (code == 0)
		code = take_event(stream, event);
	ready_arm(stream->client);
	return code;
}

int outrider_next_event(struct outrider *client, int timeout_ms, struct outrider_stream **out,
	const struct outrider_event **event)
{
	uint64_t end = end_of(timeout_ms);
	struct outrider_stream *stream;
	int code;

	if (event)
		*event = NULL;
	if (out)
		*out = NULL;
	if (!event)
		return failure_null("place for an event");
	if (!out)
		return failure_null("place for a stream");
	code = client_check(client);
	if (code < 0)
		return code;
	if (!(stream = ready_take(client))) {
		client_pump(client, 0);
		while (code == 0 && !(stream = ready_take(client)))
			code = client->n_open > 0 ? wait_until(client, end, timeout_ms)
						  : failure_set(ENODATA, "all streams have ended");
	}
	if (stream) {
		*out = stream;
		code = take_event(stream, event);
		ready_add(stream);
	}
	ready_arm(client);
	return code;
}

int outrider_cancel(struct outrider_stream *stream)
{
	int code;

	if (!stream)
		return failure_null("stream");
	code = client_check(stream->client);
	if (code < 0)
		return code;
	if (stream->ended)
		return 0;
	stream->cancelling = true;
	stream_send_cancel(stream);
	ready_arm(stream->client);
	return 0;
}

int outrider_usage(const struct outrider_stream *stream, struct outrider_usage *usage)
{
	const Outrider__Usage *u;

	if (!usage)
		return failure_null("place for the usage");
	memset(usage, 0, sizeof *usage);
	if (!stream)
		return failure_null("stream");
	if (!stream->told)
		return failure_set(EBUSY, "the stream has not ended");
	usage->output_tokens = stream->taken;
	usage->restarts = stream->restarts;
	u = stream->done ? stream->done->done->usage : NULL;
	if (!u)
		return 0;
	*usage = (struct outrider_usage){
		.prompt_tokens = u->prompt_tokens,
		.output_tokens = u->output_tokens,
		.iterations = u->iterations,
		.drafted = u->drafted,
		.accepted = u->accepted,
		.queue_ns = u->queue_ns,
		.prefill_ns = u->prefill_ns,
		.decode_ns = u->decode_ns,
		.draft_ns = u->draft_ns,
		.verify_ns = u->verify_ns,
		.sample_ns = u->sample_ns,
		.n_k_used = u->n_k_used,
		.n_drafted_at = u->n_drafted_at,
		.n_accepted_at = u->n_accepted_at,
		.k_used = u->k_used,
		.drafted_at = u->drafted_at,
		.accepted_at = u->accepted_at,
		.unique_experts = u->unique_experts,
		.expert_hits = u->expert_hits,
		.expert_misses = u->expert_misses,
		.n_lossy = u->n_lossy,
		.lossy = (const char *const *)u->lossy,
		.restarts = u->restarts > stream->restarts ? u->restarts : stream->restarts,
		.cached_tokens = u->cached_tokens,
		.lossy_tokens = u->lossy_tokens,
		.changed_tokens = u->changed_tokens,
	};
	return 0;
}

void outrider_stream_free(struct outrider_stream **out)
{
	struct outrider_stream *stream = out ? *out : NULL;
	struct outrider *client;
	uint64_t end = clock_ns() + CANCEL_WAIT_MS * MS;

	if (!stream)
		return;
	/* Waits for the answer, because to close right after the message could lose it. A child's
	 * copy is freed without a message. */
	if (!stream->ended && stream->client->owner == getpid()) {
		outrider_cancel(stream);
		while (!stream->ended && stream->client->connected && clock_ns() < end)
			client_pump(stream->client, 10);
	}
	client = stream->client;
	client_remove(stream);
	destroy(stream);
	if (client->owner == getpid())
		ready_arm(client);
	*out = NULL;
}

int outrider_generate(struct outrider *client, const struct outrider_request *request,
	outrider_callback callback, void *user)
{
	struct outrider_stream *stream = NULL;
	const struct outrider_event *event = NULL;
	bool done = false;
	int code = callback ? outrider_start(client, request, &stream) : failure_null("callback");

	while (code == 0 && !done) {
		code = outrider_next(stream, -1, &event);
		if (code < 0 || !event)
			break;
		done = event->type == OUTRIDER_EVENT_DONE;
		if (callback(user, event) != 0 && !done)
			outrider_cancel(stream);
	}
	outrider_stream_free(&stream);
	return code;
}

const char *outrider_end_name(enum outrider_end end)
{
	static const char *const names[] = {
		"none", "eos", "stop", "length", "cancelled", "deadline", "error"};

	return (size_t)end < sizeof names / sizeof names[0] ? names[end] : names[0];
}
