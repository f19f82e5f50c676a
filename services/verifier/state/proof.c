#include "services/verifier/state/proof.h"

#include "shared/base/clock.h"
#include "shared/model/gguf/gguf_watch.h"
#include "shared/spec/file_digest.h"

#include <unistd.h>

#define LOOK_US 1000

void proof_init(struct proof *proof)
{
	*proof = (struct proof){.region = {.fd = -1}};
	pthread_mutex_init(&proof->lock, NULL);
}

static void let_go(struct proof *proof)
{
	if (proof->region.header != NULL)
		region_close(&proof->region);
	proof->region = (struct region){.fd = -1};
	proof->linked = false;
}

void proof_exit(struct proof *proof)
{
	let_go(proof);
	pthread_mutex_destroy(&proof->lock);
}

static enum proof_verdict look(struct proof *proof, const struct gguf *gguf)
{
	if (proof->region.header == NULL)
		return PROOF_NONE;
	const struct file_digest *digest = region_payload(&proof->region);
	/* Pairs with the expert cache's release, so the origin that is read next is not older than
	 * the state. */
	uint64_t state = atomic_load_explicit(&digest->state, memory_order_acquire);
	uint64_t origin = atomic_load_explicit(&digest->origin, memory_order_relaxed);
	bool whole = gguf_proven(gguf), here = state == gguf_state(gguf);
	if (!proof->linked || proof->origin != origin) {
		/* This digest cannot tell what happened before, only what happens from now on. */
		proof->linked = here;
		proof->origin = origin;
		proof->gap |= here && !whole;
		return whole ? PROOF_SAME : PROOF_NONE;
	}
	if (atomic_load_explicit(&digest->differs, memory_order_acquire) != 0) {
		gguf_lose(gguf, GGUF_REPORTED, 0);
		return PROOF_DIFFERS;
	}
	if (!here)
		return PROOF_PENDING;
	/* The state has the same origin, so all blocks were compared. */
	if (!proof->gap)
		gguf_prove(gguf, state);
	return PROOF_SAME;
}

void proof_give(struct proof *proof, struct region *region, const struct gguf *gguf)
{
	struct error ignored;
	pthread_mutex_lock(&proof->lock);
	const struct region_header *old = proof->region.header;
	bool known = old != NULL && old->uid == region->header->uid;
	if (known || file_digest_check(region_payload(region), region->bytes - REGION_DATA, gguf,
			     &ignored) != 0) {
		region_close(region);
	} else {
		/* Looks a last time at the old digest. */
		(void)look(proof, gguf);
		let_go(proof);
		proof->region = *region;
	}
	/* Looks once now, if possible before anything touches the files. */
	(void)look(proof, gguf);
	pthread_mutex_unlock(&proof->lock);
}

enum proof_verdict proof_look(struct proof *proof, const struct gguf *gguf)
{
	pthread_mutex_lock(&proof->lock);
	enum proof_verdict verdict = look(proof, gguf);
	pthread_mutex_unlock(&proof->lock);
	return verdict;
}

int proof_wait(struct proof *proof, const struct gguf *gguf, struct error *err)
{
	uint64_t end_ns = clock_ns() + PROOF_HOLD_NS;
	if (gguf_proven(gguf) || proof->held == gguf_state(gguf))
		return 0;
	while (proof_look(proof, gguf) == PROOF_PENDING && clock_ns() < end_ns) {
		usleep(LOOK_US);
		/* The file may be touched again, or truncated. */
		if (gguf_watch(gguf, err) != 0)
			break;
	}
	proof->held = gguf_state(gguf);
	return gguf_lost(gguf, err);
}
