#include "client/cli/answer.h"

#include "client/cli/cli.h"
#include "shared/base/clock.h"
#include "shared/base/plural.h"
#include "shared/base/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
	LOOK_MS = 100, /* the delay until Ctrl-C is seen */
	AUDIT_TEXT_MS = 1000,
};
/* How long the service has to confirm that an answer is cancelled. A service that is away, or
 * hangs, never will. */
#define CANCEL_NS UINT64_C(1000000000)

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
	(void)signal_number;
	interrupted = interrupted + 1;
}

static bool grow(void **array, size_t *room, size_t need, size_t item)
{
	size_t wanted = *room ? *room : 256;
	void *grown;

	if (need <= *room)
		return true;
	while (wanted < need)
		wanted *= 2;
	grown = realloc(*array, wanted * item);
	if (!grown)
		return false;
	*array = grown;
	*room = wanted;
	return true;
}

/* A text that may not be UTF-8, and its bytes. */
static json_t *logprob_json(const struct outrider_logprob *of)
{
	size_t bytes;
	char *text = utf8_clean(of->text, of->text_bytes, &bytes);
	json_t *raw = json_array(),
	       *object = json_pack("{s:i,s:f,s:o,s:o}", "token", (int)of->token, "logprob",
		       (double)of->logprob, "text",
		       json_stringn(text ? text : "", text ? bytes : 0), "bytes", raw);

	for (size_t i = 0; i < of->text_bytes; i++)
		json_array_append_new(raw, json_integer((unsigned char)of->text[i]));
	free(text);
	return object;
}

static void collect_logprobs(struct answer *answer, const struct outrider_event *event)
{
	const struct outrider_logprob *at = event->logprobs;

	if (event->n_logprobs > 0 && !answer->logprobs)
		answer->logprobs = json_array();
	for (size_t i = 0; event->n_logprobs > 0 && i < event->n_tokens; i++) {
		json_t *object = logprob_json(at++), *top = json_array();

		for (size_t t = 1; t < event->n_logprobs; t++)
			json_array_append_new(top, logprob_json(at++));
		json_object_set_new(object, "top", top);
		json_array_append_new(answer->logprobs, object);
	}
}

static void collect(struct answer *answer, const struct outrider_event *event)
{
	if (!grow((void **)&answer->tokens, &answer->room_tokens,
		    answer->n_tokens + event->n_tokens, sizeof *answer->tokens) ||
		!grow((void **)&answer->hashes, &answer->room_hashes,
			answer->n_hashes + event->n_logits_hash, sizeof *answer->hashes) ||
		!grow((void **)&answer->picked, &answer->room_picked,
			answer->n_tokens + event->n_tokens, sizeof *answer->picked) ||
		!grow((void **)&answer->text, &answer->room_text,
			answer->text_bytes + event->text_bytes, 1)) {
		answer->out_of_memory = true;
		return;
	}
	if (event->n_tokens)
		memcpy(answer->tokens + answer->n_tokens, event->tokens,
			event->n_tokens * sizeof *answer->tokens);
	if (event->picked)
		memcpy(answer->picked + answer->n_tokens, event->picked,
			event->n_tokens * sizeof *answer->picked);
	if (event->n_logits_hash)
		memcpy(answer->hashes + answer->n_hashes, event->logits_hash,
			event->n_logits_hash * sizeof *answer->hashes);
	if (event->text_bytes)
		memcpy(answer->text + answer->text_bytes, event->text, event->text_bytes);
	answer->n_tokens += event->n_tokens;
	answer->n_hashes += event->n_logits_hash;
	collect_logprobs(answer, event);
	answer->text_bytes += event->text_bytes;
}

static void take(struct answer *answer, const struct outrider_event *event)
{
	collect(answer, event);
	if (answer->show && event->text_bytes) {
		fwrite(event->text, 1, event->text_bytes, stdout);
		if (fflush(stdout) != 0 && !answer->write_error)
			answer->write_error = errno;
	}
	if (event->type == OUTRIDER_EVENT_TOKENS) {
		if (answer->live)
			live_show(&event->live, answer->n_tokens);
		return;
	}
	answer->end = event->end;
	snprintf(answer->stop, sizeof answer->stop, "%s", event->stop);
	snprintf(answer->message, sizeof answer->message, "%s", event->message);
}

static int read_all(struct answer *answer, struct outrider_stream *stream)
{
	const struct outrider_event *event;
	bool done = false;
	uint64_t cancelled_ns = 0; /* 0: not cancelled */

	while (!done) {
		int code = outrider_next(stream, LOOK_MS, &event);

		if (code == 0) {
			take(answer, event);
			done = event->type == OUTRIDER_EVENT_DONE;
		} else if (code != -EAGAIN) {
			return code;
		}
		if ((interrupted || answer->write_error || answer->out_of_memory) &&
			!cancelled_ns) {
			outrider_cancel(stream);
			cancelled_ns = clock_ns();
		}
		/* After a second Ctrl-C it does not wait for the service's answer at all. */
		if (code == -EAGAIN && cancelled_ns &&
			(interrupted > 1 || clock_ns() - cancelled_ns >= CANCEL_NS)) {
			answer->end = OUTRIDER_END_CANCELLED;
			return 0;
		}
	}
	return outrider_usage(stream, &answer->usage);
}

static const struct sigaction on_ctrl_c = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};

void answer_catch_interrupts(void)
{
	sigaction(SIGINT, &on_ctrl_c, NULL);
}

void answer_forget_interrupts(void)
{
	interrupted = 0;
}

int answer_read(struct answer *answer, struct outrider_stream *stream)
{
	struct sigaction before;
	int code;

	sigaction(SIGINT, &on_ctrl_c, &before);
	if (answer->live)
		live_begin();
	code = read_all(answer, stream);
	if (answer->live)
		live_end();
	sigaction(SIGINT, &before, NULL);
	return code;
}

static json_t *counts(const uint32_t *values, size_t n)
{
	json_t *array = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(array, json_integer(values[i]));
	return array;
}

/* From the first token to the last, without the wait in the queue and the prompt. 0: not known; after
 * a restart of the service the time covers only the tokens since then. */
static double tokens_per_s(const struct outrider_usage *u)
{
	return u->decode_ns && u->output_tokens > 1 && u->restarts == 0
		       ? (double)(u->output_tokens - 1) / ((double)u->decode_ns / 1e9)
		       : 0;
}

static json_t *usage_json(const struct outrider_usage *u)
{
	json_t *lossy = json_array();

	for (size_t i = 0; i < u->n_lossy; i++)
		json_array_append_new(lossy, json_string(u->lossy[i]));
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:I,s:I,s:I,"
			 "s:o,s:I,s:I,s:I}",
		"prompt_tokens", (json_int_t)u->prompt_tokens, "output_tokens",
		(json_int_t)u->output_tokens, "iterations", (json_int_t)u->iterations, "drafted",
		(json_int_t)u->drafted, "accepted", (json_int_t)u->accepted, "tokens_per_s",
		tokens_per_s(u), "queue_ns", (json_int_t)u->queue_ns, "prefill_ns",
		(json_int_t)u->prefill_ns, "decode_ns", (json_int_t)u->decode_ns, "draft_ns",
		(json_int_t)u->draft_ns, "verify_ns", (json_int_t)u->verify_ns, "sample_ns",
		(json_int_t)u->sample_ns, "k_used", counts(u->k_used, u->n_k_used), "drafted_at",
		counts(u->drafted_at, u->n_drafted_at), "accepted_at",
		counts(u->accepted_at, u->n_accepted_at), "unique_experts",
		(json_int_t)u->unique_experts, "expert_hits", (json_int_t)u->expert_hits,
		"expert_misses", (json_int_t)u->expert_misses, "lossy", lossy, "restarts",
		(json_int_t)u->restarts, "cached_tokens", (json_int_t)u->cached_tokens,
		"lossy_tokens", (json_int_t)u->lossy_tokens);
}

static json_t *audit_json(const struct answer *audit)
{
	json_t *changed = json_array();

	for (size_t i = 0; i < audit->n_tokens; i++)
		if (audit->picked[i] != audit->tokens[i])
			json_array_append_new(changed,
				json_pack("{s:I,s:i,s:i}", "index", (json_int_t)i, "token",
					(int)audit->tokens[i], "picked", (int)audit->picked[i]));
	return json_pack("{s:I,s:o}", "tokens", (json_int_t)audit->n_tokens, "changed", changed);
}

void answer_print_json(const struct answer *answer, const struct answer *audit, FILE *to)
{
	json_t *root = json_object(), *tokens = json_array();
	size_t bytes;
	char *text = utf8_clean(answer->text, answer->text_bytes, &bytes);

	for (size_t i = 0; i < answer->n_tokens; i++)
		json_array_append_new(tokens, json_integer(answer->tokens[i]));
	json_object_set_new(root, "tokens", tokens);
	json_object_set_new(root, "text", json_stringn(text ? text : "", text ? bytes : 0));
	json_object_set_new(root, "end", json_string(outrider_end_name(answer->end)));
	if (answer->stop[0])
		json_object_set_new(root, "stop", json_text(answer->stop));
	if (answer->message[0])
		json_object_set_new(root, "message", json_text(answer->message));
	json_object_set_new(root, "usage", usage_json(&answer->usage));
	if (answer->n_hashes) {
		json_t *hashes = json_array();

		for (size_t i = 0; i < answer->n_hashes; i++)
			json_array_append_new(
				hashes, json_sprintf("%016" PRIx64, answer->hashes[i]));
		json_object_set_new(root, "logits_hash", hashes);
	}
	if (audit)
		json_object_set_new(root, "audit", audit_json(audit));
	if (answer->logprobs)
		json_object_set(root, "logprobs", answer->logprobs);
	json_dumpf(root, to, 0);
	fputc('\n', to);
	json_decref(root);
	free(text);
}

void answer_print_stats(const struct answer *answer, FILE *to)
{
	const struct outrider_usage *u = &answer->usage;
	uint64_t looks = u->expert_hits + u->expert_misses;

	fprintf(to, "%u tokens", u->output_tokens);
	if (tokens_per_s(u) > 0)
		fprintf(to, ", %.1f tokens/s after the first", tokens_per_s(u));
	fprintf(to, "; prompt %u tokens in %.0f ms", u->prompt_tokens, (double)u->prefill_ns / 1e6);
	if (u->cached_tokens)
		fprintf(to, " (%u were there)", u->cached_tokens);
	if (u->drafted)
		fprintf(to, "; %u of %u drafted tokens accepted (%.0f%%)", u->accepted, u->drafted,
			100.0 * (double)u->accepted / (double)u->drafted);
	else
		fputs("; no token drafted", to);
	if (looks)
		fprintf(to, "; cache hits %.1f%%", 100.0 * (double)u->expert_hits / (double)looks);
	if (u->restarts)
		fprintf(to,
			"; the service restarted %u time%s, and the other figures are of the "
			"time since then",
			u->restarts, plural(u->restarts));
	for (size_t i = 0; i < u->n_lossy; i++)
		fprintf(to, "; lossy: %s", u->lossy[i]);
	fprintf(to, "; ended by %s\n", outrider_end_name(answer->end));
}

/* Quoted as JSON does it, since a token may be a newline; or its number. */
static void print_token(struct outrider *client, int32_t token, FILE *to)
{
	char *text = NULL, *quoted = NULL;
	size_t bytes = 0;

	if (outrider_detokenize(client, &token, 1, true, AUDIT_TEXT_MS, &text, &bytes, NULL) == 0) {
		json_t *json = json_text(text);

		quoted = json_dumps(json, JSON_ENCODE_ANY);
		json_decref(json);
		outrider_free(text);
	}
	if (quoted)
		fputs(quoted, to);
	else
		fprintf(to, "%d", token);
	free(quoted);
}

void answer_print_audit(const struct answer *audit, struct outrider *client, FILE *to)
{
	fprintf(to, "audit: in the places of %u of %zu tokens the model picks another one\n",
		audit->usage.changed_tokens, audit->n_tokens);
	for (size_t i = 0; i < audit->n_tokens; i++) {
		if (audit->picked[i] == audit->tokens[i])
			continue;
		fprintf(to, "  token %zu is ", i);
		print_token(client, audit->tokens[i], to);
		fputs(", the model picks ", to);
		print_token(client, audit->picked[i], to);
		fputc('\n', to);
	}
}

void answer_say_full(const struct answer *answer, uint32_t max_tokens)
{
	size_t n = answer->n_tokens;

	if (answer->end == OUTRIDER_END_LENGTH && (max_tokens == 0 || n < max_tokens))
		(void)cli_fail(
			0, "the context is full: the answer ends after %zu token%s", n, plural(n));
}

void answer_free(struct answer *answer)
{
	free(answer->tokens);
	free(answer->hashes);
	free(answer->picked);
	json_decref(answer->logprobs);
	free(answer->text);
	memset(answer, 0, sizeof *answer);
}
