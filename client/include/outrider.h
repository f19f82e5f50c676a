/*
 * liboutrider: generate text with a running Outrider service.
 *
 * A client is a connection to the service; a request says what to generate; a stream is one
 * generation in progress. All types are opaque and belong to the caller, who frees them. A client
 * and everything made from it belong to one thread: use one client per thread. A client may have
 * many streams at once.
 *
 * One thread can serve many streams with outrider_next_event(), which returns the next event of any
 * of them; streams that have events take turns. A program with a loop of its own waits for
 * outrider_client_fd() together with its other descriptors. Any thread may wait for that
 * descriptor; only the client's thread may call the functions.
 *
 * A client also belongs to the process that opened it. In the child of a fork() every function that
 * uses it fails with -EPERM; outrider_stream_free() and outrider_close() free the child's copy and
 * do not touch the parent's connection. The child opens a client of its own.
 *
 * Functions return 0 or -errno; outrider_error() then has a sentence for the user. A NULL that a
 * function cannot use is -EINVAL, as is a value outside of the range named here. Functions that
 * return no code ignore NULL.
 *
 * A restart of the service is not an error: the client connects again, and the stream goes on after
 * the last token that it has; no token is lost, repeated or changed. Only when the service stays
 * away longer than outrider_set_wait() allows does a stream end, with -ETIMEDOUT.
 *
 * A client that does not take its tokens delays only itself: the service sends at most the window
 * (outrider_set_window) ahead of what was taken.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct outrider;
struct outrider_request;
struct outrider_stream;
struct outrider_status;

/* A sentence about the last call of this thread that failed; "" when none did. Valid until the next
 * call. */
const char *outrider_error(void);
const char *outrider_version(void);
/* For the failure that outrider_error() describes: after how many ms the same request may succeed,
 * as the service has measured; 0: that is not known, or waiting does not help. */
uint32_t outrider_retry_ms(void);

/* Connecting. */

/* runtime_dir: the directory with the service's sockets; NULL: OUTRIDER_RUNTIME_DIR, else the
 * default of the system (outrider(3)). -ECONNREFUSED when the directory does not exist. Does not
 * wait for the service; the first request does. */
int outrider_connect(const char *runtime_dir, struct outrider **client);
/* Frees the client and sets it to NULL. Its streams must have been freed. */
void outrider_close(struct outrider **client);

/* How many tokens the service may send ahead of what was taken, 1 to 65536 (default 512). Holds for
 * streams that are started later. */
int outrider_set_window(struct outrider *client, uint32_t tokens);
/* How long to wait for a service that has not answered this client yet (default 5000 ms), and for
 * one that went away or fell silent (default 60000 ms). 0 to 86400000; in any case a running
 * service has half a second to answer. When a client was stopped, or its machine stood still, for
 * more than a second, the time begins anew. */
int outrider_set_wait(struct outrider *client, int64_t first_ms, int64_t away_ms);

/* Requests. A request is filled in once, and may be started any number of times, by any client of
 * the thread. */

int outrider_request_new(struct outrider_request **request);
void outrider_request_free(struct outrider_request **request);

/* The number that names the session. 0, the default: outrider_start() draws a random one, which
 * suits nearly every program. Starting the same request under the same number again, even by
 * another process after a crash, gives the same answer from its beginning, also when the answer has
 * ended but is still kept (the service's setting linger). The last one to ask gets the tokens. A
 * different request under that number is refused with -EEXIST, and so is a second stream of one
 * client. */
int outrider_request_set_uid(struct outrider_request *request, uint64_t uid);

/* The beginning of a prompt that the service has computed before is not computed again. That can be
 * seen from the time to the first token, so it is shared with requests of the same domain only: any
 * number, such as one per user; default 0. The answer does not depend on it. */
int outrider_request_set_prefix_domain(struct outrider_request *request, uint64_t domain);

/* The input is one of these three: a prompt, tokens or messages. The last call decides which;
 * messages are appended. Text is UTF-8, at most 2 MiB, and is copied. */
int outrider_request_set_prompt(struct outrider_request *request, const char *text);
int outrider_request_set_tokens(struct outrider_request *request, const int32_t *tokens, size_t n);
/* role: "system", "user", "assistant", "tool", "developer" or "function". All messages together
 * have at most 2 MiB. */
int outrider_request_add_message(
	struct outrider_request *request, const char *role, const char *text);
/* A whole message as a JSON object, for what role and text cannot express: tool_calls, content that
 * is null or a list of parts. The model's chat template gets it unchanged; text parts are joined by
 * newlines when the template cannot use a list. */
int outrider_request_add_message_json(struct outrider_request *request, const char *json);
/* A JSON object with what the chat template reads in addition to the messages: tools, documents,
 * enable_thinking and so on. */
int outrider_request_set_variables(struct outrider_request *request, const char *json);

/* 0 (the default): until the model ends or the context is full. */
void outrider_request_set_max_tokens(struct outrider_request *request, uint32_t max_tokens);
/* Sampling, in this order. Logit biases are added. The repetition penalty is applied, then the
 * frequency and the presence penalty, then DRY. Tokens that a grammar forbids are removed. At
 * temperature 0 the greatest logit is taken, and the filters have no effect. Otherwise the logits
 * are divided by the temperature; top-n-sigma, top-k, top-p (of the tokens that top-k left), min-p
 * (relative to the most probable token) and XTC remove tokens, in turn; and one of the remaining
 * tokens is drawn. outrider(1), SAMPLING, has the formulas. */

/* 0 (the default) is greedy; else 1e-30 to 100. */
int outrider_request_set_temperature(struct outrider_request *request, float temperature);
int outrider_request_set_top_k(
	struct outrider_request *request, uint32_t top_k); /* to 1048576; 0: off */
int outrider_request_set_top_p(
	struct outrider_request *request, float top_p); /* more than 0, up to 1, which is off */
int outrider_request_set_min_p(struct outrider_request *request, float min_p); /* 0..1; 0: off */
/* penalty: more than 0, up to 10; 1: off. window: how many of the last tokens count, up to 1048576;
 * 0: all. */
int outrider_request_set_repeat(struct outrider_request *request, float penalty, uint32_t window);
/* OpenAI's penalties, -2 to 2; 0: off. The logit of a token that is in the answer already is
 * lowered by `presence` once, and by `frequency` for each time that it occurs. The prompt does not
 * count. */
int outrider_request_set_presence_penalty(struct outrider_request *request, float penalty);
int outrider_request_set_frequency_penalty(struct outrider_request *request, float penalty);
/* DRY, as in llama.cpp. If the last n tokens occurred before, among the last `window` tokens (0:
 * all tokens; prompts count), the token that followed them then loses multiplier * base^(n -
 * allowed), provided that n is at least `allowed`. multiplier: 0 to 100; 0: off. base: 1 to 100,
 * usually 1.75. allowed: 1 to 256, usually 2. window: up to 1048576. */
int outrider_request_set_dry(struct outrider_request *request, float multiplier, float base,
	uint32_t allowed, uint32_t window);
/* Adds a text across which no repetition counts: a token that contains it ends one. The first call
 * replaces the usual texts: newline, ":", "\"" and "*". All together have up to 127 bytes, counting
 * one more for each. */
int outrider_request_add_dry_breaker(struct outrider_request *request, const char *text);
/* 0 to 100; 0: off. Keeps the tokens whose logit is within n standard deviations of the greatest.
 */
int outrider_request_set_top_n_sigma(struct outrider_request *request, float n);
/* With this probability (0 to 1; 0: off), removes all tokens whose probability reaches the
 * threshold (more than 0, up to 0.5), except the least probable of them. */
int outrider_request_set_xtc(struct outrider_request *request, float probability, float threshold);
/* 0 by default: the same request gives the same answer, sampled or not. */
void outrider_request_set_seed(struct outrider_request *request, uint64_t seed);
/* The output ends before the first of these strings that appears. Up to 256 strings of 1 to 4095
 * bytes, together 16384 bytes less one for each string. A string may be or contain the text of a
 * control token ("<|im_start|>"), which is not part of the output: it ends the answer at that
 * token. */
int outrider_request_add_stop(struct outrider_request *request, const char *text);
/* Added to the logit of a token; finite, or -INFINITY: the token never comes. Up to 256 tokens. */
int outrider_request_add_logit_bias(struct outrider_request *request, int32_t token, float bias);
/* What the output must match. kind: "json-schema", "json-object" (any JSON object; source is ""),
 * "regex", "gbnf" (llama.cpp's notation), "parts" (JSON that combines texts, schemas and control
 * tokens: outrider(3)) or "none" (the default). The source has up to 65536 bytes. The output ends
 * where it is complete. An error in the source, with its place, is reported as the failure of the
 * request (-EINVAL). Excludes outrider_request_set_ignore_eos() and the coupling "maximal". */
int outrider_request_set_grammar(
	struct outrider_request *request, const char *kind, const char *source);
/* Generates beyond end-of-text tokens. */
void outrider_request_set_ignore_eos(struct outrider_request *request, bool ignore);
/* Events then include the text of control tokens in its place, except for the token that ends the
 * answer. For programs that read what a model writes between control tokens. */
void outrider_request_set_control_text(struct outrider_request *request, bool wanted);
/* Counted from outrider_start(); 0: none. It holds whatever outrider_set_wait() allows: the service
 * ends the answer (OUTRIDER_END_DEADLINE), and begins none whose first token would come too late,
 * going by what it has measured: the event's message says by how much. If the service is away or hangs, outrider_next() fails
 * with -ETIMEDOUT. */
void outrider_request_set_deadline_ms(struct outrider_request *request, uint64_t deadline_ms);

/* The class of the request, one of those that the service's setting `classes` names: it decides
 * which requests are computed first, and how fast answers are to come. Without this call: the class
 * "default". The service refuses a class that it does not have (-EINVAL). The answer does not depend
 * on it. */
int outrider_request_set_class(struct outrider_request *request, const char *name);

/* Speculation. With the default coupling none of it but an expert budget changes the tokens, only how
 * fast they come. */

/* Draft length K: -1 (the default): the policy chooses; 0 to 63: fixed. */
int outrider_request_set_k(struct outrider_request *request, int k);
/* The draft is a tree of up to this many tokens (511), of which up to `width` (255) are
 * alternatives for the same place; K is then its depth. 0 and 0, the default: as the verifier's
 * settings draft_width and draft_nodes say, a chain unless they were changed. Draft models with
 * recurrent layers make chains. */
int outrider_request_set_draft_tree(
	struct outrider_request *request, uint32_t tokens, uint32_t width);
/* "auto" (the default), "none", "ngram", "model", "replay", "eagle3", "mtp", "mtp-lora" or
 * "layer-skip". */
int outrider_request_set_draft_method(struct outrider_request *request, const char *name);
/* "gumbel" (the default: the same tokens whatever is drafted) or "maximal" (the same distribution).
 */
int outrider_request_set_coupling(struct outrider_request *request, const char *name);
/* An expert budget (MoE-Spec): at most this many experts of a layer compute drafted tokens, all those
 * of a pass together. experts: a number, "12", or one for each layer, "0-3:16,4-:8" (docs/speculation.md);
 * "all": no budget in any case. Lossy: the answer may differ from the model's, outrider_usage.lossy says so,
 * and when the service loses what it was computed from it ends with OUTRIDER_END_ERROR. ranking:
 * which experts are kept: "router" (also for NULL), "static" or "oracle"; coverage: what a token does
 * without one that it chose: "substitution" (also for NULL) or "truncation". Without this call the
 * service's budget_experts holds, which is off by default. -EINVAL for what cannot be read; the
 * service refuses 0 and more than the model has. */
int outrider_request_set_budget(struct outrider_request *request, const char *experts,
	const char *ranking, const char *coverage);
/* What "replay" proposes: a recorded continuation, each of whose tokens is replaced by a wrong one
 * with probability `error`. */
int outrider_request_set_replay(
	struct outrider_request *request, const int32_t *tokens, size_t n, float error);
/* Checks an answer instead of writing one: the output consists of these tokens (1 or more), events
 * say which token the model itself picks in the place of each (outrider_event.picked), and
 * outrider_usage.changed_tokens in how many places that is another one. With the prompt, sampling
 * parameters and seed of an answer that was made with an expert budget, it shows what the budget
 * changed; with log probabilities, how likely its tokens are. The service refuses it with an expert
 * budget, a grammar and the coupling "maximal"; stop strings, k and drafts have no effect. n = 0: no
 * audit, the default. */
int outrider_request_set_audit(struct outrider_request *request, const int32_t *tokens, size_t n);
/* Events then carry a 64-bit hash of the logits behind each token. */
void outrider_request_set_logits_hash(struct outrider_request *request, bool wanted);
/* Events then carry the log probability of each token, and of the `top` (0 to 20) most likely
 * tokens at its place; -1 (the default): none. These are the model's own, before biases, penalties,
 * temperature and filters. */
int outrider_request_set_logprobs(struct outrider_request *request, int top);

/* Streams. */

struct outrider_live {
	uint32_t k; /* draft length of the last iteration */
	uint32_t drafted; /* running totals of this request */
	uint32_t accepted;
	uint32_t iterations;
	float utility; /* of speculation, as the policy measured it; 0: not measured */
	uint64_t expert_hits;
	uint64_t expert_misses;
	const char *policy;
	bool drafter_alive;
	bool cache_alive;
	bool policy_alive;
};

enum outrider_end {
	OUTRIDER_END_NONE = 0,
	OUTRIDER_END_EOS,
	OUTRIDER_END_STOP,
	OUTRIDER_END_LENGTH,
	OUTRIDER_END_CANCELLED,
	OUTRIDER_END_DEADLINE,
	OUTRIDER_END_ERROR,
};
/* "eos", "stop", "length", "cancelled", "deadline", "error"; "none" for anything else. */
const char *outrider_end_name(enum outrider_end end);

enum outrider_event_type {
	OUTRIDER_EVENT_TOKENS = 1, /* tokens, text and live are filled in */
	OUTRIDER_EVENT_DONE, /* the last event: end, stop, message; text held back until now */
};

struct outrider_logprob {
	int32_t token;
	float logprob; /* natural logarithm */
	const char *text; /* not ended by NUL; it may be part of a UTF-8 sequence */
	size_t text_bytes;
};

/* Fields may be added at the end. */
struct outrider_event {
	enum outrider_event_type type;
	uint32_t first; /* index of tokens[0] in the output */
	size_t n_tokens;
	const int32_t *tokens;
	const char *text; /* whole UTF-8 sequences, not ended by NUL; may be empty */
	size_t text_bytes;
	size_t n_logits_hash; /* 0, or n_tokens */
	const uint64_t *logits_hash;
	struct outrider_live live;
	enum outrider_end end;
	const char *stop; /* the stop string that ended it, or "" */
	const char *message; /* why, for OUTRIDER_END_ERROR and OUTRIDER_END_DEADLINE, or "" */
	/* If the request wants log probabilities: n_logprobs = 1 + top entries for each token. The
	 * first is the token's own; its text is what the token adds to the output (nothing for most
	 * control tokens). Then come the most likely tokens, control tokens included. */
	size_t n_logprobs;
	const struct outrider_logprob *logprobs; /* [n_tokens][n_logprobs] */
	const int32_t *picked; /* [n_tokens] of an audit; else NULL */
};

struct outrider_usage {
	uint32_t prompt_tokens, output_tokens, iterations, drafted, accepted;
	uint64_t queue_ns, prefill_ns;
	uint64_t decode_ns; /* first to last output token */
	uint64_t draft_ns, verify_ns, sample_ns;
	size_t n_k_used, n_drafted_at, n_accepted_at;
	const uint32_t *k_used; /* [n_k_used] iterations with K = index */
	const uint32_t *drafted_at; /* [n_drafted_at] tokens drafted at position index */
	const uint32_t *accepted_at; /* [n_accepted_at] of them accepted */
	uint64_t unique_experts, expert_hits, expert_misses;
	size_t n_lossy;
	const char *const *lossy; /* what may have changed the answer: an expert budget */
	uint32_t restarts; /* of the service, that this stream went through */
	/* tokens of the prompt that were there already, from other requests that begin alike */
	uint32_t cached_tokens;
	/* tokens that an expert budget affected: they were computed without an expert that they chose
	 */
	uint32_t lossy_tokens;
	uint32_t changed_tokens; /* of an audit: in their places the model picks other tokens */
};

/* Sends the request; *stream then belongs to the caller. -EINVAL when the request has no input.
 * From one process the service takes a limited number of requests (client_requests, 32 by default)
 * and 16 MiB of prompts that it has not read yet; beyond that outrider_next() returns -EBUSY. */
int outrider_start(struct outrider *client, const struct outrider_request *request,
	struct outrider_stream **stream);
/* Continues a session that another client or process started: tokens come from index `have` on.
 * outrider_next() returns -ENOENT when the service does not know uid (any more). */
int outrider_resume(
	struct outrider *client, uint64_t uid, uint32_t have, struct outrider_stream **stream);
/* The session's number, never 0; 0 for NULL. */
uint64_t outrider_stream_uid(const struct outrider_stream *stream);

/* The next event of the stream, valid until the next call for it. timeout_ms: 0 does not wait, a
 * negative one waits without limit. -EAGAIN: no event in time; -ENODATA: after the DONE event. A
 * refusal by the service is its errno, which is never -EAGAIN (a full queue, or too many requests
 * of this process, is -EBUSY). Events of the client's other streams are kept for them. */
int outrider_next(
	struct outrider_stream *stream, int timeout_ms, const struct outrider_event **event);
/* The next event of any of the client's streams, and that stream; streams that have events take
 * turns. As outrider_next(), except: -EAGAIN: no stream had an event in time; -ENODATA: every
 * stream has ended and has no event left; in both cases *stream is NULL. Any other error is that of
 * *stream, which has no further event; it is returned once. The event is valid until the next call
 * for that stream or for the client. */
int outrider_next_event(struct outrider *client, int timeout_ms, struct outrider_stream **stream,
	const struct outrider_event **event);
/* A descriptor for poll(), always the same one. It is readable when outrider_next_event() may have
 * an event or something to do. Then call that with a timeout_ms of 0 until it returns -EAGAIN or
 * -ENODATA; until then the descriptor stays readable. While streams are in progress it becomes
 * readable four times a second, so that a silent service is noticed. It belongs to the client:
 * neither read from it nor close it. -EMFILE and similar: none could be made. */
int outrider_client_fd(struct outrider *client);
/* Asks for the end; the DONE event (OUTRIDER_END_CANCELLED, unless the answer had ended before)
 * still comes. */
int outrider_cancel(struct outrider_stream *stream);
/* Call after the DONE event; -EBUSY before. The arrays are valid as long as the stream. */
int outrider_usage(const struct outrider_stream *stream, struct outrider_usage *usage);
/* Frees the stream and sets it to NULL; one that has not ended is cancelled. */
void outrider_stream_free(struct outrider_stream **stream);

/* Called for each event, the last one too. Nonzero cancels: a DONE event follows. */
typedef int (*outrider_callback)(void *user, const struct outrider_event *event);
/* Starts a stream, passes its events to callback until DONE, and frees it. Returns 0 however the
 * answer ended, also when it was cancelled. */
int outrider_generate(struct outrider *client, const struct outrider_request *request,
	outrider_callback callback, void *user);

/* Texts and tokens. The service answers within milliseconds, whatever it computes at the time.
 * These calls wait for the answer, at most timeout_ms (-ETIMEDOUT; a negative one: without limit).
 * A program that serves streams from one thread should call them from another thread, with a client
 * of its own. Events that arrive in between are kept. Free the results with outrider_free(). */

enum {
	OUTRIDER_TOKENIZE_BOS =
		1, /* puts the beginning-of-text token in front, where the model wants it */
	/* recognises control tokens that are written out in the text */
	OUTRIDER_TOKENIZE_SPECIAL = 2,
};
/* text: UTF-8, at most 2 MiB. */
int outrider_tokenize(struct outrider *client, const char *text, unsigned flags, int timeout_ms,
	int32_t **tokens, size_t *n);
/* The bytes of these tokens, which need not be whole UTF-8 sequences, with a NUL behind them.
 * special: control tokens give their text, otherwise nothing. ends (may be NULL): [n] offset in the
 * text at which each token's bytes end. -EINVAL: a token is not in the vocabulary. */
int outrider_detokenize(struct outrider *client, const int32_t *tokens, size_t n, bool special,
	int timeout_ms, char **text, size_t *bytes, uint32_t **ends);
/* The text that the model's chat template makes of a request's messages and variables, and (tokens
 * and n may both be NULL) the tokens with which a generation would begin. -ENOTSUP: the model has
 * no template. */
int outrider_apply_template(struct outrider *client, const struct outrider_request *conversation,
	int timeout_ms, char **text, size_t *bytes, int32_t **tokens, size_t *n);
void outrider_free(void *memory);

/* The model that is served. Fields may be added at the end. */
struct outrider_model_info {
	const char *file; /* its name, without folders */
	const char *name; /* what the file calls the model, or "" */
	const char *architecture;
	uint32_t context, vocabulary; /* tokens */
	int32_t bos, eos; /* -1: none */
	size_t n_eog;
	const int32_t *eog; /* [n_eog] all tokens that end an answer */
	const char *chat_template; /* its source, or "" */
	uint64_t bytes; /* of the file, or of all its parts */
};
int outrider_model_info(struct outrider *client, int timeout_ms, struct outrider_model_info **info);
void outrider_model_info_free(struct outrider_model_info **info);

/* The state of the service. */

struct outrider_process {
	const char *name;
	/* The process that listens, or loads and will listen, whether it answers or not. 0: there is
	 * none, or its number is not known because it is in another container and does not answer. */
	uint32_t pid;
	/* "loading", "ready", "degraded: ..." or "idle: ...". Without an answer: "loading" (it runs
	 * and does not listen yet), "down" (no process listens), "no answer yet" (it has listened for
	 * less than 90 s and may be starting) or "no answer". */
	const char *state;
	uint64_t generation, uptime_ns;
	uint64_t rss_bytes; /* resident memory; 0: it could not read that (no /proc) */
	const char *version;
	size_t n_details;
	const char *const *details; /* "key=value" */
	int answers; /* 0: it does not answer, and only name, pid and state are known */
};

/* Asks every process at once, and the gateway if one runs. Waits at most timeout_ms; a negative
 * value counts as 0. A process that does not answer is "down" or "no answer" (yet); the call
 * succeeds all the same. */
int outrider_status(const char *runtime_dir, int timeout_ms, struct outrider_status **status);
size_t outrider_status_count(const struct outrider_status *status);
/* NULL if i is too large or status is NULL; valid until the status is freed. */
const struct outrider_process *outrider_status_process(
	const struct outrider_status *status, size_t i);
/* Why `outrider up` ended and will not start the processes again, in one line; NULL when it did not
 * end so, or has been started since. Valid until the status is freed. */
const char *outrider_status_given_up(const struct outrider_status *status);
void outrider_status_free(struct outrider_status **status);

#ifdef __cplusplus
}
#endif
