/* outrider up: flags, the children's arguments, going to the background. */
#include "client/cli/cli.h"
#include "client/cli/up_pid.h"
#include "client/cli/supervisor.h"
#include "client/cli/up_background.h"
#include "client/cli/up_check.h"
#include "client/cli/up_files.h"
#include "client/cli/up_log.h"
#include "client/cli/vocabulary.h"

#include "shared/base/clock.h"
#include "shared/base/descriptors.h"
#include "shared/base/file.h"
#include "shared/ipc/given_up.h"
#include "shared/ipc/peers.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

enum { VERIFIER, DRAFTER, CACHE, POLICY, GATEWAY };

static const struct {
	const char *name, *program;
} services[] = {
	[VERIFIER] = {PEER_VERIFIER, "outrider-verifier"},
	[DRAFTER] = {PEER_DRAFTER, "outrider-drafter"},
	[CACHE] = {PEER_CACHE, "outrider-expert-cache"},
	[POLICY] = {PEER_POLICY, "outrider-policy"},
	[GATEWAY] = {PEER_GATEWAY, "outrider-gateway"}, /* only with --http */
};

enum { N_SERVICES = 5 };

/* How many requests of the gateway the verifier accepts at a time: it is one client process, but
 * acts for many. */
#define GATEWAY_REQUESTS "512"

struct up {
	struct supervisor supervisor;
	const char *runtime_flag, *model, *draft, *http;
	char runtime_dir[256];
	char programs[N_SERVICES][4096];
	bool detach, quiet;
	bool gateway_set; /* --set gateway.KEY=VALUE was given */
	int ready_fd; /* of the pipe to the foreground process, when detached */
	double watchdog_s; /* 0: none */
	int n_verbose;
	int pid_fd;
};

static void usage(FILE *to)
{
	fputs("usage: outrider up --model FILE [options]\n\n"
	      "Starts outrider-verifier, -drafter, -expert-cache and -policy in the foreground.\n"
	      "Keeps them running until SIGTERM or Ctrl-C.\n\n"
	      "  --model FILE          the model to serve, a GGUF file\n"
	      "  --draft FILE          a small draft model with the same tokenizer, or an EAGLE-3\n"
	      "                        head of the model\n"
	      "  --adapter FILE        a gated adapter of the model, with which the verifier "
	      "drafts\n"
	      "                        by itself (--draft-method mtp-lora of outrider run)\n"
	      "  --runtime-dir DIR     the directory for the service's sockets\n"
	      "  --threads N           threads of the verifier (default 0: one per core, within\n"
	      "                        the CPU limit)\n"
	      "  --device D            what computes: cpu (the default), auto, cuda:N, "
	      "cuda:GPU-UUID,\n"
	      "                        or simt, the GPU's kernels in an emulation, for tests\n"
	      "  --device-memory M     the most of the GPU's memory that the service takes:\n"
	      "                        auto (the default: all but a 16th), 50%, 12G\n"
	      "  --context N           longest session in tokens, prompt and output (default 0:\n"
	      "                        the model's context, at most 8192)\n"
	      "  --kv TYPE             how keys and values are stored: auto (the default: q16_0, "
	      "for\n"
	      "                        F32 models f32), f32, f16, q8_0, q16_0\n"
	      "  --budget B            memory for experts: auto (the default: as many as fit), "
	      "all,\n"
	      "                        min, 30%, 2G\n"
	      "  --http ADDRESS:PORT   also start outrider-gateway, which serves OpenAI's HTTP\n"
	      "                        interface there, for example on 127.0.0.1:8080\n"
	      "  --policy P            how the draft length K is chosen: yield, goodput, cascade,\n"
	      "                        static:K\n"
	      "  --draft-method M      auto, none, ngram, mtp (the model's own layer for drafts),\n"
	      "                        layer-skip (a part of the model's layers); with --draft "
	      "also\n"
	      "                        model or eagle3, whichever the file is\n"
	      "  --config-dir DIR      read DIR/verifier.conf, DIR/verifier.conf.d/*.conf and so "
	      "on;\n"
	      "                        outriderctl writes persistent changes there\n"
	      "  --set NAME.KEY=VALUE  any other setting; NAME is verifier, drafter, "
	      "expert-cache,\n"
	      "                        policy or gateway\n"
	      "  --watchdog TIME       restart a process that has been silent for this long:\n"
	      "                        10s (the default), 1m; 0: never\n"
	      "  --detach              go to the background when all are ready; messages go to\n"
	      "                        up.log in the runtime directory\n"
	      "  -v, --verbose         print more messages; repeat for still more\n"
	      "  -q, --quiet           print only errors\n",
		to);
}

static int add(struct up *up, int service, const char *flag, const char *value)
{
	struct child *child = &up->supervisor.children[service];

	if (!child_argument(child, flag) || (value && !child_argument(child, value)))
		return cli_fail(EX_USAGE, "too many settings for %s, at most %d", child->name,
			CHILD_ARGUMENTS_MAX);
	return 0;
}

/* Adds a file by its absolute path, which is then what all processes show. */
static int add_file(struct up *up, int service, const char *flag, const char *path)
{
	/* Argument strings live as long as the process. */
	const char *absolute = file_absolute(path);

	return add(up, service, flag, absolute ? absolute : path);
}

static int add_setting(struct up *up, int service, const char *key, const char *value)
{
	char *text = NULL;

	if (asprintf(&text, "%s=%s", key, value) < 0)
		return cli_fail(EX_OSERR, "no memory for a setting");
	return add(up, service, "--set", text);
}

/* The same for a file, by its absolute path. */
static int add_path_setting(struct up *up, int service, const char *key, const char *path)
{
	char *absolute = file_absolute(path);
	int status = add_setting(up, service, key, absolute ? absolute : path);

	free(absolute);
	return status;
}

/* NAME.KEY=VALUE */
static int add_named_setting(struct up *up, const char *text)
{
	for (int i = 0; i < N_SERVICES; i++) {
		size_t n = strlen(services[i].name);

		if (strncmp(text, services[i].name, n) != 0 || text[n] != '.')
			continue;
		up->gateway_set |= i == GATEWAY;
		return add(up, i, "--set", text + n + 1);
	}
	return cli_fail(EX_USAGE,
		"--set %.64s: expected NAME.KEY=VALUE with NAME one of verifier, drafter, "
		"expert-cache, policy, gateway",
		text);
}

static int add_config_dir(struct up *up, const char *directory)
{
	struct stat st;

	if (stat(directory, &st) < 0)
		return cli_fail(error_exit_status(errno), "up: --config-dir %s: %s", directory,
			strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return cli_fail(EX_NOINPUT, "up: --config-dir %s: not a directory", directory);
	for (int i = 0; i < N_SERVICES; i++) {
		int status = add(up, i, "--config-dir", directory);

		if (status)
			return status;
	}
	return 0;
}

enum {
	FLAG_MODEL = 256,
	FLAG_DRAFT,
	FLAG_ADAPTER,
	FLAG_RUNTIME_DIR,
	FLAG_THREADS,
	FLAG_DEVICE,
	FLAG_DEVICE_MEMORY,
	FLAG_CONTEXT,
	FLAG_HTTP,
	FLAG_KV,
	FLAG_BUDGET,
	FLAG_POLICY,
	FLAG_DRAFT_METHOD,
	FLAG_CONFIG_DIR,
	FLAG_SET,
	FLAG_WATCHDOG,
	FLAG_DETACH,
};

static const struct option flags[] = {
	{"model", required_argument, NULL, FLAG_MODEL},
	{"draft", required_argument, NULL, FLAG_DRAFT},
	{"adapter", required_argument, NULL, FLAG_ADAPTER},
	{"runtime-dir", required_argument, NULL, FLAG_RUNTIME_DIR},
	{"threads", required_argument, NULL, FLAG_THREADS},
	{"device", required_argument, NULL, FLAG_DEVICE},
	{"device-memory", required_argument, NULL, FLAG_DEVICE_MEMORY},
	{"context", required_argument, NULL, FLAG_CONTEXT},
	{"kv", required_argument, NULL, FLAG_KV},
	{"http", required_argument, NULL, FLAG_HTTP},
	{"budget", required_argument, NULL, FLAG_BUDGET},
	{"policy", required_argument, NULL, FLAG_POLICY},
	{"draft-method", required_argument, NULL, FLAG_DRAFT_METHOD},
	{"config-dir", required_argument, NULL, FLAG_CONFIG_DIR},
	{"set", required_argument, NULL, FLAG_SET},
	{"watchdog", required_argument, NULL, FLAG_WATCHDOG},
	{"detach", no_argument, NULL, FLAG_DETACH},
	{"verbose", no_argument, NULL, 'v'},
	{"quiet", no_argument, NULL, 'q'},
	{"help", no_argument, NULL, 'h'},
	{0},
};

static int take_watchdog(struct up *up, const char *text)
{
	if (cli_seconds("--watchdog", text, 0, 3600, &up->watchdog_s))
		return EX_USAGE;
	/* Processes feed the watchdog once per second, not more often. */
	if (up->watchdog_s > 0 && up->watchdog_s < 1)
		return cli_fail(EX_USAGE,
			"--watchdog \"%.64s\": allowed are 0, for none, and 1s to 1h", text);
	return 0;
}

static int take_flag(struct up *up, int flag)
{
	int status;

	switch (flag) {
	case FLAG_MODEL:
		up->model = optarg;
		return 0;
	case FLAG_DRAFT:
		up->draft = optarg;
		return 0;
	case FLAG_ADAPTER:
		return add_path_setting(up, VERIFIER, "adapter", optarg);
	case FLAG_RUNTIME_DIR:
		up->runtime_flag = optarg;
		return 0;
	case FLAG_THREADS:
		return add_setting(up, VERIFIER, "threads", optarg);
	case FLAG_DEVICE:
		status = add_setting(up, VERIFIER, "device", optarg);
		if (status == 0)
			status = add_setting(up, DRAFTER, "device", optarg);
		return status ? status : add_setting(up, CACHE, "device", optarg);
	case FLAG_DEVICE_MEMORY:
		return add_setting(up, VERIFIER, "device_memory", optarg);
	case FLAG_CONTEXT:
		return add_setting(up, VERIFIER, "context", optarg);
	case FLAG_KV:
		return add_setting(up, VERIFIER, "kv_type", optarg);
	case FLAG_HTTP:
		up->http = optarg;
		return add_setting(up, VERIFIER, "client_requests", GATEWAY_REQUESTS);
	case FLAG_BUDGET:
		return add(up, CACHE, "--budget", optarg);
	case FLAG_POLICY:
		return add_setting(up, POLICY, "policy", optarg);
	case FLAG_DRAFT_METHOD:
		return add_setting(up, DRAFTER, "method", optarg);
	case FLAG_CONFIG_DIR:
		return add_config_dir(up, optarg);
	case FLAG_SET:
		return add_named_setting(up, optarg);
	case FLAG_WATCHDOG:
		return take_watchdog(up, optarg);
	case FLAG_DETACH:
		up->detach = true;
		return 0;
	case 'v':
		for (int i = 0; i < N_SERVICES; i++)
			if (add(up, i, "-v", NULL))
				return EX_USAGE;
		return 0;
	case 'q':
		up->quiet = true;
		return 0;
	default:
		return INT32_MAX;
	}
}

/* In the directory of this program, where the build and `make install` put them; otherwise by PATH.
 */
static void find_programs(struct up *up)
{
	char self[4000];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	char *slash;

	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (slash)
		slash[1] = '\0';
	for (int i = 0; i < N_SERVICES; i++) {
		struct child *child = &up->supervisor.children[i];
		char *path = up->programs[i];

		snprintf(path, sizeof up->programs[i], "%s%s", self, services[i].program);
		if (!slash || access(path, X_OK) < 0)
			snprintf(path, sizeof up->programs[i], "%s", services[i].program);
		child->name = services[i].name;
		child_argument(child, path);
	}
}

static int check(struct up *up)
{
	struct error err = {""};
	int code, status = 0;

	if (!up->model)
		return cli_fail(EX_USAGE, "up: --model FILE is needed");
	if (up->gateway_set && !up->http)
		return cli_fail(EX_USAGE, "up: --set gateway.KEY=VALUE needs --http ADDRESS:PORT");
	if (access(up->model, R_OK) < 0)
		return cli_fail(
			error_exit_status(errno), "up: model %s: %s", up->model, strerror(errno));
	code = descriptors_need("outrider up", 0, &err);
	if (code == 0 && up->draft)
		code = vocabulary_check(up->model, up->draft, &err);
	if (code == 0)
		code = peers_runtime_dir(
			up->runtime_flag, true, up->runtime_dir, sizeof up->runtime_dir, &err);
	/* Before there is anything that a signal could leave behind. */
	if (code == 0)
		code = up->supervisor.stop_fd = stop_open();
	if (code >= 0)
		code = up_pid_take(up->runtime_dir, &up->pid_fd, &err);
	if (code < 0)
		return cli_fail(error_exit_status(code), "up: %s", err.text);
	status = add_file(up, VERIFIER, "--model", up->model);
	if (!status)
		status = add_file(up, CACHE, "--model", up->model);
	if (!status && up->draft)
		status = add_file(up, DRAFTER, "--draft", up->draft);
	if (!status && up->http)
		status = add(up, GATEWAY, "--listen", up->http);
	for (int i = 0; i < N_SERVICES && !status; i++)
		status = add(up, i, "--runtime-dir", up->runtime_dir);
	if (!status)
		status = up_check(&up->supervisor);
	if (status)
		up_pid_remove(up->runtime_dir, &up->pid_fd);
	return status;
}

static void say_ready(const struct up *up, double seconds, FILE *to)
{
	if (up->quiet)
		return;
	int n = (int)up->supervisor.n_children;

	fprintf(to, "ready: ");
	for (int i = 0; i < n; i++)
		fprintf(to, "%s%s", i ? ", " : "", services[i].name);
	fprintf(to, " in %s after %.1f s\n", up->runtime_dir, seconds);
	for (int i = 0; i < n; i++)
		if (up->supervisor.children[i].degraded[0])
			fprintf(to, "but %s is degraded: %s\n", services[i].name,
				up->supervisor.children[i].degraded);
	/* That this line cannot be written does not end the service. */
	if (fflush(to) != 0) {
		__fpurge(to);
		clearerr(to);
	}
}

/* All processes are ready: prints that, and lets the foreground process end. */
static void on_ready(void *arg)
{
	struct up *up = arg;
	double seconds = (double)(clock_ns() - up->supervisor.started_ns) / 1e9;

	say_ready(up, seconds, stdout);
	sd_notify(0, "READY=1");
	if (!up->detach)
		return;
	up_log_alone();
	say_ready(up, seconds, stderr);
	up_background_ready(&up->ready_fd);
}

static void on_failure(void *arg, const char *why)
{
	const struct up *up = arg;

	given_up_write(up->runtime_dir, why);
}

/* Prints which signal ended it and what it leaves behind. After a child that was given up, that
 * child's words are the last line instead. */
static void say_stopped(const struct up *up)
{
	const struct supervisor *supervisor = &up->supervisor;
	char by[64], left[512];

	up_files_clean(up->runtime_dir, left, sizeof left);
	if (up->quiet || supervisor->stop.number == 0)
		return;
	fprintf(stderr, "outrider up: stopped by %s%s; %s%s%s\n",
		stop_text(&supervisor->stop, by, sizeof by),
		supervisor->all_ready ? "" : " before it was ready", up->runtime_dir,
		left[0] ? " keeps " : " is empty", left);
}

static int serve(struct up *up)
{
	struct supervisor *supervisor = &up->supervisor;

	up_pid_write(up->pid_fd);
	for (int i = 0; i < N_SERVICES; i++)
		supervisor->children[i].quiet = up->quiet;
	supervisor->watchdog_ns = (uint64_t)(up->watchdog_s * 1e9);
	supervisor->on_ready = on_ready;
	supervisor->on_failure = on_failure;
	/* Without the verifier there is no service. */
	supervisor->children[VERIFIER].needed = true;
	supervisor->children[CACHE].holds_memory = true;
	given_up_clear(up->runtime_dir);
	supervisor->arg = up;
	int status = supervisor_run(supervisor);
	say_stopped(up);
	return status;
}

/* *status: of this process, when it is the one in the foreground. */
static int go_to_background(struct up *up, bool *foreground, int *status)
{
	struct up_background background;
	char path[300];
	int code;

	snprintf(path, sizeof path, "%s/up.log", up->runtime_dir);
	code = up_log_open(path);
	if (code < 0)
		return code;
	code = up_background_begin(&background, &up->ready_fd);
	*foreground = code > 0;
	if (*foreground)
		*status = up_background_wait(&background, up->supervisor.stop_fd);
	return code < 0 ? code : 0;
}

int command_up(int argc, char **argv)
{
	static struct up up = {.watchdog_s = 10, .pid_fd = -1, .ready_fd = -1};
	bool foreground = false;
	int flag, status, code = 0;

	find_programs(&up);
	opterr = 0;
	while ((flag = getopt_long(argc, argv, ":vqh", flags, NULL)) != -1) {
		if (flag == 'h') {
			usage(stdout);
			return EX_OK;
		}
		status = take_flag(&up, flag);
		if (status == INT32_MAX)
			return cli_bad_option("up", flag, ":vqh", argv);
		if (status)
			return status;
	}
	if (optind < argc)
		return cli_fail(EX_USAGE,
			"up: unexpected argument \"%.64s\"; the model is given as --model FILE",
			argv[optind]);
	up.supervisor.n_children = up.http ? N_SERVICES : N_SERVICES - 1;
	status = check(&up);
	if (status)
		return status;
	if (up.detach)
		code = go_to_background(&up, &foreground, &status);
	/* up.pid belongs to the process in the background now. */
	if (foreground)
		return status;
	status = code < 0 ? error_exit_status(code) : serve(&up);
	up_pid_remove(up.runtime_dir, &up.pid_fd);
	return status;
}
