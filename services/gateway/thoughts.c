#include "services/gateway/thoughts.h"

/* Spaces may stand in front of a thought: one token of them. */
enum { OPEN_WITHIN = 2 };

static void add_harmony(
	struct thoughts_count *count, const struct thoughts_marks *marks, int32_t token)
{
	bool channel = count->channel;

	count->channel = token == marks->channel;
	if (token == marks->close || token == marks->start || count->channel)
		count->within = count->analysis = false;
	else if (channel)
		count->analysis = token == marks->word;
	else if (count->within)
		count->n++;
	else
		count->within = token == marks->open && count->analysis;
}

static void add_tagged(
	struct thoughts_count *count, const struct thoughts_marks *marks, int32_t token)
{
	if (!count->within)
		count->within = token == marks->open && count->n_seen < OPEN_WITHIN && !count->over;
	else if (token != marks->close)
		count->n++;
	count->over = count->over || token == marks->close;
	count->within = count->within && !count->over;
}

void thoughts_add(struct thoughts_count *count, const struct thoughts_marks *marks,
	const int32_t *tokens, size_t n)
{
	if (marks->close == THOUGHTS_NO_TOKEN)
		return;
	for (size_t i = 0; i < n; i++, count->n_seen++)
		if (marks->channel != THOUGHTS_NO_TOKEN)
			add_harmony(count, marks, tokens[i]);
		else
			add_tagged(count, marks, tokens[i]);
}
