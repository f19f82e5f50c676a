/* outrider down: stops the `outrider up` of a runtime directory and waits until it has ended. */
#include "client/cli/cli.h"
#include "client/cli/up_pid.h"

#include "shared/base/clock.h"
#include "shared/ipc/peers.h"

#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

/* `up` gives its children 10 s before it kills them. */
#define WAIT_NS_MAX UINT64_C(20000000000)

enum { LOOK_US = 20000 };

static int stop(const char *runtime_dir)
{
	uint64_t end = clock_ns() + WAIT_NS_MAX;
	pid_t pid, now;

	if (!up_pid_alive(runtime_dir, &pid))
		return cli_fail(EX_UNAVAILABLE, "down: no `outrider up` runs in %s", runtime_dir);
	if (pid <= 0)
		return cli_fail(
			EX_SOFTWARE, "down: %s/up.pid holds no process number", runtime_dir);
	/* The process holds its lock as long as it lives, so the number is still its own. */
	if (kill(pid, SIGTERM) < 0)
		return cli_fail(error_exit_status(errno), "down: process %ld: %s", (long)pid,
			strerror(errno));
	while (up_pid_alive(runtime_dir, &now) && now == pid) {
		if (clock_ns() >= end)
			return cli_fail(EX_TEMPFAIL, "down: process %ld has not ended in %d s",
				(long)pid, (int)(WAIT_NS_MAX / 1000000000u));
		usleep(LOOK_US);
	}
	return EX_OK;
}

int command_down(int argc, char **argv)
{
	static const struct option flags[] = {
		{"runtime-dir", required_argument, NULL, 'r'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	const char *usage =
		"usage: outrider down [--runtime-dir DIR]\n\n"
		"Stops the service that `outrider up` started and waits until it is gone.\n";
	const char *runtime_flag = NULL;
	char runtime_dir[256];
	struct error err = {""};
	int flag, code;

	opterr = 0;
	while ((flag = getopt_long(argc, argv, ":h", flags, NULL)) != -1) {
		if (flag == 'h') {
			fputs(usage, stdout);
			return EX_OK;
		}
		if (flag != 'r')
			return cli_bad_option("down", flag, ":h", argv);
		runtime_flag = optarg;
	}
	if (optind < argc)
		return cli_fail(EX_USAGE, "down: unexpected argument \"%.64s\"", argv[optind]);
	code = peers_runtime_dir(runtime_flag, false, runtime_dir, sizeof runtime_dir, &err);
	if (code < 0)
		return cli_fail(code == -ENOENT ? EX_UNAVAILABLE : error_exit_status(code),
			"down: %s", err.text);
	return stop(runtime_dir);
}
