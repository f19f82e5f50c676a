/*
 * What the expert cache's digest (shared/spec/file_digest.h) says of the model's files after
 * something has touched them. gguf_watch has then compared a sample. The engine holds its results
 * back until the digest has been compared as well, but for PROOF_HOLD_NS at most, in which a model
 * of some gigabytes is compared. A larger model's results go out after that, and a difference that
 * is found later ends the model.
 */
#pragma once

#include "shared/ipc/region.h"
#include "shared/model/gguf/gguf.h"

#include <pthread.h>
#include <stdbool.h>

#define PROOF_HOLD_NS 2000000000u

struct proof {
	pthread_mutex_t lock; /* everything below: the front's and the engine's */
	struct region region; /* header NULL: there is none */
	/* The digest had the state of our files once, with this origin. */
	bool linked;
	uint64_t origin;
	/* the files had been touched before that, so not all bytes can be proven any more */
	bool gap;
	uint64_t held; /* the state for which the engine has waited long enough */
};

void proof_init(struct proof *proof);
void proof_exit(struct proof *proof);
/* Takes the region over. One that is about other files is closed. */
void proof_give(struct proof *proof, struct region *region, const struct gguf *gguf);

enum proof_verdict {
	PROOF_NONE, /* no digest can tell */
	PROOF_PENDING, /* the comparison is in progress */
	/* every byte is the same since the digest was first seen: gguf_proven, unless there was a
	 * gap */
	PROOF_SAME,
	PROOF_DIFFERS, /* the model is lost: gguf_lost */
};
/* Call from time to time, so that what happens later can be judged. Any thread. */
enum proof_verdict proof_look(struct proof *proof, const struct gguf *gguf);
/* For the engine, after gguf_watch: waits while the comparison is in progress. Returns the same as
 * gguf_lost. */
int proof_wait(struct proof *proof, const struct gguf *gguf, struct error *err);
