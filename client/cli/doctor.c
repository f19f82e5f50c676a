/* outrider doctor: examines the machine and the model, measures, and reports which speed to expect
 * with which settings. */
#include "client/cli/cli.h"
#include "client/cli/doctor/doctor.h"
#include "client/include/outrider.h"

#include "kernels/gpu/choice.h"
#include "services/verifier/state/kv_size.h"
#include "shared/base/options.h"
#include "shared/ipc/peers.h"
#include "shared/model/gguf/gguf_guard.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { PROBLEMS_STATUS = 1, TIMEOUT_MS = 300 };

struct doctor_options {
	const char *runtime_dir, *write;
	bool json, force;
};

static void usage(FILE *to)
{
	fputs("usage: outrider doctor [--model FILE] [--draft FILE] [options]\n\n"
	      "Checks the machine and, with --model, the model on it. Measures memory and disk "
	      "for\n"
	      "some seconds. Says what speed to expect with which settings. Exits with 1 if there\n"
	      "is a problem, else with 0.\n\n"
	      "  --model FILE        the model to serve, a GGUF file\n"
	      "  --draft FILE        a small draft model with the same tokenizer, or an EAGLE-3\n"
	      "                      head of the model\n"
	      "  --device D          with --model: what computes, as for `outrider up`; says what "
	      "fits\n"
	      "                      into its memory. auto, the default, is the first GPU, if it "
	      "can\n"
	      "                      be used\n"
	      "  --device-memory M   with --model: the most of the GPU's memory that the service "
	      "takes,\n"
	      "                      as for `outrider up`: auto (the default: all but a 16th), "
	      "50%,\n"
	      "                      12G\n"
	      "  --prefix-dir DIR    pages of the KV cache are to be kept there\n"
	      "  --write DIR         write the recommended settings to DIR/verifier.conf and so "
	      "on\n"
	      "  --force             with --write: replace files that exist\n"
	      "  --runtime-dir DIR   the runtime directory of the service\n"
	      "  --format text|json  output format; --json is --format json\n",
		to);
}

static const struct option flags[] = {
	{"model", required_argument, NULL, 'm'},
	{"draft", required_argument, NULL, 'd'},
	{"device", required_argument, NULL, 'D'},
	{"device-memory", required_argument, NULL, 'M'},
	{"prefix-dir", required_argument, NULL, 'p'},
	{"write", required_argument, NULL, 'w'},
	{"force", no_argument, NULL, 'F'},
	{"runtime-dir", required_argument, NULL, 'r'},
	{"format", required_argument, NULL, 'f'},
	{"json", no_argument, NULL, 'j'},
	{"help", no_argument, NULL, 'h'},
	{0},
};

static int take_device(struct doctor *doctor)
{
	struct error err = {""};
	enum gpu_choice choice;
	const char *device;

	doctor->device = optarg;
	return gpu_choice_read(optarg, &choice, &device, &err) == 0
		       ? 0
		       : cli_fail(EX_USAGE, "doctor: --%s", err.text);
}

static int take_device_memory(struct doctor *doctor)
{
	struct error err = {""};

	doctor->device_memory = optarg;
	return kv_size_read("--device-memory", optarg, &err) == 0
		       ? 0
		       : cli_fail(EX_USAGE, "doctor: %s", err.text);
}

/* INT32_MAX: the flag is not one of ours. */
static int take_flag(struct doctor *doctor, struct doctor_options *options, int flag)
{
	switch (flag) {
	case 'm':
		doctor->model_path = optarg;
		return 0;
	case 'd':
		doctor->draft_path = optarg;
		return 0;
	case 'D':
		return take_device(doctor);
	case 'M':
		return take_device_memory(doctor);
	case 'p':
		doctor->prefix_dir = optarg;
		return 0;
	case 'w':
		options->write = optarg;
		return 0;
	case 'F':
		options->force = true;
		return 0;
	case 'r':
		options->runtime_dir = optarg;
		return 0;
	case 'f':
		if (strcmp(optarg, "json") != 0 && strcmp(optarg, "text") != 0)
			return cli_fail(EX_USAGE, "--format \"%.32s\": text or json", optarg);
		options->json = optarg[0] == 'j';
		return 0;
	case 'j':
		options->json = true;
		return 0;
	default:
		return INT32_MAX;
	}
}

static int check(
	const struct doctor *doctor, const struct doctor_options *options, char *const *extra)
{
	if (*extra)
		return cli_fail(EX_USAGE, "doctor: unexpected argument \"%.64s\"", *extra);
	if (doctor->draft_path && !doctor->model_path)
		return cli_fail(EX_USAGE, "doctor: --draft needs --model FILE");
	/* auto is what it is without the flag. */
	if (doctor->device && strcmp(doctor->device, "auto") != 0 && !doctor->model_path)
		return cli_fail(EX_USAGE, "doctor: --device needs --model FILE");
	if (doctor->device_memory && !doctor->model_path)
		return cli_fail(EX_USAGE, "doctor: --device-memory needs --model FILE");
	if (doctor->prefix_dir && !doctor->model_path)
		return cli_fail(EX_USAGE, "doctor: --prefix-dir needs --model FILE");
	if (doctor->prefix_dir && doctor->prefix_dir[0] != '/')
		return cli_fail(EX_USAGE,
			"doctor: --prefix-dir \"%.64s\": write it from the root on",
			doctor->prefix_dir);
	if (options->write && !doctor->model_path)
		return cli_fail(EX_USAGE, "doctor: --write needs --model FILE");
	if (options->force && !options->write)
		return cli_fail(EX_USAGE, "doctor: --force needs --write DIR");
	return 0;
}

/* Whether any process of a service answers in the runtime directory. */
static bool answers(const char *runtime_dir)
{
	struct outrider_status *status;
	bool any = false;

	if (outrider_status(runtime_dir, TIMEOUT_MS, &status) < 0)
		return false;
	for (size_t i = 0; i < outrider_status_count(status); i++)
		any |= outrider_status_process(status, i)->answers != 0;
	outrider_status_free(&status);
	return any;
}

static void judge_runtime_dir(const char *flag, struct findings *findings)
{
	char directory[256];
	struct error err = {""};
	int code = peers_runtime_dir(flag, false, directory, sizeof directory, &err);

	if (code == -ENOENT)
		finding_add(findings, "runtime-dir", FINDING_OK,
			"%s is not there: `outrider up` makes it", directory);
	else if (code < 0)
		finding_todo(finding_add(findings, "runtime-dir", FINDING_PROBLEM, "%s", err.text),
			"name another directory (--runtime-dir, OUTRIDER_RUNTIME_DIR), or change "
			"this one");
	else if (answers(flag))
		finding_todo(finding_add(findings, "runtime-dir", FINDING_ADVICE,
				     "%s: a service runs there. Its memory does not count as free, "
				     "and it shares CPUs and disk with what is measured",
				     directory),
			"stop it before you ask what a machine can do");
	else
		finding_add(findings, "runtime-dir", FINDING_OK,
			"%s: belongs to this user, who alone may write to it; no service answers "
			"there",
			directory);
}

static void look(struct doctor *doctor, const struct doctor_options *options)
{
	struct machine_wants wants = {0};
	cpu_set_t mask;

	cpus_mask(&mask);
	machine_read("", &mask, &doctor->machine);
	machine_probe(&doctor->machine);
	doctor_open_files(doctor);
	if (doctor->has_model) {
		wants.slots_bytes = doctor->plan.budget_bytes;
		/* The files of a split model, and one descriptor per thread. */
		wants.files =
			gguf_n_parts(doctor->model.model->gguf) * 2 + doctor->machine.cpus.threads;
	}
	machine_judge(&doctor->machine, &wants, &doctor->findings);
	judge_runtime_dir(options->runtime_dir, &doctor->findings);
	doctor_judge_files(doctor);
	doctor_measure(doctor);
}

static void print(const struct doctor *doctor, bool json)
{
	if (!json) {
		doctor_report(doctor, stdout);
		return;
	}
	json_t *all = doctor_json(doctor);
	json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(all);
}

static int write_settings(
	const struct doctor *doctor, const struct doctor_options *options, size_t problems)
{
	struct error err = {""};

	if (problems > 0)
		return cli_fail(PROBLEMS_STATUS,
			"doctor: nothing is written to %s: solve the problems first",
			options->write);
	int rc = doctor_write(doctor, options->write, options->force, &err);
	if (rc != 0)
		return cli_fail(error_exit_status(rc), "doctor: %s", err.text);
	return cli_fail(0,
		"doctor: verifier.conf, expert-cache.conf, drafter.conf and policy.conf are in %s",
		options->write);
}

int command_doctor(int argc, char **argv)
{
	struct doctor_options options = {0};
	struct doctor *doctor = calloc(1, sizeof *doctor);
	int flag, status = 0;

	if (!doctor)
		return cli_fail(EX_OSERR, "doctor: no memory");
	if (options_want_json(argc, argv, ":h", flags))
		cli_errors_as_json();
	opterr = 0;
	while (status == 0 && (flag = getopt_long(argc, argv, ":h", flags, NULL)) != -1) {
		if (flag == 'h') {
			free(doctor);
			return cli_help(usage);
		}
		status = take_flag(doctor, &options, flag);
		if (status == INT32_MAX)
			status = cli_bad_option("doctor", flag, ":h", argv);
	}
	if (status == 0)
		status = check(doctor, &options, argv + optind);
	if (status == 0) {
		gguf_guard_start("outrider: ");
		look(doctor, &options);
		print(doctor, options.json);
		size_t problems = findings_count(&doctor->findings, FINDING_PROBLEM);
		status = problems > 0 ? PROBLEMS_STATUS : EX_OK;
		if (options.write)
			status = write_settings(doctor, &options, problems);
	}
	doctor_close(doctor);
	free(doctor);
	return status;
}
