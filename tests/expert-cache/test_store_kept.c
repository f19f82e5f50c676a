/* A kernel, or a sandbox, that does not take the memory of slots back: what they keep is counted, and used before other memory
 * is. */
#include "services/expert-cache/store/sums.h"
#include "tests/expert-cache/transfer_rig.h"

#include "shared/base/log.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int refuse_fallocate(void **state)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		return -1;
	return group_init(state);
}

static uint64_t kept(const struct rig *rig)
{
	return store_kept_bytes(&rig->store) / geometry.slot_bytes;
}

static uint32_t load(struct rig *rig, uint32_t expert)
{
	struct cache_prefetch want = {.layer = 1, .expert = expert};
	uint32_t slot = store_take(&rig->store, &want, LOAD_PREFETCH, 0);
	assert_int_not_equal(slot, SLOT_NONE);
	memset(slots_at(&rig->store.slots, slot), 1, geometry.slot_bytes);
	store_loaded(&rig->store, slot, LOAD_PREFETCH, 0, LAYOUT_ROWS);
	return slot;
}

static void what_a_budget_that_falls_leaves_behind_is_counted_and_used_first(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 3, .no_worker = true});
	assert_true(rig.store.refused);
	assert_int_equal(kept(&rig), 0);
	for (uint32_t e = 0; e < 3; e++)
		load(&rig, e);
	uint64_t bytes = store_bytes(&rig.store);
	store_set_budget(&rig.store, 1);
	uint32_t first = store_shrink(&rig.store, 0);
	store_give_back(&rig.store, first);
	uint32_t second = store_shrink(&rig.store, 0);
	store_give_back(&rig.store, second);
	assert_int_equal(store_shrink(&rig.store, 0), SLOT_NONE);
	assert_int_equal(kept(&rig), 2);
	assert_int_equal(store_bytes(&rig.store), bytes);

	store_set_budget(&rig.store, 3);
	uint32_t again = load(&rig, 5), last = load(&rig, 6);
	assert_true((again == first && last == second) || (again == second && last == first));
	assert_int_equal(kept(&rig), 0);
	assert_int_equal(store_bytes(&rig.store), bytes);
	rig_stop(&rig);
}

static void pages_are_found_ahead_only_beside_those_that_were_kept(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	uint32_t slots[8];
	rig_start(&rig, &(struct rig_options){.budget = 4, .no_worker = true});
	load(&rig, 0);
	load(&rig, 1);
	store_set_budget(&rig.store, 1);
	store_give_back(&rig.store, store_shrink(&rig.store, 0));
	store_set_budget(&rig.store, 4);
	assert_int_equal(store_ahead(&rig.store, slots, 8), 2);
	assert_false(store_too_far_ahead(&rig.store));
	for (uint32_t i = 0; i < 2; i++)
		memset(slots_at(&rig.store.slots, slots[i]), 1, geometry.slot_bytes);

	/* They cannot be given back either. */
	store_set_budget(&rig.store, 1);
	assert_true(store_too_far_ahead(&rig.store));
	store_drop_ahead(&rig.store);
	assert_false(store_too_far_ahead(&rig.store));
	assert_int_equal(rig.store.n_ahead, 0);
	assert_int_equal(kept(&rig), 3);
	rig_stop(&rig);
}

static void a_successor_counts_what_its_predecessor_could_not_give_back(void **state)
{
	(void)state;
	need_model();
	struct rig rig;
	rig_start(&rig, &(struct rig_options){.budget = 4, .no_worker = true});
	for (uint32_t e = 0; e < 4; e++)
		load(&rig, e);
	store_set_budget(&rig.store, 1);
	for (int i = 0; i < 3; i++)
		store_give_back(&rig.store, store_shrink(&rig.store, 0));
	while (sums_work(&rig.store))
		continue;
	int fd = fcntl(rig.store.region.fd, F_DUPFD_CLOEXEC, 3);
	rig_stop(&rig);
	rig_start(&rig, &(struct rig_options){.budget = 4, .recovered_fd = fd, .no_worker = true});
	assert_true(rig.store.adopted);
	assert_int_equal(kept(&rig), 3);
	uint64_t bytes = store_bytes(&rig.store);
	for (uint32_t e = 10; e < 13; e++)
		load(&rig, e);
	assert_int_equal(kept(&rig), 0);
	assert_int_equal(store_bytes(&rig.store), bytes);
	rig_stop(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_budget_that_falls_leaves_behind_is_counted_and_used_first),
		cmocka_unit_test(pages_are_found_ahead_only_beside_those_that_were_kept),
		cmocka_unit_test(a_successor_counts_what_its_predecessor_could_not_give_back),
	};
	log_init("test", 0);
	return cmocka_run_group_tests(tests, refuse_fallocate, group_exit);
}
