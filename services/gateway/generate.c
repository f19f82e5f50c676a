#include "services/gateway/generate.h"

#include "services/gateway/answer.h"
#include "services/gateway/audit.h"
#include "services/gateway/logprobs.h"
#include "services/gateway/parse.h"
#include "services/gateway/responses.h"
#include "shared/base/checksum.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

enum { STATUS_GONE = 499 }; /* nginx's status for a client that has left */
/* bytes that a client may leave unread before its answer is cancelled */
enum { OUT_MAX = 4 << 20 };
enum { EVENTS_MAX = 256 }; /* events that are handled before other connections have their turn */

static struct choice **bucket(struct gateway *gateway, uint64_t uid)
{
	return &gateway->streams[uid % GATEWAY_BUCKETS];
}

static void enlist(struct choice *choice)
{
	struct choice **first = bucket(choice->exchange->gateway, choice->uid);

	choice->next = *first;
	*first = choice;
}

static void delist(struct choice *choice)
{
	struct choice **at = bucket(choice->exchange->gateway, choice->uid);

	while (*at && *at != choice)
		at = &(*at)->next;
	if (*at)
		*at = choice->next;
}

static struct choice *find(struct gateway *gateway, const struct outrider_stream *stream)
{
	struct choice *choice = *bucket(gateway, outrider_stream_uid(stream));

	while (choice && choice->stream != stream)
		choice = choice->next;
	return choice;
}

static void make_id(struct exchange *exchange)
{
	uint64_t random;

	if (getrandom(&random, sizeof random, 0) != sizeof random)
		random = clock_ns();
	snprintf(exchange->id, sizeof exchange->id, "%s%016llx",
		exchange->responses	? "resp_"
		: exchange->params.chat ? "chatcmpl-"
					: "cmpl-",
		(unsigned long long)random);
	exchange->created = (int64_t)time(NULL);
}

/* The number of the session. A request with an Idempotency-Key always has the same number, so that
 * it attaches to the answer that it began earlier, even through another gateway. 0: a random one.
 */
static uint64_t uid_of(const struct exchange *exchange, uint32_t i)
{
	uint64_t of = exchange->params.idempotency;

	return of ? checksum(of, &i, sizeof i) | 1 : 0;
}

/* Sets how long an answer that begins now may take (0: no limit). False: its time is over, as the
 * fault says. */
static bool set_deadline(struct exchange *exchange)
{
	uint64_t whole_ns = (uint64_t)exchange->gateway->config->answer_timeout_ns;
	uint64_t gone_ns = clock_ns() - exchange->begun_ns;

	if (whole_ns && gone_ns >= whole_ns)
		return fault_set(&exchange->fault, 504, NULL, "timeout",
			"the service had no room until the time of the answer (answer_timeout) "
			"was over");
	outrider_request_set_deadline_ms(
		exchange->params.request, whole_ns ? (whole_ns - gone_ns + 999999) / 1000000 : 0);
	return true;
}

/* Starts the stream of a choice that was taken out of the queue. */
static bool start(struct choice *choice)
{
	struct exchange *exchange = choice->exchange;

	choice->runs = true;
	if (!set_deadline(exchange))
		return false;
	outrider_request_set_seed(exchange->params.request, exchange->params.seed + choice->index);
	outrider_request_set_uid(
		exchange->params.request, choice->audits ? 0 : uid_of(exchange, choice->index));
	outrider_request_set_prefix_domain(exchange->params.request,
		exchange->gateway->config->share_prefixes ? 0 : keys_domain(exchange->key));
	int code = choice->audits ? audit_request(choice) : 0;
	if (code == 0)
		code = outrider_start(
			exchange->gateway->client, exchange->params.request, &choice->stream);
	if (code < 0) {
		fault_of_service(&exchange->fault, code, outrider_error());
		return false;
	}
	choice->started_ns = clock_ns();
	choice->uid = outrider_stream_uid(choice->stream);
	enlist(choice);
	return true;
}

static void end_stream(struct choice *choice, bool refused)
{
	if (choice->runs)
		queue_ended(&choice->exchange->gateway->queue, refused);
	choice->runs = false;
}

static void stop(struct choice *choice)
{
	end_stream(choice, false);
	queue_remove(&choice->exchange->gateway->queue, choice);
	delist(choice);
	outrider_stream_free(&choice->stream);
	text_free(&choice->text);
	audit_free(choice);
}

json_t *generate_json(struct exchange *exchange)
{
	json_error_t error;
	json_t *body = json_loadb(
		exchange->body.n ? exchange->body.data : "", exchange->body.n, 0, &error);

	if (!body)
		fault_set(&exchange->fault, 400, NULL, "invalid_json",
			"the body is not JSON: line %d, column %d: %s", error.line, error.column,
			error.text);
	text_free(&exchange->body);
	return body;
}

bool generate_read(struct exchange *exchange)
{
	json_t *body = generate_json(exchange);

	if (!body)
		return false;
	bool good = params_read(&exchange->params, body, &exchange->fault);
	json_decref(body);
	return good;
}

void generate_end(struct exchange *exchange)
{
	for (uint32_t i = 0; i < exchange->n_started; i++) {
		struct choice *choice = &exchange->choices[i];

		stop(choice);
		json_decref(choice->logprobs);
		parse_free(choice);
	}
	for (uint32_t i = 0; i < exchange->n_audits; i++)
		stop(&exchange->audits[i]);
	exchange->n_started = exchange->n_audits = 0;
	if (!exchange->listed)
		return;
	if (exchange->previous)
		exchange->previous->next = exchange->next;
	else
		exchange->gateway->exchanges = exchange->next;
	if (exchange->next)
		exchange->next->previous = exchange->previous;
	exchange->previous = exchange->next = NULL;
	exchange->listed = false;
}

/* True when the client has closed its connection. libmicrohttpd does not look while it leaves a
 * connection alone. */
static bool has_gone(const struct exchange *exchange)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(exchange->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	char byte;
	ssize_t n = info ? recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) : 0;

	return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

static void give_up(struct exchange *exchange)
{
	generate_end(exchange);
	exchange->complete = true;
	exchange_wake(exchange);
}

/* The client is gone: its answer is cancelled. */
static void leave(struct exchange *exchange)
{
	exchange->gateway->metrics.responses[STATUS_GONE]++;
	exchange->told = true;
	give_up(exchange);
}

static void fail(struct exchange *exchange)
{
	if (exchange->responding && exchange->responses)
		responses_fault(exchange);
	else if (exchange->responding)
		answer_stream_fault(exchange);
	give_up(exchange);
}

static void no_memory(struct exchange *exchange)
{
	fault_set(&exchange->fault, 500, NULL, "internal_error", "no memory for the answer");
	fail(exchange);
}

static void finish(struct exchange *exchange)
{
	bool good = exchange->responses	      ? responses_end(exchange)
		    : exchange->params.stream ? answer_stream_end(exchange)
					      : answer_whole(exchange);

	if (!good) {
		no_memory(exchange);
		return;
	}
	give_up(exchange);
}

/* All answers have ended: those that are to be audited go into the queue again. */
static void audit_or_finish(struct exchange *exchange)
{
	audit_begin(exchange);
	for (uint32_t i = 0; i < exchange->n_audits; i++)
		queue_add(&exchange->gateway->queue, &exchange->audits[i]);
	if (exchange->n_audits == 0)
		finish(exchange);
}

/* An audit has ended, or cannot be had: `why`. */
static void end_audit(struct choice *audit, const char *why)
{
	struct exchange *exchange = audit->exchange;

	end_stream(audit, false);
	if (why)
		audit_fail(audit, why);
	if (++exchange->n_audited == exchange->n_audits)
		finish(exchange);
}

/* Takes tokens from the key's allowance (tokens_per_minute). */
static void charge(struct exchange *exchange, uint64_t tokens)
{
	if (exchange->key)
		limits_take_tokens(&exchange->key->left, tokens);
}

static bool add_text(struct choice *choice, const char *text, size_t bytes)
{
	struct exchange *exchange = choice->exchange;

	if (choice->parser)
		return parse_text(choice, text, bytes);
	if (exchange->params.stream)
		return answer_chunk(exchange, choice, text, bytes);
	text_add(&choice->text, text, bytes);
	return !choice->text.failed;
}

/* A model may say bytes that are no UTF-8, or end within a character; JSON has no place for those. */
static bool take_text(struct choice *choice, const struct outrider_event *event)
{
	size_t bytes;
	char *text = utf8_clean(event->text, event->text_bytes, &bytes);
	bool taken = text && logprobs_add(choice, event) && add_text(choice, text, bytes);

	free(text);
	return taken &&
	       (!choice->parser || event->type != OUTRIDER_EVENT_DONE || parse_end(choice));
}

static void take_done(struct choice *choice, const struct outrider_event *event)
{
	struct exchange *exchange = choice->exchange;
	struct outrider_usage usage;

	if (outrider_usage(choice->stream, &usage) == 0) {
		struct metrics *metrics = &exchange->gateway->metrics;

		metrics_answer(metrics, &usage);
		charge(exchange, usage.prompt_tokens);
		metrics_time(&metrics->queue_s,
			(double)(choice->started_ns - exchange->begun_ns + usage.queue_ns) / 1e9);
	}
	end_stream(choice, false);
	choice->end = event->end;
	exchange->n_ended++;
	if (event->end == OUTRIDER_END_ERROR) {
		fault_set(&exchange->fault, 500, NULL, "internal_error", "%s", event->message);
		fail(exchange);
	} else if (event->end == OUTRIDER_END_DEADLINE && choice->n_tokens == 0) {
		fault_set(&exchange->fault, 504, NULL, "timeout",
			"the answer has no token in its time (answer_timeout): %s", event->message);
		fail(exchange);
	} else if (exchange->params.stream && !exchange->responses &&
		   !answer_chunk_end(exchange, choice)) {
		no_memory(exchange);
	} else if (exchange->n_ended == exchange->params.n) {
		audit_or_finish(exchange);
	}
}

static void take_audit(struct choice *audit, const struct outrider_event *event)
{
	struct outrider_usage usage;

	if (!audit_take(audit, event)) {
		no_memory(audit->exchange);
		return;
	}
	charge(audit->exchange, event->n_tokens);
	if (event->type != OUTRIDER_EVENT_DONE)
		return;
	if (outrider_usage(audit->stream, &usage) == 0)
		charge(audit->exchange, usage.prompt_tokens);
	end_audit(audit, NULL);
}

static void take(struct choice *choice, const struct outrider_event *event)
{
	struct exchange *exchange = choice->exchange;
	uint64_t now_ns = clock_ns();

	if (has_gone(exchange)) {
		leave(exchange);
		return;
	}
	if (choice->audits) {
		take_audit(choice, event);
		return;
	}
	if (choice->n_tokens == 0 && event->n_tokens > 0)
		metrics_time(&exchange->gateway->metrics.first_token_s,
			(double)(now_ns - exchange->begun_ns) / 1e9);
	choice->n_tokens += (uint32_t)event->n_tokens;
	if (choice->parser)
		thoughts_add(&choice->thoughts, &exchange->marks, event->tokens, event->n_tokens);
	charge(exchange, event->n_tokens);
	size_t before = exchange->out.n;
	if (!take_text(choice, event) || !audit_keep(choice, event)) {
		no_memory(exchange);
		return;
	}
	if (exchange->out.n > OUT_MAX) {
		log_notice("a client reads too slowly: its answer is cancelled");
		text_drop(&exchange->out, exchange->out.n);
		give_up(exchange);
		return;
	}
	/* While a call is being written, nothing may be sent for long: it is sent as a whole. */
	if (exchange->out.n > before)
		exchange->sent_ns = now_ns;
	if (event->type == OUTRIDER_EVENT_DONE)
		take_done(choice, event);
	else if (exchange->params.stream)
		exchange_wake(exchange);
}

static bool no_room(struct exchange *exchange)
{
	exchange->retry_s = exchange->gateway->retry_s;
	return fault_set(&exchange->fault, 429, NULL, "queue_full",
		"the service has no room, and %lld answers wait already",
		(long long)exchange->gateway->config->queue);
}

/* An answer, or an audit, that could not be started, or was lost. */
static void lose(struct choice *choice)
{
	struct exchange *exchange = choice->exchange;

	if (!choice->audits) {
		fail(exchange);
		return;
	}
	char why[sizeof exchange->fault.message];
	snprintf(why, sizeof why, "%s", exchange->fault.message);
	exchange->fault = (struct fault){0};
	end_audit(choice, why);
}

/* Starts waiting answers while there is room. */
static void start_waiting(struct gateway *gateway)
{
	struct choice *choice;

	while ((choice = queue_take(&gateway->queue)) != NULL)
		if (!start(choice))
			lose(choice);
}

bool generate_begin(struct exchange *exchange)
{
	struct gateway *gateway = exchange->gateway;
	const struct params *params = &exchange->params;

	if (params->audit && params->stream && !params->include_usage && !exchange->responses)
		return fault_set(&exchange->fault, 400, "outrider", "invalid_value",
			"outrider: audit: a stream says it in its last chunk, with "
			"stream_options {\"include_usage\": true}");
	make_id(exchange);
	exchange->next = gateway->exchanges;
	if (exchange->next)
		exchange->next->previous = exchange;
	gateway->exchanges = exchange;
	exchange->listed = true;
	exchange->n_started = exchange->params.n;
	for (uint32_t i = 0; i < exchange->n_started; i++) {
		exchange->choices[i] = (struct choice){.exchange = exchange, .index = i};
		if (!parse_begin(&exchange->choices[i])) {
			generate_end(exchange);
			return fault_set(&exchange->fault, 500, NULL, "internal_error",
				"no memory for the answer");
		}
		queue_add(&gateway->queue, &exchange->choices[i]);
	}
	start_waiting(gateway);
	if (exchange->fault.status)
		return false;
	if (gateway->queue.n <= (uint32_t)gateway->config->queue)
		return true;
	generate_end(exchange);
	return no_room(exchange);
}

/* The service had no room for the answer: it waits again, before all others. */
static void put_back(struct choice *choice)
{
	struct gateway *gateway = choice->exchange->gateway;

	end_stream(choice, true);
	delist(choice);
	outrider_stream_free(&choice->stream);
	if (gateway->queue.n < (uint32_t)gateway->config->queue) {
		queue_put_back(&gateway->queue, choice);
	} else {
		no_room(choice->exchange);
		lose(choice);
	}
}

/* Handles one event, or the failure of a stream. False: there is none. */
static bool pump_one(struct gateway *gateway)
{
	const struct outrider_event *event;
	struct outrider_stream *stream;
	int code = outrider_next_event(gateway->client, 0, &stream, &event);

	if (code < 0 && !stream)
		return false;
	struct choice *choice = find(gateway, stream);
	if (!choice)
		return true;
	if (code == -EBUSY) {
		gateway->retry_s = outrider_retry_ms() / 1000.0;
		put_back(choice);
	} else if (code < 0) {
		fault_of_service(&choice->exchange->fault, code, outrider_error());
		lose(choice);
	} else {
		take(choice, event);
	}
	return true;
}

void generate_pump(struct gateway *gateway)
{
	for (int i = 0; i < EVENTS_MAX && pump_one(gateway); i++)
		;
	start_waiting(gateway);
}

void generate_tick(struct gateway *gateway)
{
	uint64_t now_ns = clock_ns();
	struct exchange *next;

	queue_tick(&gateway->queue);
	for (struct exchange *exchange = gateway->exchanges; exchange; exchange = next) {
		next = exchange->next;
		if (has_gone(exchange)) {
			leave(exchange);
		} else if (exchange->params.stream &&
			   now_ns - exchange->sent_ns >= (uint64_t)gateway->config->ping_ns) {
			text_add_string(&exchange->out, ": ping\n\n");
			exchange->sent_ns = now_ns;
			exchange_wake(exchange);
		}
	}
}
