#include "bench/src/decoding.h"

#include <errno.h>
#include <stdlib.h>

/* The engine sizes its batch by a prompt; this one is never run. */
static char *prompt_of(uint32_t n)
{
	char *prompt = malloc(2 * (size_t)n);

	for (uint32_t i = 0; prompt && i < n; i++) {
		prompt[2 * i] = '0';
		prompt[2 * i + 1] = i + 1 < n ? ',' : '\0';
	}
	return prompt;
}

int decoding_open(struct engine *e, const struct decoding_options *o, struct error *err)
{
	char *prompt = prompt_of(o->chunk);
	if (!prompt)
		return error_set(err, ENOMEM, "no memory for a prompt");
	e->options = (struct engine_options){.model = o->model,
		.tokens = prompt,
		.prefill_chunk = o->chunk,
		.program = "outrider-bench",
		.quiet = o->quiet,
		.threads = o->threads};
	e->n_oracle = o->n_oracle;
	int rc = engine_check_options(&e->options, err);
	if (rc == 0)
		rc = engine_open(e, true, err);
	e->options.tokens = NULL;
	free(prompt);
	if (rc < 0)
		return rc;
	uint32_t context = e->model->config.n_context;
	if (context <= o->chunk)
		return error_set(
			err, EINVAL, "%s: a context of %u is too short", o->model, context);
	uint32_t room = context < DECODING_TOKENS_MAX ? context : DECODING_TOKENS_MAX;
	return engine_start(e, room - o->chunk, true, err);
}

int decoding_run(
	struct engine *e, const int32_t *tokens, uint32_t n, bool drafts, struct error *err)
{
	int rc = kv_take(&e->kv, &e->seq, n, e->cells);
	if (rc < 0)
		return error_set(err, -rc, "the KV cache is full at token %u", e->seq.n);
	for (uint32_t i = 0; i < n; i++)
		e->batch[i] = (struct batch_token){.seq = &e->seq,
			.token = tokens[i],
			.position = e->seq.n + i,
			.parent = (int32_t)i - 1,
			.logits = true,
			.draft = drafts && i > 0,
			.cell = e->cells[i]};
	rc = forward_run(e->forward, e->batch, n);
	return rc < 0 ? error_set(err, -rc, "the forward pass failed at token %u", e->seq.n) : 0;
}

void decoding_commit(struct engine *e, uint32_t accepted, uint32_t n)
{
	kv_commit(&e->kv, &e->seq, e->cells, accepted, e->cells + accepted, n - accepted);
	forward_replay(e->forward);
}
