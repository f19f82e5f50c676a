/* The slots of a device: their table, pins of slots that are being loaded, what a successor keeps, and both sides at once. */
#include "shared/spec/device_slots.h"

#include "kernels/tiles.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, EXPERTS = 4, SLOTS = 3, SLOT_WORDS = 64 };

static const struct device_shape test_shape = {
	.n_layers = LAYERS,
	.n_experts = EXPERTS,
	.n_slots = SLOTS,
	.slot_bytes = SLOT_WORDS * 8,
	.model_fingerprint = 42,
};

struct fixture {
	struct region region;
	struct device_slots slots;
	struct slots_geometry geometry;
	uint64_t memory[SLOTS][SLOT_WORDS]; /* plays the device's */
	uint32_t epoch;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct error err;
	assert_non_null(f);
	assert_int_equal(region_create(DEVICE_REGION, DEVICE_LAYOUT,
				 device_payload_bytes(&test_shape), 0, &f->region, &err),
		0);
	device_format(&f->region, &test_shape);
	assert_int_equal(device_map(&f->region, &test_shape, &f->slots, &err), 0);
	f->geometry.n_layers = LAYERS;
	f->geometry.n_experts = EXPERTS;
	for (int l = 0; l < LAYERS; l++)
		f->geometry.layers[l].moe = true;
	f->epoch = device_enter(&f->slots);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	region_close(&f->region);
	free(f);
	return 0;
}

static enum slot_state state_of(const struct device_slots *slots, uint32_t slot)
{
	return slot_state(atomic_load(&slots->state[slot]));
}

static void a_region_of_another_shape_is_refused(void **state)
{
	struct fixture *f = *state;
	struct device_slots slots;
	struct error err;
	struct device_shape other = test_shape;
	other.model_fingerprint++;
	assert_int_equal(device_map(&f->region, &other, &slots, &err), -ESTALE);
	other = test_shape;
	other.slot_bytes *= 2;
	assert_int_equal(device_map(&f->region, &other, &slots, &err), -ESTALE);
	other = test_shape;
	other.n_slots = 0;
	assert_int_equal(device_map(&f->region, &other, &slots, &err), 0);
	f->slots.header->n_slots = SLOTS_MAX;
	assert_int_equal(device_map(&f->region, &other, &slots, &err), -EBADMSG);
	other.slot_bytes = 100;
	assert_int_equal(device_payload_bytes(&other), 0);
}

static void a_pin_of_a_load_stays_when_it_ends(void **state)
{
	struct fixture *f = *state;
	struct device_slots *s = &f->slots;
	struct device_pin pin;
	assert_false(device_pin(s, f->epoch, 1, 2, true, &pin));
	uint32_t load = device_load_begin(s, 0, 1, 2);
	assert_int_equal(device_find(s, 1, 2), 0);
	assert_false(device_pin(s, f->epoch, 1, 2, false, &pin));
	assert_true(device_pin(s, f->epoch, 1, 2, true, &pin));
	assert_true(pin.coming && pin.slot == 0 && pin.load == load);
	/* Not there before the queue says so. */
	assert_true((int32_t)(atomic_load(&s->flag[0]) - load) < 0);
	atomic_store(&s->flag[0], load);
	assert_true(device_load_end(s, 0, 1, 2));
	assert_false(device_evict(s, 0));
	assert_true(device_pinned(s, 0, f->epoch, 1, 2));
	assert_true(device_pin_again(s, &pin, f->epoch, 1, 2));
	assert_true(device_unpin(s, 0, f->epoch, 1, 2));
	assert_false(device_evict(s, 0));
	assert_true(device_unpin(s, 0, f->epoch, 1, 2));
	assert_false(device_pin_again(s, &pin, f->epoch, 1, 2));
	assert_true(device_evict(s, 0));
	assert_int_equal(device_find(s, 1, 2), SLOT_NONE);
	/* Another load has another number. */
	assert_int_equal(device_load_begin(s, 0, 1, 2), load + 1);
	assert_true((int32_t)(atomic_load(&s->flag[0]) - (load + 1)) < 0);
}

static void an_unpin_in_a_load_is_kept_too(void **state)
{
	struct fixture *f = *state;
	struct device_pin pin;
	(void)device_load_begin(&f->slots, 1, 0, 3);
	assert_true(device_pin(&f->slots, f->epoch, 0, 3, true, &pin));
	assert_true(device_unpin(&f->slots, 1, f->epoch, 0, 3));
	assert_true(device_load_end(&f->slots, 1, 0, 3));
	assert_true(device_evict(&f->slots, 1));
}

static void a_word_that_others_wrote_is_found(void **state)
{
	struct fixture *f = *state;
	struct device_pin pin;
	(void)device_load_begin(&f->slots, 1, 0, 3);
	assert_true(device_pin(&f->slots, f->epoch, 0, 3, true, &pin));
	atomic_store(&f->slots.state[1], 0x1234567890abcdefull);
	assert_false(device_load_end(&f->slots, 1, 0, 3));
	assert_false(device_unpin(&f->slots, 1, f->epoch, 0, 3));
}

static void pins_of_a_dead_verifier_are_void(void **state)
{
	struct fixture *f = *state;
	struct device_pin pin;
	(void)device_load_begin(&f->slots, 2, 0, 1);
	assert_true(device_load_end(&f->slots, 2, 0, 1));
	assert_true(device_pin(&f->slots, f->epoch, 0, 1, true, &pin));
	uint32_t next = device_enter(&f->slots);
	assert_int_not_equal(next, f->epoch);
	assert_true(device_evictable(&f->slots, 2));
	assert_true(device_pin(&f->slots, next, 0, 1, true, &pin));
	assert_false(device_evict(&f->slots, 2));
	assert_true(device_unpin(&f->slots, 2, next, 0, 1));
}

static void a_successor_keeps_what_is_whole(void **state)
{
	struct fixture *f = *state;
	struct device_slots *s = &f->slots;
	struct device_adopted adopted;
	struct device_pin pin;
	struct error err;
	(void)device_load_begin(s, 0, 0, 0);
	assert_true(device_load_end(s, 0, 0, 0));
	(void)device_load_begin(s, 1, 0, 1);
	assert_true(device_load_end(s, 1, 0, 1));
	uint32_t load = device_load_begin(s, 2, 0, 2);
	assert_true(device_pin(s, f->epoch, 0, 2, true, &pin));
	/* Rubbish: another expert than was loaded there, and flags. */
	atomic_store(&s->seal[1], atomic_load(&s->seal[1]) ^ 1);
	atomic_store(&s->flag[0], 0x7fffffff);
	atomic_store(&s->table[3], 99);
	assert_int_equal(device_adopt(s, &f->geometry, &adopted, &err), 0);
	assert_int_equal(adopted.ready, 1);
	assert_int_equal(adopted.wrong, 1);
	assert_int_equal(adopted.loading, 1);
	assert_int_equal(device_find(s, 0, 0), 0);
	assert_int_equal(device_find(s, 0, 1), SLOT_NONE);
	assert_int_equal(state_of(s, 1), SLOT_EMPTY);
	assert_int_equal(atomic_load(&s->flag[0]), atomic_load(&s->load[0]));
	assert_int_equal(atomic_load(&s->table[3]), 0);
	/* Nobody finds the load that will not end, and who waits for it is not disturbed. */
	assert_false(device_pin(s, f->epoch, 0, 2, true, &(struct device_pin){0}));
	assert_false(device_abandon(s, 2));
	assert_int_equal(atomic_load(&s->load[2]), load);
	assert_true(device_unpin(s, 2, f->epoch, 0, 2));
	assert_true(device_abandon(s, 2));
	assert_int_equal(state_of(s, 2), SLOT_EMPTY);
}

static void an_expert_lies_in_tiles(void **state)
{
	(void)state;
	enum { ROWS = 32, COLS = 64, ROW_BYTES = COLS / 32 * 34 };
	static unsigned char rows[EXPERT_PARTS][ROWS * ROW_BYTES], tiles[ROWS * ROW_BYTES];
	struct slots_layer_geometry layer = {.moe = true};
	const void *from[EXPERT_PARTS];
	for (int p = 0; p < EXPERT_PARTS; p++) {
		layer.part[p].bytes = sizeof(rows[p]);
		layer.part[p].matrix = (struct matrix){
			.type = TENSOR_Q8_0, .rows = ROWS, .cols = COLS, .row_bytes = ROW_BYTES};
		for (size_t i = 0; i < sizeof(rows[p]); i++)
			rows[p][i] = (unsigned char)(i * 31 + (size_t)p);
		from[p] = rows[p];
	}
	unsigned char *out = malloc(device_expert_bytes(&layer));
	assert_non_null(out);
	assert_int_equal(device_expert_bytes(&layer) % DEVICE_ALIGN, 0);
	device_pack(&layer, from, LAYOUT_ROWS, out);
	for (int p = 0; p < EXPERT_PARTS; p++) {
		struct matrix w = layer.part[p].matrix;
		w.data = rows[p];
		tiles_pack(&w, 0, ROWS, tiles);
		assert_int_equal(device_part_at(&layer, p) % DEVICE_ALIGN, 0);
		assert_memory_equal(out + device_part_at(&layer, p), tiles, sizeof(tiles));
	}
	/* What is packed already is copied. */
	device_pack(&layer, from, LAYOUT_TILES, out);
	assert_memory_equal(out + device_part_at(&layer, EXPERT_DOWN), rows[EXPERT_DOWN],
		sizeof(rows[EXPERT_DOWN]));
	free(out);
}

/* The owner: loads experts in turn, in slots that it can evict, and plays its queue. */
static atomic_bool stop;

static void *own(void *arg)
{
	struct fixture *f = arg;
	uint32_t next = 0, slot = 0;
	while (!atomic_load(&stop)) {
		uint32_t layer = next / EXPERTS, expert = next % EXPERTS;
		slot = (slot + 1) % SLOTS;
		if (device_find(&f->slots, layer, expert) != SLOT_NONE) {
			next = (next + 1) % (LAYERS * EXPERTS);
			continue;
		}
		if (state_of(&f->slots, slot) == SLOT_READY && !device_evict(&f->slots, slot)) {
			sched_yield();
			continue;
		}
		uint32_t load = device_load_begin(&f->slots, slot, layer, expert);
		for (int i = 0; i < SLOT_WORDS; i++) {
			f->memory[slot][i] = next * 1000u + (uint32_t)i;
			if (i == SLOT_WORDS / 2)
				sched_yield();
		}
		atomic_store_explicit(&f->slots.flag[slot], load, memory_order_release);
		assert_true(device_load_end(&f->slots, slot, layer, expert));
		next = (next + 1) % (LAYERS * EXPERTS);
	}
	return NULL;
}

static void both_sides_at_once(void **state)
{
	struct fixture *f = *state;
	pthread_t owner;
	uint32_t coming = 0, all = 0;
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&owner, NULL, own, f), 0);
	for (uint32_t i = 0; all < 20000 || coming == 0; i++) {
		uint32_t which = i * 7 % (LAYERS * EXPERTS);
		struct device_pin pin;
		if (!device_pin(&f->slots, f->epoch, which / EXPERTS, which % EXPERTS, true, &pin))
			continue;
		while ((int32_t)(atomic_load_explicit(
					 &f->slots.flag[pin.slot], memory_order_acquire) -
				 pin.load) < 0)
			sched_yield();
		for (uint32_t w = 0; w < SLOT_WORDS; w++)
			assert_int_equal(f->memory[pin.slot][w], which * 1000u + w);
		assert_true(device_unpin(
			&f->slots, pin.slot, f->epoch, which / EXPERTS, which % EXPERTS));
		coming += pin.coming;
		all++;
	}
	atomic_store(&stop, true);
	pthread_join(owner, NULL);
	assert_true(coming > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_region_of_another_shape_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_pin_of_a_load_stays_when_it_ends, setup, teardown),
		cmocka_unit_test_setup_teardown(an_unpin_in_a_load_is_kept_too, setup, teardown),
		cmocka_unit_test_setup_teardown(a_word_that_others_wrote_is_found, setup, teardown),
		cmocka_unit_test_setup_teardown(pins_of_a_dead_verifier_are_void, setup, teardown),
		cmocka_unit_test_setup_teardown(a_successor_keeps_what_is_whole, setup, teardown),
		cmocka_unit_test(an_expert_lies_in_tiles),
		cmocka_unit_test_setup_teardown(both_sides_at_once, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
