/* The prompts of a JSONL file (workload.h). */
#include "bench/src/workload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_DEFAULT = 256 };

static int add_input(struct outrider_request *request, const json_t *line)
{
	const char *prompt = json_string_value(json_object_get(line, "prompt"));
	size_t i;
	const json_t *message;
	int r = 0;

	if (prompt)
		return outrider_request_set_prompt(request, prompt);
	json_array_foreach(json_object_get(line, "messages"), i, message)
	{
		r = outrider_request_add_message(request,
			json_string_value(json_object_get(message, "role")),
			json_string_value(json_object_get(message, "content")));
		if (r < 0)
			return r;
	}
	return 0;
}

static int add(struct workload_prompts *prompts, const json_t *line)
{
	size_t bytes = (prompts->n + 1) * sizeof(struct outrider_request *);
	struct outrider_request **grown = realloc(prompts->request, bytes);
	const char *right = json_string_value(json_object_get(line, "answer"));

	if (!grown)
		return -ENOMEM;
	prompts->request = grown;
	grown[prompts->n] = NULL;
	char **answers = realloc(prompts->answer, (prompts->n + 1) * sizeof(*answers));
	if (!answers)
		return -ENOMEM;
	prompts->answer = answers;
	int r = outrider_request_new(&grown[prompts->n]);
	if (r < 0)
		return r;
	json_int_t own = json_integer_value(json_object_get(line, "max_tokens"));
	outrider_request_set_max_tokens(
		grown[prompts->n], own > 0 ? (uint32_t)own : TOKENS_DEFAULT);
	answers[prompts->n] = right ? strdup(right) : NULL;
	return add_input(grown[prompts->n++], line);
}

static int read_line(const char *path, size_t number, const char *text,
	struct workload_prompts *prompts, struct error *err)
{
	json_error_t reason;
	json_t *line = json_loads(text, 0, &reason);

	if (!line)
		return error_set(err, EINVAL, "%s:%zu: %s", path, number, reason.text);
	int r = add(prompts, line);
	json_decref(line);
	return r < 0 ? error_set(err, -r, "%s:%zu: %s", path, number, outrider_error()) : 0;
}

int workload_prompts_read(
	const char *path, size_t limit, struct workload_prompts *prompts, struct error *err)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t capacity = 0, number = 0;
	int r = 0;

	*prompts = (struct workload_prompts){0};
	if (!file)
		return error_set(err, errno, "%s: %s", path, strerror(errno));
	while (r == 0 && prompts->n < limit && getline(&line, &capacity, file) > 0)
		r = read_line(path, ++number, line, prompts, err);
	free(line);
	fclose(file);
	if (r == 0 && prompts->n == 0)
		r = error_set(err, EINVAL, "%s: no prompts", path);
	return r;
}

void workload_prompts_free(struct workload_prompts *prompts)
{
	for (size_t i = 0; i < prompts->n; i++)
		outrider_request_free(&prompts->request[i]);
	for (size_t i = 0; i < prompts->n; i++)
		free(prompts->answer[i]);
	free(prompts->answer);
	free(prompts->request);
	*prompts = (struct workload_prompts){0};
}
