#include "client/sdk/texts.h"

#include "client/sdk/failure.h"
#include "client/sdk/ready.h"
#include "client/sdk/request.h"
#include "shared/base/clock.h"
#include "shared/base/limits.h"
#include "shared/ipc/bus.h"

#include <stdlib.h>
#include <string.h>

#define MS UINT64_C(1000000)

enum { POLL_MS = 50 };

bool texts_take(struct outrider *client, Outrider__Envelope **envelope)
{
	bool text = (*envelope)->body_case == OUTRIDER__ENVELOPE__BODY_TEXT;
	bool failure = (*envelope)->body_case == OUTRIDER__ENVELOPE__BODY_FAILURE &&
		       (*envelope)->failure->session_uid == 0;
	bool ours = client->question && (*envelope)->request_id == client->question_id;

	if (!(text || (failure && ours)))
		return false;
	if (ours && !client->answer) {
		client->answer = *envelope;
		*envelope = NULL;
	}
	bus_free(envelope);
	return true;
}

void texts_connected(struct outrider *client)
{
	if (client->question && !client->answer)
		client_send(client, client->question, &client->question_id);
}

static int wait_for_answer(struct outrider *client, int timeout_ms)
{
	uint64_t end = timeout_ms < 0 ? UINT64_MAX : clock_ns() + (uint64_t)timeout_ms * MS;
	uint64_t now;

	while (!client->answer && (now = clock_ns()) < end) {
		uint64_t left = (end - now) / MS + 1;

		client_pump(client, left < POLL_MS ? (int)left : POLL_MS);
	}
	return client->answer
		       ? 0
		       : failure_set(ETIMEDOUT, "no answer from the service in %s within %d ms",
				 client->runtime_dir, timeout_ms);
}

static int refusal(const Outrider__Failure *failure)
{
	int code = failure_code(failure->code);

	return failure_set(code, "%s", *failure->message ? failure->message : strerror(code));
}

/* Asks, and waits for the answer, which then belongs to the caller. NULL: *code says why. */
static Outrider__Envelope *ask(
	struct outrider *client, Outrider__TextRequest *request, int timeout_ms, int *code)
{
	Outrider__Envelope envelope = OUTRIDER__ENVELOPE__INIT, *answer;

	envelope.body_case = OUTRIDER__ENVELOPE__BODY_TEXT_REQUEST;
	envelope.text_request = request;
	/* The time before now does not count as silence. */
	client_pump(client, 0);
	*code = client_send(client, &envelope, &client->question_id);
	if (*code < 0) {
		*code = *code == -EMSGSIZE
				? failure_set(E2BIG, "the request has more than %d bytes",
					  LIMIT_MESSAGE_BYTES)
				: failure_set(
					  -*code, "cannot send the request: %s", strerror(-*code));
		return NULL;
	}
	client->question = &envelope;
	*code = wait_for_answer(client, timeout_ms);
	client->question = NULL;
	answer = client->answer;
	client->answer = NULL;
	ready_arm(client);
	if (answer != NULL && answer->body_case == OUTRIDER__ENVELOPE__BODY_FAILURE) {
		*code = refusal(answer->failure);
		bus_free(&answer);
	}
	return answer;
}

static int copy_tokens(const Outrider__Text *text, int32_t **tokens, size_t *n)
{
	*tokens = malloc((text->n_ids + 1) * sizeof **tokens);
	if (!*tokens)
		return failure_set(ENOMEM, "no memory for %zu tokens", text->n_ids);
	if (text->n_ids)
		memcpy(*tokens, text->ids, text->n_ids * sizeof **tokens);
	*n = text->n_ids;
	return 0;
}

static int copy_text(const Outrider__Text *from, char **text, size_t *bytes)
{
	*text = malloc(from->text.len + 1);
	if (!*text)
		return failure_set(ENOMEM, "no memory for a text of %zu bytes", from->text.len);
	if (from->text.len)
		memcpy(*text, from->text.data, from->text.len);
	(*text)[from->text.len] = '\0';
	*bytes = from->text.len;
	return 0;
}

int outrider_tokenize(struct outrider *client, const char *text, unsigned flags, int timeout_ms,
	int32_t **tokens, size_t *n)
{
	Outrider__TextRequest request = OUTRIDER__TEXT_REQUEST__INIT;
	Outrider__Tokenize tokenize = OUTRIDER__TOKENIZE__INIT;
	Outrider__Envelope *answer;
	int code = client_check(client);

	if (code < 0)
		return code;
	if (!tokens || !n)
		return failure_null("place for tokens");
	*tokens = NULL;
	*n = 0;
	if (!text)
		return failure_null("text");
	if (flags & ~(unsigned)(OUTRIDER_TOKENIZE_BOS | OUTRIDER_TOKENIZE_SPECIAL))
		return failure_set(EINVAL,
			"flags 0x%x: allowed are OUTRIDER_TOKENIZE_BOS and "
			"OUTRIDER_TOKENIZE_SPECIAL",
			flags);
	if (strlen(text) > LIMIT_TEXT_BYTES)
		return failure_set(E2BIG, "text of %zu bytes: at most %d are allowed", strlen(text),
			LIMIT_TEXT_BYTES);
	tokenize.text = (char *)text;
	tokenize.bos = (flags & OUTRIDER_TOKENIZE_BOS) != 0;
	tokenize.special = (flags & OUTRIDER_TOKENIZE_SPECIAL) != 0;
	request.what_case = OUTRIDER__TEXT_REQUEST__WHAT_TOKENIZE;
	request.tokenize = &tokenize;
	answer = ask(client, &request, timeout_ms, &code);
	if (answer == NULL)
		return code;
	code = copy_tokens(answer->text, tokens, n);
	bus_free(&answer);
	return code;
}

int outrider_detokenize(struct outrider *client, const int32_t *tokens, size_t n, bool special,
	int timeout_ms, char **text, size_t *bytes, uint32_t **ends)
{
	Outrider__TextRequest request = OUTRIDER__TEXT_REQUEST__INIT;
	Outrider__Detokenize detokenize = OUTRIDER__DETOKENIZE__INIT;
	Outrider__Envelope *answer;
	int code = client_check(client);

	if (code < 0)
		return code;
	if (!text || !bytes)
		return failure_null("place for a text");
	*text = NULL;
	*bytes = 0;
	if (ends)
		*ends = NULL;
	if (!tokens && n > 0)
		return failure_null("list of tokens");
	if (n > LIMIT_CONTEXT)
		return failure_set(E2BIG, "%zu tokens: at most %d are allowed", n, LIMIT_CONTEXT);
	detokenize.ids = (int32_t *)tokens;
	detokenize.n_ids = n;
	detokenize.special = special;
	request.what_case = OUTRIDER__TEXT_REQUEST__WHAT_DETOKENIZE;
	request.detokenize = &detokenize;
	answer = ask(client, &request, timeout_ms, &code);
	if (answer == NULL)
		return code;
	if (answer->text->n_ends != n)
		code = failure_set(EPROTO, "the service gave %zu texts for %zu tokens",
			answer->text->n_ends, n);
	if (code == 0)
		code = copy_text(answer->text, text, bytes);
	if (code == 0 && ends) {
		*ends = malloc((n + 1) * sizeof **ends);
		if (*ends && n)
			memcpy(*ends, answer->text->ends, n * sizeof **ends);
		if (!*ends) {
			free(*text);
			*text = NULL;
			code = failure_set(ENOMEM, "no memory for %zu tokens", n);
		}
	}
	bus_free(&answer);
	return code;
}

int outrider_apply_template(struct outrider *client, const struct outrider_request *conversation,
	int timeout_ms, char **text, size_t *bytes, int32_t **tokens, size_t *n)
{
	Outrider__TextRequest request = OUTRIDER__TEXT_REQUEST__INIT;
	Outrider__ApplyTemplate apply = OUTRIDER__APPLY_TEMPLATE__INIT;
	Outrider__Envelope *answer;
	int code = client_check(client);

	if (code < 0)
		return code;
	if (!text || !bytes)
		return failure_null("place for a text");
	*text = NULL;
	*bytes = 0;
	if (!conversation)
		return failure_null("request");
	if ((tokens != NULL) != (n != NULL))
		return failure_null("place for tokens, or for their number");
	if (conversation->generate.input_case != OUTRIDER__GENERATE__INPUT_CONVERSATION)
		return failure_set(EINVAL, "the request has no messages");
	if (tokens) {
		*tokens = NULL;
		*n = 0;
	}
	apply.conversation = conversation->generate.conversation;
	apply.tokens = tokens != NULL;
	request.what_case = OUTRIDER__TEXT_REQUEST__WHAT_APPLY_TEMPLATE;
	request.apply_template = &apply;
	answer = ask(client, &request, timeout_ms, &code);
	if (answer == NULL)
		return code;
	code = copy_text(answer->text, text, bytes);
	if (code == 0 && tokens) {
		code = copy_tokens(answer->text, tokens, n);
		if (code < 0) {
			free(*text);
			*text = NULL;
		}
	}
	bus_free(&answer);
	return code;
}

/* The caller's structure, and the answer that contains its strings. */
struct kept_info {
	struct outrider_model_info info;
	Outrider__Envelope *answer;
};

int outrider_model_info(struct outrider *client, int timeout_ms, struct outrider_model_info **info)
{
	Outrider__TextRequest request = OUTRIDER__TEXT_REQUEST__INIT;
	Outrider__ModelFacts facts = OUTRIDER__MODEL_FACTS__INIT;
	Outrider__Envelope *answer;
	int code = client_check(client);

	if (code < 0)
		return code;
	if (!info)
		return failure_null("place for the model's description");
	*info = NULL;
	request.what_case = OUTRIDER__TEXT_REQUEST__WHAT_MODEL_FACTS;
	request.model_facts = &facts;
	answer = ask(client, &request, timeout_ms, &code);
	if (answer == NULL)
		return code;
	const Outrider__ServedModel *model = answer->text->model;
	struct kept_info *kept = model ? malloc(sizeof *kept) : NULL;
	if (!kept) {
		bus_free(&answer);
		return model ? failure_set(ENOMEM, "no memory for the model's description")
			     : failure_set(EPROTO, "the service did not describe its model");
	}
	*kept = (struct kept_info){
		.info =
			{
				.file = model->file,
				.name = model->name,
				.architecture = model->arch,
				.context = model->n_context,
				.vocabulary = model->n_vocab,
				.bos = model->bos,
				.eos = model->eos,
				.n_eog = model->n_eog,
				.eog = model->eog,
				.chat_template = model->chat_template,
				.bytes = model->bytes,
			},
		.answer = answer,
	};
	*info = &kept->info;
	return 0;
}

void outrider_model_info_free(struct outrider_model_info **info)
{
	struct kept_info *kept = info ? (struct kept_info *)*info : NULL;

	if (!kept)
		return;
	bus_free(&kept->answer);
	free(kept);
	*info = NULL;
}

void outrider_free(void *memory)
{
	free(memory);
}
