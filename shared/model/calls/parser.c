/* The parser of answers in pieces (calls.h): reports what is decided, and keeps the rest until more
 * arrives. */
#include "shared/model/calls/private.h"

#include <stdlib.h>
#include <string.h>

enum {
	HEAD_MAX = 512, /* bytes of the beginning of a harmony message */
	MARKERS = 5,
};

enum mode {
	MODE_START, /* thoughts may begin here */
	MODE_THOUGHT,
	MODE_TEXT,
	MODE_CALL,
	MODE_BEGIN, /* at the beginning of a harmony message: a head may follow */
	MODE_HEAD,
	MODE_BODY,
};

enum body { BODY_CONTENT, BODY_THOUGHT, BODY_CALL };

struct calls_parser {
	struct calls_format format;
	const json_t *tools; /* NULL: calls are not looked for */
	struct calls_sink sink;
	struct calls_text pending; /* from `at` on: text that is not decided yet */
	size_t at;
	bool failed;
	enum mode mode;
	bool skip; /* spaces that follow are dropped */
	bool fresh; /* JSON that begins here may be a call */
	bool behind; /* behind a call of Llama's: a semicolon may stand before the next */
	/* Nothing is decided before this text arrives; it is searched for from need_at on. NULL:
	 * try at once. */
	const char *need;
	size_t need_at;
	/* For a call, in bytes: the spaces in front of its opening, the opening, and the part of
	 * the opening that its reader does not read itself. */
	size_t spaces, opening, inside;
	struct calls_found found;
	struct calls_live live; /* that call */
	bool told; /* its name */
	enum body body;
	struct calls_text head; /* of a harmony message with a call */
	char *function; /* the function that the message calls */
};

struct calls_parser *calls_new(const struct calls_format *format, const json_t *tools,
	bool thinking, const struct calls_sink *sink)
{
	struct calls_parser *p = calloc(1, sizeof *p);

	if (p == NULL)
		return NULL;
	p->format = *format;
	p->tools = json_array_size(tools) > 0 && format->notation ? tools : NULL;
	p->found.tools = p->tools;
	p->sink = *sink;
	p->live.notation = format->notation;
	p->fresh = true;
	p->skip = thinking && format->think != NULL;
	p->mode = format->notation == CALLS_HARMONY ? MODE_BEGIN
		  : format->think == NULL	    ? MODE_TEXT
		  : thinking			    ? MODE_THOUGHT
						    : MODE_START;
	return p;
}

void calls_free(struct calls_parser **parser)
{
	struct calls_parser *p = *parser;

	if (p == NULL)
		return;
	free(p->pending.data);
	free(p->found.names.data);
	free(p->found.arguments.data);
	free(p->head.data);
	calls_live_free(&p->live);
	free(p->function);
	free(p);
	*parser = NULL;
}

static const char *rest(const struct calls_parser *p)
{
	return p->pending.data + p->at;
}

static size_t left(const struct calls_parser *p)
{
	return p->pending.n - p->at;
}

static void give(struct calls_parser *p, size_t n, bool thought)
{
	if (n > 0)
		(thought ? p->sink.thought : p->sink.content)(p->sink.arg, rest(p), n);
	p->at += n;
}

static bool is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The number of bytes without the white space at the end. */
static size_t trimmed(const char *text, size_t n)
{
	while (n > 0 && is_space(text[n - 1]))
		n--;
	return n;
}

static bool skip_spaces(struct calls_parser *p)
{
	while (p->skip && left(p) > 0 && is_space(*rest(p)))
		p->at++;
	p->skip = p->skip && left(p) == 0;
	return !p->skip;
}

/* The number of bytes at the end that may be the beginning of one of these words. */
static size_t partial(const char *text, size_t n, const char *const *words)
{
	size_t most = 0;

	for (size_t i = 0; words[i] != NULL; i++) {
		size_t bytes = strlen(words[i]);

		for (size_t k = bytes - 1 < n ? bytes - 1 : n; k > most; k--)
			if (memcmp(text + n - k, words[i], k) == 0)
				most = k;
	}
	return most;
}

struct found_word {
	const char *at; /* NULL: there is none */
	size_t which, bytes;
};

/* The first place where one of these words stands. */
static struct found_word first_word(const char *text, size_t n, const char *const *words)
{
	struct found_word first = {.at = NULL};

	for (size_t i = 0; words[i] != NULL; i++) {
		size_t bytes = strlen(words[i]);
		size_t room = first.at ? (size_t)(first.at - text) + bytes : n;
		const char *found = memmem(text, room < n ? room : n, words[i], bytes);

		if (found != NULL && (first.at == NULL || found < first.at))
			first = (struct found_word){found, i, bytes};
	}
	return first;
}

static struct calls_reader reader(const struct calls_parser *p, size_t at, bool final)
{
	return (struct calls_reader){.text = rest(p), .n = left(p), .at = at, .final = final};
}

static bool start(struct calls_parser *p, bool final)
{
	struct calls_reader r = reader(p, 0, final);

	calls_space(&r);
	bool thought = calls_take(&r, p->format.think);
	if (r.more)
		return false;
	p->at += thought ? r.at : 0;
	p->mode = thought ? MODE_THOUGHT : MODE_TEXT;
	p->skip = thought;
	return true;
}

static bool thought(struct calls_parser *p, bool final)
{
	const char *const words[] = {p->format.think_end, NULL};

	if (!skip_spaces(p))
		return false;
	struct found_word end = first_word(rest(p), left(p), words);
	size_t n = end.at ? (size_t)(end.at - rest(p))
			  : left(p) - (final ? 0 : partial(rest(p), left(p), words));
	size_t spaces = n - trimmed(rest(p), n);

	give(p, n - spaces, true);
	if (end.at == NULL && !final)
		return false;
	p->at += spaces + end.bytes;
	p->mode = MODE_TEXT;
	p->skip = true;
	return true;
}

/* The words that open calls in this notation. */
static const char *const *markers_of(const struct calls_parser *p)
{
	static const char *const none[] = {NULL}, *const tag[] = {"<tool_call>", NULL},
				 *const qwen[] = {"<tool_call>", "<function=", NULL},
				 *const deepseek[] = {DEEPSEEK_CALLS, DEEPSEEK_CALL, NULL},
				 *const mistral[] = {"[TOOL_CALLS]", NULL},
				 *const llama[] = {"<|python_tag|>", NULL};

	if (p->tools == NULL)
		return none;
	switch (p->format.notation) {
	case CALLS_HERMES:
	case CALLS_GLM:
		return tag;
	case CALLS_QWEN:
		return qwen;
	case CALLS_DEEPSEEK:
		return deepseek;
	case CALLS_MISTRAL:
		return mistral;
	case CALLS_LLAMA:
		return llama;
	default:
		return none;
	}
}

/* Starts a call whose opening stands at n: gives the content before it. */
static bool open_call(struct calls_parser *p, size_t n, size_t opening, size_t inside)
{
	size_t spaces = n - trimmed(rest(p), n);

	give(p, n - spaces, false);
	p->spaces = spaces;
	p->opening = opening;
	p->inside = inside;
	p->need = NULL;
	calls_live_reset(&p->live);
	p->told = false;
	p->mode = MODE_CALL;
	return true;
}

static bool text(struct calls_parser *p, bool final)
{
	const char *const *words = markers_of(p);
	size_t n, first = 0;

	if (!skip_spaces(p))
		return false;
	if (p->behind && left(p) == 0)
		return false;
	if (p->behind) {
		p->behind = false;
		p->skip = *rest(p) == ';';
		p->at += p->skip;
		return true;
	}
	if (p->tools != NULL && p->format.notation == CALLS_LLAMA && p->fresh) {
		while (first < left(p) && is_space(rest(p)[first]))
			first++;
		if (first == left(p) && !final)
			return false;
		p->fresh = false;
		if (first < left(p) && rest(p)[first] == '{')
			return open_call(p, first, 0, 0);
	}
	struct found_word found = first_word(rest(p), left(p), words);
	if (found.at != NULL) {
		/* Readers read the second kind of opening themselves, because it is part of the
		 * call. */
		bool own = found.which == 1;

		return open_call(
			p, (size_t)(found.at - rest(p)), found.bytes, own ? 0 : found.bytes);
	}
	n = left(p);
	if (!final) {
		n -= partial(rest(p), n, words);
		n = p->tools != NULL ? trimmed(rest(p), n) : n;
	}
	give(p, n, false);
	return false;
}

static bool read_calls(struct calls_parser *p, struct calls_reader *r)
{
	p->found.n = 0;
	p->found.names.n = p->found.arguments.n = 0;
	switch (p->format.notation) {
	case CALLS_QWEN:
		return calls_read_qwen(r, &p->found);
	case CALLS_GLM:
		return calls_read_glm(r, &p->found);
	case CALLS_DEEPSEEK:
		return calls_read_deepseek(r, &p->found);
	case CALLS_MISTRAL:
		return calls_read_mistral(r, &p->found);
	default:
		return calls_read_json(r, &p->found);
	}
}

/* Gives what is there of the call, once it is one. */
static void tell_live(struct calls_parser *p, struct calls_reader r)
{
	struct calls_live *live = &p->live;

	if (!calls_live_read(live, &r, p->tools) || p->failed)
		return;
	p->failed = live->out.failed || live->key.failed;
	if (!p->told && !p->failed)
		p->sink.call(p->sink.arg, live->name.data);
	p->told = true;
	if (live->out.n > 0 && !p->failed)
		p->sink.arguments(p->sink.arg, live->out.data, live->out.n);
	live->out.n = 0;
}

/* The calls that were found, but for what was given of the first. */
static void tell_calls(struct calls_parser *p)
{
	const char *name = p->found.names.data, *arguments = p->found.arguments.data;

	p->failed = p->failed || p->found.names.failed || p->found.arguments.failed;
	for (unsigned i = 0; i < p->found.n && !p->failed; i++) {
		bool told = i == 0 && p->told;

		if (!told)
			p->sink.call(p->sink.arg, name);
		if (!told)
			p->sink.arguments(p->sink.arg, arguments, strlen(arguments));
		else if (p->live.tagged)
			p->sink.arguments(p->sink.arg, "}", 1);
		p->sink.call_end(p->sink.arg);
		name += strlen(name) + 1;
		arguments += strlen(arguments) + 1;
	}
}

/* True when another try may succeed: the text that was needed last time has arrived. */
static bool has_need(struct calls_parser *p, bool final)
{
	if (final || p->need == NULL)
		return true;
	size_t bytes = strlen(p->need), n = left(p);

	if (memmem(rest(p) + p->need_at, n - p->need_at, p->need, bytes) != NULL)
		return true;
	if (n - p->need_at >= bytes)
		p->need_at = n - bytes + 1;
	return false;
}

/* It is no call; or it is one that broke off, at byte `at`. */
static void give_up_call(struct calls_parser *p, size_t at, bool final)
{
	size_t least = p->spaces + p->opening;

	if (!p->told) {
		give(p, at > least ? at : least, false);
		return;
	}
	p->at += final && !p->live.ended ? left(p) : at > p->live.at ? at : p->live.at;
	p->sink.call_end(p->sink.arg);
}

static bool call(struct calls_parser *p, bool final)
{
	struct calls_reader r = reader(p, p->spaces + p->inside, final);
	bool good = false;

	tell_live(p, r);
	if (!p->live.ended && !has_need(p, final))
		return false;
	if (!p->live.brackets.bad)
		good = read_calls(p, &r);
	if (r.more) {
		size_t back = r.need ? strlen(r.need) - 1 : 0;

		p->need = r.need;
		p->need_at = left(p) > back ? left(p) - back : 0;
		return false;
	}
	if (good) {
		p->at += r.at;
		tell_calls(p);
	} else {
		give_up_call(p, r.at, final);
	}
	good = good || p->told;
	p->fresh = good;
	p->skip = good;
	p->mode = MODE_TEXT;
	p->behind = good && p->format.notation == CALLS_LLAMA;
	return true;
}

static bool begin(struct calls_parser *p, bool final)
{
	static const char *const heads[] = {
		"<|channel|>", "<|start|>", " to=", "<|message|>", NULL};

	if (left(p) == 0)
		return false;
	for (size_t i = 0; heads[i] != NULL; i++) {
		struct calls_reader r = reader(p, 0, final);

		if (calls_take(&r, heads[i])) {
			p->mode = MODE_HEAD;
			return true;
		}
		if (r.more)
			return false;
	}
	p->body = BODY_CONTENT;
	p->mode = MODE_BODY;
	return true;
}

/* The text behind a word in a head, up to a space or a control token. */
static bool word_behind(
	const char *head, size_t n, const char *word, const char **text, size_t *bytes)
{
	const char *at = memmem(head, n, word, strlen(word));

	if (at == NULL)
		return false;
	*text = at + strlen(word);
	for (*bytes = 0; *text + *bytes < head + n; ++*bytes)
		if (is_space((*text)[*bytes]) || (*text)[*bytes] == '<')
			break;
	return true;
}

/* Sets p->function to the recipient of the message. True when that is an offered function. */
static bool is_call(struct calls_parser *p, const char *head, size_t n)
{
	static const char prefix[] = "functions.";
	const char *to;
	size_t bytes;

	if (!word_behind(head, n, " to=", &to, &bytes))
		return false;
	if (bytes > strlen(prefix) && memcmp(to, prefix, strlen(prefix)) == 0) {
		to += strlen(prefix);
		bytes -= strlen(prefix);
	}
	free(p->function);
	p->function = strndup(to, bytes);
	p->failed = p->failed || p->function == NULL;
	return p->function != NULL && calls_function(p->tools, p->function) != NULL;
}

static bool head(struct calls_parser *p, bool final)
{
	static const char message[] = "<|message|>";
	size_t room = left(p) < HEAD_MAX ? left(p) : HEAD_MAX, bytes = 0;
	const char *end = memmem(rest(p), room, message, strlen(message)), *channel = "";

	p->mode = MODE_BODY;
	p->body = BODY_CONTENT;
	if (end == NULL) {
		if (!final && left(p) < HEAD_MAX)
			p->mode = MODE_HEAD;
		else
			/* It is no head. Its first byte is content, so that the rest is not taken
			 * for a head again. */
			give(p, 1, false);
		return p->mode == MODE_BODY;
	}
	size_t n = (size_t)(end - rest(p));
	bool addressed = memmem(rest(p), n, " to=", 4) != NULL;
	if (is_call(p, rest(p), n)) {
		p->head.n = 0;
		calls_text_add(&p->head, rest(p), n + strlen(message));
		p->body = BODY_CALL;
		p->live.function = p->function;
		calls_live_reset(&p->live);
		p->told = false;
	} else if (addressed) {
		give(p, n + strlen(message), false);
		return true;
	} else if (word_behind(rest(p), n, "<|channel|>", &channel, &bytes) &&
		   bytes == strlen("analysis") && memcmp(channel, "analysis", bytes) == 0) {
		p->body = BODY_THOUGHT;
	}
	p->at += n + strlen(message);
	return true;
}

static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", NULL};
enum { END_START = 3 };

/* Call when the whole body of a call has arrived. */
static void end_call(struct calls_parser *p, size_t n)
{
	const char *body = rest(p);
	size_t from = 0, to = trimmed(body, n);

	while (from < to && is_space(body[from]))
		from++;
	p->found.n = 0;
	p->found.names.n = p->found.arguments.n = 0;
	if (from < to && body[from] == '{' &&
		calls_add(&p->found, p->function, strlen(p->function), body + from, to - from)) {
		p->at += n;
		tell_calls(p);
		return;
	}
	if (p->told) {
		/* What stands behind it is content, if it is more than spaces. */
		size_t behind = trimmed(body, n) > p->live.at ? n - p->live.at : 0;

		p->sink.call_end(p->sink.arg);
		p->at += n - behind;
		give(p, behind, false);
		return;
	}
	if (p->head.failed)
		p->failed = true;
	else
		p->sink.content(p->sink.arg, p->head.data, p->head.n);
	give(p, n, false);
}

static bool body(struct calls_parser *p, bool final)
{
	struct found_word end = first_word(rest(p), left(p), ends);
	size_t n = end.at  ? (size_t)(end.at - rest(p))
		   : final ? left(p)
			   : left(p) - partial(rest(p), left(p), ends);
	if (p->body == BODY_CALL)
		tell_live(p,
			(struct calls_reader){.text = rest(p), .n = n, .final = end.at || final});
	if (end.at == NULL && p->body == BODY_CALL && !final)
		return false;
	if (p->body == BODY_CALL)
		end_call(p, n);
	else
		give(p, n, p->body == BODY_THOUGHT);
	if (end.at == NULL) {
		p->mode = final ? MODE_BEGIN : p->mode;
		return false;
	}
	p->at += end.which == END_START ? 0 : end.bytes;
	p->mode = MODE_BEGIN;
	return true;
}

static bool step(struct calls_parser *p, bool final)
{
	switch (p->mode) {
	case MODE_START:
		return start(p, final);
	case MODE_THOUGHT:
		return thought(p, final);
	case MODE_TEXT:
		return text(p, final);
	case MODE_CALL:
		return call(p, final);
	case MODE_BEGIN:
		return begin(p, final);
	case MODE_HEAD:
		return head(p, final);
	case MODE_BODY:
		return body(p, final);
	}
	return false;
}

static bool go_on(struct calls_parser *p, bool final)
{
	while (!p->failed && step(p, final))
		;
	if (p->at > 0) {
		p->pending.n -= p->at;
		memmove(p->pending.data, p->pending.data + p->at, p->pending.n);
		p->at = 0;
	}
	return !p->failed;
}

bool calls_feed(struct calls_parser *parser, const char *text, size_t bytes)
{
	calls_text_add(&parser->pending, text, bytes);
	parser->failed = parser->failed || parser->pending.failed;
	return parser->pending.n == 0 ? !parser->failed : go_on(parser, false);
}

bool calls_finish(struct calls_parser *parser)
{
	/* Ensures that pending.data is not NULL, also for an empty answer. */
	calls_text_add(&parser->pending, "", 1);
	parser->failed = parser->failed || parser->pending.failed;
	if (parser->failed)
		return false;
	parser->pending.n--;
	return go_on(parser, true);
}
