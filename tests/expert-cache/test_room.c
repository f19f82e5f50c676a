/* The default budget: what is left for experts of made-up machines and control groups, and what is said about it. */
#include "services/expert-cache/settle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/made_up_machine.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static const struct room_needs needs = {
	.of.weights = 1 * GIB, .of.kv = 4 * GIB - 64 * MIB, .of.rest = 64 * MIB};
/* 8 GiB of experts. */
static const struct slots_geometry geometry = {.slot_bytes = 8 * MIB,
	.n_layers = 8,
	.n_experts = 128,
	.n_experts_used = 2,
	.n_total = 1024};

static void write_meminfo(uint64_t total, uint64_t available)
{
	char text[128];
	snprintf(text, sizeof(text), "MemTotal: %llu kB\nMemAvailable: %llu kB\n",
		(unsigned long long)(total >> 10), (unsigned long long)(available >> 10));
	write_file("meminfo", text);
}

static struct room room_beside(const struct room_needs *others, uint64_t had)
{
	struct memory_limit limit;
	struct room room;
	memory_limit_read(&files, meminfo, &limit);
	room_find(&limit, others, had, &room);
	return room;
}

/* running: the verifier has its weights in memory. */
static struct room room_of(uint64_t had, bool running)
{
	struct room_needs others = needs;
	others.of.there = running ? needs.of.weights : 0;
	return room_beside(&others, had);
}

static void the_machine_is_shared_with_the_rest(void **state)
{
	(void)state;
	write_meminfo(32 * GIB, 32 * GIB);
	struct room room = room_of(0, false);
	assert_int_equal(room.reserve, 2 * GIB);
	assert_int_equal(room.bytes, 25 * GIB);
	assert_false(room.free_of_it);
	/* A small machine keeps a reserve of 256 MiB. */
	write_meminfo(2 * GIB, 2 * GIB);
	assert_int_equal(room_of(0, false).reserve, 256 * MIB);
	assert_int_equal(room_of(0, false).bytes, 0);
}

static void what_others_use_now_is_not_taken(void **state)
{
	(void)state;
	write_meminfo(32 * GIB, 12 * GIB);
	struct room room = room_of(0, false);
	assert_true(room.free_of_it);
	assert_int_equal(room.memory, 12 * GIB);
	assert_int_equal(room.bytes, 5 * GIB);
}

/* The slots themselves, and the weights of a verifier that runs, are used: neither counts twice. */
static void a_restart_counts_its_own_memory_as_free(void **state)
{
	(void)state;
	write_meminfo(32 * GIB, 6 * GIB);
	assert_int_equal(room_of(0, false).bytes, 0);
	assert_int_equal(room_of(20 * GIB, true).bytes, 20 * GIB);
	/* Never beyond what the machine has for them. */
	assert_int_equal(room_of(40 * GIB, true).bytes, 25 * GIB);
	assert_int_equal(room_of(UINT64_MAX, true).bytes, 25 * GIB);
}

static void what_the_verifier_says_it_takes_counts(void **state)
{
	(void)state;
	write_meminfo(32 * GIB, 32 * GIB);
	struct room_needs said = needs;
	said.said = true;
	said.of.kv += 10 * GIB;
	assert_false(room_needs_equal(&said, &needs));
	assert_int_equal(room_beside(&said, 0).bytes, 15 * GIB);
	said.of.kv = 0;
	assert_int_equal(room_beside(&said, 0).bytes, 29 * GIB - 64 * MIB);
	said.of.rest = 5 * GIB;
	assert_int_equal(room_beside(&said, 0).bytes, 24 * GIB);
	/* Who says the same as was estimated changes nothing, filled or not. */
	said = needs;
	said.said = true;
	said.of.there = 1 * GIB;
	assert_true(room_needs_equal(&said, &needs));
	assert_int_equal(room_beside(&said, 0).bytes, room_beside(&needs, 0).bytes);
}

/* It is not among what is available, and needs no room. */
static void what_the_verifier_has_filled_is_not_counted_twice(void **state)
{
	(void)state;
	struct room_needs said = needs;
	write_meminfo(32 * GIB, 12 * GIB);
	assert_int_equal(room_beside(&said, 0).bytes, 5 * GIB);
	said.of.there = 3 * GIB;
	assert_int_equal(room_beside(&said, 0).bytes, 8 * GIB);
	/* Never more than it takes. */
	said.of.there = UINT64_MAX;
	assert_int_equal(room_beside(&said, 0).bytes, 10 * GIB);
}

/* They lie in memory that another process can write. */
static void needs_of_any_numbers_leave_no_room_and_overflow_nothing(void **state)
{
	(void)state;
	write_meminfo(32 * GIB, 32 * GIB);
	const uint64_t values[] = {UINT64_MAX, UINT64_MAX - GIB, UINT64_MAX / 2 + 1, 33 * GIB};
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		uint64_t v = values[i];
		const struct slots_needs any[] = {{.weights = v}, {.kv = v}, {.rest = v},
			{.weights = v, .kv = v, .rest = v}, {.weights = v, .kv = v, .there = v},
			{.weights = 1, .kv = v, .rest = GIB, .there = UINT64_MAX}};
		for (size_t j = 0; j < sizeof(any) / sizeof(any[0]); j++) {
			struct room_needs bad = {.of = any[j], .said = true};
			struct room room = room_beside(&bad, UINT64_MAX);
			assert_int_equal(room.bytes, 0);
			assert_true(room_needs_held(&bad) >= any[j].kv);
		}
	}
}

static void the_lowest_limit_of_a_group_counts(void **state)
{
	struct memory_limit limit;
	(void)state;
	write_meminfo(64 * GIB, 60 * GIB);
	write_file("membership", "0::/slice/service\n");
	write_file("mount/slice/service/memory.max", "max\n");
	write_file("mount/slice/memory.max", "17179869184\n");
	struct room room = room_of(0, false);
	assert_int_equal(room.memory, 16 * GIB);
	assert_int_equal(room.reserve, 1 * GIB);
	assert_int_equal(room.bytes, 10 * GIB);
	memory_limit_read(&files, meminfo, &limit);
	assert_non_null(strstr(limit.where, "slice/memory.max"));
	/* Others in it have half. */
	write_file("mount/slice/memory.current", "8589934592\n");
	assert_int_equal(room_of(0, false).bytes, 2 * GIB);
	assert_int_equal(room_of(6 * GIB, true).bytes, 9 * GIB);
	/* Version 1. */
	write_file("membership", "4:memory:/old\n");
	write_file("mount/memory/old/memory.limit_in_bytes", "8589934592\n");
	assert_int_equal(room_of(0, false).bytes, 2 * GIB + 512 * MIB);
}

static void nothing_known_limits_nothing(void **state)
{
	(void)state;
	assert_true(room_of(0, false).bytes > (uint64_t)1 << 62);
}

static uint32_t automatic(uint64_t room)
{
	struct budget budget;
	struct error err;
	assert_int_equal(budget_slots("auto", &geometry, room, &budget, &err), 0);
	assert_int_equal(budget.bytes, budget.n_slots * geometry.slot_bytes);
	assert_int_equal(budget.bytes, budget_automatic(&geometry, room));
	return budget.n_slots;
}

static void auto_is_what_fits_between_the_least_and_all(void **state)
{
	(void)state;
	assert_int_equal(automatic(0), slots_min(&geometry));
	assert_int_equal(automatic(UINT64_MAX), geometry.n_total);
	assert_int_equal(automatic(8 * GIB), geometry.n_total);
	assert_int_equal(automatic(8 * GIB - 1), geometry.n_total - 1);
	assert_int_equal(automatic(800 * MIB), 100);
	/* A named one asks nobody. */
	struct budget budget;
	struct error err;
	assert_int_equal(budget_slots("all", &geometry, 0, &budget, &err), 0);
	assert_int_equal(budget.n_slots, geometry.n_total);
}

static const char *notice(const char *text, uint64_t memory, uint64_t available)
{
	static char out[512];
	struct memory_limit limit = {memory, available, "this machine", false};
	struct budget budget;
	struct error err;
	struct room room;
	room_find(&limit, &needs, 0, &room);
	assert_int_equal(budget_slots(text, &geometry, room.bytes, &budget, &err), 0);
	budget_notice(text, &budget, &geometry, &room, limit.where, out, sizeof(out));
	return out;
}

static void what_was_taken_is_said_with_the_reason_and_the_option(void **state)
{
	(void)state;
	assert_string_equal(notice("auto", 32 * GIB, 32 * GIB),
		"budget auto: all experts, 8192.0 MiB; --budget SIZE changes it");
	assert_string_equal(notice("auto", 8 * GIB, 8 * GIB),
		"budget auto: 2560.0 MiB of 8192.0 MiB of experts: the 8192.0 MiB of this machine "
		"less 1024.0 MiB for other weights, 4032.0 MiB for the KV cache at its default "
		"size, 64.0 MiB for sessions and drafts, 512.0 MiB in reserve; --budget SIZE "
		"changes it");
	assert_non_null(strstr(notice("auto", 32 * GIB, 12 * GIB),
		"5120.0 MiB of 8192.0 MiB of experts: the 12.0 GiB free of this machine"));
	assert_non_null(strstr(notice("auto", 2 * GIB, 2 * GIB), "more than there is room for"));
}

/* A model whose least is all of it. */
static void the_least_that_is_all_is_said_to_be_too_much(void **state)
{
	const struct slots_geometry one_layer = {.slot_bytes = 8 * MIB,
		.n_layers = 1,
		.n_experts = 8,
		.n_experts_used = 2,
		.n_total = 8};
	struct memory_limit limit = {1 * GIB, 1 * GIB, "this machine", false};
	struct budget budget;
	struct room room;
	struct error err;
	char text[512];
	(void)state;
	room_find(&limit, &needs, 0, &room);
	assert_int_equal(budget_slots("auto", &one_layer, room.bytes, &budget, &err), 0);
	budget_notice("auto", &budget, &one_layer, &room, limit.where, text, sizeof(text));
	assert_non_null(strstr(text, "budget auto: 64.0 MiB of 64.0 MiB of experts, which is the "
				     "least and more than there is room "
				     "for: the 1024.0 MiB of this machine less"));
}

static void a_named_budget_that_leaves_too_little_is_noticed(void **state)
{
	(void)state;
	assert_string_equal(notice("all", 32 * GIB, 32 * GIB), "");
	assert_string_equal(notice("min", 1 * GIB, 1 * GIB), "");
	const char *said = notice("all", 12 * GIB, 12 * GIB);
	assert_non_null(strstr(said, "budget all: 8192.0 MiB"));
	assert_non_null(strstr(said, "is estimated to need"));
	assert_non_null(strstr(said, "budget auto takes 6400.0 MiB"));
}

static void too_large_a_budget_is_refused_with_the_largest(void **state)
{
	(void)state;
	struct memory_limit limit = {6 * GIB, 5 * GIB, "this machine", false};
	struct budget all = {.n_slots = 1024, .bytes = 8 * GIB, .asked_bytes = 8 * GIB};
	struct error err;
	assert_int_equal(budget_check_memory(&all, &limit, 0, 0, 1 * GIB, 0, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "at most 6144.0 MiB"));
	assert_non_null(strstr(err.text, "budget 5120M is the largest"));
	assert_non_null(strstr(err.text, "budget auto takes 1024.0 MiB"));
	/* And that is taken. */
	struct budget most = {.bytes = 5 * GIB, .asked_bytes = 5 * GIB};
	assert_int_equal(budget_check_memory(&most, &limit, 0, 0, 1 * GIB, 0, &err), 0);
	struct budget more = {.bytes = 5 * GIB + MIB, .asked_bytes = 5 * GIB + MIB};
	assert_int_equal(budget_check_memory(&more, &limit, 0, 0, 1 * GIB, 0, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "budget 5120M is the largest"));
	/* Where not even the least fits there is no advice. */
	assert_int_equal(budget_check_memory(&all, &limit, 0, 0, 7 * GIB, 0, &err), -ENOMEM);
	assert_null(strstr(err.text, "is the largest"));
}

/* Nobody set a budget, so what helps is not another one. */
static void a_limit_below_the_least_is_refused_with_one_that_is_not(void **state)
{
	(void)state;
	struct memory_limit limit = {200 * MIB, 200 * MIB, "/group/memory.max", false};
	struct budget least = {.bytes = 300 * MIB, .asked_bytes = 300 * MIB};
	uint64_t limit_least = room_limit_least(&needs, least.bytes);
	struct error err;
	assert_int_equal(limit_least, 4 * GIB + 300 * MIB + (4 * GIB + 300 * MIB) / 15 + 1);
	assert_int_equal(
		budget_check_memory(&least, &limit, 0, 0, least.bytes, limit_least, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "300.0 MiB for experts, but /group/memory.max has"));
	assert_non_null(strstr(err.text, "about 4690 MiB"));
	/* A memory of that size has the room. */
	struct memory_limit enough = {limit_least + 1, limit_least + 1, "", false};
	struct room_needs no_weights = needs;
	struct room room;
	no_weights.of.weights = 0;
	room_find(&enough, &no_weights, 0, &room);
	assert_true(room.bytes >= least.bytes);
	/* It is high enough, and others have the memory: another limit does not help. */
	enough.available = 100 * MIB;
	assert_int_equal(budget_check_memory(&least, &enough, 0, 0, least.bytes, limit_least, &err),
		-ENOMEM);
	assert_null(strstr(err.text, "give it"));
	assert_non_null(strstr(err.text, "other programs use the memory"));
}

static void a_budget_that_the_kv_cache_leaves_no_room_for_is_refused_with_both(void **state)
{
	(void)state;
	struct memory_limit limit = {10 * GIB, 10 * GIB, "this machine", false};
	struct budget all = {.n_slots = 1024, .bytes = 8 * GIB, .asked_bytes = 8 * GIB};
	struct error err;
	assert_int_equal(budget_check_memory(&all, &limit, 0, 2 * GIB, 1 * GIB, 0, &err), 0);
	assert_int_equal(
		budget_check_memory(&all, &limit, 0, 2 * GIB + MIB, 1 * GIB, 0, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "budget: 8192.0 MiB for experts"));
	assert_non_null(strstr(err.text, "of the 10.0 GiB that this machine has"));
	assert_non_null(strstr(err.text, "takes 2049.0 MiB for its KV cache"));
	assert_non_null(strstr(err.text, "budget 8191M is the largest"));
	/* What it has already it may keep, and less is always taken. */
	assert_int_equal(budget_check_memory(&all, &limit, 8 * GIB, 9 * GIB, 0, 0, &err), 0);
	assert_int_equal(
		budget_check_memory(&all, &limit, 0, UINT64_MAX, 1 * GIB, 0, &err), -ENOMEM);
	assert_null(strstr(err.text, "is the largest"));
	/* In the unit of what there is. */
	limit = (struct memory_limit){47 * GIB / 2, 47 * GIB / 2, "this machine", false};
	all = (struct budget){.n_slots = 1024, .bytes = 8 * GIB, .asked_bytes = 99 * GIB};
	assert_int_equal(budget_check_memory(&all, &limit, 0, GIB, 1 * GIB, 0, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "has at most 23.5 GiB: budget 22.5G is the largest"));
}

static void the_reason_is_told_of_any_budget(void **state)
{
	char text[512];
	(void)state;
	struct memory_limit limit = {32 * GIB, 32 * GIB, "this machine", false};
	struct room_needs said = needs;
	struct room room;
	said.said = true;
	room_find(&limit, &said, 0, &room);
	budget_describe(&room, limit.where, text, sizeof(text));
	assert_string_equal(text,
		"25.0 GiB: the 32.0 GiB of this machine less 1024.0 MiB for other weights, 4032.0 "
		"MiB "
		"for the KV cache, 64.0 MiB for sessions and drafts, 2048.0 MiB in reserve");
}

static void a_budget_is_binary_or_decimal_as_its_unit_says(void **state)
{
	static const struct {
		const char *text;
		uint32_t slots;
	} cases[] = {{"2G", 256}, {"2g", 256}, {"2GiB", 256}, {"2GB", 238}, {"2048MiB", 256}};
	struct budget budget;
	struct error err;
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(budget_slots(cases[i].text, &geometry, 0, &budget, &err), 0);
		assert_int_equal(budget.n_slots, cases[i].slots);
	}
	assert_true(budget_slots("2Gbit", &geometry, 0, &budget, &err) < 0);
	assert_non_null(strstr(err.text, "8GB"));
}

/* Weights that the verifier maps are free of the machine's memory already: they must not be counted as had once more. */
static void what_is_there_is_what_the_verifier_has_said(void **state)
{
	const struct slots_needs said = {.weights = 3 * MIB, .kv = 2 * MIB, .there = 2 * MIB};
	struct region region;
	struct error err;
	(void)state;
	assert_int_equal(settle_there(-1), 0);
	assert_int_equal(region_create(EXPERTS_REGION, EXPERTS_LAYOUT, sizeof(struct slots_header),
				 0, &region, &err),
		0);
	assert_int_equal(settle_there(region.fd), 0);
	slots_say_needs(region_payload(&region), &said);
	assert_int_equal(settle_there(region.fd), 2 * MIB);
	region_close(&region);
	/* Another region. */
	assert_int_equal(
		region_create("other", 1, sizeof(struct slots_header), 0, &region, &err), 0);
	assert_int_equal(settle_there(region.fd), 0);
	region_close(&region);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_budget_is_binary_or_decimal_as_its_unit_says),
		cmocka_unit_test(what_is_there_is_what_the_verifier_has_said),
		cmocka_unit_test_setup_teardown(
			the_machine_is_shared_with_the_rest, make_directory, remove_directory),
		cmocka_unit_test_setup_teardown(
			what_others_use_now_is_not_taken, make_directory, remove_directory),
		cmocka_unit_test_setup_teardown(
			a_restart_counts_its_own_memory_as_free, make_directory, remove_directory),
		cmocka_unit_test_setup_teardown(
			what_the_verifier_says_it_takes_counts, make_directory, remove_directory),
		cmocka_unit_test_setup_teardown(what_the_verifier_has_filled_is_not_counted_twice,
			make_directory, remove_directory),
		cmocka_unit_test_setup_teardown(
			needs_of_any_numbers_leave_no_room_and_overflow_nothing, make_directory,
			remove_directory),
		cmocka_unit_test_setup_teardown(
			the_lowest_limit_of_a_group_counts, make_directory, remove_directory),
		cmocka_unit_test_setup_teardown(
			nothing_known_limits_nothing, make_directory, remove_directory),
		cmocka_unit_test(auto_is_what_fits_between_the_least_and_all),
		cmocka_unit_test(what_was_taken_is_said_with_the_reason_and_the_option),
		cmocka_unit_test(a_named_budget_that_leaves_too_little_is_noticed),
		cmocka_unit_test(too_large_a_budget_is_refused_with_the_largest),
		cmocka_unit_test(a_limit_below_the_least_is_refused_with_one_that_is_not),
		cmocka_unit_test(the_least_that_is_all_is_said_to_be_too_much),
		cmocka_unit_test(
			a_budget_that_the_kv_cache_leaves_no_room_for_is_refused_with_both),
		cmocka_unit_test(the_reason_is_told_of_any_budget),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
