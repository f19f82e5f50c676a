#include "shared/model/chat.h"

#include <stdlib.h>
#include <string.h>

#define KEY "tokenizer.chat_template"
#define START "<|im_start|>"
#define END "<|im_end|>"

/* What a ChatML template does beyond the plain markers. */
struct style {
	/* Sent before conversations without a system message of their own; NULL when the template has none. The template
	 * writes its newlines as themselves or as \n. */
	struct gguf_string default_system;
	/* Assistant turns are shown without what they thought (Qwen3). */
	bool drops_thoughts;
};

struct render {
	const struct tokenizer *tokenizer;
	struct style style;
	int32_t **ids;
	size_t *n, *capacity;
	char *text; /* ordinary text since the last marker */
	size_t text_bytes;
	struct error *err;
};

static const char *find(struct gguf_string s, const char *wanted)
{
	return memmem(s.data, s.bytes, wanted, strlen(wanted));
}

/* Bytes of a newline as a template writes it, or 0. */
static size_t newline_bytes(const char *p, const char *end)
{
	if (p < end && *p == '\n')
		return 1;
	return end - p >= 2 && p[0] == '\\' && p[1] == 'n' ? 2 : 0;
}

/* The literal between "<|im_start|>system\n" and "<|im_end|>", if the template has one in a single string. */
static struct gguf_string find_default_system(struct gguf_string template)
{
	const char *end = template.data + template.bytes;
	struct gguf_string rest = template;
	const char *at;
	while ((at = find(rest, START "system"))) {
		at += strlen(START "system");
		rest = (struct gguf_string){at, (size_t)(end - at)};
		size_t newline = newline_bytes(at, end);
		const char *stop = newline ? find(rest, END) : NULL;
		/* A quote or brace before the end: the text comes from the conversation. */
		if (stop && stop > at + newline && !memchr(at, '\'', (size_t)(stop - at)) &&
			!memchr(at, '"', (size_t)(stop - at)) &&
			!memchr(at, '{', (size_t)(stop - at)))
			return (struct gguf_string){at + newline, (size_t)(stop - at) - newline};
	}
	return (struct gguf_string){NULL, 0};
}

static int read_style(const struct gguf *gguf, struct style *style, struct error *err)
{
	struct gguf_string template;
	int rc = gguf_get_string(gguf, KEY, &template, err);
	if (rc == -ENOENT)
		return error_set(err, ENOTSUP,
			"key " KEY
			" is missing: the model has no chat template, give it a plain prompt");
	if (rc)
		return rc;
	const char *end = template.data + template.bytes;
	const char *opening = find(template, START "assistant");
	style->drops_thoughts = find(template, "</think>") != NULL;
	bool chatml = opening && newline_bytes(opening + strlen(START "assistant"), end) &&
		      find(template, END);
	/* Trimmed content would be another prompt; Qwen3's template strips only thoughts. */
	if (!style->drops_thoughts && (find(template, "trim") || find(template, "strip(")))
		chatml = false;
	if (!chatml)
		return error_set(err, ENOTSUP,
			"key " KEY
			" is not a ChatML template (%zu bytes, beginning with %s); only ChatML is "
			"supported, give the model a plain prompt",
			template.bytes, gguf_name_text(template).text);
	style->default_system = find_default_system(template);
	return 0;
}

static int flush(struct render *r)
{
	size_t n = r->text_bytes;
	r->text_bytes = 0;
	return tokenizer_encode(r->tokenizer, r->text, n, false, r->ids, r->n, r->capacity, r->err);
}

static void put(struct render *r, const char *text, size_t bytes)
{
	memcpy(r->text + r->text_bytes, text, bytes);
	r->text_bytes += bytes;
}

/* The text so far, then the marker, which the vocabulary must have as one token. */
static int put_marker(struct render *r, const char *marker)
{
	int rc = flush(r);
	if (rc)
		return rc;
	size_t before = *r->n;
	rc = tokenizer_encode(
		r->tokenizer, marker, strlen(marker), true, r->ids, r->n, r->capacity, r->err);
	if (!rc && *r->n != before + 1)
		rc = error_set(r->err, EINVAL,
			"the chat template needs the token %s, which the vocabulary lacks", marker);
	return rc;
}

static int put_message(struct render *r, const char *role, const char *text, size_t bytes)
{
	int rc = put_marker(r, START);
	if (rc)
		return rc;
	put(r, role, strlen(role));
	put(r, "\n", 1);
	put(r, text, bytes);
	rc = put_marker(r, END);
	put(r, "\n", 1);
	return rc;
}

static int put_default_system(struct render *r)
{
	struct gguf_string s = r->style.default_system;
	char *text = malloc(s.bytes + 1);
	if (!text)
		return error_set(r->err, ENOMEM, "no memory for a prompt");
	size_t n = 0;
	for (size_t at = 0; at < s.bytes;) {
		size_t newline = newline_bytes(s.data + at, s.data + s.bytes);
		text[n++] = newline ? '\n' : s.data[at];
		at += newline ? newline : 1;
	}
	int rc = put_message(r, "system", text, n);
	free(text);
	return rc;
}

/* What follows the last </think>, without the newlines before it. */
static struct gguf_string without_thoughts(struct gguf_string s)
{
	static const char tag[] = "</think>";
	const char *at;
	bool any = false;
	while ((at = find(s, tag))) {
		s.bytes -= (size_t)(at - s.data) + sizeof(tag) - 1;
		s.data = at + sizeof(tag) - 1;
		any = true;
	}
	while (any && s.bytes && *s.data == '\n') {
		s.data++;
		s.bytes--;
	}
	return s;
}

static int check_messages(
	const struct style *style, const struct chat_message *messages, size_t n, struct error *err)
{
	if (!n)
		return error_set(err, EINVAL, "a conversation needs at least one message");
	for (size_t i = 0; i < n; i++) {
		const char *role = messages[i].role;
		if (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 &&
			strcmp(role, "assistant") != 0)
			return error_set(err, EINVAL,
				"message %zu has the role \"%.32s\"; system, user and assistant "
				"are known",
				i, role);
	}
	if (style->drops_thoughts && strcmp(messages[n - 1].role, "assistant") == 0)
		return error_set(err, ENOTSUP,
			"the last message is the assistant's; this model's chat template continues "
			"only from "
			"a user's message");
	return 0;
}

static size_t text_room(const struct style *style, const struct chat_message *messages, size_t n)
{
	size_t most = style->default_system.bytes;
	for (size_t i = 0; i < n; i++)
		most = messages[i].text_bytes > most ? messages[i].text_bytes : most;
	/* And the newline of the message before, a role and its newline. */
	return most + 32;
}

int chat_encode(const struct gguf *gguf, const struct tokenizer *tokenizer,
	const struct chat_message *messages, size_t n_messages, int32_t **ids, size_t *n,
	size_t *capacity, struct error *err)
{
	struct render r = {
		.tokenizer = tokenizer, .ids = ids, .n = n, .capacity = capacity, .err = err};
	size_t before = *n;
	int rc = read_style(gguf, &r.style, err);
	if (!rc)
		rc = check_messages(&r.style, messages, n_messages, err);
	if (rc)
		return rc;
	r.text = malloc(text_room(&r.style, messages, n_messages));
	if (!r.text)
		return error_set(err, ENOMEM, "no memory for a prompt");
	if (r.style.default_system.data && strcmp(messages[0].role, "system") != 0)
		rc = put_default_system(&r);
	for (size_t i = 0; !rc && i < n_messages; i++) {
		struct gguf_string text = {
			messages[i].text ? messages[i].text : "", messages[i].text_bytes};
		if (r.style.drops_thoughts && strcmp(messages[i].role, "assistant") == 0)
			text = without_thoughts(text);
		rc = put_message(&r, messages[i].role, text.data, text.bytes);
	}
	if (!rc)
		rc = put_marker(&r, START);
	if (!rc) {
		put(&r, "assistant\n", 10);
		rc = flush(&r);
	}
	free(r.text);
	if (rc)
		*n = before;
	return rc;
}
