/* Services that find each other on a device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "shared/ipc/device_claim.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char one[64], other[64], uuid[48];

static int setup(void **state)
{
	(void)state;
	snprintf(uuid, sizeof(uuid), "GPU-test-%d", (int)getpid());
	snprintf(one, sizeof(one), "/tmp/outrider-test-XXXXXX");
	snprintf(other, sizeof(other), "/tmp/outrider-test-XXXXXX");
	return mkdtemp(one) && mkdtemp(other) ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return rmdir(one) + rmdir(other);
}

static int claim(const char *dir, const char *process, bool shared, int *fd, struct error *err)
{
	return device_claim(uuid, "a GPU", dir, process, shared, fd, err);
}

static void another_service_is_named_and_its_end_is_seen(void **state)
{
	int ours, more, theirs;
	struct error err;
	char pid[64];
	(void)state;
	assert_int_equal(claim(one, "verifier", false, &ours, &err), 0);
	assert_true(ours >= 0);
	assert_int_equal(claim(other, "verifier", false, &theirs, &err), -EBUSY);
	assert_int_equal(theirs, -1);
	snprintf(pid, sizeof(pid), "the verifier of another service, process %d:", (int)getpid());
	assert_non_null(strstr(err.text, "a GPU (GPU-test-"));
	assert_non_null(strstr(err.text, pid));
	/* Processes of one service are not in each other's way, under whatever path it is known. */
	char path[80];
	snprintf(path, sizeof(path), "%s/.", one);
	assert_int_equal(claim(path, "drafter", false, &more, &err), 0);
	close(ours);
	assert_int_equal(claim(other, "verifier", false, &theirs, &err), -EBUSY);
	assert_non_null(strstr(err.text, "the drafter of another service"));
	close(more);
	assert_int_equal(claim(other, "verifier", false, &theirs, &err), 0);
	close(theirs);
}

static void one_that_may_share_does_not_drive_out_the_first(void **state)
{
	int cache, verifier, theirs;
	struct error err;
	(void)state;
	assert_int_equal(claim(one, "expert-cache", false, &cache, &err), 0);
	assert_int_equal(claim(other, "verifier", true, &theirs, &err), 0);
	/* A successor of the first service's verifier. */
	assert_int_equal(claim(one, "verifier", false, &verifier, &err), 0);
	close(cache);
	close(verifier);
	assert_int_equal(claim(one, "verifier", false, &verifier, &err), -EBUSY);
	close(theirs);
}

static void a_process_that_is_killed_has_none(void **state)
{
	int pipes[2], fd;
	char byte;
	struct error err;
	(void)state;
	assert_int_equal(pipe(pipes), 0);
	pid_t child = fork();
	if (child == 0) {
		byte = claim(other, "expert-cache", false, &fd, &err) == 0;
		(void)!write(pipes[1], &byte, 1);
		for (;;)
			pause();
	}
	assert_int_equal(read(pipes[0], &byte, 1), 1);
	assert_int_equal(byte, 1);
	assert_int_equal(claim(one, "verifier", false, &fd, &err), -EBUSY);
	char pid[32];
	snprintf(pid, sizeof(pid), "process %d:", (int)child);
	assert_non_null(strstr(err.text, pid));
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(claim(one, "verifier", false, &fd, &err), 0);
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
}

/* Of many that come at once, each of its own service, one stays. */
static void of_many_at_once_one_has_it(void **state)
{
	enum { MANY = 12 };
	int ready[2], go[2], said[2], fd, won = 0;
	struct error err;
	char byte, dirs[MANY][64];
	pid_t child[MANY];
	(void)state;
	assert_true(pipe(ready) == 0 && pipe(go) == 0 && pipe(said) == 0);
	for (int i = 0; i < MANY; i++) {
		assert_non_null(mkdtemp(strcpy(dirs[i], "/tmp/outrider-test-XXXXXX")));
		child[i] = fork();
		if (child[i] == 0) {
			(void)!write(ready[1], "", 1);
			(void)!read(go[0], &byte, 1);
			byte = claim(dirs[i], "verifier", false, &fd, &err) == 0;
			(void)!write(said[1], &byte, 1);
			for (;;)
				pause();
		}
	}
	for (int i = 0; i < MANY; i++)
		assert_int_equal(read(ready[0], &byte, 1), 1);
	char all[MANY] = {0};
	assert_int_equal(write(go[1], all, MANY), MANY);
	for (int i = 0; i < MANY; i++) {
		assert_int_equal(read(said[0], &byte, 1), 1);
		won += byte;
	}
	for (int i = 0; i < MANY; i++) {
		kill(child[i], SIGKILL);
		waitpid(child[i], NULL, 0);
		rmdir(dirs[i]);
	}
	assert_int_equal(won, 1);
}

static int bind_name(const char *end)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int n = snprintf(
		at.sun_path + 1, sizeof(at.sun_path) - 1, "outrider-device/%s/%s", uuid, end);
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(
		bind(fd, (const struct sockaddr *)&at,
			(socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)),
		0);
	return fd;
}

/* Any process can bind a name that begins like a claim. */
static void a_name_that_is_no_claim_drives_nobody_out(void **state)
{
	static const char *const ends[] = {
		"00000000000000000000001/verifier/99999999999", /* no pid */
		"1/verifier/0",
		"1/verifier/-7",
		"1/verifier",
		"11111111111111111/verifier/7", /* beyond 64 bits */
		"/verifier/7",
		"1//7",
		"1/Verifier/7",
		"1/a-name-that-no-process-of-ours-ever-has/7",
	};
	struct error err;
	int ours;
	(void)state;
	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
		int fd = bind_name(ends[i]);
		assert_int_equal(claim(one, "verifier", false, &ours, &err), 0);
		close(ours);
		close(fd);
	}
	int fd = bind_name("1/verifier/7");
	assert_int_equal(claim(one, "verifier", false, &ours, &err), -EBUSY);
	assert_non_null(strstr(err.text, "the verifier of another service, process 7:"));
	close(fd);
}

static void without_a_uuid_nothing_is_claimed(void **state)
{
	int fd = 5;
	struct error err;
	(void)state;
	assert_int_equal(device_claim("", "a GPU", one, "verifier", false, &fd, &err), 0);
	assert_int_equal(fd, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(another_service_is_named_and_its_end_is_seen),
		cmocka_unit_test(one_that_may_share_does_not_drive_out_the_first),
		cmocka_unit_test(a_process_that_is_killed_has_none),
		cmocka_unit_test(of_many_at_once_one_has_it),
		cmocka_unit_test(a_name_that_is_no_claim_drives_nobody_out),
		cmocka_unit_test(without_a_uuid_nothing_is_claimed),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
