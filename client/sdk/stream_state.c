/* How a stream reacts to messages and to silence. */
#include "client/sdk/stream.h"

#include "client/sdk/failure.h"
#include "client/sdk/ready.h"
#include "shared/base/arithmetic.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/given_up.h"
#include "shared/ipc/peers.h"
#include "shared/spec/session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MS UINT64_C(1000000)

/* Silence before a stream asks again; doubled each time, up to the maximum. */
#define ASK_NS_MIN (250 * MS)
#define ASK_NS_MAX (2000 * MS)
/* A running service answers a question within this time. */
#define ANSWER_NS (250 * MS)
/* Silence before a stream checks whether the service has ended for good. */
#define LOOK_NS (500 * MS)

/* Ends in a row that left tokens out, before the service is considered broken. */
enum { INCOMPLETE_MAX = 3 };

/* Ends the stream: nothing more comes. */
static void stream_end(struct outrider_stream *stream)
{
	if (!stream->ended)
		stream->client->n_open--;
	stream->ended = true;
	ready_add(stream);
}

static void fail(struct outrider_stream *stream, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static void fail(struct outrider_stream *stream, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(stream->reason, sizeof stream->reason, format, args);
	va_end(args);
	stream->error = code;
	stream_end(stream);
}

/* Plans to tell the service again after a while, unless something arrives. */
static void ask_later(struct outrider_stream *stream)
{
	uint64_t pause = stream->ask_after_ns ? stream->ask_after_ns : ASK_NS_MIN;

	stream->ask_after_ns = stream->silent_ns + (pause < ASK_NS_MAX ? pause : ASK_NS_MAX);
	if (stream->asked_ns == 0)
		stream->asked_ns = stream->silent_ns;
}

void stream_count_anew(struct outrider_stream *stream)
{
	stream->silent_ns = stream->asked_ns = 0;
	stream->ask_after_ns = ASK_NS_MIN;
}

static void send_resume(struct outrider_stream *stream)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Resume resume = OUTRIDER__RESUME__INIT;

	resume.session_uid = stream->uid;
	resume.have = stream->arrived;
	resume.credit = stream->credit;
	resume.arithmetic = stream->arrived > 0 ? stream->arithmetic : 0;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_RESUME;
	envelope.resume = &resume;
	/* If the queue is full, stream_tick tries again. */
	client_send(stream->client, &envelope, &stream->request_id);
}

static int send_generate(struct outrider_stream *stream)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	int code;

	stream->generate->have = stream->arrived;
	stream->generate->credit = stream->credit;
	stream->generate->arithmetic = stream->arrived > 0 ? stream->arithmetic : 0;
	stream->generate->budgeted = stream->arrived > 0 && stream->budgeted;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_GENERATE;
	envelope.generate = stream->generate;
	code = client_send(stream->client, &envelope, &stream->request_id);
	if (code == 0)
		stream->generate_id = stream->request_id;
	return code;
}

int stream_send_start(struct outrider_stream *stream)
{
	if (stream->generate && !stream->accepted)
		return send_generate(stream);
	send_resume(stream);
	return 0;
}

void stream_send_credit(struct outrider_stream *stream)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Credit credit = OUTRIDER__CREDIT__INIT;
	bool starved = stream->arrived >= stream->credit;
	uint64_t granted = (uint64_t)stream->taken + stream->window;

	stream->credit = granted < UINT32_MAX ? (uint32_t)granted : UINT32_MAX;
	credit.session_uid = stream->uid;
	credit.credit = stream->credit;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_CREDIT;
	envelope.credit = &credit;
	client_send(stream->client, &envelope, NULL);
	/* Until now the caller's pause was the reason for the silence. */
	if (starved)
		stream_count_anew(stream);
}

void stream_send_cancel(struct outrider_stream *stream)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT;
	Outrider__Cancel cancel = OUTRIDER__CANCEL__INIT;

	cancel.session_uid = stream->uid;
	envelope.body_case = OUTRIDER__ENVELOPE__BODY_CANCEL;
	envelope.cancel = &cancel;
	client_send(stream->client, &envelope, NULL);
}

uint64_t stream_uid_of(const Outrider__Envelope *envelope)
{
	switch (envelope->body_case) {
	case OUTRIDER__ENVELOPE__BODY_ACCEPTED:
		return envelope->accepted->session_uid;
	case OUTRIDER__ENVELOPE__BODY_TOKENS:
		return envelope->tokens->session_uid;
	case OUTRIDER__ENVELOPE__BODY_DONE:
		return envelope->done->session_uid;
	case OUTRIDER__ENVELOPE__BODY_FAILURE:
		return envelope->failure->session_uid;
	default:
		return 0;
	}
}

static void keep(struct outrider_stream *stream, Outrider__Envelope **envelope)
{
	struct stream_item *item = malloc(sizeof *item);

	if (!item) {
		fail(stream, ENOMEM, "no memory for a message");
		return;
	}
	item->next = NULL;
	item->envelope = *envelope;
	*envelope = NULL;
	*stream->last = item;
	stream->last = &item->next;
	ready_add(stream);
}

static void handle_accepted(struct outrider_stream *stream, const Outrider__Accepted *accepted)
{
	/* An answer whose parts were computed with different arithmetics, or by different models,
	 * is no answer. */
	if (stream->arrived > 0 && stream->arithmetic != 0 && accepted->arithmetic != 0 &&
		stream->arithmetic != accepted->arithmetic) {
		char names[2][ARITHMETIC_TEXT];

		stream_send_cancel(stream);
		fail(stream, ESTALE,
			"this answer was begun with arithmetic %s, but the service came back with "
			"arithmetic %s: it cannot go on after %u tokens",
			arithmetic_text(stream->arithmetic, names[0]),
			arithmetic_text(accepted->arithmetic, names[1]), stream->arrived);
		return;
	}
	if (stream->arrived > 0 && stream->engine != accepted->engine && stream->engine != 0) {
		stream_send_cancel(stream);
		fail(stream, ESTALE,
			"the service came back with another model or KV number type, or its model "
			"file was touched: the answer cannot go on after %u tokens",
			stream->arrived);
		return;
	}
	stream->engine = accepted->engine;
	stream->budgeted = accepted->budgeted;
	if (accepted->arithmetic != 0)
		stream->arithmetic = accepted->arithmetic;
	if (stream->accepted && stream->generation != accepted->generation)
		stream->restarts++;
	stream->accepted = true;
	stream->generation = accepted->generation;
	stream->gap = false;
	/* The cancel had been sent to a predecessor. */
	if (stream->cancelling)
		stream_send_cancel(stream);
}

/* Whether the message has as many log probabilities as it says. */
static bool logprobs_fit(const Outrider__Tokens *tokens)
{
	uint64_t n = (uint64_t)tokens->n_ids * tokens->logprobs_each;

	return tokens->n_logprob_ids == n && tokens->n_logprobs == n &&
	       tokens->n_logprob_texts == n;
}

static void handle_tokens(struct outrider_stream *stream, Outrider__Envelope **envelope)
{
	const Outrider__Tokens *tokens = (*envelope)->tokens;
	uint64_t end = (uint64_t)tokens->first + tokens->n_ids;

	if (end <= stream->arrived && tokens->n_ids > 0)
		return;
	if (tokens->first != stream->arrived || end > UINT32_MAX ||
		(tokens->n_logits_hash && tokens->n_logits_hash != tokens->n_ids) ||
		(tokens->n_picked && tokens->n_picked != tokens->n_ids) || !logprobs_fit(tokens)) {
		/* Only once for a series of them; otherwise there would be as many answers. */
		if (!stream->gap)
			send_resume(stream);
		stream->gap = true;
		return;
	}
	/* The service answers, so it knows the session; Accepted may have been lost. */
	stream->accepted = true;
	stream->arrived = (uint32_t)end;
	stream->gap = false;
	stream->incomplete = 0;
	keep(stream, envelope);
}

static void handle_done(struct outrider_stream *stream, Outrider__Envelope **envelope)
{
	const Outrider__Done *done = (*envelope)->done;
	bool complete = done->end == SESSION_END_EOS || done->end == SESSION_END_STOP ||
			done->end == SESSION_END_LENGTH;

	/* It has ended, but tokens before the end are missing. */
	if (complete && done->usage && done->usage->output_tokens > stream->arrived) {
		if (++stream->incomplete > INCOMPLETE_MAX)
			fail(stream, EPROTO, "the service ended after %u tokens but sent %u",
				done->usage->output_tokens, stream->arrived);
		else
			send_resume(stream);
		return;
	}
	stream->done = *envelope;
	keep(stream, envelope);
	stream_end(stream);
}

static void handle_failure(struct outrider_stream *stream, const Outrider__Envelope *envelope)
{
	const Outrider__Failure *failure = envelope->failure;
	int code = failure_code(failure->code);

	/* Only a Resume, Credit or Cancel can be for a session that is not known. */
	bool unknown = code == ENOENT &&
		       (envelope->request_id == 0 || envelope->request_id != stream->generate_id);

	if (unknown && stream->generate && !stream->cancelling) {
		/* The service has lost everything. The same request under the same number gives the
		 * same answer. */
		stream->accepted = false;
		send_generate(stream);
		return;
	}
	if (unknown && stream->cancelling) {
		fail(stream, ECANCELED, "cancelled");
		return;
	}
	stream->retry_ms = failure->retry_ms;
	fail(stream, code, "%s",
		failure->message && *failure->message ? failure->message : strerror(code));
}

void stream_handle(struct outrider_stream *stream, Outrider__Envelope **envelope)
{
	if (stream->ended)
		return;
	stream_count_anew(stream);
	switch ((*envelope)->body_case) {
	case OUTRIDER__ENVELOPE__BODY_ACCEPTED:
		handle_accepted(stream, (*envelope)->accepted);
		break;
	case OUTRIDER__ENVELOPE__BODY_TOKENS:
		handle_tokens(stream, envelope);
		break;
	case OUTRIDER__ENVELOPE__BODY_DONE:
		handle_done(stream, envelope);
		break;
	case OUTRIDER__ENVELOPE__BODY_FAILURE:
		handle_failure(stream, *envelope);
		break;
	default:
		break;
	}
}

void stream_connected(struct outrider_stream *stream)
{
	if (stream->ended)
		return;
	/* When the first connection is made, the first Generate is already in ZeroMQ's queue. To
	 * send it again is harmless, because the same uid is the same session, and needed if it was
	 * lost with a process that died in between. */
	if (stream->accepted || stream->silent_ns >= ASK_NS_MIN) {
		stream_send_start(stream);
		ask_later(stream);
	}
}

/* For silence that will not end: the service was given up after this client came, or does not come
 * and had been given up before. */
static bool fail_given_up(struct outrider_stream *stream, bool waited)
{
	const struct outrider *client = stream->client;
	bool recent = false;
	char why[384];

	if (client->connected || (!waited && stream->silent_ns < LOOK_NS) ||
		!given_up_read(client->runtime_dir, client->since_ns, &recent, why, sizeof why) ||
		(!recent && !waited))
		return false;
	fail(stream, ECONNREFUSED, "the service in %s has given up: %s", client->runtime_dir, why);
	return true;
}

/* Whether there is a verifier, in whatever state. */
static bool is_there(const struct outrider *client)
{
	char endpoint[300];

	/* The monitor may have started too late to see the connection. */
	peers_client_endpoint(client->runtime_dir, endpoint, sizeof endpoint);
	return client->reached || bus_probe(bus_ipc_path(endpoint), SOCK_STREAM, NULL) == 0;
}

/* The end of a sentence about a service that is silent. */
static const char *what_to_do(const struct outrider *client)
{
	if (is_there(client))
		return ": the verifier's process exists, but it is stopped or hangs; outrider "
		       "status shows it";
	return client->answered
		       ? ""
		       : "; outrider up starts one, and outrider status shows which processes run";
}

/* The request's time is over, and the service, which should say so, does not answer either. */
static bool fail_overdue(struct outrider_stream *stream)
{
	const struct outrider *client = stream->client;
	uint64_t deadline_ms = stream->generate ? stream->generate->deadline_ms : 0;

	/* Without a connection it cannot ask. */
	uint64_t asked_ns = client->connected ? stream->asked_ns : ASK_NS_MIN;
	if (deadline_ms == 0 || stream->waited_ns / MS < deadline_ms || asked_ns == 0 ||
		stream->silent_ns < asked_ns + ANSWER_NS)
		return false;
	fail(stream, ETIMEDOUT,
		"the time of %.1f s is up, and the service in %s has not answered for %.1f s%s",
		(double)deadline_ms / 1e3, client->runtime_dir, (double)stream->silent_ns / 1e9,
		what_to_do(client));
	return true;
}

void stream_tick(struct outrider_stream *stream)
{
	struct outrider *client = stream->client;
	uint64_t limit = client->answered ? client->away_ns : client->first_ns;

	if (stream->ended)
		return;
	if (stream->arrived >= stream->credit && !stream->cancelling) {
		/* Nothing can come, because the caller has not taken what is here. */
		stream->silent_ns = 0;
		return;
	}
	/* A service that is there is not considered away before it was asked and had time to
	 * answer. */
	if (limit < ASK_NS_MIN + ANSWER_NS && stream->silent_ns >= limit && is_there(client))
		limit = ASK_NS_MIN + ANSWER_NS;
	if (fail_given_up(stream, stream->silent_ns >= limit))
		return;
	if (fail_overdue(stream))
		return;
	if (stream->silent_ns >= limit) {
		fail(stream, client->answered ? ETIMEDOUT : ECONNREFUSED,
			"no answer from the service in %s for %.1f s%s", client->runtime_dir,
			(double)limit / 1e9, what_to_do(client));
		return;
	}
	/* Without a connection messages would only accumulate. */
	if (!client->connected || stream->silent_ns < stream->ask_after_ns)
		return;
	ask_later(stream);
	stream_send_start(stream);
}
