#include "bench/src/prompts_file.h"

#include "shared/model/text/chat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGES = 16 };

static int take_ids(
	const struct engine *e, const json_t *list, int32_t **ids, size_t *n, struct error *err)
{
	size_t i;
	const json_t *item;
	*ids = malloc((json_array_size(list) + 1) * sizeof(**ids));
	if (!*ids)
		return error_set(err, ENOMEM, "no memory for a prompt");
	json_array_foreach(list, i, item)
	{
		json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
		if (id < 0 || id >= e->model->config.n_vocab)
			return error_set(err, EBADMSG,
				"input_ids: token %zu is none of the model's %u", i,
				e->model->config.n_vocab);
		(*ids)[(*n)++] = (int32_t)id;
	}
	return 0;
}

int prompt_encode(
	const struct engine *e, const json_t *line, int32_t **ids, size_t *n, struct error *err)
{
	const char *prompt = json_string_value(json_object_get(line, "prompt"));
	const json_t *list = json_object_get(line, "input_ids");
	size_t capacity = 0, i;
	*ids = NULL;
	*n = 0;
	if (list)
		return take_ids(e, list, ids, n, err);
	if (prompt)
		return tokenizer_encode(
			e->tokenizer, prompt, strlen(prompt), false, ids, n, &capacity, err);
	struct chat_message messages[MESSAGES];
	size_t n_messages = 0;
	const json_t *message;
	json_array_foreach(json_object_get(line, "messages"), i, message)
	{
		const char *role = json_string_value(json_object_get(message, "role"));
		const char *text = json_string_value(json_object_get(message, "content"));
		if (!role || !text || n_messages == MESSAGES)
			break;
		messages[n_messages++] = (struct chat_message){
			.role = role, .text = text, .text_bytes = strlen(text)};
	}
	return chat_encode(
		e->model->gguf, e->tokenizer, messages, n_messages, ids, n, &capacity, err);
}

int prompts_each(const char *path, uint32_t limit, prompt_fn *fn, void *arg, struct error *err)
{
	FILE *file = fopen(path, "re");
	if (!file)
		return error_set(err, errno, "%s: %s", path, strerror(errno));
	char *text = NULL;
	size_t capacity = 0;
	uint32_t number = 0;
	int rc = 0;
	while (rc == 0 && number < limit && getline(&text, &capacity, file) > 0) {
		json_error_t error;
		json_t *line = json_loads(text, 0, &error);
		number++;
		rc = line ? fn(arg, line, number, err) : error_set(err, EBADMSG, "%s", error.text);
		if (rc < 0)
			error_prefix(err, rc, "%s:%u", path, number);
		json_decref(line);
	}
	free(text);
	fclose(file);
	if (rc == 0 && number == 0)
		rc = error_set(err, EBADMSG, "%s: no prompts", path);
	return rc;
}

int32_t greatest_logit(const float *logits, uint32_t n)
{
	uint32_t best = 0;
	for (uint32_t i = 1; i < n; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}
