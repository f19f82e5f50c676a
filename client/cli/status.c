/* outrider status: what a person asks of the service, and a line per process. */
#include "client/cli/cli.h"
#include "client/include/outrider.h"
#include "client/summary/process.h"
#include "client/summary/summary.h"

#include "shared/base/options.h"
#include "shared/base/units.h"
#include "shared/ipc/detail.h"

#include <getopt.h>
#include <jansson.h>
#include <string.h>
#include <sysexits.h>

enum { TIMEOUT_MS = 500 };

static void print_json(const struct outrider_status *status)
{
	const char *given_up = outrider_status_given_up(status);
	json_t *root = json_pack("{s:o,s:o}", "processes", processes_json(status), "given_up",
		given_up ? json_text(given_up) : json_null());

	json_dumpf(root, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(root);
}

static void print_text(const struct outrider_status *status)
{
	char lines[SUMMARY_LINES][SUMMARY_BYTES];
	size_t n = summary(status, lines);

	for (size_t i = 0; i < n; i++)
		puts(lines[i]);
	printf("\n%-13s %8s %8s %11s  %s\n", "PROCESS", "PID", "UPTIME", "MEMORY", "STATE");
	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		char pid[16] = "-", uptime[UNITS_BYTES] = "-", memory[UNITS_BYTES] = "-";

		if (p->pid)
			snprintf(pid, sizeof pid, "%u", p->pid);
		if (p->answers) {
			units_period(p->uptime_ns, uptime);
			units_memory(p->rss_bytes, memory);
		}
		printf("%-13s %8s %8s %11s  %s\n", p->name, pid, uptime, memory, p->state);
	}
}

static void usage(FILE *to)
{
	fputs("usage: outrider status [--runtime-dir DIR] [--format text|json]\n\n"
	      "Shows what the service serves, how fast and how full it is, what is wrong, and its\n"
	      "processes. Exits with 0 if all of them answer, else with 69.\n\n"
	      "  --format text|json  output format; --json is --format json\n"
	      "  --runtime-dir DIR   the runtime directory of the service\n",
		to);
}

int command_status(int argc, char **argv)
{
	static const struct option flags[] = {
		{"runtime-dir", required_argument, NULL, 'r'},
		{"format", required_argument, NULL, 'f'},
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	const char *runtime_dir = NULL;
	struct outrider_status *status;
	bool json = false, all = true;
	int flag, code;

	if (options_want_json(argc, argv, ":h", flags))
		cli_errors_as_json();
	opterr = 0;
	while ((flag = getopt_long(argc, argv, ":h", flags, NULL)) != -1) {
		if (flag == 'r') {
			runtime_dir = optarg;
		} else if (flag == 'f') {
			if (strcmp(optarg, "json") != 0 && strcmp(optarg, "text") != 0)
				return cli_fail(EX_USAGE,
					"--format \"%.32s\": allowed are text and json", optarg);
			json = optarg[0] == 'j';
		} else if (flag == 'j') {
			json = true;
		} else if (flag == 'h') {
			return cli_help(usage);
		} else {
			return cli_bad_option("status", flag, ":h", argv);
		}
	}
	if (optind < argc)
		return cli_fail(EX_USAGE, "status: unexpected argument \"%.64s\"", argv[optind]);
	code = outrider_status(runtime_dir, TIMEOUT_MS, &status);
	if (code < 0)
		return cli_fail(error_exit_status(code), "status: %s", outrider_error());
	if (json)
		print_json(status);
	else
		print_text(status);
	for (size_t i = 0; i < outrider_status_count(status); i++)
		all &= outrider_status_process(status, i)->answers != 0;
	outrider_status_free(&status);
	return all ? EX_OK : EX_UNAVAILABLE;
}
