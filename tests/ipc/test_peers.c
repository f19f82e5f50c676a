#include "shared/ipc/peers.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char base[64];

static int setup(void **state)
{
	(void)state;
	snprintf(base, sizeof base, "/tmp/outrider-test-XXXXXX");
	unsetenv("OUTRIDER_RUNTIME_DIR");
	unsetenv("RUNTIME_DIRECTORY");
	unsetenv("XDG_RUNTIME_DIR");
	return mkdtemp(base) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof command, "rm -rf %s", base);
	return system(command);
}

static void only_the_stated_processes_may_connect(void **state)
{
	int allowed = 0;

	(void)state;
	for (size_t i = 0; peers_all[i]; i++)
		for (size_t j = 0; peers_all[j]; j++)
			allowed += peers_may_connect(peers_all[i], peers_all[j]);
	assert_int_equal(allowed, 5);
	assert_true(peers_may_connect(PEER_DRAFTER, PEER_VERIFIER));
	assert_false(peers_may_connect(PEER_VERIFIER, PEER_DRAFTER));
	assert_false(peers_may_connect("", PEER_VERIFIER));
	assert_true(peers_known(PEER_CACHE));
	assert_false(peers_known("gateway"));
}

static void every_region_has_one_owner(void **state)
{
	(void)state;
	assert_string_equal(peers_region_owner("sessions"), PEER_VERIFIER);
	assert_string_equal(peers_region_owner("draft"), PEER_VERIFIER);
	assert_string_equal(peers_region_owner("kv"), PEER_VERIFIER);
	assert_string_equal(peers_region_owner("experts"), PEER_CACHE);
	assert_string_equal(peers_region_owner("policy"), PEER_POLICY);
	assert_null(peers_region_owner("other"));
}

static void the_directory_is_found_in_the_stated_order(void **state)
{
	char out[128], want[128], value[128];
	struct error err = {""};

	(void)state;
	setenv("XDG_RUNTIME_DIR", base, 1);
	snprintf(want, sizeof want, "%s/outrider", base);
	assert_int_equal(peers_runtime_dir(NULL, true, out, sizeof out, &err), 0);
	assert_string_equal(out, want);
	snprintf(value, sizeof value, "%s/systemd", base);
	setenv("RUNTIME_DIRECTORY", value, 1);
	assert_int_equal(peers_runtime_dir(NULL, true, out, sizeof out, &err), 0);
	assert_string_equal(out, value);
	snprintf(value, sizeof value, "%s/ours", base);
	setenv("OUTRIDER_RUNTIME_DIR", value, 1);
	assert_int_equal(peers_runtime_dir("", true, out, sizeof out, &err), 0);
	assert_string_equal(out, value);
	snprintf(value, sizeof value, "%s/flag//", base);
	snprintf(want, sizeof want, "%s/flag", base);
	assert_int_equal(peers_runtime_dir(value, true, out, sizeof out, &err), 0);
	assert_string_equal(out, want);
}

static void the_directory_is_made_private_with_its_parents(void **state)
{
	char out[128], dir[128], want[160], before[4096];
	struct error err = {""};
	struct stat st;

	(void)state;
	snprintf(dir, sizeof dir, "%s/a/b", base);
	assert_int_equal(peers_runtime_dir(dir, false, out, sizeof out, &err), -ENOENT);
	assert_non_null(strstr(err.text, dir));
	assert_int_equal(peers_runtime_dir(dir, true, out, sizeof out, &err), 0);
	assert_int_equal(stat(dir, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	assert_non_null(getcwd(before, sizeof before));
	assert_int_equal(chdir(base), 0);
	assert_int_equal(peers_runtime_dir("a/c", true, out, sizeof out, &err), 0);
	assert_int_equal(chdir(before), 0);
	snprintf(want, sizeof want, "%s/a/c", base);
	assert_string_equal(out, want);
}

static void a_directory_that_cannot_serve_is_refused_by_name(void **state)
{
	char out[256], dir[200], padding[100];
	struct error err = {""};

	(void)state;
	memset(padding, 'x', sizeof padding);
	snprintf(dir, sizeof dir, "%s/%.*s", base, 80, padding);
	assert_int_equal(peers_runtime_dir(dir, true, out, sizeof out, &err), -ENAMETOOLONG);
	assert_non_null(strstr(err.text, "xxx"));
	snprintf(dir, sizeof dir, "%s/open", base);
	assert_int_equal(mkdir(dir, 0700), 0);
	static const mode_t open_modes[] = {0777, 01777, 0722, 0770, 02770, 0720, 0702};
	for (size_t i = 0; i < 2 * sizeof open_modes / sizeof open_modes[0]; i++) {
		assert_int_equal(chmod(dir, open_modes[i / 2]), 0);
		assert_int_equal(peers_runtime_dir(dir, i % 2 != 0, out, sizeof out, &err), -EPERM);
		assert_non_null(strstr(err.text, dir));
		assert_non_null(strstr(err.text, "may write to it"));
	}
	assert_int_equal(chmod(dir, 0755), 0);
	assert_int_equal(peers_runtime_dir(dir, true, out, sizeof out, &err), 0);
	assert_int_equal(peers_runtime_dir("/dev/null", false, out, sizeof out, &err), -ENOTDIR);
	if (geteuid() == 0) { /* only root can make what belongs to somebody else */
		assert_int_equal(chmod(dir, 0700), 0);
		assert_int_equal(chown(dir, 12345, 12345), 0);
		assert_int_equal(peers_runtime_dir(dir, true, out, sizeof out, &err), -EPERM);
		assert_non_null(strstr(err.text, "user 12345"));
		assert_int_equal(peers_runtime_dir(dir, false, out, sizeof out, &err),
			0); /* root may look */
	}
}

static void paths_lie_in_the_directory(void **state)
{
	char out[160];

	(void)state;
	peers_socket_path("/run/outrider", PEER_CACHE, out, sizeof out);
	assert_string_equal(out, "/run/outrider/expert-cache.sock");
	peers_admin_endpoint("/run/outrider", PEER_POLICY, out, sizeof out);
	assert_string_equal(out, "ipc:///run/outrider/policy.ctl");
	peers_client_endpoint("/run/outrider", out, sizeof out);
	assert_string_equal(out, "ipc:///run/outrider/client");
}

static void who_listens_for_a_short_time_may_still_be_starting(void **state)
{
	const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	char path[200];
	FILE *file;

	(void)state;
	snprintf(path, sizeof path, "%s/new.sock", base);
	assert_false(peers_starting(path));
	file = fopen(path, "w");
	assert_non_null(file);
	fclose(file);
	assert_true(peers_starting(path));
	assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
	assert_false(peers_starting(path));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(only_the_stated_processes_may_connect),
		TEST(every_region_has_one_owner),
		TEST(the_directory_is_found_in_the_stated_order),
		TEST(the_directory_is_made_private_with_its_parents),
		TEST(a_directory_that_cannot_serve_is_refused_by_name),
		TEST(paths_lie_in_the_directory),
		TEST(who_listens_for_a_short_time_may_still_be_starting),
	};

	return cmocka_run_group_tests_name("peers", tests, NULL, NULL);
}
