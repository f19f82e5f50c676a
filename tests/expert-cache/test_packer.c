/* Resident experts that are used again are packed; every run of a layer compares every byte with the file. */
#include "tests/expert-cache/transfer_rig.h"

#include "shared/base/log.h"

static uint64_t packed(const struct rig *rig)
{
	return atomic_load(&rig->transfer.packer.packed);
}

/* Of the demo model's experts, which are all of one size. */
static uint32_t uses_that_pay(const struct rig *rig)
{
	assert_true(rig->transfer.packer.uses[0] > PACKER_USES);
	return rig->transfer.packer.uses[0];
}

static bool wait_for_packed(const struct rig *rig, uint64_t least)
{
	return COMES_TRUE(packed(rig) >= least);
}

static enum matrix_layout layout_of(const struct rig *rig, uint32_t layer, uint32_t expert)
{
	uint32_t slot = store_find(&rig->store, layer, expert);
	assert_int_not_equal(slot, SLOT_NONE);
	return slot_layout(atomic_load(&rig->store.slots.state[slot]));
}

static void experts_that_are_used_again_are_packed_and_others_are_not(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32, .packs_later = true});
	run_layer(&rig, 0, 0, 8);
	run_layer(&rig, 1, 8, 8);
	assert_int_equal(packed(&rig), 0);
	for (uint32_t i = 0; i < uses_that_pay(&rig); i++)
		run_layer(&rig, 0, 0, 8);
	assert_true(wait_for_packed(&rig, 8));
	run_layer(&rig, 2, 0, 1); /* a demand: the worker has been round */
	for (uint32_t e = 0; e < 8; e++) {
		assert_int_equal(layout_of(&rig, 0, e), LAYOUT_TILES);
		assert_int_equal(layout_of(&rig, 1, 8 + e), LAYOUT_ROWS);
	}
	uint64_t misses = rig.source->stats.misses;
	assert_int_equal(run_layer(&rig, 0, 0, 8), 8);
	assert_int_equal(rig.source->stats.misses, misses);
	assert_int_equal(packed(&rig), 8);
	rig_stop(&rig);
}

static void many_tokens_at_once_count_as_many_uses(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32, .packs_later = true});
	uint16_t expert = 3, tokens = (uint16_t)(uses_that_pay(&rig) * PACKER_USE_TOKENS);
	struct expert_view view;
	run_layer(&rig, 0, 3, 1);
	rig.source->ops->begin(rig.source, 0, &expert, &tokens, 1);
	assert_int_equal(rig.source->ops->ready(rig.source, &view), 1);
	rig.source->ops->end(rig.source);
	assert_true(wait_for_packed(&rig, 1));
	rig_stop(&rig);
}

static void nothing_is_packed_where_that_is_not_wanted(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32});
	for (uint32_t i = 0; i < 2 * uses_that_pay(&rig); i++) {
		run_layer(&rig, 0, 0, 8);
		run_layer(&rig, 1, i % 2 * 8, 8);
	}
	assert_int_equal(packed(&rig), 0);
	assert_int_equal(rig.transfer.packer.n_due, 0);
	rig_stop(&rig);
}

/* Loads, evictions, packing and look-ups all at once: some look-ups meet a slot that is being packed. */
static void packing_while_layers_run_changes_no_byte(void **state)
{
	(void)state;
	need_model();
	static const uint32_t budgets[] = {40, 60, 100};
	for (uint32_t b = 0; b < 3; b++) {
		struct rig rig;
		uint32_t from_slots = 0, wanted = 0;
		rig_start(&rig, &(struct rig_options){.budget = budgets[b], .packs_later = true});
		for (uint32_t pass = 0; pass < 600; pass++)
			for (uint32_t l = 0; l < geometry.n_layers; l++, wanted += 4)
				from_slots += run_layer(&rig, l, pass / 60 * 5 % 12, 4);
		assert_int_equal(from_slots, wanted);
		assert_int_equal(counter(&rig.store.slots.header->self_served), 0);
		assert_true(wait_for_packed(&rig, 1));
		rig_stop(&rig);
	}
}

/* A policy that is not told of it would never give it up again. */
static void a_new_policy_is_told_of_what_is_being_packed(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	struct error err;
	rig_start(&rig, &(struct rig_options){.budget = 8, .no_worker = true});
	static const struct cache_prefetch want = {.layer = 1, .expert = 2}, other = {.layer = 1};
	uint32_t slot = store_take(&rig.store, &want, LOAD_PRELOAD, 0);
	store_loaded(&rig.store, slot, LOAD_PRELOAD, 0, LAYOUT_ROWS);
	assert_true(store_pack_begin(&rig.store, slot));
	assert_int_equal(store_packing(&rig.store, 1, 2), slot);
	assert_int_equal(store_packing(&rig.store, 1, 3), SLOT_NONE);
	assert_true(store_loading(&rig.store, 1, 2));
	assert_false(store_pack_begin(&rig.store, slot));

	const struct cache_policy_ops *policy = cache_policy_find("lru");
	void *policy_state;
	struct store_resident *scratch = calloc(geometry.n_total, sizeof(*scratch));
	assert_non_null(scratch);
	assert_int_equal(store_policy_create(&rig.store, policy, 8, &policy_state, &err), 0);
	store_switch_policy(&rig.store, &policy, &policy_state, scratch);
	policy->destroy(policy_state);
	free(scratch);
	store_set_budget(&rig.store, 1);
	assert_int_equal(store_take(&rig.store, &other, LOAD_DEMAND, 0), SLOT_NONE);
	store_pack_end(&rig.store, slot);
	assert_int_equal(store_packing(&rig.store, 1, 2), SLOT_NONE);
	assert_int_equal(store_take(&rig.store, &other, LOAD_DEMAND, 0), slot);
	rig_stop(&rig);
}

/* Killed in the middle of it: half of the bytes are in their new places. */
static void a_successor_does_not_use_what_was_being_packed(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32});
	run_layer(&rig, 0, 0, 16);
	int fd = fcntl(rig.store.region.fd, F_DUPFD_CLOEXEC, 3);
	transfer_stop(&rig.transfer);
	uint32_t slot = store_find(&rig.store, 0, 5);
	assert_true(store_pack_begin(&rig.store, slot));
	memset(slots_at(&rig.store.slots, slot), 0x5a, rig.store.slots.slot_bytes);
	rig_stop(&rig);

	rig_start(
		&rig, &(struct rig_options){.budget = 32, .recovered_fd = fd, .packs_later = true});
	assert_true(rig.store.adopted);
	assert_int_equal(rig.store.found.ready, 15);
	assert_int_equal(rig.store.found.loading, 1);
	for (uint32_t i = 0; i <= uses_that_pay(&rig); i++)
		run_layer(&rig, 0, 0, 16);
	assert_int_equal(rig.source->stats.misses, 1);
	assert_true(wait_for_packed(&rig, 16));
	run_layer(&rig, 0, 0, 16);
	rig_stop(&rig);
}

/* And what it had packed stays packed. */
static void a_successor_knows_what_is_packed(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 32, .packs_later = true});
	for (uint32_t i = 0; i <= uses_that_pay(&rig); i++)
		run_layer(&rig, 0, 0, 8);
	assert_true(wait_for_packed(&rig, 8));
	int fd = fcntl(rig.store.region.fd, F_DUPFD_CLOEXEC, 3);
	rig_stop(&rig);
	rig_start(
		&rig, &(struct rig_options){.budget = 32, .recovered_fd = fd, .packs_later = true});
	for (uint32_t i = 0; i < 2 * uses_that_pay(&rig); i++)
		run_layer(&rig, 0, 0, 8);
	run_layer(&rig, 1, 0, 1);
	assert_int_equal(rig.transfer.packer.n_due, 0);
	assert_int_equal(packed(&rig), 0);
	rig_stop(&rig);
}

/* A layer of which one part has tiles, one only with rows left over, one none at all; rows of any length. */
static struct slots_layer_geometry mixed_layer(
	const enum tensor_type types[EXPERT_PARTS], uint32_t rows, uint32_t cols)
{
	struct slots_layer_geometry layer = {.moe = true};
	uint64_t area = 0, tiles = 0;
	for (int p = 0; p < EXPERT_PARTS; p++) {
		const struct tensor_type_info *info = tensor_type_info((uint32_t)types[p]);
		struct slots_part *part = &layer.part[p];
		uint32_t n = rows + 8 * (uint32_t)p;
		part->matrix = (struct matrix){.type = types[p],
			.rows = n,
			.cols = cols,
			.row_bytes = cols / info->block_weights * info->block_bytes};
		part->bytes = part->stride = n * part->matrix.row_bytes;
		/* Anywhere within a page, as in a file. */
		part->file_offset = 32 * (1 + (uint64_t)p * 37);
		part->area = area;
		part->tiles_at = tiles;
		area += (part->bytes / SLOTS_PAGE + 2) * SLOTS_PAGE;
		tiles = (tiles + part->bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
	}
	return layer;
}

static void pack_mixed(const struct slots_layer_geometry *layer, uint32_t expert)
{
	const struct slots_part *last = &layer->part[EXPERT_PARTS - 1];
	size_t bytes = (size_t)(last->area + (last->bytes / SLOTS_PAGE + 2) * SLOTS_PAGE);
	unsigned char *slot = malloc(bytes), *before = malloc(bytes), *tiles = malloc(bytes);
	struct slots_geometry one = {.n_layers = 1, .layers[0] = *layer};
	void *scratch = malloc(packer_scratch_bytes(&one));
	assert_true(slot != NULL && before != NULL && tiles != NULL && scratch != NULL);
	for (size_t i = 0; i < bytes; i++)
		before[i] = (unsigned char)(i * 2654435761u >> 13);
	memcpy(slot, before, bytes);
	packer_pack(layer, expert, slot, scratch);
	for (int p = 0; p < EXPERT_PARTS; p++) {
		const struct slots_part *part = &layer->part[p];
		struct matrix rows = part->matrix;
		rows.data = before + slots_part_place(part, expert);
		if (tiles_possible(&rows))
			tiles_pack(&rows, 0, rows.rows, tiles);
		else
			memcpy(tiles, rows.data, part->bytes);
		assert_memory_equal(slot + part->tiles_at, tiles, part->bytes);
	}
	free(slot);
	free(before);
	free(tiles);
	free(scratch);
}

static void parts_of_any_types_and_sizes_are_packed_as_they_would_be_alone(void **state)
{
	(void)state;
	static const enum tensor_type types[][EXPERT_PARTS] = {
		{TENSOR_Q4_K, TENSOR_Q4_K, TENSOR_Q6_K},
		{TENSOR_F16, TENSOR_Q8_0, TENSOR_Q5_1},
		{TENSOR_Q3_K, TENSOR_F32, TENSOR_IQ4_XS},
		{TENSOR_MXFP4, TENSOR_Q2_K, TENSOR_BF16},
		{TENSOR_IQ2_XXS, TENSOR_IQ2_XS, TENSOR_IQ2_S},
		{TENSOR_IQ3_XXS, TENSOR_IQ1_S, TENSOR_IQ3_S},
		{TENSOR_IQ1_M, TENSOR_TQ1_0, TENSOR_NVFP4},
		{TENSOR_TQ2_0, TENSOR_IQ2_XXS, TENSOR_Q4_K},
	};
	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
		for (uint32_t rows = 1; rows < 70; rows += 7)
			for (uint32_t expert = 0; expert < 5; expert++) {
				struct slots_layer_geometry layer =
					mixed_layer(types[t], rows, 256 * (1 + expert % 3));
				pack_mixed(&layer, expert);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts_of_any_types_and_sizes_are_packed_as_they_would_be_alone),
		cmocka_unit_test(experts_that_are_used_again_are_packed_and_others_are_not),
		cmocka_unit_test(many_tokens_at_once_count_as_many_uses),
		cmocka_unit_test(nothing_is_packed_where_that_is_not_wanted),
		cmocka_unit_test(packing_while_layers_run_changes_no_byte),
		cmocka_unit_test(a_new_policy_is_told_of_what_is_being_packed),
		cmocka_unit_test(a_successor_does_not_use_what_was_being_packed),
		cmocka_unit_test(a_successor_knows_what_is_packed),
	};
	log_init("test", 0);
	return cmocka_run_group_tests(tests, group_init, group_exit);
}
