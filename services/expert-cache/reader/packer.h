/*
 * Packs resident experts. An expert that has just arrived lies as in the file: it is used at once,
 * and many experts are evicted before they are used again. One that stays should be brought into
 * the layout that is multiplied fastest (kernels/tiles.h). This is done once its uses have lost
 * about as much time as packing takes, so that in any case no more than twice the least possible is
 * spent (the ski rental problem). On one thread of a Zen 5 with Q4_0, packing takes 0.13 ns a byte
 * and, whatever the size, 40 us for waking and being woken. A pass of one token takes 0.074 ns a
 * byte in the file's layout and 0.027 packed; one of eight tokens 0.118 and 0.047. So packing pays
 * after three uses of a large expert, and after more uses of a small one.
 *
 * A thread of low priority packs, one expert at a time, with the CPU time that is left while
 * everybody waits for the link, or else with a small share. Meanwhile the slot is LOADING, and a
 * verifier that wants it waits; therefore the expert is one whose layer has just run.
 */
#pragma once

#include "services/expert-cache/store/store.h"

#include <pthread.h>

enum {
	/* Uses since its arrival after which packing pays: this many, plus one for each time that
	 * the expert's size goes into PACKER_FIXED_BYTES, for the cost that does not depend on the
	 * size. */
	PACKER_USES = 3,
	PACKER_FIXED_BYTES = 1 << 20,
	/* A use by this many tokens counts as one more. */
	PACKER_USE_TOKENS = 16,
	PACKER_DUE_MAX = 1024,
};

enum packer_job { PACKER_IDLE, PACKER_GIVEN, PACKER_DONE };

struct packer {
	struct store *store;
	bool wanted; /* resident experts are to be packed, from now on */
	uint32_t uses[LIMIT_LAYERS]; /* uses after which packing pays; 0: it makes no difference */
	uint32_t n_due, due[PACKER_DUE_MAX]; /* slots to be packed; the one used last is on top */
	uint32_t layer; /* the layer used last */
	uint64_t used_ns; /* when the worker heard of that */
	uint32_t slot; /* the job's */
	void *scratch; /* belongs to the thread */
	/* enum packer_job: the worker sets GIVEN, the thread DONE, the worker IDLE again */
	_Atomic int job;
	struct doorbell given;
	_Atomic uint64_t packed; /* number of slots packed since the start */
	atomic_bool stop;
	pthread_t thread;
	bool running;
};

/* Bytes of scratch memory that packing any expert needs. */
size_t packer_scratch_bytes(const struct slots_geometry *geometry);
/* Packs an expert of this layer, which lies in `slot` as it was read, to LAYOUT_TILES in place.
 * scratch: packer_scratch_bytes. */
void packer_pack(const struct slots_layer_geometry *layer, uint32_t expert, unsigned char *slot,
	void *scratch);

/* Borrows the store. */
int packer_start(struct packer *packer, struct store *store, struct error *err);
/* Finishes the present job. The worker must not run any more. */
void packer_stop(struct packer *packer);

/* The rest is for the transfer worker. */

/* Call when the resident expert in this slot was used for `tokens` tokens. */
void packer_used(struct packer *packer, uint32_t slot, uint32_t tokens, uint64_t now_ns);
/* Takes a finished job and begins the next. True: some slots are due, but none can be packed now.
 */
bool packer_work(struct packer *packer, uint64_t now_ns);
