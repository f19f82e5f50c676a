/*
 * What the expert-cache's digest (shared/spec/file_digest.h) says of the model's files after something has touched them.
 * gguf_watch has then looked at a sample; the engine holds back what it has computed until the digest has been compared,
 * for at most PROOF_HOLD_NS: a model of some gigabytes is compared in that time. What a larger one computes from then on
 * gets out, and a difference that is found later ends it.
 */
#pragma once

#include "shared/ipc/region.h"
#include "shared/model/gguf/gguf.h"

#include <pthread.h>
#include <stdbool.h>

#define PROOF_HOLD_NS 2000000000u

struct proof {
	pthread_mutex_t lock; /* all below: the front's and the engine's */
	struct region region; /* header NULL: none */
	/* The region was seen in the state in which our files are, with this origin. */
	bool linked;
	uint64_t origin;
	bool gap; /* something had touched the files before it was: all bytes are never proven again */
	uint64_t held; /* the state for which the engine has waited long enough */
};

void proof_init(struct proof *proof);
void proof_exit(struct proof *proof);
/* Takes the region; one that is about other files is let go of. */
void proof_give(struct proof *proof, struct region *region, const struct gguf *gguf);

enum proof_verdict {
	PROOF_NONE, /* nobody can tell */
	PROOF_PENDING, /* it is being compared */
	PROOF_SAME, /* every byte, since the digest was seen first: gguf_proven, unless there was a gap before */
	PROOF_DIFFERS, /* the model is lost: gguf_lost */
};
/* Now and then, so that what happens later can be told. Any thread. */
enum proof_verdict proof_look(struct proof *proof, const struct gguf *gguf);
/* The engine, after gguf_watch: waits while it is being compared. As gguf_lost. */
int proof_wait(struct proof *proof, const struct gguf *gguf, struct error *err);
