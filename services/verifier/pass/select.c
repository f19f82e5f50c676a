#include "services/verifier/pass/select.h"

#include "services/verifier/pass/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Memory of the tables of tokens and pairs. An entry of a model with 48 layers of 128 experts, 8
 * used, takes 3 KiB: then they hold 5000 tokens. */
#define HISTORY_BYTES ((size_t)16 << 20)
/* Of the passes without drafts, one in so many is learnt from. */
#define LEARN_EVERY 8u

int select_init(struct select *select, const struct model *model, uint32_t n_moe, struct error *err)
{
	memset(select, 0, sizeof(*select));
	expert_history_init(&select->history);
	select->pages = calloc(LIMIT_SESSIONS, sizeof(*select->pages));
	if (select->pages == NULL)
		return error_set(err, ENOMEM, "no memory for what was judged of drafts");
	if (n_moe == 0)
		return pick_init(&select->pick, 0, err);
	select->guess = calloc((n_moe * model->config.n_experts + 63) / 64, sizeof(*select->guess));
	if (select->guess == NULL)
		return error_set(err, ENOMEM, "no memory for the experts of a token");
	int rc = expert_history_shape(&select->history, n_moe, model->config.n_experts,
		model->config.n_experts_used, HISTORY_BYTES, err);
	return rc != 0 ? rc : pick_init(&select->pick, expert_history_words(&select->history), err);
}

void select_exit(struct select *select)
{
	expert_history_exit(&select->history);
	pick_exit(&select->pick);
	free(select->pages);
	free(select->guess);
	memset(select, 0, sizeof(*select));
}

bool select_read(const struct select *select, uint32_t page, uint64_t uid, struct select_view *out)
{
	const struct select_page *from = &select->pages[page];

	return page_read(&from->lock, &from->view, out, sizeof(*out)) && out->session == uid &&
	       out->n <= LIMIT_DRAFT_NODES;
}

static bool is_judged(const struct engine *engine, const struct pass_part *part)
{
	if (part->wish != DRAFTS_HERE || part->sits_out || !(part->want.prices.token > 0))
		return false;
	const struct draft_reply *draft = drafts_reply(&engine->drafts, part->session->index);

	return draft->n > 0 && draft->support == NULL && draft->method != DRAFT_NONE;
}

static void set_bit(uint64_t *bits, uint32_t i)
{
	bits[i / 64] |= UINT64_C(1) << i % 64;
}

/* Which experts are resident, or on their way, by one look at the states of all slots. On a device that is
 * what its slots have: a load is then a copy to it, also of what lies in memory. Without an expert cache all are
 * there. */
static void look_at_slots(struct engine *engine)
{
	struct pick *pick = &engine->select.pick;
	struct experts_places places = {0};
	bool any = engine->cached && experts_cached_places(engine->cached, &places);
	size_t bytes = pick->n_words * sizeof(*pick->resident);

	if (bytes == 0)
		return;
	memset(pick->resident, any ? 0 : 0xff, bytes);
	memset(pick->coming, 0, bytes);
	for (uint32_t i = 0; i < places.n_slots; i++) {
		uint64_t word = atomic_load_explicit(&places.state[i], memory_order_relaxed);
		enum slot_state state = slot_state(word);
		uint32_t layer = slot_layer(word), expert = slot_expert(word);

		if ((state != SLOT_READY && state != SLOT_LOADING) || layer >= places.n_layers ||
			layer >= LIMIT_LAYERS || expert >= places.n_experts ||
			!engine->o.model->layers[layer].moe)
			continue;
		set_bit(state == SLOT_READY ? pick->resident : pick->coming,
			engine->feed.ordinal[layer] * places.n_experts + expert);
	}
}

/* Adds what the token at a row of a draft needs; row 0: the newest committed one. before: the token in
 * front of it, -1 = none. */
static void add_token(struct select *select, const struct engine_session *s,
	const struct draft_reply *draft, uint32_t row, int32_t before, int32_t token, uint64_t *at)
{
	uint32_t n_words = select->pick.n_words;
	const uint64_t *said =
		draft != NULL && draft->needs != NULL ? draft->needs + (size_t)row * n_words : NULL;

	memset(select->guess, 0, n_words * sizeof(*select->guess));
	expert_history_needs(&select->history, s->index, s->uid, before, token, select->guess);
	pick_join(select->history.n_layers, select->history.n_experts, said, select->guess, at);
}

/* What the certain rows of the pass need: those of sessions that decode. */
static void want_certain(struct engine *engine, const struct pass *pass)
{
	struct select *select = &engine->select;
	struct pick *pick = &select->pick;

	if (pick->n_words == 0)
		return;
	memset(pick->wanted, 0, pick->n_words * sizeof(*pick->wanted));
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		const struct pass_part *part = &pass->parts[i];
		const int32_t *tokens = part->session->page->tokens;
		uint32_t n = part->n_tokens;

		if (part->decodes && !part->sits_out)
			add_token(select, part->session,
				is_judged(engine, part)
					? drafts_reply(&engine->drafts, part->session->index)
					: NULL,
				0, n > 1 ? tokens[n - 2] : -1, tokens[n - 1], pick->wanted);
	}
}

static void set_needs(struct select *select, const struct pass_part *part,
	const struct draft_reply *draft, const struct policy_prices *prices)
{
	const struct engine_session *s = part->session;
	int32_t newest = s->page->tokens[part->n_tokens - 1];

	if (select->pick.n_words == 0)
		return;
	for (uint32_t i = 0; i < draft->n; i++) {
		int parent = draft->node[i].parent;
		uint64_t *needs = pick_needs(&select->pick, i);

		memset(needs, 0, select->pick.n_words * sizeof(*needs));
		/* It cannot pay for its row, even with the best run behind it. */
		if (select->chance[i] * PICK_RUN * prices->token < prices->row)
			continue;
		add_token(select, s, draft, 1 + i, parent < 0 ? newest : draft->node[parent].token,
			draft->node[i].token, needs);
	}
}

/* Keeps what was judged for whoever asks. */
static void show(
	struct engine *engine, const struct pass_part *part, const struct draft_reply *draft)
{
	struct select *select = &engine->select;
	struct select_view *view = &select->scratch;
	struct select_page *to = &select->pages[part->session->index];

	view->session = part->session->uid;
	view->iteration = engine->iteration + 1;
	view->prices = part->want.prices;
	view->n = draft->n;
	view->method = draft->method;
	for (uint32_t i = 0; i < draft->n; i++)
		view->node[i] = (struct select_view_node){
			.token = draft->node[i].token,
			.parent = draft->node[i].parent,
			.confidence = draft_confidence_of(&draft->node[i]),
			.judged = select->pick.node[i],
		};
	size_t bytes = offsetof(struct select_view, node) + draft->n * sizeof(*view->node);

	page_write(&to->lock, &to->view, view, (bytes + 7) / 8 * 8);
}

static struct chance_record *pool_of(
	struct select *select, const struct engine_session *s, uint32_t method)
{
	bool maximal = s->page->request.sampling.coupling == COUPLING_MAXIMAL;

	return &select->pool[maximal][method < SELECT_METHODS ? method : 0];
}

void select_chances(struct engine *engine, const struct engine_session *s,
	const struct draft_reply *draft, float *chance)
{
	chance_of_draft(&s->chances, pool_of(&engine->select, s, draft->method), draft, chance);
}

static void judge(struct engine *engine, const struct pass_part *part)
{
	struct select *select = &engine->select;
	struct engine_session *s = part->session;
	const struct draft_reply *draft = drafts_reply(&engine->drafts, s->index);

	select_chances(engine, s, draft, select->chance);
	set_needs(select, part, draft, &part->want.prices);
	uint32_t n = pick_nodes(&select->pick, &part->want.prices, draft, select->chance);

	show(engine, part, draft);
	if (n < draft->n)
		drafts_keep(&engine->drafts, s->index, select->pick.kept, n);
}

void pass_select(struct engine *engine, struct pass *pass)
{
	bool any = false;

	for (uint32_t i = 0; i < pass->n_parts; i++)
		any |= is_judged(engine, &pass->parts[i]);
	engine->select.learns = engine->select.priced && engine->select.history.n_layers > 0 &&
				(any || engine->iteration % LEARN_EVERY == 0);
	engine->select.priced = false;
	if (!any)
		return;
	look_at_slots(engine);
	want_certain(engine, pass);
	for (uint32_t i = 0; i < pass->n_parts; i++)
		if (is_judged(engine, &pass->parts[i]))
			judge(engine, &pass->parts[i]);
}

void pass_select_learn(struct engine *engine, const struct pass *pass)
{
	struct select *select = &engine->select;

	for (uint32_t i = 0; i < pass->n_parts; i++) {
		const struct pass_part *part = &pass->parts[i];
		struct engine_session *s = part->session;

		if (part->n_drafts == 0 || part->draft->method == DRAFT_NONE)
			continue;
		chance_learn(&s->chances, part->draft, part->out.node, part->out.n_accepted);
		chance_learn(pool_of(select, s, part->draft->method), part->draft, part->out.node,
			part->out.n_accepted);
	}
}
