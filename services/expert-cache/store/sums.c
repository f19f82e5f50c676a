#include "services/expert-cache/store/sums.h"

#include "services/expert-cache/store/store_internal.h"
#include "shared/base/checksum.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum {
	/* read in about 25 us: a demand may wait this long for the worker */
	PIECE_BYTES = 256 << 10,
	THREADS_MAX = 8,
};

int sums_init(struct store *store, struct error *err)
{
	struct slot_sums *sums = &store->sums;
	*sums = (struct slot_sums){.slot = SLOT_NONE};
	sums->due = calloc(store->slots.n_slots, sizeof(*sums->due));
	return sums->due != NULL ? 0 : error_set(err, ENOMEM, "no memory for checksums");
}

void sums_exit(struct store *store)
{
	free(store->sums.due);
	store->sums.due = NULL;
}

void sums_forget(struct store *store, uint32_t slot)
{
	atomic_store_explicit(&store->slots.sums[slot], 0, memory_order_relaxed);
	if (store->sums.slot == slot)
		store->sums.slot = SLOT_NONE;
}

void sums_due(struct store *store, uint32_t slot)
{
	struct slot_note *note = &store->notes[slot];
	if (!note->sum_due)
		store->sums.due[store->sums.n_due++] = slot;
	note->sum_due = true;
}

/* Begins a sum with what the slot holds, and in which layout. */
static uint64_t begin(uint32_t layer, uint32_t expert, bool tiles)
{
	const uint32_t content[] = {layer, expert, tiles};
	return checksum(EXPERTS_LAYOUT, content, sizeof(content));
}

static const unsigned char *part_at(const struct store *store, uint32_t slot, uint32_t layer,
	uint32_t expert, bool tiles, int p)
{
	return slots_at(&store->slots, slot) + slots_part_at(&store->geometry.layers[layer].part[p],
						       expert, tiles ? LAYOUT_TILES : LAYOUT_ROWS);
}

static uint64_t add_piece(uint64_t sum, const unsigned char *part, uint64_t bytes, uint64_t *at)
{
	uint64_t left = bytes - *at, n = left < PIECE_BYTES ? left : PIECE_BYTES;
	sum = checksum(sum, part + *at, (size_t)n);
	*at += n;
	return sum;
}

/* Never 0, which means none. */
static uint64_t end(uint64_t sum)
{
	return sum | 1;
}

/* Begins with the next due slot that still holds the noted expert. */
static bool begin_next(struct store *store)
{
	struct slot_sums *sums = &store->sums;
	while (sums->n_due > 0) {
		uint32_t slot = sums->due[--sums->n_due];
		struct slot_note *note = &store->notes[slot];
		note->sum_due = false;
		if (note->packing || !slots_holds(&store->slots, slot, note->layer, note->expert))
			continue;
		sums->slot = slot;
		sums->part = 0;
		sums->at = 0;
		sums->sum = begin(note->layer, note->expert, note->tiles);
		return true;
	}
	return false;
}

bool sums_work(struct store *store)
{
	struct slot_sums *sums = &store->sums;
	if (sums->slot == SLOT_NONE && !begin_next(store))
		return false;
	const struct slot_note *note = &store->notes[sums->slot];
	uint64_t bytes = store->geometry.layers[note->layer].part[sums->part].bytes;
	sums->sum = add_piece(sums->sum,
		part_at(store, sums->slot, note->layer, note->expert, note->tiles, sums->part),
		bytes, &sums->at);
	if (sums->at < bytes)
		return true;
	sums->at = 0;
	if (++sums->part < EXPERT_PARTS)
		return true;
	atomic_store_explicit(&store->slots.sums[sums->slot], end(sums->sum), memory_order_release);
	sums->slot = SLOT_NONE;
	return true;
}

/* ---- For the successor. ---- */

struct checking {
	const struct store *store;
	bool *wrong;
	_Atomic uint32_t next;
};

static bool is_wrong(const struct store *store, uint32_t slot, uint64_t word)
{
	uint32_t layer = slot_layer(word), expert = slot_expert(word);
	bool tiles = slot_layout(word) == LAYOUT_TILES;
	uint64_t told = atomic_load_explicit(&store->slots.sums[slot], memory_order_acquire);
	if (told == 0 || layer >= store->slots.n_layers || expert >= store->slots.n_experts ||
		!store->geometry.layers[layer].moe)
		return true;
	uint64_t sum = begin(layer, expert, tiles);
	for (int p = 0; p < EXPERT_PARTS; p++) {
		const unsigned char *part = part_at(store, slot, layer, expert, tiles, p);
		uint64_t bytes = store->geometry.layers[layer].part[p].bytes, at = 0;
		while (at < bytes)
			sum = add_piece(sum, part, bytes, &at);
	}
	return end(sum) != told;
}

static void *check_slots(void *arg)
{
	struct checking *c = arg;
	uint32_t slot;
	while ((slot = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed)) <
		c->store->slots.n_slots) {
		uint64_t word = store_state(c->store, slot);
		c->wrong[slot] = slot_state(word) == SLOT_READY && is_wrong(c->store, slot, word);
	}
	return NULL;
}

void sums_check(const struct store *store, bool *wrong)
{
	struct checking c = {.store = store, .wrong = wrong};
	pthread_t threads[THREADS_MAX];
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int n = 0;
	/* If fewer threads start than wanted, it only takes longer. */
	while (n < THREADS_MAX && n + 1 < cpus &&
		pthread_create(&threads[n], NULL, check_slots, &c) == 0)
		n++;
	check_slots(&c);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}
