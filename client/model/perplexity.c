/* outrider-model perplexity: exp of the mean negative log-likelihood of a text, over windows of
 * n_context tokens one after the other. The second half of each window counts; each of its tokens
 * is predicted from all before it in the window. llama.cpp's tool of that name computes the same,
 * so figures can be compared. */
#include "client/model/commands.h"
#include "client/model/engine.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

enum { WINDOW_DEFAULT = 512, WINDOW_MIN = 4, TEXT_BYTES_MAX = 1 << 30 };

struct perplexity {
	struct engine engine;
	const char *file;
	uint32_t n_windows_max, n_windows, window;
	int32_t *ids;
	size_t n_ids;
	/* The present window, and sums over the tokens so far. */
	const int32_t *tokens;
	double nll, nll_squares;
	uint64_t count;
	int64_t bad; /* the first position with logits that are not finite; -1: none */
};

static int read_ids(struct perplexity *p, struct error *err)
{
	struct engine *e = &p->engine;
	size_t capacity = 0, n;
	char *text;
	int rc;
	if (e->options.tokens) {
		uint32_t n_ids;
		rc = args_tokens(e->options.tokens, &p->ids, &n_ids, err);
		p->n_ids = rc ? 0 : n_ids;
	} else {
		rc = file_read(p->file, TEXT_BYTES_MAX, &text, &n, err);
		if (rc == 0)
			rc = tokenizer_encode(
				e->tokenizer, text, n, false, &p->ids, &p->n_ids, &capacity, err);
		free(text);
	}
	for (size_t i = 0; !rc && i < p->n_ids; i++)
		if (p->ids[i] < 0 || (uint32_t)p->ids[i] >= e->model->config.n_vocab)
			rc = error_set(err, EINVAL, "token %zu is %d, allowed are 0..%u", i,
				p->ids[i], e->model->config.n_vocab - 1);
	return rc;
}

/* The text begins with BOS if the model wants it, and so does each window, whose first token it
 * replaces. */
static int add_bos(struct perplexity *p, struct error *err)
{
	int32_t bos = tokenizer_bos(p->engine.tokenizer);
	if (bos < 0 || p->engine.options.tokens)
		return 0;
	int32_t *ids = realloc(p->ids, (p->n_ids + 1) * sizeof(*ids));
	if (!ids)
		return error_set(err, ENOMEM, "no memory for %zu tokens", p->n_ids);
	memmove(ids + 1, ids, p->n_ids * sizeof(*ids));
	ids[0] = bos;
	p->ids = ids;
	p->n_ids++;
	return 0;
}

/* -log softmax(logits)[token]. */
static double loss(const float *logits, uint32_t n, int32_t token)
{
	float max = logits[0];
	double sum;
	for (uint32_t i = 1; i < n; i++)
		max = logits[i] > max ? logits[i] : max;
	sum = exp((double)(logits[0] - max));
	for (uint32_t i = 1; i < n; i++)
		sum += exp((double)(logits[i] - max));
	return log(sum) - (double)(logits[token] - max);
}

static void add_row(void *arg, uint32_t position, const float *logits)
{
	struct perplexity *p = arg;
	/* The window's last token would predict the next window's first. */
	if (position + 1 >= p->window || position < p->engine.logits_from)
		return;
	double nll = loss(logits, p->engine.model->config.n_vocab, p->tokens[position + 1]);
	if (!isfinite(nll) && p->bad < 0)
		p->bad = position;
	p->nll += nll;
	p->nll_squares += nll * nll;
	p->count++;
}

static double estimate(const struct perplexity *p)
{
	return exp(p->nll / (double)p->count);
}

/* The standard error of the mean, propagated through the exponential. */
static double uncertainty(const struct perplexity *p)
{
	double n = (double)p->count, mean = p->nll / n, variance = p->nll_squares / n - mean * mean;
	return p->count > 1 && variance > 0 ? estimate(p) * sqrt(variance / (n - 1)) : 0;
}

static void progress(const struct perplexity *p, uint32_t done, uint64_t start_ns)
{
	if (p->engine.options.quiet || !isatty(STDERR_FILENO))
		return;
	double seconds = (double)(clock_ns() - start_ns) / 1e9;
	fprintf(stderr, "\r\033[Kwindow %u of %u: %.4f, %.0f s left", done, p->n_windows,
		estimate(p), seconds / done * (p->n_windows - done));
	if (done == p->n_windows)
		fputs("\r\033[K", stderr);
}

static int run_windows(struct perplexity *p, struct error *err)
{
	struct engine *e = &p->engine;
	int32_t bos = e->tokenizer && !e->options.tokens ? tokenizer_bos(e->tokenizer) : -1;
	uint64_t start_ns = clock_ns();
	bool quiet = e->options.quiet;
	int rc = 0;
	for (uint32_t w = 0; !rc && w < p->n_windows; w++) {
		p->tokens = p->ids + (size_t)w * p->window;
		memcpy(e->tokens, p->tokens, p->window * sizeof(*e->tokens));
		if (bos >= 0)
			e->tokens[0] = bos;
		engine_rewind(e);
		e->options.quiet = true; /* one line of progress is enough */
		rc = engine_prefill(e, true, add_row, p, err);
		e->options.quiet = quiet;
		if (!rc && p->bad >= 0)
			rc = engine_not_finite(e, w * p->window + (uint32_t)p->bad, err);
		if (!rc)
			progress(p, w + 1, start_ns);
	}
	return rc;
}

static int run(struct perplexity *p, struct error *err)
{
	struct engine *e = &p->engine;
	int rc = model_load(e->options.model, &e->model, err);
	if (rc == 0 && !e->options.tokens)
		rc = tokenizer_load(e->model->gguf, &e->tokenizer, err);
	if (rc == 0)
		rc = read_ids(p, err);
	if (rc == 0 && e->tokenizer)
		rc = add_bos(p, err);
	if (rc < 0)
		return rc;
	p->window = e->options.context ? e->options.context : WINDOW_DEFAULT;
	if (p->window < 4 || p->n_ids < 2 * (size_t)p->window)
		return error_set(err, EINVAL,
			"the text has %zu tokens; at least two windows of %u (--context, 4 or "
			"more) are needed",
			p->n_ids, p->window);
	p->n_windows = (uint32_t)(p->n_ids / p->window);
	if (p->n_windows_max && p->n_windows > p->n_windows_max)
		p->n_windows = p->n_windows_max;
	e->tokens = malloc(p->window * sizeof(*e->tokens));
	if (!e->tokens)
		return error_set(err, ENOMEM, "no memory for %u tokens", p->window);
	e->n_prompt = p->window;
	e->logits_from = p->window / 2;
	rc = engine_start(e, 0, true, err);
	return rc < 0 ? rc : run_windows(p, err);
}

static void print(const struct perplexity *p)
{
	if (engine_json(&p->engine))
		printf("{\"perplexity\": %.6f, \"error\": %.6f, \"nll\": %.9f, \"tokens\": %llu, "
		       "\"windows\": %u, \"context\": %u}\n",
			estimate(p), uncertainty(p), p->nll / (double)p->count,
			(unsigned long long)p->count, p->n_windows, p->window);
	else
		printf("perplexity %.4f +/- %.5f (%llu tokens in %u windows of %u)\n", estimate(p),
			uncertainty(p), (unsigned long long)p->count, p->n_windows, p->window);
}

int command_perplexity(int argc, char **argv)
{
	static struct perplexity p = {.bad = -1};
	struct engine_options *o = &p.engine.options;
	struct error err = {""};
	bool help = false;
	const struct arg args[] = {
		{"FILE", ARG_FILE, &p.file, 0, 0, NULL, "the text; - is standard input"},
		{"tokens", ARG_STRING, &o->tokens, 0, 0, "IDS", "the text as ids: 1,2,3"},
		ENGINE_ARGS(o, "tokens of a window, default 512"){"windows", ARG_U32,
			&p.n_windows_max, 1, UINT32_MAX, "N", "stop after N windows"},
		{"help", ARG_FLAG, &help, 0, 0, NULL, "print this text"},
		{.name = NULL},
	};
	o->no_prompt = true;
	if (args_parse(argc, argv, args, &err) < 0)
		return engine_usage(&err);
	if (help) {
		puts("usage: outrider-model perplexity --model FILE (TEXTFILE | --tokens IDS) "
		     "[OPTIONS]\n");
		args_help(args, stdout);
		return EX_OK;
	}
	if (!p.file == !o->tokens)
		error_set(&err, EINVAL, "one text is needed: a FILE, or --tokens");
	else if (o->context && o->context < WINDOW_MIN)
		error_set(&err, EINVAL, "--context: %u, allowed are %d..%d", o->context, WINDOW_MIN,
			LIMIT_CONTEXT);
	if (err.text[0] || engine_check_options(o, &err) < 0)
		return engine_usage(&err);
	int rc = run(&p, &err);
	if (rc == 0)
		print(&p);
	free(p.ids);
	engine_close(&p.engine);
	return rc < 0 ? engine_fail(rc, &err) : EX_OK;
}
