/* Where the matrices of an expert lie in a file and in a slot, whatever the form of the file: what is read is what a view
 * finds, and packing moves every matrix down. */
#include "shared/base/round.h"
#include "shared/spec/slots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { EXPERTS = 5, FILE_BYTES = 1 << 20, SLOT_BYTES = 1 << 16 };

static unsigned char file[FILE_BYTES], slot[SLOT_BYTES];
static uint64_t places[EXPERT_PARTS][EXPERTS];

/* Expert e's parts are at + e * stride, or in random places. */
struct form {
	const char *name;
	uint64_t bytes[EXPERT_PARTS], at[EXPERT_PARTS], stride[EXPERT_PARTS];
	bool single;
	bool packed;
	unsigned reads;
};

static const struct form forms[] = {
	{"apart", {6400, 6400, 5120}, {96, 65632, 131168}, {6400, 6400, 5120}, false, false, 3},
	{"gate and up in one tensor", {6400, 6400, 5120}, {4064, 10464, 131168},
		{12800, 12800, 5120}, false, false, 2},
	{"gate and up from a page on", {8192, 8192, 8192}, {4096, 12288, 131072},
		{16384, 16384, 8192}, false, false, 2},
	{"in one tensor, but no whole cache lines", {6416, 6416, 5120}, {96, 6512, 131168},
		{12832, 12832, 5120}, false, false, 3},
	{"single", {6400, 6400, 5120}, {96, 65632, 131168}, {0}, true, false, 3},
	{"single, one behind the other", {6400, 6400, 5120}, {96, 6496, 12896}, {0}, true, false,
		1},
	{"single, gate and up", {6400, 6400, 5120}, {96, 6496, 20000}, {0}, true, false, 2},
	{"single, up and down", {6400, 6400, 5120}, {96, 10016, 16416}, {0}, true, false, 2},
	{"packed", {6400, 6400, 5120}, {4096, 10496, 16896}, {20480, 20480, 20480}, false, true, 1},
};

static void model_of(const struct form *form, struct model *model, struct layer *layer)
{
	struct expert_tensor *const parts[] = {&layer->gate, &layer->up, &layer->down};
	memset(model, 0, sizeof(*model));
	memset(layer, 0, sizeof(*layer));
	model->config.n_layers = 1;
	model->config.n_experts = EXPERTS;
	model->config.n_experts_used = 2;
	model->layers = layer;
	model->packed = form->packed;
	layer->moe = true;
	for (int p = 0; p < EXPERT_PARTS; p++) {
		*parts[p] = (struct expert_tensor){
			.file_offset = form->at[p],
			.expert_bytes = form->bytes[p],
			.expert_stride = form->stride[p],
			.places = form->single ? places[p] : NULL,
		};
		/* In no order, and each at another offset within its page. */
		for (uint64_t e = 0; e < EXPERTS; e++)
			places[p][e] = form->at[p] + (EXPERTS - 1 - e) * 200000 + e % 3 * 32 * 17;
		if (form->single)
			parts[p]->file_offset = places[p][0];
	}
}

static void read_expert(
	const struct slots_layer_geometry *layer, const struct form *form, uint32_t expert)
{
	struct slots_read reads[EXPERT_PARTS];
	unsigned n = slots_reads(layer, expert, reads);
	uint64_t end = 0;
	assert_int_equal(n, form->reads);
	memset(slot, 0, sizeof(slot));
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(reads[i].offset % SLOTS_PAGE, 0);
		assert_int_equal(reads[i].bytes % SLOTS_PAGE, 0);
		assert_int_equal(reads[i].at % SLOTS_PAGE, 0);
		assert_true(reads[i].need <= reads[i].bytes && reads[i].at >= end);
		end = reads[i].at + reads[i].bytes;
		memcpy(slot + reads[i].at, file + reads[i].offset, reads[i].bytes);
	}
}

static void check_expert(const struct slots_geometry *geometry, const struct form *form,
	const struct layer *layer, uint32_t expert)
{
	const struct expert_tensor *const parts[] = {&layer->gate, &layer->up, &layer->down};
	const struct slots_part *part = geometry->layers[0].part;
	uint64_t packed_end = 0;
	read_expert(&geometry->layers[0], form, expert);
	for (int p = 0; p < EXPERT_PARTS; p++) {
		uint64_t place = slots_part_place(&part[p], expert);
		uint64_t offset = model_expert_offset(parts[p], expert);
		assert_int_equal(slots_part_offset(&part[p], expert), offset);
		assert_true(place + part[p].bytes <= geometry->slot_bytes);
		assert_memory_equal(slot + place, file + offset, part[p].bytes);
		/* Packed in this order, from here to there, no matrix that waits is written over. */
		assert_int_equal(part[p].tiles_at % CACHE_LINE, 0);
		assert_true(part[p].tiles_at >= packed_end && part[p].tiles_at <= place);
		packed_end = part[p].tiles_at + part[p].bytes;
		for (int later = p + 1; later < EXPERT_PARTS; later++)
			assert_true(packed_end <= slots_part_place(&part[later], expert));
	}
}

static void every_form_of_a_file_is_read_to_where_it_is_looked_for(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(file); i++)
		file[i] = (unsigned char)(i * 2654435761u >> 13);
	for (size_t f = 0; f < sizeof(forms) / sizeof(forms[0]); f++) {
		struct slots_geometry *geometry = malloc(sizeof(*geometry));
		struct model model;
		struct layer layer;
		assert_non_null(geometry);
		print_message("# %s\n", forms[f].name);
		model_of(&forms[f], &model, &layer);
		slots_geometry_init(geometry, &model);
		assert_int_equal(geometry->slot_bytes % SLOTS_PAGE, 0);
		assert_true(geometry->slot_bytes <= SLOT_BYTES);
		for (uint32_t e = 0; e < EXPERTS; e++)
			check_expert(geometry, &forms[f], &layer, e);
		free(geometry);
	}
}

/* Only for some experts one behind the other: then each is read by itself. */
static void parts_share_a_read_for_all_experts_or_for_none(void **state)
{
	(void)state;
	struct form form = {"mixed", {6400, 6400, 5120}, {96, 6496, 20000}, {0}, true, false, 3};
	struct slots_geometry *geometry = malloc(sizeof(*geometry));
	struct model model;
	struct layer layer;
	assert_non_null(geometry);
	for (uint32_t odd = 0; odd < EXPERTS; odd++) {
		model_of(&form, &model, &layer);
		places[EXPERT_UP][odd] += 32;
		layer.up.file_offset = places[EXPERT_UP][0];
		slots_geometry_init(geometry, &model);
		for (uint32_t e = 0; e < EXPERTS; e++)
			check_expert(geometry, &form, &layer, e);
	}
	free(geometry);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_form_of_a_file_is_read_to_where_it_is_looked_for),
		cmocka_unit_test(parts_share_a_read_for_all_experts_or_for_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
