#include "services/expert-cache/reader/packer.h"

#include "kernels/tiles.h"
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/timeline.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* A tenth of a CPU when two threads want it. With less, experts of a busy model would stay unpacked
 * for minutes. */
#define NICE 10
/* How often the thread checks whether to stop. */
#define IDLE_NS 1000000000ull
/* Slots on top that are tried; pinned ones belong to the layer that runs. */
#define TRIES 16
/* If nothing was used for this long, nothing is needed soon. */
#define QUIET_NS 20000000ull

/* ---- One expert. ---- */

size_t packer_scratch_bytes(const struct slots_geometry *geometry)
{
	size_t most = 1;
	for (uint32_t l = 0; l < geometry->n_layers; l++)
		for (int p = 0; geometry->layers[l].moe && p < EXPERT_PARTS; p++) {
			size_t row = geometry->layers[l].part[p].matrix.row_bytes;
			most = row > most ? row : most;
		}
	return TILE_LANES * most;
}

void packer_pack(const struct slots_layer_geometry *layer, uint32_t expert, unsigned char *slot,
	void *scratch)
{
	for (int p = 0; p < EXPERT_PARTS; p++) {
		const struct slots_part *part = &layer->part[p];
		tiles_pack_down(&part->matrix, slot + slots_part_place(part, expert),
			slot + part->tiles_at, scratch);
	}
}

/* ---- The thread. ---- */

static void do_job(struct packer *packer)
{
	const struct store *store = packer->store;
	const struct slot_note *note = &store->notes[packer->slot];
	uint64_t start_ns = clock_ns();
	packer_pack(&store->geometry.layers[note->layer], note->expert,
		slots_at(&store->slots, packer->slot), packer->scratch);
	if (timeline_on())
		timeline_add(&(struct timeline_span){.start_ns = start_ns,
			.end_ns = clock_ns(),
			.kind = TIMELINE_PACK,
			.value = {note->layer, note->expert}});
	/* Release pairs with the acquire in end_job: the bytes are written before READY. */
	atomic_store_explicit(&packer->job, PACKER_DONE, memory_order_release);
	doorbell_ring(&store->slots.hinted->work);
}

static void *packer_thread(void *arg)
{
	struct packer *packer = arg;
	/* On Linux this concerns the calling thread only. */
	(void)setpriority(PRIO_PROCESS, 0, NICE);
	while (!atomic_load_explicit(&packer->stop, memory_order_relaxed)) {
		uint32_t seen = doorbell_read(&packer->given);
		/* Acquire pairs with the release in begin_job: slot is written. */
		if (atomic_load_explicit(&packer->job, memory_order_acquire) == PACKER_GIVEN)
			do_job(packer);
		else
			doorbell_wait(&packer->given, seen, 0, IDLE_NS);
	}
	return NULL;
}

static bool makes_a_difference(const struct slots_layer_geometry *layer)
{
	for (int p = 0; layer->moe && p < EXPERT_PARTS; p++)
		if (tiles_possible(&layer->part[p].matrix))
			return true;
	return false;
}

static uint32_t uses_that_pay(const struct slots_layer_geometry *layer)
{
	uint64_t bytes = layer->part[EXPERT_GATE].bytes + layer->part[EXPERT_UP].bytes +
			 layer->part[EXPERT_DOWN].bytes;
	return makes_a_difference(layer) ? PACKER_USES + (uint32_t)(PACKER_FIXED_BYTES / bytes) : 0;
}

int packer_start(struct packer *packer, struct store *store, struct error *err)
{
	memset(packer, 0, sizeof(*packer));
	packer->store = store;
	for (uint32_t l = 0; l < store->geometry.n_layers; l++)
		packer->uses[l] = uses_that_pay(&store->geometry.layers[l]);
	packer->scratch = malloc(packer_scratch_bytes(&store->geometry));
	if (packer->scratch == NULL)
		return error_set(err, ENOMEM, "no memory to pack experts");
	int code = pthread_create(&packer->thread, NULL, packer_thread, packer);
	if (code != 0) {
		free(packer->scratch);
		return error_thread(err, code, "the thread that packs cannot be started");
	}
	packer->running = true;
	return 0;
}

static void end_job(struct packer *packer)
{
	if (atomic_load_explicit(&packer->job, memory_order_acquire) != PACKER_DONE)
		return;
	store_pack_end(packer->store, packer->slot);
	counter_add(&packer->packed, 1);
	atomic_store_explicit(&packer->job, PACKER_IDLE, memory_order_relaxed);
}

void packer_stop(struct packer *packer)
{
	if (!packer->running)
		return;
	atomic_store_explicit(&packer->stop, true, memory_order_relaxed);
	doorbell_ring(&packer->given);
	pthread_join(packer->thread, NULL);
	/* A job was given, and the thread has not seen it. */
	if (atomic_load_explicit(&packer->job, memory_order_relaxed) == PACKER_GIVEN)
		do_job(packer);
	end_job(packer);
	free(packer->scratch);
	packer->running = false;
}

/* ---- Which expert is worth packing, and when. ---- */

void packer_used(struct packer *packer, uint32_t slot, uint32_t tokens, uint64_t now_ns)
{
	struct slot_note *note = &packer->store->notes[slot];
	uint32_t uses = packer->uses[note->layer];
	packer->layer = note->layer;
	packer->used_ns = now_ns;
	if (!packer->wanted || note->tiles || note->due || uses == 0)
		return;
	note->row_uses += 1 + tokens / PACKER_USE_TOKENS;
	if (note->row_uses < uses || packer->n_due == PACKER_DUE_MAX)
		return;
	note->due = true;
	packer->due[packer->n_due++] = slot;
}

static void forget_due(struct packer *packer, uint32_t at)
{
	packer->store->notes[packer->due[at]].due = false;
	memmove(packer->due + at, packer->due + at + 1,
		(--packer->n_due - at) * sizeof(*packer->due));
}

/* True when the slot still holds the noted expert in the file's layout: it may have been given to
 * another since. */
static bool still_due(const struct store *store, uint32_t slot)
{
	const struct slot_note *note = &store->notes[slot];
	return note->due && !note->tiles && !note->packing &&
	       slots_holds(&store->slots, slot, note->layer, note->expert);
}

static bool begin_job(struct packer *packer, uint32_t slot)
{
	if (!store_pack_begin(packer->store, slot))
		return false;
	packer->slot = slot;
	atomic_store_explicit(&packer->job, PACKER_GIVEN, memory_order_release);
	doorbell_ring(&packer->given);
	return true;
}

/* Layers run in a circle: true when the slot's layer will not run for more than half of it. */
static bool has_time(const struct packer *packer, uint32_t slot, uint64_t now_ns)
{
	uint32_t n = packer->store->geometry.n_layers, layer = packer->store->notes[slot].layer;
	uint32_t since = (packer->layer + n - layer) % n;
	return 2 * since < n || now_ns - packer->used_ns > QUIET_NS;
}

bool packer_work(struct packer *packer, uint64_t now_ns)
{
	end_job(packer);
	if (!packer->wanted ||
		atomic_load_explicit(&packer->job, memory_order_relaxed) != PACKER_IDLE)
		return false;
	for (uint32_t at = packer->n_due, tries = 0; at-- > 0 && tries < TRIES;) {
		uint32_t slot = packer->due[at];
		if (!still_due(packer->store, slot)) {
			forget_due(packer, at);
			continue;
		}
		if (!has_time(packer, slot, now_ns))
			continue;
		tries++;
		if (begin_job(packer, slot)) {
			forget_due(packer, at);
			return false;
		}
	}
	return packer->n_due > 0;
}
