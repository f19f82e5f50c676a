#include "services/verifier/front/question.h"

#include <stdlib.h>
#include <string.h>

/* The most bytes that the envelope of an answer takes. */
#define OVERHEAD_BYTES 256

static int no_memory(struct error *err)
{
	return error_set(err, ENOMEM, "no memory for an answer");
}

static int tokenize(const Outrider__Tokenize *question, const struct request_limits *limits,
	Outrider__Text *out, struct error *err)
{
	size_t bytes = strlen(question->text), capacity = 0;
	int32_t bos = tokenizer_bos(limits->tokenizer);

	if (bytes > LIMIT_TEXT_BYTES)
		return error_set(err, E2BIG, "text of %zu bytes: at most %d are allowed", bytes,
			LIMIT_TEXT_BYTES);
	if (question->bos && bos >= 0) {
		out->ids = malloc(sizeof(*out->ids));
		if (out->ids == NULL)
			return no_memory(err);
		out->ids[0] = bos;
		out->n_ids = capacity = 1;
	}
	return tokenizer_encode(limits->tokenizer, question->text, bytes, question->special,
		&out->ids, &out->n_ids, &capacity, err);
}

static int detokenize(const Outrider__Detokenize *question, const struct request_limits *limits,
	Outrider__Text *out, struct error *err)
{
	size_t n = question->n_ids, bytes = 0;
	int rc = request_check_ids("tokens", question->ids, n, limits->model->config.n_vocab, err);

	if (rc != 0)
		return rc;
	out->ends = malloc((n + 1) * sizeof(*out->ends));
	for (size_t i = 0; out->ends != NULL && i < n; i++) {
		bytes += tokenizer_piece(limits->tokenizer, question->ids[i], question->special)
				 .bytes;
		if (bytes > LIMIT_MESSAGE_BYTES)
			return error_set(err, E2BIG,
				"the text of %zu tokens has more than %d bytes", n,
				LIMIT_MESSAGE_BYTES);
		out->ends[i] = (uint32_t)bytes;
	}
	out->n_ends = n;
	out->text.data = malloc(bytes + 1);
	if (out->ends == NULL || out->text.data == NULL)
		return no_memory(err);
	for (size_t i = 0; i < n; i++) {
		struct gguf_string piece =
			tokenizer_piece(limits->tokenizer, question->ids[i], question->special);

		if (piece.bytes > 0)
			memcpy(out->text.data + out->text.len, piece.data, piece.bytes);
		out->text.len += piece.bytes;
	}
	return 0;
}

static int apply_template(const Outrider__ApplyTemplate *question,
	const struct request_limits *limits, Outrider__Text *out, struct error *err)
{
	struct template_text text = {0};
	size_t capacity = 0;

	if (question->conversation == NULL)
		return error_set(err, EINVAL, "the question has no conversation");
	int rc = request_render(question->conversation, limits, &text,
		question->tokens ? &out->ids : NULL, &out->n_ids, &capacity, err);
	if (rc == 0) {
		out->text.data = (uint8_t *)text.data;
		out->text.len = text.bytes;
		text.data = NULL;
	}
	template_text_free(&text);
	return rc;
}

static char *copy(struct gguf_string from)
{
	char *text = malloc(from.bytes + 1);

	if (text != NULL) {
		memcpy(text, from.data, from.bytes);
		text[from.bytes] = '\0';
	}
	return text;
}

static int32_t token_of(const struct gguf *gguf, const char *key, uint32_t n_vocab)
{
	uint64_t id;

	return gguf_get_u64(gguf, key, 0, n_vocab - 1, &id, NULL) == 0 ? (int32_t)id : -1;
}

static int model_facts(const struct request_limits *limits, Outrider__Text *out, struct error *err)
{
	const struct gguf *gguf = limits->model->gguf;
	const char *slash = strrchr(gguf_path(gguf), '/');
	struct gguf_string name = {"", 0};
	Outrider__ServedModel *model = malloc(sizeof(*model));

	if (model == NULL)
		return no_memory(err);
	outrider__served_model__init(model);
	out->model = model;
	(void)gguf_get_string(gguf, "general.name", &name, NULL);
	model->file = strdup(slash != NULL ? slash + 1 : gguf_path(gguf));
	model->name = copy(name);
	model->arch = strdup(limits->model->config.arch->name);
	model->chat_template = copy(chat_template_source(gguf));
	model->n_context = limits->n_context;
	model->n_vocab = limits->model->config.n_vocab;
	model->bos = token_of(gguf, "tokenizer.ggml.bos_token_id", model->n_vocab);
	model->eos = token_of(gguf, "tokenizer.ggml.eos_token_id", model->n_vocab);
	for (size_t i = 0; i < gguf_n_parts(gguf); i++)
		model->bytes += gguf_part_at(gguf, i)->bytes;
	if (model->file == NULL || model->name == NULL || model->arch == NULL ||
		model->chat_template == NULL ||
		tokenizer_list_eog(limits->tokenizer, model->n_vocab, &model->eog, &model->n_eog) !=
			0)
		return no_memory(err);
	return 0;
}

static int answer(const Outrider__TextRequest *question, const struct request_limits *limits,
	Outrider__Text *out, struct error *err)
{
	switch (question->what_case) {
	case OUTRIDER__TEXT_REQUEST__WHAT_TOKENIZE:
		return tokenize(question->tokenize, limits, out, err);
	case OUTRIDER__TEXT_REQUEST__WHAT_DETOKENIZE:
		return detokenize(question->detokenize, limits, out, err);
	case OUTRIDER__TEXT_REQUEST__WHAT_APPLY_TEMPLATE:
		return apply_template(question->apply_template, limits, out, err);
	case OUTRIDER__TEXT_REQUEST__WHAT_MODEL_FACTS:
		return model_facts(limits, out, err);
	default:
		return error_set(err, EINVAL, "the question is of an unknown kind");
	}
}

int question_answer(const Outrider__TextRequest *question, const struct request_limits *limits,
	Outrider__Text **out, struct error *err)
{
	Outrider__Text *text = malloc(sizeof(*text));

	if (text == NULL)
		return no_memory(err);
	outrider__text__init(text);
	int rc = answer(question, limits, text, err);
	size_t bytes = outrider__text__get_packed_size(text);
	if (rc == 0 && bytes > LIMIT_MESSAGE_BYTES - OVERHEAD_BYTES)
		rc = error_set(err, E2BIG, "the answer has %zu bytes, at most %d can be sent",
			bytes, LIMIT_MESSAGE_BYTES - OVERHEAD_BYTES);
	if (rc != 0) {
		outrider__text__free_unpacked(text, NULL);
		text = NULL;
	}
	*out = text;
	return rc;
}
