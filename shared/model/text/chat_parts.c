#include "shared/model/text/chat_parts.h"

#include <stdlib.h>
#include <string.h>

/* The text of a text part; NULL for any other part. */
static const json_t *part_text(const json_t *part)
{
	const char *type = json_string_value(json_object_get(part, "type"));
	const json_t *text = json_object_get(part, "text");
	return type && strcmp(type, "text") == 0 && json_is_string(text) ? text : NULL;
}

static bool is_text_parts(const json_t *content)
{
	size_t i;
	json_t *part;
	json_array_foreach(content, i, part) if (!part_text(part)) return false;
	return json_array_size(content) > 0;
}

/* Joins the parts. A new string; NULL when memory is exhausted. */
static json_t *join(const json_t *content)
{
	size_t i, bytes = 1, at = 0;
	json_t *part;
	json_array_foreach(content, i, part) bytes += 1 + json_string_length(part_text(part));
	char *all = malloc(bytes);
	if (!all)
		return NULL;
	json_array_foreach(content, i, part)
	{
		const json_t *text = part_text(part);
		if (i)
			all[at++] = '\n';
		memcpy(all + at, json_string_value(text), json_string_length(text));
		at += json_string_length(text);
	}
	json_t *joined = json_stringn_nocheck(all, at);
	free(all);
	return joined;
}

json_t *chat_parts_text(const json_t *content)
{
	return is_text_parts(content) ? join(content) : json_incref((json_t *)content);
}

static int join_message(json_t *list, size_t i)
{
	const json_t *message = json_array_get(list, i);
	const json_t *content = json_object_get(message, "content");
	if (!is_text_parts(content))
		return 0;
	json_t *copy = json_copy((json_t *)message);
	if (!copy || json_object_set_new(copy, "content", join(content))) {
		json_decref(copy);
		return -ENOMEM;
	}
	return json_array_set_new(list, i, copy) ? -ENOMEM : 0;
}

/* A copy of data with every such content joined; NULL when memory is exhausted. */
static json_t *join_all(const json_t *data)
{
	json_t *joined = json_copy((json_t *)data);
	json_t *list = json_copy(json_object_get(data, "messages"));
	int rc = joined && list ? 0 : -ENOMEM;
	for (size_t i = 0; !rc && i < json_array_size(list); i++)
		rc = join_message(list, i);
	if (!rc && json_object_set(joined, "messages", list))
		rc = -ENOMEM;
	json_decref(list);
	if (!rc)
		return joined;
	json_decref(joined);
	return NULL;
}

static bool has_text_parts(const json_t *data)
{
	size_t i;
	json_t *message;
	json_array_foreach(json_object_get(data, "messages"), i,
		message) if (is_text_parts(json_object_get(message, "content"))) return true;
	return false;
}

int chat_render_parts(const struct template *template, const struct template_input *input,
	struct template_text *out, struct error *err)
{
	int rc = template_render(template, input, NULL, out, err);
	if ((rc == 0 && !out->wrote_parts) || (rc && rc != -EINVAL) || !has_text_parts(input->data))
		return rc;
	struct template_input again = *input;
	json_t *joined = join_all(input->data);
	template_text_free(out);
	if (!joined)
		return error_set(err, ENOMEM, "no memory for the messages");
	again.data = joined;
	rc = template_render(template, &again, NULL, out, err);
	json_decref(joined);
	return rc;
}
