#include "services/verifier/pass/node_chance.h"

#include <string.h>

/* The prior counts as much as this many accepted tokens. */
#define WEIGHT 2.0f
/* When a class has seen this many, its sums are halved. */
#define MEMORY 128.0f
/* No token is certain, and none is hopeless. */
#define CHANCE_MAX 0.98f
#define CHANCE_MIN 0.001f

/* Lower ends of the classes of confidence, from the highest. */
static uint32_t class_of(float confidence)
{
	static const float from[CHANCE_CLASSES - 1] = {0.9f, 0.7f, 0.5f, 0.3f, 0.15f, 0.07f, 0.03f};
	uint32_t class = 0;

	while (class < CHANCE_CLASSES - 1 && confidence < from[class])
		class ++;
	return class;
}

/* The rank of each node among its siblings. */
static void ranks_of(const struct draft_reply *draft, uint8_t *rank)
{
	uint16_t children[LIMIT_DRAFT_NODES + 1];

	memset(children, 0, (draft->n + 1) * sizeof(*children));
	for (uint32_t i = 0; i < draft->n; i++) {
		uint16_t before = children[draft->node[i].parent + 1]++;

		rank[i] = (uint8_t)(before < CHANCE_RANKS ? before : CHANCE_RANKS - 1);
	}
}

void chance_learn(struct chance_record *record, const struct draft_reply *draft,
	const int16_t *accepted, uint32_t n_accepted)
{
	uint8_t rank[LIMIT_DRAFT_NODES];
	bool reached[LIMIT_DRAFT_NODES + 1] = {true}, stood[LIMIT_DRAFT_NODES] = {false};

	for (uint32_t i = 0; i < n_accepted; i++)
		stood[accepted[i]] = reached[accepted[i] + 1] = true;
	ranks_of(draft, rank);
	for (uint32_t i = 0; i < draft->n; i++) {
		float confidence = draft_confidence_of(&draft->node[i]);
		uint32_t class = class_of(confidence);
		float *expected = &record->expected[rank[i]][class];

		if (!reached[draft->node[i].parent + 1])
			continue;
		if (*expected > MEMORY) {
			*expected /= 2;
			record->accepted[rank[i]][class] /= 2;
		}
		*expected += confidence;
		record->accepted[rank[i]][class] += stood[i];
	}
}

/* Accepted over expected, with the prior `before`. */
static float ratio(const struct chance_record *record, uint32_t rank, uint32_t class, float before)
{
	return (record->accepted[rank][class] + WEIGHT * before) /
	       (record->expected[rank][class] + WEIGHT);
}

void chance_of_draft(const struct chance_record *own, const struct chance_record *pool,
	const struct draft_reply *draft, float *chance)
{
	uint8_t rank[LIMIT_DRAFT_NODES];

	ranks_of(draft, rank);
	for (uint32_t i = 0; i < draft->n; i++) {
		int parent = draft->node[i].parent;
		float confidence = draft_confidence_of(&draft->node[i]);
		uint32_t class = class_of(confidence);
		float right =
			confidence * ratio(own, rank[i], class, ratio(pool, rank[i], class, 1));

		right = right < CHANCE_MAX ? right : CHANCE_MAX;
		right = right > CHANCE_MIN ? right : CHANCE_MIN;
		chance[i] = right * (parent < 0 ? 1 : chance[parent]);
	}
}
