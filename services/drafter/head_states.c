#include "services/drafter/head_states.h"

#include "kernels/sampler.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void head_states_init(
	struct head_states *states, struct draft_session *sessions, uint32_t n_sessions)
{
	memset(states, 0, sizeof(*states));
	states->region.fd = -1;
	states->sessions = sessions;
	states->n_sessions = n_sessions;
}

void head_states_exit(struct head_states *states)
{
	region_close(&states->region);
}

static void forget(struct draft_session *s)
{
	if (s->state_row)
		memset(s->state_row, 0, s->n_states * sizeof(*s->state_row));
	s->n_states = 0;
}

int head_states_use(struct head_states *states, struct region *region, struct error *err)
{
	for (uint32_t i = 0; i < states->n_sessions; i++)
		if (states->sessions[i].uid != 0)
			forget(&states->sessions[i]);
	region_close(&states->region);
	states->region = *region;
	*region = (struct region){.fd = -1};
	states->seen = 0;
	int r = hidden_attach(&states->hidden, region_payload(&states->region),
		states->region.bytes - REGION_DATA, err);
	if (r < 0)
		region_close(&states->region);
	if (r < 0)
		states->region = (struct region){.fd = -1};
	return r;
}

bool head_states_fit(const struct head_states *states, const struct hidden_shape *wanted)
{
	return states->region.header && hidden_same(&states->hidden.shape, wanted);
}

/* Notes what a tag says, if it is of a session that is followed. `only`: of no other one. */
static void note(struct head_states *states, uint64_t row, const struct draft_session *only)
{
	struct hidden_tag tag;
	if (!hidden_read_tag(&states->hidden, row, &tag) || tag.session == 0 ||
		tag.page >= states->n_sessions)
		return;
	struct draft_session *s = &states->sessions[tag.page];
	if (s->uid != tag.session || !s->state_row || tag.position >= s->n_context ||
		(only && only != s))
		return;
	s->state_row[tag.position] = row + 1;
	if (tag.position >= s->n_states)
		s->n_states = tag.position + 1;
}

/* Notes a row of another session that has the same text up to there. */
static void note_alike(
	struct head_states *states, uint64_t row, struct draft_session *s, const uint64_t *texts)
{
	struct hidden_tag tag;
	if (!hidden_read_tag(&states->hidden, row, &tag) || tag.session == 0 ||
		tag.position >= s->n || tag.text != texts[tag.position])
		return;
	s->state_row[tag.position] = row + 1;
	if (tag.position >= s->n_states)
		s->n_states = tag.position + 1;
}

int head_states_begin(struct head_states *states, struct draft_session *s)
{
	uint64_t begin, end, text = s->request.prefix_domain, *texts;
	if (s->state_row)
		return 0;
	s->state_row = calloc(s->n_context, sizeof(*s->state_row));
	if (!s->state_row)
		return -ENOMEM;
	s->n_states = 0;
	if (!states->region.header || !hidden_range(&states->hidden, &begin, &end))
		return 0;
	texts = malloc(s->n * sizeof(*texts));
	for (uint32_t i = 0; texts && i < s->n; i++)
		texts[i] = text = hidden_text(text, s->tokens[i]);
	for (uint64_t row = begin; row < end && row < states->seen; row++) {
		if (texts)
			note_alike(states, row, s, texts);
		note(states, row, s);
	}
	free(texts);
	return 0;
}

void head_states_look(struct head_states *states)
{
	uint64_t begin, end;
	if (!states->region.header || !hidden_range(&states->hidden, &begin, &end))
		return;
	if (states->seen < begin || states->seen > end)
		states->seen = begin;
	for (; states->seen < end; states->seen++)
		note(states, states->seen, NULL);
}

bool head_states_have(
	const struct head_states *states, const struct draft_session *s, uint32_t position)
{
	uint64_t begin, end;
	return s->state_row && position < s->n_states && s->state_row[position] != 0 &&
	       states->region.header && hidden_range(&states->hidden, &begin, &end) &&
	       s->state_row[position] > begin && s->state_row[position] <= end;
}

bool head_states_read(
	struct head_states *states, struct draft_session *s, uint32_t position, float *out)
{
	const struct hidden_shape *shape = &states->hidden.shape;
	if (head_states_have(states, s, position) &&
		hidden_read(&states->hidden, s->state_row[position] - 1, out) &&
		sampler_finite(out, shape->n_taps * shape->n_embd))
		return true;
	if (s->state_row)
		s->state_row[position] = 0;
	return false;
}
