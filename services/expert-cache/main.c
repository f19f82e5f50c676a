/* outrider-expert-cache: keeps experts of a model in slots of fast memory. Flags and start-up. */
#include "services/expert-cache/budget.h"
#include "services/expert-cache/service.h"

#include "shared/base/log.h"
#include "shared/ipc/peers.h"
#include "shared/spec/slots.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#define DEFAULT_CONFIG OUTRIDER_SYSCONFDIR "/outrider/expert-cache.conf"

struct flags {
	const char *runtime_dir, *config;
	const char *sets[64]; /* "key=value", later ones win */
	int n_sets;
	bool check, print;
	int verbosity;
};

enum {
	FLAG_RUNTIME_DIR = 256,
	FLAG_CONFIG,
	FLAG_MODEL,
	FLAG_BUDGET,
	FLAG_SET,
	FLAG_PRINT,
	FLAG_HELP,
	FLAG_VERSION
};

static const struct option long_flags[] = {
	{"runtime-dir", required_argument, NULL, FLAG_RUNTIME_DIR},
	{"config", required_argument, NULL, FLAG_CONFIG},
	{"model", required_argument, NULL, FLAG_MODEL},
	{"budget", required_argument, NULL, FLAG_BUDGET},
	{"set", required_argument, NULL, FLAG_SET},
	{"print-config", no_argument, NULL, FLAG_PRINT},
	{"help", no_argument, NULL, FLAG_HELP},
	{"version", no_argument, NULL, FLAG_VERSION},
	{0},
};

static void usage(FILE *to)
{
	fputs("usage: outrider-expert-cache [--model FILE] [--budget SIZE] [options]\n"
	      "Keeps experts of a Mixture-of-Experts model in memory for outrider-verifier.\n\n"
	      "  --model FILE       GGUF file, the verifier's\n"
	      "  --budget SIZE      all, min, a share as 30%, or bytes as 2G (default all)\n"
	      "  --set KEY=VALUE    set any key of the configuration\n"
	      "  --config FILE      configuration (default " DEFAULT_CONFIG ", when there)\n"
	      "  --runtime-dir DIR  where the processes meet (default OUTRIDER_RUNTIME_DIR, ...)\n"
	      "  --print-config     write every key with its range and default, and exit\n"
	      "  -n                 check configuration, model and budget, and exit\n"
	      "  -d                 stay in the foreground (it always does)\n"
	      "  -v                 say more; twice: still more\n"
	      "  --help, --version\n",
		to);
}

/* "model=" or "budget=" and the flag's value, as config_set takes it. Lives as long as the process. */
static int add_set(struct flags *flags, const char *key, const char *value)
{
	char *assignment = NULL;
	if (flags->n_sets == (int)(sizeof(flags->sets) / sizeof(flags->sets[0])) ||
		asprintf(&assignment, "%s%s%s", key, key[0] != '\0' ? "=" : "", value) < 0) {
		fprintf(stderr, "outrider-expert-cache: too many settings on the command line\n");
		return EX_USAGE;
	}
	flags->sets[flags->n_sets++] = assignment;
	return 0;
}

/* 0, or an exit status; *done: the flag was all there is to do. */
static int parse_flags(int argc, char **argv, struct flags *flags, bool *done)
{
	int flag, status = 0;
	*done = false;
	while (status == 0 && (flag = getopt_long(argc, argv, "ndv", long_flags, NULL)) != -1) {
		switch (flag) {
		case FLAG_RUNTIME_DIR:
			flags->runtime_dir = optarg;
			break;
		case FLAG_CONFIG:
			flags->config = optarg;
			break;
		case FLAG_MODEL:
			status = add_set(flags, "model", optarg);
			break;
		case FLAG_BUDGET:
			status = add_set(flags, "budget", optarg);
			break;
		case FLAG_SET:
			status = add_set(flags, "", optarg);
			break;
		case FLAG_PRINT:
			flags->print = true;
			break;
		case FLAG_HELP:
			usage(stdout);
			*done = true;
			return 0;
		case FLAG_VERSION:
			puts("outrider-expert-cache " OUTRIDER_VERSION);
			*done = true;
			return 0;
		case 'n':
			flags->check = true;
			break;
		case 'd':
			break;
		case 'v':
			flags->verbosity++;
			break;
		default:
			usage(stderr);
			return EX_USAGE;
		}
	}
	if (status == 0 && optind < argc) {
		fprintf(stderr, "outrider-expert-cache: unexpected argument \"%s\"\n",
			argv[optind]);
		return EX_USAGE;
	}
	return status;
}

static int read_config(const struct flags *flags, struct cache_config *config, struct error *err)
{
	config_defaults(cache_config_keys, config);
	int status = config_load(flags->config != NULL ? flags->config : DEFAULT_CONFIG,
		flags->config == NULL, cache_config_keys, config, err);
	for (int i = 0; status == 0 && i < flags->n_sets; i++)
		status = config_set(flags->sets[i], "command line", cache_config_keys, config, err);
	return status == 0 ? cache_config_check(config, err) : status;
}

/* The model, and how many slots the budget is. */
static int size_up(struct service *service, struct error *err)
{
	int status = model_load(service->config.model, &service->model, err);
	if (status != 0)
		return status;
	slots_geometry_init(&service->geometry, service->model);
	if (service->geometry.n_total == 0)
		return 0;
	status = budget_slots(service->config.budget, &service->geometry, &service->n_slots, err);
	service->preload = service->config.preload == CHOICE_YES ||
			   (service->config.preload == CHOICE_AUTO &&
				   service->n_slots == service->geometry.n_total);
	return status;
}

/* Slots, reader and worker; the broker is open, so no predecessor lives. */
static int start_cache(struct service *service, int recovered_fd, struct error *err)
{
	struct store_options options = {
		.n_slots = service->n_slots,
		.model_fingerprint = service->model->fingerprint,
		.generation = daemon_generation(service->daemon),
		.policy = cache_policy_find(service->config.policy),
		.recovered_fd = recovered_fd,
	};
	int status = store_open(&service->store, &service->geometry, &options, err);
	if (status != 0)
		return status;
	const struct cache_config *config = &service->config;
	status = reader_open(config->model, (enum io_choice)config->io,
		(enum auto_choice)config->direct, (unsigned)config->queue_depth, &service->reader,
		err);
	if (status != 0)
		return status;
	struct transfer_options transfer = {
		.preload = service->preload,
		.hint_queue_max = (uint32_t)config->hint_queue_max,
		.spin_ns = (uint64_t)config->spin_ns,
	};
	status = transfer_start(
		&service->transfer, &service->store, service->reader, &transfer, err);
	if (status != 0)
		return status;
	broker_offer(service->broker, &service->store.region);
	const struct slots_adopted *found = &service->store.found;
	log_notice("%u of %u experts fit (%.1f MiB), read with %s, policy %s%s", service->n_slots,
		service->geometry.n_total,
		(double)service->n_slots * (double)service->geometry.slot_bytes / 1048576,
		reader_link(service->reader), config->policy,
		service->preload ? ", preloading" : "");
	if (service->store.adopted)
		log_notice("took over %u experts; %u loads were cut off, %u evictions, %u table "
			   "words put right",
			found->ready, found->loading, found->evicting, found->words);
	return 0;
}

static void stop(struct service *service)
{
	transfer_stop(&service->transfer);
	if (service->reader != NULL)
		reader_close(&service->reader);
	if (service->broker != NULL)
		broker_close(&service->broker);
	store_close(&service->store);
	if (service->daemon != NULL)
		daemon_destroy(&service->daemon);
	model_free(&service->model);
}

static int serve(struct service *service, const char *runtime_dir, struct error *err)
{
	struct daemon_options options = {.name = PEER_CACHE, .runtime_dir = runtime_dir};
	int status = daemon_create(&options, &service->daemon, err);
	if (status != 0)
		return status;
	daemon_set_state(service->daemon, "loading");
	int fd = -1;
	if (service->n_slots > 0 && broker_recover(service->daemon, EXPERTS_REGION, &fd) != 0) {
		fd = -1;
		/* A new arena is new memory; one that was recovered is there already. */
		status = budget_check_memory(service->n_slots * service->geometry.slot_bytes, err);
	}
	if (status == 0)
		status = broker_open(service->daemon, NULL, &service->broker, err);
	if (status == 0 && service->n_slots > 0) {
		status = start_cache(service, fd, err);
		fd = -1;
	}
	if (fd >= 0)
		close(fd);
	if (status == 0)
		status = handlers_open(service, err);
	if (status != 0)
		return status;
	daemon_ready(service->daemon);
	if (service->n_slots == 0) {
		daemon_set_state(service->daemon, "idle: dense model");
		log_notice("%s has no experts: nothing to do", service->config.model);
	}
	return daemon_run(service->daemon);
}

int main(int argc, char **argv)
{
	struct flags flags = {0};
	bool done;
	int status = parse_flags(argc, argv, &flags, &done);
	if (status != 0 || done)
		return status;
	if (flags.print) {
		config_print(cache_config_keys, stdout);
		return EX_OK;
	}
	log_init(PEER_CACHE, flags.verbosity);
	static struct service service;
	service.store.region.fd = -1;
	char runtime_dir[4096];
	struct error err = {.text = ""};
	int code = read_config(&flags, &service.config, &err);
	if (code == 0)
		code = size_up(&service, &err);
	if (code == 0 && !flags.check)
		code = peers_runtime_dir(
			flags.runtime_dir, true, runtime_dir, sizeof(runtime_dir), &err);
	if (code == 0 && !flags.check)
		code = serve(&service, runtime_dir, &err);
	stop(&service);
	for (int i = 0; i < flags.n_sets; i++)
		free((char *)flags.sets[i]);
	if (code >= 0)
		return code;
	log_error("%s", err.text);
	return error_exit_status(code);
}
