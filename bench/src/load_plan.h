/*
 * What a load consists of: when requests arrive, how long they are, and what they begin with. Made
 * before anything is sent. Pure, except for reading a trace.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct load_range {
	uint32_t low, high; /* any number between them is equally likely */
};

struct load_arrival {
	double due_s; /* since the beginning */
	uint32_t prompt_tokens, output_tokens;
	/* The blocks of the trace that the prompt consists of: blocks[block .. block + n_blocks - 1].
	 * 0 blocks: the trace tells none. */
	uint32_t n_blocks;
	size_t block;
};

struct load_plan {
	struct load_arrival *arrivals; /* [n], owned, in order of time */
	size_t n, capacity;
	uint64_t *blocks; /* [n_blocks], owned: equal numbers are equal pieces of prompts */
	size_t n_blocks, blocks_capacity;
	double block_tokens; /* tokens of a block */
	bool closed; /* a client sends its next request when it has the answer to the last */
};

enum load_process { LOAD_POISSON, LOAD_GAMMA, LOAD_BURSTS, LOAD_CLOSED };

/* How requests arrive. */
struct load_arrivals {
	enum load_process process;
	double shape; /* gamma: of the times between requests; below 1 they come in clusters */
	double on_s, off_s; /* bursts: all requests come in on_s, then none for off_s */
};

/* "poisson", "gamma:SHAPE", "bursts:ON,OFF" or "closed"; -EINVAL with a message. */
int load_arrivals_parse(const char *text, struct load_arrivals *out, struct error *err);

/* Adds arrivals at `rate` a second in the mean, until there are n (0: no such bound) or `seconds`
 * are over (0: no such bound; one of both must be set). The same seed gives the same plan. closed:
 * n arrivals that are due at once. */
int load_plan_random(struct load_plan *plan, const struct load_arrivals *arrivals, double rate,
	size_t n, double seconds, struct load_range prompt, struct load_range output, uint64_t seed,
	struct error *err);

/* How a trace is replayed. */
struct load_replay {
	double speed; /* times between requests are divided by it */
	double scale; /* lengths are multiplied by it */
	size_t n; /* the most requests; 0: all */
	double seconds; /* requests of the first seconds, as replayed; 0: all */
};

/*
 * Reads a trace, one request a line, of one of these formats:
 * - Azure's LLM inference traces: CSV with the columns TIMESTAMP (date and time), ContextTokens and
 *   GeneratedTokens;
 * - Mooncake's: JSONL with timestamp (ms), input_length, output_length and, if it is there,
 *   hash_ids, the numbers of the prompt's blocks of 512 tokens.
 * Columns and keys may come in any order. Errors name the file and the line.
 */
int load_plan_trace(struct load_plan *plan, const char *path, const struct load_replay *replay,
	struct error *err);
void load_plan_free(struct load_plan *plan);

/* Appends one arrival; blocks: [n_blocks] of its prompt, or NULL. -ENOMEM. */
int load_plan_add(struct load_plan *plan, const struct load_arrival *arrival,
	const uint64_t *blocks, uint32_t n_blocks);

/* What prompts are made of. */
struct load_prompts {
	const int32_t *corpus; /* [n_corpus] tokens; NULL: random tokens */
	size_t n_corpus;
	uint32_t vocabulary; /* tokens that random prompts draw from */
	const int32_t *avoid; /* [n_avoid] tokens that random prompts do not have */
	size_t n_avoid;
	int32_t first; /* the first token of every prompt; -1: no such token */
	uint32_t shared; /* tokens with which the prompts of a group begin */
	uint32_t groups;
	uint64_t seed;
};

/* The prompt of arrival `index`: out[0 .. prompt_tokens-1]. Prompts of a trace with blocks are equal
 * where their blocks are. */
void load_prompt(const struct load_prompts *prompts, const struct load_plan *plan, size_t index,
	int32_t *out);
