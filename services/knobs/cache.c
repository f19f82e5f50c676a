#include "services/knobs/cache.h"

static const char *const auto_name[] = {"auto", NULL};
static const char *const choice_names[] = {"auto", "yes", "no", NULL};
static const char *const budget_names[] = {"auto", "all", "min", NULL};
#define LISTED(name) name,
static const char *const policy_names[] = {CACHE_POLICY_EACH(LISTED, LISTED) NULL};
static const char *const io_names[] = {"auto", "io_uring", "pread", NULL};

#define AT(field) offsetof(struct cache_config, field), sizeof(((struct cache_config *)0)->field)

const struct config_key cache_config_keys[] = {
	{"", "model", CONFIG_STRING, AT(model), 0, 0, NULL, "", "path",
		"GGUF file of the model whose experts are cached; the same file as the verifier's.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "budget", CONFIG_STRING, AT(budget), 0, 0, budget_names, "auto",
		"auto, all, min, above 0% to 100%, or bytes as 2G",
		"Memory for experts: all, min, a share as 30%, bytes as 2G, or auto: as many as "
		"fit beside other weights, the verifier's KV cache and sessions, and a reserve of "
		"a 16th of memory (256M at least).",
		KNOB_LIVE, KNOB_MODEL},
	{"", "device", CONFIG_STRING, AT(device), 0, 0, NULL, "cpu", "device",
		"Where the verifier computes: as its own setting device. Unless that is cpu, "
		"experts are kept in the device's memory too. auto: if there is a GPU that can be "
		"used.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "device_budget", CONFIG_STRING, AT(device_budget), 0, 0, budget_names, "auto",
		"auto, all, min, above 0% to 100%, or bytes as 2G",
		"The device's memory for experts, as in budget. auto: what verifier and drafter "
		"leave of it, less a 16th. It is allocated at the start. Without a device it has "
		"no effect.",
		KNOB_LIVE, KNOB_MODEL},
	{"", "device_shared", CONFIG_BOOL, AT(device_shared), 0, 0, NULL, "no", NULL,
		"Whether to use a GPU that another service of this machine uses, as the verifier's "
		"setting. yes needs a device_budget: with auto, each service would count on all of "
		"the memory.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "policy", CONFIG_STRING, AT(policy), 0, 0, policy_names, "outrider",
		CACHE_POLICY_NAMES,
		"Which experts are kept and fetched ahead: " CACHE_POLICY_NAMES ".", KNOB_LIVE,
		KNOB_GLOBAL},
	{"", "profile", CONFIG_STRING, AT(profile), 0, 0, NULL, "", "path",
		"File with the use of experts in an earlier run, written by outrider-bench cache "
		"profile. Policies begin with it.",
		KNOB_AT_START, KNOB_MODEL},
	{"", "io", CONFIG_ENUM, AT(io), 0, 0, io_names, "auto", "",
		"How the file is read. auto: with io_uring if the kernel allows it.", KNOB_AT_START,
		KNOB_GLOBAL},
	{"", "direct", CONFIG_ENUM, AT(direct), 0, 0, choice_names, "auto", "",
		"Whether reads bypass the page cache (O_DIRECT). auto: if the file system allows "
		"it.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "queue_depth", CONFIG_INT, AT(queue_depth), READER_DEPTH_MIN, READER_DEPTH_MAX,
		auto_name, "auto", "reads",
		"Reads in the kernel at once. auto: the fewest that keep the disk busy, measured "
		"at start-up.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "read_bytes", CONFIG_BYTES, AT(read_bytes), READER_BYTES_MIN, READER_BYTES_MAX,
		auto_name, "auto", "bytes",
		"The longest single read; larger parts of an expert are split. auto: the length "
		"that costs least, measured at start-up.",
		KNOB_AT_START, KNOB_GLOBAL},
	{"", "preload", CONFIG_ENUM, AT(preload), 0, 0, choice_names, "auto", "",
		"Whether free slots are filled in the background. auto: if the budget holds every "
		"expert.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "pack", CONFIG_ENUM, AT(pack), 0, 0, choice_names, "auto", "",
		"Whether experts are brought into the layout that multiplies fastest. yes: when "
		"they are loaded. no: never. auto: when they are loaded if all experts fit, else "
		"when they are used again.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "hint_queue_max", CONFIG_INT, AT(hint_queue_max), 1, 65536, NULL, "1024", "hints",
		"Hints that may wait. If there are more, those with the lowest score are dropped.",
		KNOB_LIVE, KNOB_GLOBAL},
	{"", "spin", CONFIG_NS, AT(spin_ns), 0, 1e9, NULL, "0", NULL,
		"How long to spin for work before sleeping. Spinning occupies a CPU.", KNOB_LIVE,
		KNOB_GLOBAL},
	{0},
};
