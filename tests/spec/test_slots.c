/* The slot protocol: tables and words, pins against evictions under threads, and both sides killed at random. */
#include "shared/spec/slots.h"

#include "tests/hints_region.h"
#include "tests/until.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LAYERS = 3, EXPERTS = 8, SLOTS = 5, SLOT_WORDS = SLOTS_PAGE / 8 };

static const struct slots_shape test_shape = {
	.n_layers = LAYERS,
	.n_experts = EXPERTS,
	.n_experts_used = 2,
	.n_slots = SLOTS,
	.slot_bytes = SLOTS_PAGE,
	.model_fingerprint = 42,
};

struct fixture {
	struct region region, hints;
	struct slots slots;
	struct slots_geometry geometry;
};

static void fixture_init(struct fixture *fixture)
{
	struct error err;
	memset(fixture, 0, sizeof(*fixture));
	assert_int_equal(region_create(EXPERTS_REGION, EXPERTS_LAYOUT,
				 slots_payload_bytes(&test_shape), 0, &fixture->region, &err),
		0);
	slots_format(&fixture->region, &test_shape);
	assert_int_equal(slots_map(&fixture->region, &test_shape, &fixture->slots, &err), 0);
	make_hints(&fixture->hints, &fixture->slots);
	fixture->geometry.n_layers = LAYERS;
	fixture->geometry.n_experts = EXPERTS;
	for (int l = 0; l < LAYERS; l++)
		fixture->geometry.layers[l].moe = true;
}

static void fixture_exit(struct fixture *fixture)
{
	region_close(&fixture->region);
	region_close(&fixture->hints);
}

static enum slot_state state_of(const struct slots *slots, uint32_t slot)
{
	return slot_state(atomic_load(&slots->state[slot]));
}

/* What the bytes of an expert look like here. */
static uint64_t stamp(uint32_t layer, uint32_t expert, uint32_t i)
{
	return (layer * 1000 + expert + 1) * 0x9e3779b97f4a7c15ull + i;
}

static void fill(const struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert)
{
	uint64_t *words = (uint64_t *)slots_at(slots, slot);
	for (uint32_t i = 0; i < SLOT_WORDS; i++)
		words[i] = stamp(layer, expert, i);
}

static bool holds(const struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert)
{
	const uint64_t *words = (const uint64_t *)slots_at(slots, slot);
	for (uint32_t i = 0; i < SLOT_WORDS; i++)
		if (words[i] != stamp(layer, expert, i))
			return false;
	return true;
}

static void load(struct slots *slots, uint32_t slot, uint32_t layer, uint32_t expert)
{
	slots_load_begin(slots, slot, layer, expert);
	fill(slots, slot, layer, expert);
	slots_load_end(slots, slot, layer, expert, expert % 2 ? LAYOUT_TILES : LAYOUT_ROWS);
}

static void a_loaded_expert_is_found_and_pinned(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	uint32_t epoch = slots_verifier_enter(&f.slots);
	assert_int_equal(slots_pin(&f.slots, epoch, 1, 3), SLOT_NONE);
	slots_load_begin(&f.slots, 2, 1, 3);
	assert_int_equal(slots_pin(&f.slots, epoch, 1, 3), SLOT_NONE);
	fill(&f.slots, 2, 1, 3);
	uint32_t rings = doorbell_read(&f.slots.header->arrivals);
	slots_load_end(&f.slots, 2, 1, 3, LAYOUT_TILES);
	assert_int_not_equal(doorbell_read(&f.slots.header->arrivals), rings);
	assert_int_equal(slots_pin(&f.slots, epoch, 1, 3), 2);
	assert_int_equal(slot_layout(atomic_load(&f.slots.state[2])), LAYOUT_TILES);
	assert_true(holds(&f.slots, 2, 1, 3));
	assert_int_equal(slots_pin(&f.slots, epoch, 1, 4), SLOT_NONE);
	assert_true(slots_unpin(&f.slots, 2, epoch, 1, 3));
	assert_int_equal(slot_layout(atomic_load(&f.slots.state[2])), LAYOUT_TILES);
	assert_true(slots_evict(&f.slots, 2));
	slots_load_begin(&f.slots, 2, 1, 3);
	slots_load_end(&f.slots, 2, 1, 3, LAYOUT_ROWS);
	assert_int_equal(slot_layout(atomic_load(&f.slots.state[2])), LAYOUT_ROWS);
	fixture_exit(&f);
}

static void what_is_packed_in_place_cannot_be_pinned_meanwhile_and_stays_in_the_table(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	uint32_t epoch = slots_verifier_enter(&f.slots);
	assert_false(slots_pack_begin(&f.slots, 0, 0, 0)); /* EMPTY */
	load(&f.slots, 0, 0, 0);
	assert_false(slots_pack_begin(&f.slots, 0, 0, 1)); /* another expert's */
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 0), 0);
	assert_false(slots_pack_begin(&f.slots, 0, 0, 0));
	assert_true(slots_unpin(&f.slots, 0, epoch, 0, 0));
	assert_int_equal(slot_layout(atomic_load(&f.slots.state[0])), LAYOUT_ROWS);
	assert_true(slots_pack_begin(&f.slots, 0, 0, 0));
	assert_int_equal(state_of(&f.slots, 0), SLOT_LOADING);
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 0), SLOT_NONE);
	assert_false(slots_evict(&f.slots, 0));
	assert_int_equal(atomic_load(slots_word(&f.slots, 0, 0)), 1);
	uint32_t before = doorbell_read(&f.slots.header->arrivals);
	slots_load_end(&f.slots, 0, 0, 0, LAYOUT_TILES);
	assert_int_not_equal(doorbell_read(&f.slots.header->arrivals), before);
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 0), 0);
	assert_int_equal(slot_layout(atomic_load(&f.slots.state[0])), LAYOUT_TILES);
	fixture_exit(&f);
}

static void a_dead_verifiers_pin_does_not_keep_a_slot_from_being_packed(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	uint32_t epoch = slots_verifier_enter(&f.slots);
	load(&f.slots, 0, 0, 0);
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 0), 0);
	assert_false(slots_pack_begin(&f.slots, 0, 0, 0));
	slots_verifier_enter(&f.slots);
	assert_true(slots_pack_begin(&f.slots, 0, 0, 0));
	fixture_exit(&f);
}

/* Whatever is written into the word of a pinned slot, or into the epoch that lets others take it: who gives it back learns of it,
 * unless it is what was there. */
static void who_unpins_learns_that_the_word_was_written_to(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	uint32_t epoch = slots_verifier_enter(&f.slots);
	load(&f.slots, 0, 1, 3);
	for (int bit = 0; bit < 64; bit++) {
		assert_int_equal(slots_pin(&f.slots, epoch, 1, 3), 0);
		uint64_t word = atomic_load(&f.slots.state[0]);
		atomic_store(&f.slots.state[0], word ^ 1ull << bit);
		bool held = slots_unpin(&f.slots, 0, epoch, 1, 3);
		/* More pins than there are, and another layout, are not told apart. */
		uint64_t other = word ^ 1ull << bit;
		assert_true(held == (slot_state(other) == SLOT_READY && slot_pins(other) > 0 &&
					    slot_epoch(other) == epoch && slot_layer(other) == 1 &&
					    slot_expert(other) == 3));
		atomic_store(&f.slots.state[0], word);
		slots_unpin(&f.slots, 0, epoch, 1, 3);
	}
	assert_int_equal(slots_pin(&f.slots, epoch, 1, 3), 0);
	atomic_store(&f.slots.header->verifier_epoch, epoch + 1);
	assert_true(slots_evict(&f.slots, 0));
	load(&f.slots, 0, 1, 4);
	assert_false(slots_unpin(&f.slots, 0, epoch, 1, 3));
	fixture_exit(&f);
}

static void a_pinned_slot_is_not_evicted(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	uint32_t epoch = slots_verifier_enter(&f.slots);
	load(&f.slots, 0, 0, 0);
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 0), 0);
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 0), 0);
	assert_false(slots_evict(&f.slots, 0));
	assert_true(slots_unpin(&f.slots, 0, epoch, 0, 0));
	assert_false(slots_evictable(&f.slots, 0));
	assert_false(slots_evict(&f.slots, 0));
	assert_true(slots_unpin(&f.slots, 0, epoch, 0, 0));
	assert_true(slots_evictable(&f.slots, 0));
	assert_true(slots_evict(&f.slots, 0));
	assert_int_equal(state_of(&f.slots, 0), SLOT_EMPTY);
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 0), SLOT_NONE);
	fixture_exit(&f);
}

static void pins_of_a_dead_verifier_are_void_and_of_a_live_one_are_not(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	uint32_t dead = slots_verifier_enter(&f.slots);
	load(&f.slots, 0, 0, 0);
	load(&f.slots, 1, 0, 1);
	assert_int_equal(slots_pin(&f.slots, dead, 0, 0), 0);
	assert_int_equal(slots_pin(&f.slots, dead, 0, 1), 1);
	assert_false(slots_evict(&f.slots, 0));
	uint32_t epoch = slots_verifier_enter(&f.slots);
	assert_int_not_equal(epoch, dead);
	/* The successor's pin takes the place of the dead one's. */
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 1), 1);
	assert_int_equal(slot_pins(atomic_load(&f.slots.state[1])), 1);
	assert_true(slots_evict(&f.slots, 0));
	assert_false(slots_evict(&f.slots, 1));
	assert_true(slots_unpin(&f.slots, 1, epoch, 0, 1));
	assert_true(slots_evict(&f.slots, 1));
	fixture_exit(&f);
}

static void epochs_wrap_past_zero(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	atomic_store(&f.slots.header->verifier_epoch, (1u << 20) - 1);
	uint32_t epoch = slots_verifier_enter(&f.slots);
	assert_int_equal(epoch, 1);
	load(&f.slots, 0, 2, 7);
	assert_int_equal(slots_pin(&f.slots, epoch, 2, 7), 0);
	assert_false(slots_evict(&f.slots, 0));
	fixture_exit(&f);
}

static void a_failed_load_frees_the_slot_and_says_so_to_who_waits(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	slots_load_begin(&f.slots, 3, 1, 1);
	uint32_t rings = doorbell_read(&f.slots.header->arrivals);
	slots_load_fail(&f.slots, 3);
	slots_refuse(&f.slots, 1, 1);
	assert_int_equal(state_of(&f.slots, 3), SLOT_EMPTY);
	assert_int_equal(atomic_load(slots_word(&f.slots, 1, 1)), SLOTS_REFUSED);
	assert_int_not_equal(doorbell_read(&f.slots.header->arrivals), rings);
	/* A refusal never hides a slot, and a later load replaces it. */
	load(&f.slots, 3, 1, 1);
	slots_refuse(&f.slots, 1, 1);
	assert_int_equal(atomic_load(slots_word(&f.slots, 1, 1)), 4);
	fixture_exit(&f);
}

static void map_refuses_what_does_not_fit(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	struct slots out;
	struct error err;
	struct slots_header *header = f.slots.header;
	struct slots_shape other = test_shape;
	other.model_fingerprint++;
	assert_int_equal(slots_map(&f.region, &other, &out, &err), -ESTALE);
	other = test_shape;
	other.n_slots = SLOTS - 1;
	assert_int_equal(slots_map(&f.region, &other, &out, &err), -ESTALE);
	other.n_slots = 0; /* any */
	assert_int_equal(slots_map(&f.region, &other, &out, &err), 0);
	header->n_slots = 1u << 30;
	assert_int_equal(slots_map(&f.region, NULL, &out, &err), -EBADMSG);
	header->n_slots = SLOTS + 1; /* one more than the region holds */
	assert_int_equal(slots_map(&f.region, NULL, &out, &err), -EBADMSG);
	header->n_slots = SLOTS;
	header->slot_bytes = SLOTS_PAGE + 64;
	assert_int_equal(slots_map(&f.region, NULL, &out, &err), -EBADMSG);
	header->slot_bytes = SLOTS_PAGE;
	header->arena_offset += SLOTS_PAGE;
	assert_int_equal(slots_map(&f.region, NULL, &out, &err), -EBADMSG);
	header->arena_offset -= SLOTS_PAGE;
	assert_int_equal(slots_map(&f.region, NULL, &out, &err), 0);
	fixture_exit(&f);
}

static void a_bad_table_word_is_a_miss(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	uint32_t epoch = slots_verifier_enter(&f.slots);
	load(&f.slots, 0, 0, 0);
	atomic_store(slots_word(&f.slots, 0, 1), SLOTS + 1);
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 1), SLOT_NONE);
	atomic_store(slots_word(&f.slots, 0, 1), 1); /* another expert's slot */
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 1), SLOT_NONE);
	atomic_store(slots_word(&f.slots, 0, 1), SLOTS_REFUSED);
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 1), SLOT_NONE);
	fixture_exit(&f);
}

/* The state word of a slot, whatever it was, with another state. */
static void set_state(struct slots *slots, uint32_t slot, enum slot_state to)
{
	uint64_t word = atomic_load(&slots->state[slot]);
	atomic_store(&slots->state[slot], (word & ~3ull) | (uint64_t)to);
}

static void adoption_finishes_what_was_cut_off(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	struct error err;
	struct slots_adopted found;
	uint32_t epoch = slots_verifier_enter(&f.slots);
	load(&f.slots, 0, 0, 0);
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 0), 0);
	/* A word that was overwritten. */
	load(&f.slots, 1, 0, 1);
	atomic_store(slots_word(&f.slots, 0, 1), 0);
	/* Died while evicting, before the table word. */
	load(&f.slots, 2, 0, 2);
	set_state(&f.slots, 2, SLOT_EVICTING);
	/* Died while loading. */
	slots_load_begin(&f.slots, 3, 0, 3);
	/* A refusal, and words that name nothing. */
	slots_refuse(&f.slots, 1, 0);
	atomic_store(slots_word(&f.slots, 2, 2), 5);
	atomic_store(slots_word(&f.slots, 2, 3), 4000000000u);
	assert_int_equal(slots_adopt(&f.slots, &f.geometry, &found, &err), 0);
	assert_int_equal(found.ready, 2);
	assert_int_equal(found.evicting, 1);
	assert_int_equal(found.loading, 1);
	assert_int_equal(found.words, 4);
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 1), 1);
	assert_int_equal(slots_pin(&f.slots, epoch, 0, 2), SLOT_NONE);
	assert_int_equal(state_of(&f.slots, 2), SLOT_EMPTY);
	/* Left alone: the dead process's reads may still land. */
	assert_int_equal(state_of(&f.slots, 3), SLOT_LOADING);
	assert_int_equal(atomic_load(slots_word(&f.slots, 2, 2)), 0);
	/* The verifier's pin was not touched. */
	assert_false(slots_evict(&f.slots, 0));
	fixture_exit(&f);
}

static void adoption_refuses_two_slots_of_one_expert_and_tags_out_of_range(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	struct error err;
	struct slots_adopted found;
	load(&f.slots, 0, 0, 0);
	load(&f.slots, 1, 0, 0);
	assert_int_equal(slots_adopt(&f.slots, &f.geometry, &found, &err), -EUCLEAN);
	fixture_exit(&f);
	fixture_init(&f);
	load(&f.slots, 4, 2, 7);
	f.geometry.layers[2].moe = false;
	assert_int_equal(slots_adopt(&f.slots, &f.geometry, &found, &err), -EUCLEAN);
	f.geometry.layers[2].moe = true;
	assert_int_equal(slots_adopt(&f.slots, &f.geometry, &found, &err), 0);
	atomic_store(&f.slots.state[4], atomic_load(&f.slots.state[4]) | 0xffull << 38);
	assert_int_equal(slots_adopt(&f.slots, &f.geometry, &found, &err), -EUCLEAN);
	fixture_exit(&f);
}

/* ---- Both sides at once. ---- */

/* xorshift64: any seed but 0. */
static uint32_t roll(uint64_t *seed, uint32_t n)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return (uint32_t)(*seed >> 33) % n;
}

struct side {
	struct slots slots;
	uint64_t seed;
	atomic_bool *stop;
	atomic_ulong done, wrong;
};

/* One act of the owner: a random slot is loaded with an absent expert or evicted; some loads fail. */
static bool owner_act(struct slots *slots, uint64_t *seed)
{
	uint32_t slot = roll(seed, SLOTS);
	if (state_of(slots, slot) == SLOT_READY)
		return slots_evict(slots, slot);
	uint32_t layer = roll(seed, LAYERS), expert = roll(seed, EXPERTS);
	uint32_t word = atomic_load(slots_word(slots, layer, expert));
	if (word != 0 && word != SLOTS_REFUSED)
		return false;
	slots_load_begin(slots, slot, layer, expert);
	fill(slots, slot, layer, expert);
	if (roll(seed, 16) == 0)
		slots_load_fail(slots, slot);
	else
		slots_load_end(slots, slot, layer, expert, expert % 2 ? LAYOUT_TILES : LAYOUT_ROWS);
	return true;
}

/* One act of the verifier: up to three pins, looked at twice. */
static uint32_t verifier_act(struct slots *slots, uint32_t epoch, uint64_t *seed, bool *right)
{
	uint32_t pinned[3][3], n = 0;
	for (int i = 0; i < 3; i++) {
		uint32_t layer = roll(seed, LAYERS), expert = roll(seed, EXPERTS);
		uint32_t slot = slots_pin(slots, epoch, layer, expert);
		if (slot == SLOT_NONE)
			continue;
		pinned[n][0] = slot;
		pinned[n][1] = layer;
		pinned[n++][2] = expert;
	}
	for (int look = 0; look < 2; look++)
		for (uint32_t i = 0; i < n; i++)
			*right &= holds(slots, pinned[i][0], pinned[i][1], pinned[i][2]);
	for (uint32_t i = 0; i < n; i++)
		*right &= slots_unpin(slots, pinned[i][0], epoch, pinned[i][1], pinned[i][2]);
	return n;
}

static void *owner_thread(void *arg)
{
	struct side *side = arg;
	while (!atomic_load(side->stop))
		if (owner_act(&side->slots, &side->seed))
			atomic_fetch_add(&side->done, 1);
	return NULL;
}

static void *verifier_thread(void *arg)
{
	struct side *side = arg;
	uint32_t epoch = slots_verifier_enter(&side->slots);
	while (!atomic_load(side->stop)) {
		bool right = true;
		uint32_t n = verifier_act(&side->slots, epoch, &side->seed, &right);
		atomic_fetch_add(&side->done, n);
		if (!right)
			atomic_fetch_add(&side->wrong, 1);
	}
	return NULL;
}

static void pinned_bytes_never_change_under_threads(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	atomic_bool stop = false;
	struct side owner = {.slots = f.slots, .seed = 1, .stop = &stop};
	struct side verifier = {.slots = f.slots, .seed = 2, .stop = &stop};
	pthread_t threads[2];
	assert_int_equal(pthread_create(&threads[0], NULL, owner_thread, &owner), 0);
	assert_int_equal(pthread_create(&threads[1], NULL, verifier_thread, &verifier), 0);
	UNTIL(atomic_load(&owner.done) >= 20000 && atomic_load(&verifier.done) >= 20000);
	atomic_store(&stop, true);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	assert_int_equal(atomic_load(&verifier.wrong), 0);
	assert_true(atomic_load(&owner.done) > 1000);
	assert_true(atomic_load(&verifier.done) > 1000);
	fixture_exit(&f);
}

/* ---- Both sides killed. ---- */

struct tally {
	_Atomic uint64_t pins, acts, wrong, refused;
};

static pid_t start_owner(struct fixture *f, struct tally *tally, uint64_t seed)
{
	pid_t pid = fork();
	if (pid != 0)
		return pid;
	struct slots_adopted found;
	struct error err;
	if (slots_adopt(&f->slots, &f->geometry, &found, &err) != 0) {
		atomic_fetch_add(&tally->refused, 1);
		_exit(1);
	}
	/* Here reads are copies, which end with their process: no LOADING slot needs to wait. */
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		if (state_of(&f->slots, slot) == SLOT_LOADING)
			slots_load_fail(&f->slots, slot);
	for (;;)
		if (owner_act(&f->slots, &seed))
			atomic_fetch_add(&tally->acts, 1);
}

static pid_t start_verifier(struct fixture *f, struct tally *tally, uint64_t seed)
{
	pid_t pid = fork();
	if (pid != 0)
		return pid;
	uint32_t epoch = slots_verifier_enter(&f->slots);
	for (;;) {
		bool right = true;
		atomic_fetch_add(&tally->pins, verifier_act(&f->slots, epoch, &seed, &right));
		if (!right)
			atomic_fetch_add(&tally->wrong, 1);
	}
}

static void kill_one(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void either_side_killed_at_random_leaves_a_table_that_works(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	struct tally *tally = mmap(
		NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(tally, MAP_FAILED);
	uint64_t seed = 0x5eed;
	pid_t owner = start_owner(&f, tally, 100);
	pid_t verifier = start_verifier(&f, tally, 200);
	for (uint64_t round = 1; round <= 300; round++) {
		usleep(200 + roll(&seed, 6000));
		if (roll(&seed, 2) == 0) {
			kill_one(owner);
			owner = start_owner(&f, tally, 1000 + round);
		} else {
			kill_one(verifier);
			verifier = start_verifier(&f, tally, 100000 + round);
		}
	}
	/* Whoever came last works. */
	uint64_t acts = atomic_load(&tally->acts), pins = atomic_load(&tally->pins);
	UNTIL(atomic_load(&tally->acts) >= acts + 100 && atomic_load(&tally->pins) >= pins + 100);
	kill_one(owner);
	kill_one(verifier);
	assert_int_equal(atomic_load(&tally->wrong), 0);
	assert_int_equal(atomic_load(&tally->refused), 0);
	assert_true(atomic_load(&tally->acts) >= acts + 100);
	assert_true(atomic_load(&tally->pins) >= pins + 100);
	/* No slot is lost: with the dead verifier's pins void, all can be emptied. */
	struct slots_adopted found;
	struct error err;
	slots_verifier_enter(&f.slots);
	assert_int_equal(slots_adopt(&f.slots, &f.geometry, &found, &err), 0);
	for (uint32_t slot = 0; slot < SLOTS; slot++) {
		if (state_of(&f.slots, slot) == SLOT_LOADING)
			slots_load_fail(&f.slots, slot);
		else if (state_of(&f.slots, slot) == SLOT_READY)
			assert_true(slots_evict(&f.slots, slot));
		assert_int_equal(state_of(&f.slots, slot), SLOT_EMPTY);
	}
	munmap(tally, sizeof(*tally));
	fixture_exit(&f);
}

static void hints_are_checked_counted_and_dropped_when_full(void **state)
{
	(void)state;
	struct fixture f;
	fixture_init(&f);
	struct error err;
	struct slots_hinter hinter;
	assert_int_equal(slots_hinter_attach(&hinter, &f.region, &f.hints, &err), 0);
	struct slot_hint hint = {.layer = LAYERS, .expert = 0, .score = 1};
	assert_false(slots_hint(&hinter, &hint));
	hint = (struct slot_hint){.layer = 1, .expert = 2, .score = 1};
	for (int i = 0; i < SLOTS_HINT_RING; i++)
		assert_true(slots_hint(&hinter, &hint));
	assert_false(slots_hint(&hinter, &hint));
	assert_int_equal(ring_length(&hinter.hints), SLOTS_HINT_RING);
	assert_int_equal(ring_dropped(&hinter.hints), 1);
	assert_false(slots_resident(&hinter, 1, 2));
	load(&f.slots, 0, 1, 2);
	assert_true(slots_resident(&hinter, 1, 2));
	slots_refuse(&f.slots, 1, 3);
	assert_false(slots_resident(&hinter, 1, 3));
	assert_false(slots_resident(&hinter, LAYERS, 0));
	fixture_exit(&f);
}

static void the_owner_learns_what_the_verifier_takes(void **state)
{
	struct fixture f;
	(void)state;
	fixture_init(&f);
	struct slots_header *header = f.slots.header;
	const struct slots_needs large = {1, 2, 3, 4, 9, 11, 10, 8, 12};
	const struct slots_needs small = {5, 6, 7, 8, 0, 1, 0, 1, 0};
	struct slots_needs got;
	assert_false(slots_needs_said(header, &got));
	slots_say_needs(header, &large);
	assert_true(slots_needs_said(header, &got));
	assert_memory_equal(&got, &large, sizeof(got));
	/* One that dies while he says it has said nothing; his successor says all of it. */
	page_write_begin(&header->needs_lock);
	header->needs.kv = 9;
	assert_false(slots_needs_said(header, &got));
	slots_say_needs(header, &small);
	assert_true(slots_needs_said(header, &got));
	assert_memory_equal(&got, &small, sizeof(got));
	fixture_exit(&f);
}

/* They lie where another process can write. */
static void what_is_said_is_bounded_whatever_was_written(void **state)
{
	struct fixture f;
	(void)state;
	fixture_init(&f);
	struct slots_header *header = f.slots.header;
	const uint64_t most = SLOTS_NEEDS_BYTES_MAX;
	const uint64_t values[] = {UINT64_MAX, most + 1, (uint64_t)1 << 63, 1, 0};
	struct slots_needs got;
	for (size_t i = 0; i < 5 * 5 * 5 * 5; i++) {
		const struct slots_needs any = {.weights = values[i % 5],
			.kv = values[i / 5 % 5],
			.rest = values[i / 25 % 5],
			.there = values[i / 125],
			.files = i,
			.device = values[i % 5],
			.device_there = values[i / 5 % 5],
			.device_kv = values[i / 25 % 5],
			.device_most = values[i / 125]};
		slots_say_needs(header, &any);
		assert_true(slots_needs_said(header, &got));
		assert_int_equal(got.weights, any.weights < most ? any.weights : most);
		assert_int_equal(got.kv, any.kv < most ? any.kv : most);
		assert_int_equal(got.rest, any.rest < most ? any.rest : most);
		assert_int_equal(got.device, any.device < most ? any.device : most);
		assert_true(got.device_there <= any.device_there && got.device_there <= got.device);
		assert_true(got.device_kv <= any.device_kv && got.device_kv <= got.device);
		assert_true(got.device_most == (any.device_most < most ? any.device_most : most));
		assert_true(got.there <= any.there && got.there <= got.weights + got.kv + got.rest);
	}
	/* Any sequence: even is a whole page, odd is none, and neither waits for ever. */
	for (uint32_t sequence = UINT32_MAX - 3; sequence != 4; sequence++) {
		atomic_store(&header->needs_lock.sequence, sequence);
		assert_int_equal(
			slots_needs_said(header, &got), sequence % 2 == 0 && sequence != 0);
	}
	fixture_exit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_loaded_expert_is_found_and_pinned),
		cmocka_unit_test(
			what_is_packed_in_place_cannot_be_pinned_meanwhile_and_stays_in_the_table),
		cmocka_unit_test(a_dead_verifiers_pin_does_not_keep_a_slot_from_being_packed),
		cmocka_unit_test(who_unpins_learns_that_the_word_was_written_to),
		cmocka_unit_test(a_pinned_slot_is_not_evicted),
		cmocka_unit_test(pins_of_a_dead_verifier_are_void_and_of_a_live_one_are_not),
		cmocka_unit_test(epochs_wrap_past_zero),
		cmocka_unit_test(a_failed_load_frees_the_slot_and_says_so_to_who_waits),
		cmocka_unit_test(map_refuses_what_does_not_fit),
		cmocka_unit_test(a_bad_table_word_is_a_miss),
		cmocka_unit_test(adoption_finishes_what_was_cut_off),
		cmocka_unit_test(adoption_refuses_two_slots_of_one_expert_and_tags_out_of_range),
		cmocka_unit_test(pinned_bytes_never_change_under_threads),
		cmocka_unit_test(either_side_killed_at_random_leaves_a_table_that_works),
		cmocka_unit_test(hints_are_checked_counted_and_dropped_when_full),
		cmocka_unit_test(the_owner_learns_what_the_verifier_takes),
		cmocka_unit_test(what_is_said_is_bounded_whatever_was_written),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
