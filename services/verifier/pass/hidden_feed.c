#include "services/verifier/pass/hidden_feed.h"

#include "shared/base/counter.h"
#include "shared/base/log.h"

#include <string.h>

void hidden_feed_init(struct hidden_feed *feed, struct backend *backend)
{
	memset(feed, 0, sizeof(*feed));
	feed->backend = backend;
	feed->region.fd = -1;
}

static void close_region(struct hidden_feed *feed)
{
	if (feed->region.header == NULL)
		return;
	feed->backend->ops->free(&feed->buffer);
	region_close(&feed->region);
	feed->region = (struct region){.fd = -1};
}

void hidden_feed_exit(struct hidden_feed *feed)
{
	close_region(feed);
}

void hidden_feed_use(struct hidden_feed *feed, struct region *region, uint32_t n_max)
{
	struct error err = {.text = ""};

	close_region(feed);
	if (region->header == NULL)
		return;
	size_t bytes = region->bytes - REGION_DATA;
	int rc = hidden_attach(&feed->hidden, region_payload(region), bytes, &err);
	if (rc == 0 && feed->hidden.shape.n_rows < n_max)
		rc = error_set(&err, ENOSPC, "hidden states: %u rows are too few for a pass of %u",
			feed->hidden.shape.n_rows, n_max);
	if (rc == 0)
		rc = feed->backend->ops->wrap(
			feed->backend, region_payload(region), bytes, &feed->buffer, &err);
	if (rc != 0) {
		log_error("the drafter gets no hidden states: %s", err.text);
		region_close(region);
		return;
	}
	hidden_write_begin(&feed->hidden);
	feed->region = *region;
	*region = (struct region){.fd = -1};
}

static bool wanted(const struct pass_part *part)
{
	const struct engine_session *s = part->session;

	switch (s->page->request.draft_method) {
	case DRAFT_AUTO:
	case DRAFT_EAGLE3:
	case DRAFT_MTP:
		return follow_on(&s->follow);
	default:
		return false;
	}
}

void hidden_feed_begin(
	struct hidden_feed *feed, const struct pass *pass, struct queue *queue, bool listened)
{
	feed->n_rows = 0;
	listened &= feed->region.header != NULL;
	for (uint32_t i = 0; listened && i < pass->n_parts; i++)
		if (wanted(&pass->parts[i]))
			feed->n_rows += pass->parts[i].n + pass->parts[i].n_drafts;
	feed->on = feed->n_rows > 0;
	feed->pass = pass;
	feed->queue = queue;
	if (feed->on)
		(void)hidden_reserve(&feed->hidden, feed->n_rows);
}

/* Copies n rows of the batch to the log, from its row `to` on. */
static void copy(struct hidden_feed *feed, uint32_t tap, uint64_t to, const struct rows *x,
	uint32_t from, uint32_t n)
{
	while (n > 0) {
		uint32_t here = hidden_to_end(&feed->hidden, to);

		here = here < n ? here : n;
		feed->queue->ops->copy(feed->queue,
			(struct place){&feed->buffer, hidden_state_offset(&feed->hidden, to, tap)},
			(struct place){x->buffer, x->offset + from * x->stride}, here * x->stride);
		to += here;
		from += here;
		n -= here;
	}
}

void hidden_feed_layer(struct hidden_feed *feed, uint32_t layer, const struct rows *x)
{
	const struct hidden_shape *shape = &feed->hidden.shape;

	for (uint32_t tap = 0; feed->on && tap < shape->n_taps; tap++) {
		uint64_t row = feed->hidden.end;

		if (shape->tap[tap] != layer || x->stride != shape->n_embd * sizeof(float))
			continue;
		for (uint32_t i = 0; i < feed->pass->n_parts; i++) {
			const struct pass_part *part = &feed->pass->parts[i];
			uint32_t n = part->n + part->n_drafts;

			if (!wanted(part))
				continue;
			copy(feed, tap, row, x, part->row, n);
			row += n;
		}
	}
}

/* The text of the session's first n tokens, which goes on from those of the last call. */
static uint64_t text_of(struct engine_session *s, uint32_t n)
{
	if (s->text_n == 0 || s->text_n > n) {
		s->text_n = 0;
		s->text = s->page->request.prefix_domain;
	}
	for (; s->text_n < n; s->text_n++)
		s->text = hidden_text(s->text, s->page->tokens[s->text_n]);
	return s->text;
}

/* Tags the rows of one part, of which the first has the number `row`. */
static void tag(struct hidden_feed *feed, const struct pass_part *part, uint64_t row)
{
	struct engine_session *s = part->session;
	const struct batch_token *batch = feed->pass->batch + part->row;
	struct hidden_tag tag = {.session = s->uid, .page = s->index};

	for (uint32_t i = 0; i < part->n; i++) {
		tag.position = batch[i].position;
		tag.text = text_of(s, tag.position + 1);
		hidden_set_tag(&feed->hidden, row + i, tag);
	}
	row += part->n;
	batch += part->n;
	for (uint32_t i = 0; i < part->n_drafts; i++)
		hidden_set_tag(&feed->hidden, row + i, (struct hidden_tag){0});
	/* As commit keeps the cells: the last token that was emitted was not computed. The nodes are
	 * a path: each goes on from the one before. */
	for (uint32_t i = 0; i < part->out.n_accepted && i + 1 < part->n_emitted; i++) {
		const struct batch_token *token = &batch[part->out.node[i]];

		tag.position = token->position;
		tag.text = hidden_text(tag.text, token->token);
		hidden_set_tag(&feed->hidden, row + (uint64_t)part->out.node[i], tag);
	}
}

bool hidden_feed_end(struct hidden_feed *feed)
{
	uint64_t row = feed->hidden.end;
	bool prompts = false;

	if (!feed->on)
		return false;
	for (uint32_t i = 0; i < feed->pass->n_parts; i++) {
		const struct pass_part *part = &feed->pass->parts[i];

		if (!wanted(part))
			continue;
		tag(feed, part, row);
		prompts |= !part->decodes;
		row += part->n + part->n_drafts;
	}
	hidden_publish(&feed->hidden, feed->n_rows);
	counter_add(&feed->rows, feed->n_rows);
	feed->on = false;
	return prompts;
}
