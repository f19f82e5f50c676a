#include "client/model/masks.h"

#include "shared/model/text/breakers.h"

#include <string.h>

/* Masks behind the token at a position: none of them beyond the context. */
static uint32_t masks_behind(const struct engine *e, uint32_t position)
{
	uint32_t room = e->n_context - 1 - position, k = e->adapter->draft_length;

	return room < k ? room : k;
}

static uint32_t fill_tokens(const struct masks *m, struct engine *e)
{
	uint32_t first = e->n_tokens - 1, n = m->n_drafted + 1;

	for (uint32_t i = 0; i < n; i++)
		e->batch[i] = (struct batch_token){
			.seq = &e->seq,
			.token = i == 0 ? e->tokens[first] : m->drafted[i - 1],
			.position = first + i,
			.parent = (int32_t)i - 1,
		};
	return n;
}

/* Adds the masks behind each of the pass's tokens; returns the rows of the pass. */
static uint32_t fill_masks(struct engine *e, uint32_t n_tokens)
{
	uint32_t at = n_tokens;

	for (uint32_t i = 0; i < n_tokens; i++) {
		uint32_t before = i, n = masks_behind(e, e->batch[i].position);

		for (uint32_t j = 0; j < n; j++) {
			e->batch[at] = (struct batch_token){
				.seq = &e->seq,
				.token = BATCH_MASK(j),
				.position = e->batch[before].position + 1,
				.parent = (int32_t)before,
			};
			before = at++;
		}
	}
	return at;
}

static void fill_picks(struct masks *m, const struct engine *e, struct pick_row *picks)
{
	for (uint32_t i = 0; i <= m->n_drafted; i++)
		picks[i] = (struct pick_row){
			.params = e->sampling,
			.history = e->tokens,
			.n_history = e->n_tokens,
			.n_prompt = e->n_prompt,
			.dry_reach = i == 0 ? breakers_reach(e->tokenizer, e->sampling, e->tokens,
						      e->n_tokens)
					    : breakers_reach_behind(e->tokenizer, e->sampling,
						      picks[i - 1].dry_reach, m->drafted[i - 1]),
			.parent = (int32_t)i - 1,
			.token = i == 0 ? 0 : m->drafted[i - 1],
			.source = i,
			.position = e->n_tokens + i,
			.want_hash = e->want_hash,
			.want_logprobs = e->want_logprobs,
			.top = m->top[i],
			.n_top = e->n_top,
		};
}

/* Reads the next drafts from the masks behind the last token that stands, which is the n-th of the
 * pass. */
static int read_drafts(struct masks *m, struct engine *e, uint32_t n_tokens, struct error *err)
{
	uint32_t n = e->n_tokens + m->n, row = n_tokens;
	struct forward_masks group = {
		.n = masks_behind(e, n - 2),
		.token = e->tokens[n - 1],
		.like = {.params = e->sampling,
			.history = e->tokens,
			.n_history = n,
			.n_prompt = e->n_prompt,
			.position = n},
		.drafted = m->drafted,
		.chance = m->chance,
	};

	m->n_drafted = 0;
	for (uint32_t i = 0; i + 1 < m->n; i++)
		row += masks_behind(e, e->batch[i].position);
	group.row = row;
	/* Behind the last draft there is a place for what is picked there. */
	uint32_t room = e->n_context - n, most = room > 0 ? room - 1 : 0;
	if (most == 0)
		return 0;
	int rc = forward_draft(e->forward, &group, 1);
	if (rc < 0)
		return error_set(err, -rc, "no drafts could be read from the masks");
	m->n_drafted = group.n < most ? group.n : most;
	return 0;
}

static int run_pass(struct masks *m, struct engine *e, struct error *err)
{
	struct pick_row picks[LIMIT_MTP_DRAFT + 1];
	uint32_t n_tokens = fill_tokens(m, e), n = fill_masks(e, n_tokens);
	int rc = kv_take(&e->kv, &e->seq, n, e->cells);

	if (rc < 0)
		return error_set(err, -rc, "the KV cache is full at token %u", e->n_tokens - 1);
	for (uint32_t i = 0; i < n; i++)
		e->batch[i].cell = e->cells[i];
	fill_picks(m, e, picks);
	rc = forward_run_picks(e->forward, e->batch, n, picks, n_tokens, m->picked);
	if (rc < 0)
		return error_set(err, -rc, "the forward pass failed at token %u", e->n_tokens - 1);
	for (m->n = 1; m->n < n_tokens && m->picked[m->n - 1].token == m->drafted[m->n - 1];)
		m->n++;
	m->next = 0;
	m->passes++;
	m->drafts += m->n_drafted;
	m->accepted += m->n - 1;
	for (uint32_t i = 0; i < m->n; i++)
		e->tokens[e->n_tokens + i] = m->picked[i].token;
	kv_commit(&e->kv, &e->seq, e->cells, m->n, e->cells + m->n, n - m->n);
	return read_drafts(m, e, n_tokens, err);
}

int masks_step(struct masks *m, struct engine *e, struct error *err)
{
	int rc = m->next == m->n ? run_pass(m, e, err) : 0;

	if (rc < 0)
		return rc;
	e->picked = m->picked[m->next];
	memcpy(e->top, m->top[m->next], sizeof(e->top));
	m->next++;
	return 0;
}
