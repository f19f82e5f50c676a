/*
 * swarm RUNTIME_DIR CONCURRENT < requests.jsonl > results.jsonl
 *
 * The traffic of the integration tests: runs requests, CONCURRENT at a time, and prints the results in order. A
 * request: {"tokens": [...] or "prompt": "...", "max_tokens", "seed", "k", "draft_method", "temperature", "top_k",
 * "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "top_n_sigma", "xtc_probability" (with "xtc_threshold"), "dry_multiplier",
 * "logprobs", "coupling", "grammar": [kind, source], "ignore_eos", "logits_hash", "stop": [...], "replay": [...], "draft_nodes", "draft_width",
 * "replay_error", "cancel_after": tokens, "deadline_ms", "class": name, "repeat_window", "logit_bias": {"id": bias}, "window": tokens
 * the service may send ahead, "resume": "uid" and "have" (the session of another process, from that token on),
 * "audit": [tokens] (checks an answer; the result then has "picked"), "progress": true (a line {"job", "uid", "have", "tokens"} on stderr whenever tokens come),
 * "hold": tokens (when the first answer has so many, swarm stops itself by SIGSTOP; SIGCONT lets it go on)}. A result: {"tokens",
 * "text", "logits_hash", "logprobs", "end", "usage"} or {"error", "code"}.
 */
#include "client/include/outrider.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sysexits.h>

struct job {
	json_t *spec, *result;
	json_t *tokens, *hashes, *logprobs, *picked;
	char *text;
	size_t text_bytes;
	struct outrider_stream *stream;
	size_t number;
	uint32_t have; /* tokens that were held before it began */
	bool ended;
};

static void die(const char *what)
{
	fprintf(stderr, "swarm: %s: %s\n", what, outrider_error());
	exit(EX_SOFTWARE);
}

static void check(int r, const char *what)
{
	if (r < 0)
		die(what);
}

static int32_t *ids_of(const json_t *array, size_t *n)
{
	*n = json_array_size(array);
	int32_t *ids = calloc(*n + 1, sizeof(*ids));
	if (!ids)
		die("memory");
	for (size_t i = 0; i < *n; i++)
		ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
	return ids;
}

static void set_input(struct outrider_request *request, const json_t *spec)
{
	const json_t *tokens = json_object_get(spec, "tokens");
	if (tokens) {
		size_t n;
		int32_t *ids = ids_of(tokens, &n);
		check(outrider_request_set_tokens(request, ids, n), "tokens");
		free(ids);
	} else {
		check(outrider_request_set_prompt(
			      request, json_string_value(json_object_get(spec, "prompt"))),
			"prompt");
	}
}

static void set_sampling(struct outrider_request *request, const json_t *spec)
{
	const json_t *v;
	if ((v = json_object_get(spec, "temperature")))
		check(outrider_request_set_temperature(request, (float)json_number_value(v)),
			"temperature");
	if ((v = json_object_get(spec, "top_k")))
		check(outrider_request_set_top_k(request, (uint32_t)json_integer_value(v)),
			"top_k");
	if ((v = json_object_get(spec, "top_p")))
		check(outrider_request_set_top_p(request, (float)json_number_value(v)), "top_p");
	if ((v = json_object_get(spec, "min_p")))
		check(outrider_request_set_min_p(request, (float)json_number_value(v)), "min_p");
	if ((v = json_object_get(spec, "repeat_penalty")))
		check(outrider_request_set_repeat(request, (float)json_number_value(v),
			      (uint32_t)json_integer_value(json_object_get(spec, "repeat_window"))),
			"repeat_penalty");
	if ((v = json_object_get(spec, "presence_penalty")))
		check(outrider_request_set_presence_penalty(request, (float)json_number_value(v)),
			"presence_penalty");
	if ((v = json_object_get(spec, "frequency_penalty")))
		check(outrider_request_set_frequency_penalty(request, (float)json_number_value(v)),
			"frequency_penalty");
	if ((v = json_object_get(spec, "top_n_sigma")))
		check(outrider_request_set_top_n_sigma(request, (float)json_number_value(v)),
			"top_n_sigma");
	if ((v = json_object_get(spec, "xtc_probability")))
		check(outrider_request_set_xtc(request, (float)json_number_value(v),
			      (float)json_number_value(json_object_get(spec, "xtc_threshold"))),
			"xtc");
	if ((v = json_object_get(spec, "dry_multiplier")))
		check(outrider_request_set_dry(request, (float)json_number_value(v), 1.75f, 2, 0),
			"dry");
	if ((v = json_object_get(spec, "logprobs")))
		check(outrider_request_set_logprobs(request, (int)json_integer_value(v)),
			"logprobs");
	if ((v = json_object_get(spec, "grammar")))
		check(outrider_request_set_grammar(request, json_string_value(json_array_get(v, 0)),
			      json_string_value(json_array_get(v, 1))),
			"grammar");
	if ((v = json_object_get(spec, "coupling")))
		check(outrider_request_set_coupling(request, json_string_value(v)), "coupling");
	if ((v = json_object_get(spec, "seed")))
		outrider_request_set_seed(request, (uint64_t)json_integer_value(v));
}

static void set_biases(struct outrider_request *request, json_t *biases)
{
	const char *token;
	json_t *bias;

	json_object_foreach(biases, token, bias)
		check(outrider_request_add_logit_bias(request, (int32_t)strtol(token, NULL, 10),
			      (float)json_number_value(bias)),
			"logit_bias");
}

static void set_speculation(struct outrider_request *request, const json_t *spec)
{
	const json_t *v;
	if ((v = json_object_get(spec, "k")))
		check(outrider_request_set_k(request, (int)json_integer_value(v)), "k");
	if ((v = json_object_get(spec, "draft_nodes")))
		check(outrider_request_set_draft_tree(request, (uint32_t)json_integer_value(v),
			      (uint32_t)json_integer_value(json_object_get(spec, "draft_width"))),
			"draft_nodes");
	if ((v = json_object_get(spec, "budget_experts")))
		check(outrider_request_set_budget(request, json_string_value(v), NULL, NULL),
			"budget");
	if ((v = json_object_get(spec, "draft_method")))
		check(outrider_request_set_draft_method(request, json_string_value(v)),
			"draft_method");
	if ((v = json_object_get(spec, "audit"))) {
		size_t n;
		int32_t *ids = ids_of(v, &n);
		check(outrider_request_set_audit(request, ids, n), "audit");
		free(ids);
	}
	if ((v = json_object_get(spec, "replay"))) {
		size_t n;
		int32_t *ids = ids_of(v, &n);
		float error = (float)json_number_value(json_object_get(spec, "replay_error"));
		check(outrider_request_set_replay(request, ids, n, error), "replay");
		free(ids);
	}
}

static struct outrider_request *make_request(const json_t *spec)
{
	struct outrider_request *request;
	check(outrider_request_new(&request), "request");
	set_input(request, spec);
	set_sampling(request, spec);
	set_biases(request, json_object_get(spec, "logit_bias"));
	set_speculation(request, spec);
	outrider_request_set_max_tokens(
		request, (uint32_t)json_integer_value(json_object_get(spec, "max_tokens")));
	outrider_request_set_ignore_eos(request, json_is_true(json_object_get(spec, "ignore_eos")));
	outrider_request_set_logits_hash(
		request, json_is_true(json_object_get(spec, "logits_hash")));
	outrider_request_set_deadline_ms(
		request, (uint64_t)json_integer_value(json_object_get(spec, "deadline_ms")));
	if (json_is_string(json_object_get(spec, "class")))
		check(outrider_request_set_class(
			      request, json_string_value(json_object_get(spec, "class"))),
			"class");
	size_t i;
	const json_t *stop;
	json_array_foreach(json_object_get(spec, "stop"), i, stop)
		check(outrider_request_add_stop(request, json_string_value(stop)), "stop");
	return request;
}

static void job_start(struct outrider *client, struct job *job)
{
	const json_t *window = json_object_get(job->spec, "window");
	const char *uid = json_string_value(json_object_get(job->spec, "resume"));

	job->result = json_object();
	job->tokens = json_array();
	job->hashes = json_array();
	job->logprobs = json_array();
	job->picked = json_array();
	if (window)
		check(outrider_set_window(client, (uint32_t)json_integer_value(window)), "window");
	if (uid) {
		job->have = (uint32_t)json_integer_value(json_object_get(job->spec, "have"));
		check(outrider_resume(client, strtoull(uid, NULL, 10), job->have, &job->stream),
			"resume");
		return;
	}
	struct outrider_request *request = make_request(job->spec);
	check(outrider_start(client, request, &job->stream), "start");
	outrider_request_free(&request);
}

static void job_text(struct job *job, const char *text, size_t bytes)
{
	char *grown = realloc(job->text, job->text_bytes + bytes + 1);
	if (!grown)
		die("memory");
	job->text = grown;
	if (bytes)
		memcpy(grown + job->text_bytes, text, bytes);
	job->text_bytes += bytes;
	grown[job->text_bytes] = '\0';
}

static json_t *counts(const uint32_t *values, size_t n)
{
	json_t *array = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(array, json_integer(values[i]));
	return array;
}

static json_t *usage_json(const struct outrider_stream *stream)
{
	struct outrider_usage usage;
	check(outrider_usage(stream, &usage), "usage");
	return json_pack("{s:i,s:i,s:i,s:i,s:i,s:I,s:I,s:I,s:i,s:o,s:o,s:o,s:i,s:i,s:i}",
		"prompt_tokens", (int)usage.prompt_tokens, "output_tokens",
		(int)usage.output_tokens, "iterations", (int)usage.iterations, "drafted",
		(int)usage.drafted, "accepted", (int)usage.accepted, "decode_ns",
		(json_int_t)usage.decode_ns, "expert_hits", (json_int_t)usage.expert_hits,
		"expert_misses", (json_int_t)usage.expert_misses, "restarts", (int)usage.restarts,
		"k_used", counts(usage.k_used, usage.n_k_used), "drafted_at",
		counts(usage.drafted_at, usage.n_drafted_at), "accepted_at",
		counts(usage.accepted_at, usage.n_accepted_at), "cached_tokens",
		(int)usage.cached_tokens, "changed_tokens", (int)usage.changed_tokens,
		"lossy_tokens", (int)usage.lossy_tokens);
}

static void job_finish(struct job *job, const struct outrider_event *event)
{
	job->ended = true;
	json_object_set_new(job->result, "tokens", job->tokens);
	/* Text that is not UTF-8 has no place in JSON: the tokens say what it was. */
	json_t *text = json_stringn(job->text ? job->text : "", job->text_bytes);
	json_object_set_new(job->result, "text", text ? text : json_null());
	json_object_set_new(job->result, "end", json_string(outrider_end_name(event->end)));
	json_object_set_new(job->result, "stop", json_string(event->stop));
	if (json_is_true(json_object_get(job->spec, "logits_hash")))
		json_object_set_new(job->result, "logits_hash", job->hashes);
	else
		json_decref(job->hashes);
	if (json_object_get(job->spec, "logprobs"))
		json_object_set_new(job->result, "logprobs", job->logprobs);
	else
		json_decref(job->logprobs);
	if (json_object_get(job->spec, "audit"))
		json_object_set_new(job->result, "picked", job->picked);
	else
		json_decref(job->picked);
	if (event->end == OUTRIDER_END_ERROR)
		json_object_set_new(job->result, "error", json_string(event->message));
	json_object_set_new(job->result, "usage", usage_json(job->stream));
}

static void job_progress(const struct job *job)
{
	char uid[24];

	snprintf(uid, sizeof(uid), "%llu", (unsigned long long)outrider_stream_uid(job->stream));
	json_t *line = json_pack("{s:I,s:s,s:I,s:O}", "job", (json_int_t)job->number, "uid", uid,
		"have", (json_int_t)(job->have + json_array_size(job->tokens)), "tokens",
		job->tokens);
	json_dumpf(line, stderr, JSON_COMPACT);
	fputc('\n', stderr);
	json_decref(line);
}

static void job_logprobs(struct job *job, const struct outrider_event *event)
{
	const struct outrider_logprob *of = event->logprobs;

	for (size_t i = 0; event->n_logprobs > 0 && i < event->n_tokens; i++) {
		json_t *top = json_array(),
		       *entry = json_pack("{s:i,s:f,s:o}", "token", (int)of->token, "logprob",
			       (double)of->logprob, "top", top);
		of++;
		for (size_t t = 1; t < event->n_logprobs; t++, of++)
			json_array_append_new(top, json_pack("{s:i,s:f}", "token", (int)of->token,
							   "logprob", (double)of->logprob));
		json_array_append_new(job->logprobs, entry);
	}
}

static void job_take(struct job *job, const struct outrider_event *event)
{
	if (event->n_tokens && event->first != job->have + json_array_size(job->tokens)) {
		fprintf(stderr, "swarm: tokens from %u after %u + %zu\n", event->first, job->have,
			json_array_size(job->tokens));
		exit(EX_PROTOCOL);
	}
	for (size_t i = 0; i < event->n_tokens; i++)
		json_array_append_new(job->tokens, json_integer(event->tokens[i]));
	for (size_t i = 0; event->picked && i < event->n_tokens; i++)
		json_array_append_new(job->picked, json_integer(event->picked[i]));
	job_logprobs(job, event);
	for (size_t i = 0; i < event->n_logits_hash; i++) {
		char hex[17];
		snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)event->logits_hash[i]);
		json_array_append_new(job->hashes, json_string(hex));
	}
	job_text(job, event->text, event->text_bytes);
	if (event->n_tokens && json_is_true(json_object_get(job->spec, "progress")))
		job_progress(job);
	const json_t *cancel = json_object_get(job->spec, "cancel_after");
	if (cancel && (json_int_t)json_array_size(job->tokens) >= json_integer_value(cancel))
		outrider_cancel(job->stream);
	if (event->type == OUTRIDER_EVENT_DONE)
		job_finish(job, event);
}

/* The service refused it, or was away for too long. */
static void job_fail(struct job *job, int code)
{
	json_object_set_new(job->result, "error", json_string(outrider_error()));
	json_object_set_new(job->result, "code", json_integer(-code));
	json_object_set_new(job->result, "tokens", job->tokens);
	json_decref(job->hashes);
	json_decref(job->logprobs);
	json_decref(job->picked);
	job->ended = true;
}

/* The next event of any stream; the descriptor is what is waited for. */
static int next_event(struct outrider *client, struct outrider_stream **stream,
	const struct outrider_event **event)
{
	struct pollfd wait = {.fd = outrider_client_fd(client), .events = POLLIN};
	int code;

	check(wait.fd < 0 ? wait.fd : 0, "descriptor");
	while ((code = outrider_next_event(client, 0, stream, event)) == -EAGAIN)
		poll(&wait, 1, -1);
	return code;
}

/* Stands still until it is sent SIGCONT: answers that are longer than what is computed ahead of their
 * client are not complete meanwhile. It ends with who started it. */
static void hold(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	raise(SIGSTOP);
}

/* The job of a stream, which is one of those from `first` on. */
static struct job *job_of(struct job *first, const struct outrider_stream *stream)
{
	while (first->stream != stream)
		first++;
	return first;
}

static size_t read_jobs(struct job **out)
{
	struct job *jobs = NULL;
	size_t n = 0, room = 0;
	char *line = NULL;
	size_t capacity = 0;
	while (getline(&line, &capacity, stdin) > 0) {
		if (n == room) {
			room = room ? 2 * room : 64;
			jobs = reallocarray(jobs, room, sizeof(*jobs));
			if (!jobs)
				die("memory");
		}
		json_error_t error;
		jobs[n] = (struct job){.spec = json_loads(line, 0, &error), .number = n};
		if (!jobs[n++].spec) {
			fprintf(stderr, "swarm: line %zu: %s\n", n, error.text);
			exit(EX_DATAERR);
		}
	}
	free(line);
	*out = jobs;
	return n;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: swarm RUNTIME_DIR CONCURRENT < requests.jsonl\n");
		return EX_USAGE;
	}
	size_t concurrent = (size_t)strtoul(argv[2], NULL, 10);
	struct outrider *client;
	check(outrider_connect(argv[1], &client), "connect");
	struct job *jobs;
	size_t n = read_jobs(&jobs), started = 0, ended = 0;
	size_t first = 0; /* jobs before it have ended */
	bool held = false;
	while (ended < n) {
		while (started < n && started - ended < concurrent)
			job_start(client, &jobs[started++]);
		struct outrider_stream *stream;
		const struct outrider_event *event;
		int code = next_event(client, &stream, &event);
		if (!stream)
			die("no stream is left");
		struct job *job = job_of(&jobs[first], stream);
		if (code == 0)
			job_take(job, event);
		else
			job_fail(job, code);
		const json_t *most = json_object_get(job->spec, "hold");
		if (!held && most &&
			(json_int_t)json_array_size(job->tokens) >= json_integer_value(most)) {
			held = true;
			hold();
		}
		if (job->ended) {
			ended++;
			outrider_stream_free(&job->stream);
		}
		while (first < started && jobs[first].ended)
			first++;
	}
	for (size_t i = 0; i < n; i++) {
		json_dumpf(jobs[i].result, stdout, JSON_COMPACT);
		putchar('\n');
		json_decref(jobs[i].result);
		json_decref(jobs[i].spec);
		free(jobs[i].text);
	}
	free(jobs);
	outrider_close(&client);
	return 0;
}
