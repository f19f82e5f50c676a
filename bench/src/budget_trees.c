/* outrider-bench budget: grows trees and answers with them (budget.h). */
#include "bench/src/budget.h"

#include "bench/src/prompts_file.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Runs the newest token and the tree behind it, all with logits: node i is row 1 + i. */
static int run_tree(
	struct engine *e, int32_t newest, const struct draft_reply *reply, struct error *err)
{
	uint32_t n = 1 + reply->n;
	int rc = kv_take(&e->kv, &e->seq, n, e->cells);

	if (rc < 0)
		return error_set(err, -rc, "the KV cache is full at token %u", e->seq.n);
	for (uint32_t i = 0; i < n; i++) {
		int32_t parent = i > 0 ? reply->node[i - 1].parent + 1 : -1;

		e->batch[i] = (struct batch_token){.seq = &e->seq,
			.token = i > 0 ? reply->node[i - 1].token : newest,
			.position = i > 0 ? e->batch[parent].position + 1 : e->seq.n,
			.parent = parent,
			.logits = true,
			.draft = i > 0,
			.cell = e->cells[i]};
	}
	rc = forward_run(e->forward, e->batch, n);
	return rc < 0 ? error_set(err, -rc, "the forward pass failed at token %u", e->seq.n) : 0;
}

/* Adds the likeliest tokens behind a node (-1: behind the newest token). */
static void propose(struct tree *tree, int node, const float *logits, uint32_t n)
{
	uint32_t best[TREE_WIDTH], width = tree_width(tree), filled = 0;
	double sum = 0;

	if (width == 0)
		return;
	for (uint32_t i = 0; i < n; i++) {
		if (filled == width && !(logits[i] > logits[best[width - 1]]))
			continue;
		uint32_t at = filled < width ? filled++ : width - 1;

		for (; at > 0 && logits[i] > logits[best[at - 1]]; at--)
			best[at] = best[at - 1];
		best[at] = i;
	}
	for (uint32_t i = 0; i < n; i++)
		sum += exp((double)(logits[i] - logits[best[0]]));
	for (uint32_t i = 0; i < filled; i++) {
		double p = exp((double)(logits[best[i]] - logits[best[0]])) / sum;

		(void)tree_add(tree, node, (int32_t)best[i], (float)p);
	}
}

/* The row of a node in the pass of the reply that was made of the tree. */
static uint32_t row_of(const struct tree *tree, int node)
{
	uint32_t at = 0;

	while (tree->rank[at] != node)
		at++;
	return 1 + at;
}

/* Grows a tree as the drafter does with a draft model, a level for each pass of e. */
static int grow(struct budget_run *run, struct engine *e, int32_t newest, struct error *err)
{
	const struct budget_options *o = run->options;
	struct tree *tree = &run->tree;
	uint32_t n_vocab = e->model->config.n_vocab, n = 0, row[TREE_BEAM];
	int16_t beam[TREE_BEAM] = {-1};
	int rc = 0;

	tree_begin(tree, (struct draft_budget){.nodes = (uint16_t)o->nodes,
				 .depth = (uint8_t)o->depth,
				 .width = (uint8_t)o->width});
	do {
		draft_reply_clear(&run->reply);
		tree_answer(tree, &run->reply);
		for (uint32_t i = 0; i < n; i++)
			row[i] = row_of(tree, beam[i]);
		rc = run_tree(e, newest, &run->reply, err);
		if (rc < 0)
			return rc;
		if (n == 0)
			propose(tree, -1, forward_logits(e->forward, 0), n_vocab);
		for (uint32_t i = 0; i < n; i++)
			propose(tree, beam[i], forward_logits(e->forward, row[i]), n_vocab);
		kv_commit(&e->kv, &e->seq, NULL, 0, e->cells, 1 + run->reply.n);
		n = tree_next(tree, beam, tree_beam(tree, TREE_BEAM));
	} while (n > 0);
	draft_reply_clear(&run->reply);
	tree_answer(tree, &run->reply);
	return 0;
}

static int32_t pick(const struct engine *e, uint32_t row)
{
	return greatest_logit(forward_logits(e->forward, row), e->model->config.n_vocab);
}

/* Walks down the tree as far as its tokens are the target's; commits them. tokens: those that were
 * committed; *next: the one behind them. Returns how many. */
static uint32_t accept(struct budget_run *run, int32_t newest,
	int32_t tokens[LIMIT_DRAFT_DEPTH + 1], int32_t *next)
{
	struct engine *e = &run->target;
	uint32_t cells[LIMIT_DRAFT_DEPTH + 1], rejected[LIMIT_DRAFT_NODES], n = 0, n_rejected = 0;
	bool kept[LIMIT_DRAFT_NODES + 1] = {true};

	tokens[n] = newest;
	cells[n++] = e->cells[0];
	*next = pick(e, 0);
	for (uint32_t i = 0, at = 0; i < run->reply.n; i++) {
		const struct draft_node *node = &run->reply.node[i];

		/* Nodes come behind their parents. */
		if (node->parent + 1 != (int32_t)at || node->token != *next)
			continue;
		at = i + 1;
		kept[at] = true;
		tokens[n] = node->token;
		cells[n++] = e->cells[at];
		*next = pick(e, at);
	}
	for (uint32_t i = 0; i <= run->reply.n; i++)
		if (!kept[i])
			rejected[n_rejected++] = e->cells[i];
	kv_commit(&e->kv, &e->seq, cells, n, rejected, n_rejected);
	forward_replay(e->forward);
	return n;
}

static int prefill(struct engine *e, const int32_t *tokens, uint32_t n, struct error *err)
{
	int rc = 0;

	kv_truncate(&e->kv, &e->seq, 0);
	for (uint32_t at = 0; rc == 0 && at < n;) {
		uint32_t some = n - at < e->n_batch ? n - at : e->n_batch;

		rc = decoding_run(e, tokens + at, some, false, err);
		if (rc == 0)
			decoding_commit(e, some, some);
		at += some;
	}
	return rc;
}

/* One tree: *newest becomes the token behind what was accepted; *n: how many tokens came of it. */
static int iterate(struct budget_run *run, int32_t *newest, uint32_t *n, struct error *err)
{
	const struct forward_hooks hooks = {.outputs = budget_layers_take, .arg = &run->layers};
	bool drafts = run->options->draft != NULL;
	int32_t tokens[LIMIT_DRAFT_DEPTH + 1], next;
	int rc = grow(run, drafts ? &run->draft : &run->target, *newest, err);

	if (rc < 0)
		return rc;
	forward_set_hooks(run->target.forward, &hooks);
	rc = run_tree(&run->target, *newest, &run->reply, err);
	forward_set_hooks(run->target.forward, NULL);
	if (rc < 0)
		return rc;
	*n = accept(run, *newest, tokens, &next);
	*newest = next;
	if (drafts)
		rc = decoding_run(&run->draft, tokens, *n, false, err);
	if (drafts && rc == 0)
		decoding_commit(&run->draft, *n, *n);
	return rc;
}

int budget_answer(
	struct budget_run *run, const int32_t *prompt, uint32_t n, uint32_t most, struct error *err)
{
	struct engine *target = &run->target;
	int32_t newest = prompt[n - 1];
	uint32_t made = 0, some = 0;
	int rc = prefill(target, prompt, n - 1, err);

	if (rc == 0 && run->options->draft)
		rc = prefill(&run->draft, prompt, n - 1, err);
	while (rc == 0 && made < most) {
		rc = iterate(run, &newest, &some, err);
		made += some;
		run->trees += rc == 0;
		if (tokenizer_is_eog(target->tokenizer, newest))
			break;
	}
	run->tokens += made;
	return rc;
}
