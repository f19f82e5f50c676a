/*
 * Packing of resident experts. An expert that has just arrived lies as in the file: it is used at once, and many are gone before
 * they are used again. One that stays is worth bringing into the layout that is multiplied fastest (kernels/tiles.h): it is,
 * once that has been missed for about the time that packing takes. Whatever comes, no more than twice the least possible is spent
 * then (the ski rental problem). On one thread of a Zen 5 with Q4_0: packing takes 0.13 ns a byte and, whatever the size, 40 us
 * of waking and being woken; a pass of one token 0.074 ns a byte as it lies in the file and 0.027 packed, one of eight 0.118 and
 * 0.047. So it pays after three uses of a large expert, and after more of a small one.
 *
 * A thread of low priority does it, one expert at a time: with the CPU time that waiting for the link leaves, or a small
 * share where nobody waits. Meanwhile the slot is LOADING, and who wants it waits: so it is one whose layer has just run.
 */
#pragma once

#include "services/expert-cache/store/store.h"

#include <pthread.h>

enum {
	/* Uses since it arrived after which it pays: so many and, for what packing costs whatever the size, one for every time that
	 * the expert goes into so many bytes. */
	PACKER_USES = 3,
	PACKER_FIXED_BYTES = 1 << 20,
	/* A use by so many tokens counts as one more. */
	PACKER_USE_TOKENS = 16,
	PACKER_DUE_MAX = 1024,
};

enum packer_job { PACKER_IDLE, PACKER_GIVEN, PACKER_DONE };

struct packer {
	struct store *store;
	bool wanted; /* resident experts are to be packed, from now on */
	uint32_t uses[LIMIT_LAYERS]; /* after which it pays; 0: it makes no difference */
	uint32_t n_due, due[PACKER_DUE_MAX]; /* slots to be packed, the one used last on top */
	uint32_t layer; /* that was used last */
	uint64_t used_ns; /* and when the worker heard of it */
	uint32_t slot; /* of the job */
	void *scratch; /* the thread's */
	_Atomic int
		job; /* enum packer_job: GIVEN by the worker, DONE by the thread, IDLE again by the worker */
	struct doorbell given;
	_Atomic uint64_t packed; /* slots, since the start */
	atomic_bool stop;
	pthread_t thread;
	bool running;
};

/* Bytes that packing any expert needs for itself. */
size_t packer_scratch_bytes(const struct slots_geometry *geometry);
/* An expert of that layer, as it was read into slot -> LAYOUT_TILES, in the same slot. scratch: packer_scratch_bytes. */
void packer_pack(const struct slots_layer_geometry *layer, uint32_t expert, unsigned char *slot,
	void *scratch);

/* Borrows the store. */
int packer_start(struct packer *packer, struct store *store, struct error *err);
/* Ends the job under way; the worker does not run any more. */
void packer_stop(struct packer *packer);

/* The rest is the transfer worker's. */

/* The resident expert of this slot was used for so many tokens. */
void packer_used(struct packer *packer, uint32_t slot, uint32_t tokens, uint64_t now_ns);
/* Ends what is done, begins the next. True: some are due, and none of them can be packed now. */
bool packer_work(struct packer *packer, uint64_t now_ns);
