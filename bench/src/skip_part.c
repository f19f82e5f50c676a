#include "bench/src/skip_part.h"

#include "bench/src/prompts_file.h"
#include "shared/base/clock.h"
#include "shared/base/median.h"
#include "shared/model/arch/skip.h"

#include <stdlib.h>
#include <string.h>

enum { COST_PASSES = 15 };

static int open_kv(struct skip_part *p, struct error *err)
{
	const struct engine *e = p->whole;
	struct kv_layout layout = kv_layout_of(p->model, kv_type_of(e->options.kv, e->model),
		(e->n_context + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS);
	p->memory_bytes = kv_bytes(&layout);
	p->memory = aligned_alloc(4096, (p->memory_bytes + 4095) / 4096 * 4096);
	if (p->memory_bytes == 0 || !p->memory)
		return error_set(
			err, ENOMEM, "no memory for a KV cache of %zu bytes", p->memory_bytes);
	memset(p->memory, 0, p->memory_bytes);
	int rc = kv_init_memory(&p->kv, e->backend, p->memory, &layout, true, err);
	if (rc == 0 && kv_seq_init(&p->seq, 1, e->n_context) < 0)
		rc = error_set(err, ENOMEM, "no memory for a sequence of %u tokens", e->n_context);
	p->has_seq = rc == 0;
	return rc;
}

int skip_part_open(struct skip_part *p, struct engine *whole, const bool *layer, struct error *err)
{
	uint16_t kept[LIMIT_LAYERS];
	memset(p, 0, sizeof(*p));
	p->whole = whole;
	int rc = model_skip(whole->model, layer, &p->model, kept, err);
	if (rc == 0)
		rc = open_kv(p, err);
	if (rc == 0)
		rc = experts_mapped_init(&p->experts, p->model, whole->backend, err);
	const struct forward_limits limits = {
		.n_batch = whole->n_batch,
		.n_logits = whole->n_batch,
		.n_context = whole->model->config.n_context,
	};
	return rc < 0 ? rc
		      : forward_create(p->model, whole->backend, &p->kv, &p->experts.source,
				&limits, &p->forward, err);
}

void skip_part_close(struct skip_part *p)
{
	forward_destroy(&p->forward);
	if (p->has_seq)
		kv_seq_exit(&p->kv, &p->seq);
	if (p->kv.meta)
		kv_exit(&p->kv);
	free(p->memory);
	experts_mapped_exit(&p->experts);
	model_skip_free(&p->model);
}

/* Runs n tokens behind the committed ones. from: position of the first whose logits are kept. */
static int run(struct forward *forward, struct kv *kv, struct kv_seq *seq, struct engine *e,
	const int32_t *tokens, uint32_t n, uint32_t from, bool keep, struct error *err)
{
	if (kv_take(kv, seq, n, e->cells) < 0)
		return error_set(err, ENOMEM, "the KV cache is full at token %u", seq->n);
	for (uint32_t i = 0; i < n; i++)
		e->batch[i] = (struct batch_token){.seq = seq,
			.token = tokens[i],
			.position = seq->n + i,
			.parent = (int32_t)i - 1,
			.logits = seq->n + i >= from,
			.cell = e->cells[i]};
	int rc = forward_run(forward, e->batch, n);
	if (rc == 0 && keep)
		kv_commit(kv, seq, e->cells, n, NULL, 0);
	else
		kv_commit(kv, seq, NULL, 0, e->cells, n);
	return rc < 0 ? error_set(err, -rc, "the forward pass failed at token %u", seq->n) : 0;
}

int skip_part_follow(struct skip_part *p, const int32_t *tokens, uint32_t n_prompt, uint32_t n,
	bool *right, struct error *err)
{
	struct engine *e = p->whole;
	uint32_t n_vocab = p->model->config.n_vocab;
	kv_truncate(&p->kv, &p->seq, 0);
	for (uint32_t first = 0; first + 1 < n;) {
		uint32_t count = n - 1 - first < e->n_batch ? n - 1 - first : e->n_batch;
		int rc = run(p->forward, &p->kv, &p->seq, e, tokens + first, count, n_prompt - 1,
			true, err);
		if (rc < 0)
			return rc;
		for (uint32_t i = 0; i < count; i++) {
			uint32_t next = first + i + 1;
			if (next >= n_prompt)
				right[next - n_prompt] =
					greatest_logit(forward_logits(p->forward, i), n_vocab) ==
					tokens[next];
		}
		first += count;
	}
	return 0;
}

int skip_part_cost(struct skip_part *p, const int32_t *tokens, uint32_t depth, double *share,
	struct error *err)
{
	struct engine *e = p->whole;
	struct {
		struct forward *forward;
		struct kv *kv;
		struct kv_seq *seq;
		double ns[COST_PASSES];
	} both[2] = {{.forward = e->forward, .kv = &e->kv, .seq = &e->seq},
		{.forward = p->forward, .kv = &p->kv, .seq = &p->seq}};
	for (int i = 0; i < 2; i++) {
		kv_truncate(both[i].kv, both[i].seq, 0);
		for (uint32_t first = 0; first < depth;) {
			uint32_t n = depth - first < e->n_batch ? depth - first : e->n_batch;
			int rc = run(both[i].forward, both[i].kv, both[i].seq, e, tokens + first, n,
				UINT32_MAX, true, err);
			if (rc < 0)
				return rc;
			first += n;
		}
	}
	for (int turn = 0; turn < COST_PASSES; turn++)
		for (int i = 0; i < 2; i++) {
			uint64_t begin = clock_ns();
			int rc = run(both[i].forward, both[i].kv, both[i].seq, e, tokens + depth, 1,
				0, false, err);
			if (rc < 0)
				return rc;
			both[i].ns[turn] = (double)(clock_ns() - begin);
		}
	*share = median(both[1].ns, COST_PASSES) / median(both[0].ns, COST_PASSES);
	return 0;
}
