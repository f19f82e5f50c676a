#include "client/cli/request_flags.h"

#include "client/cli/cli.h"
#include "shared/base/limits.h"
#include "shared/base/clock.h"
#include "shared/model/text/chat.h"

#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>

enum { CONNECT_AGAIN_MS = 50, STATUS_MS = 500 };
/* Depth of a tree, for its default number of tokens, where the policy chooses K. */
enum { TREE_DEPTH = 4 };

const char request_flags_help[] =
	"  --runtime-dir DIR     the runtime directory of the service\n"
	"  --max-tokens N        end after N tokens (default 0: when the context is full)\n"
	"  --temperature T       0 (default) takes the most probable token; else 1e-30 to 100\n"
	"  --top-k N, --top-p P, --min-p P, --repeat-penalty R, --repeat-window N,\n"
	"  --presence-penalty P, --frequency-penalty P, --top-n-sigma N,\n"
	"  --xtc-probability P, --xtc-threshold P, --dry-multiplier X, --dry-base X,\n"
	"  --dry-allowed-length N, --dry-window N, --dry-breaker TEXT\n"
	"                        sampling, in the order that outrider(1) gives\n"
	"  --seed N              same seed, same answer; default 0\n"
	"  --stop TEXT           end before TEXT, which may be a control token; may be repeated\n"
	"  --logit-bias ID=B     add B to the logit of token ID; may be repeated\n"
	"  --coupling NAME       gumbel (default) or maximal\n"
	"  --k N                 draft N tokens at a time, 0 to 63 (default: the policy chooses)\n"
	"  --draft-width N       draft trees K tokens deep, with up to N tokens for one place,\n"
	"                        1 to 255 (default: the service's draft_width)\n"
	"  --draft-nodes N       the most tokens of a tree, 1 to 511 (default: K, or 4, times the\n"
	"                        width)\n"
	"  --draft-method M      auto, none, ngram, mtp (the model's own layer for drafts),\n"
	"                        layer-skip (a part of the model's layers), model or eagle3 (need\n"
	"                        up --draft), mtp-lora (needs up --adapter), replay (needs run\n"
	"                        --replay)\n"
	"  --budget-experts N    lossy: at most N experts of a layer compute drafted tokens; by\n"
	"                        layers: 0-3:16,4-:8; all: no such limit (default: as the service\n"
	"                        is set, which is all)\n"
	"  --budget-ranking R, --budget-coverage C\n"
	"                        which experts are kept: router (default), static or oracle; and\n"
	"                        instead of the others: substitution (default) or truncation\n"
	"  --json-schema FILE    the answer is JSON that the schema in the file describes (\"-\": "
	"stdin)\n"
	"  --json-object         the answer is any JSON object\n"
	"  --regex RE            the answer matches the regular expression, from end to end\n"
	"  --grammar FILE        the answer matches the grammar in the file, in llama.cpp's GBNF\n"
	"  --ignore-eos          go on after the model's end-of-text token\n"
	"  --class NAME          the class of the request, one of the service's setting classes\n"
	"  --timeout TIME        stop after this time and keep the answer so far: 500ms, 30s, 2m;\n"
	"                        a number without a unit means seconds\n"
	"  --wait TIME           how long to wait for a service that is away (default: 5s if it\n"
	"                        never answered, else 1m)\n"
	"  --stats               print statistics at the end\n"
	"  --system TEXT         a system message before the rest\n"
	"  --set NAME=VALUE      a variable of the chat template, such as enable_thinking=false;\n"
	"                        may be repeated\n";

/* For flags with a setter of the SDK; INT32_MAX: it is none of these. */
static int sampling_number(int flag, const char *value, struct outrider_request *request)
{
	static const struct {
		int flag;
		enum sampling_value what;
		const char *name;
		int (*set)(struct outrider_request *request, float number);
	} numbers[] = {
		{FLAG_TEMPERATURE, SAMPLING_TEMPERATURE, "--temperature",
			outrider_request_set_temperature},
		{FLAG_TOP_P, SAMPLING_TOP_P, "--top-p", outrider_request_set_top_p},
		{FLAG_MIN_P, SAMPLING_MIN_P, "--min-p", outrider_request_set_min_p},
		{FLAG_PRESENCE_PENALTY, SAMPLING_PRESENCE_PENALTY, "--presence-penalty",
			outrider_request_set_presence_penalty},
		{FLAG_FREQUENCY_PENALTY, SAMPLING_FREQUENCY_PENALTY, "--frequency-penalty",
			outrider_request_set_frequency_penalty},
		{FLAG_TOP_N_SIGMA, SAMPLING_TOP_N_SIGMA, "--top-n-sigma",
			outrider_request_set_top_n_sigma},
	};
	double x;

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (numbers[i].flag == flag)
			return cli_sampling(numbers[i].name, value, numbers[i].what, &x)
				       ? EX_USAGE
				       : numbers[i].set(request, (float)x);
	return INT32_MAX;
}

static int repeat_flag(
	struct request_flags *flags, int flag, const char *value, struct outrider_request *request)
{
	double x;

	if (flag == FLAG_REPEAT_PENALTY) {
		if (cli_sampling("--repeat-penalty", value, SAMPLING_REPEAT_PENALTY, &x))
			return EX_USAGE;
		flags->repeat_penalty = (float)x;
		flags->has_repeat_penalty = true;
	} else {
		if (cli_sampling("--repeat-window", value, SAMPLING_REPEAT_WINDOW, &x))
			return EX_USAGE;
		flags->repeat_window = (uint32_t)x;
		flags->has_repeat_window = true;
	}
	return outrider_request_set_repeat(request, flags->repeat_penalty, flags->repeat_window);
}

static int xtc_flag(
	struct request_flags *flags, int flag, const char *value, struct outrider_request *request)
{
	double x;

	if (flag == FLAG_XTC_PROBABILITY) {
		if (cli_sampling("--xtc-probability", value, SAMPLING_XTC_PROBABILITY, &x))
			return EX_USAGE;
		flags->xtc_probability = (float)x;
	} else {
		if (cli_sampling("--xtc-threshold", value, SAMPLING_XTC_THRESHOLD, &x))
			return EX_USAGE;
		flags->xtc_threshold = (float)x;
		flags->has_xtc_threshold = true;
	}
	return outrider_request_set_xtc(request, flags->xtc_probability, flags->xtc_threshold);
}

static int dry_flag(
	struct request_flags *flags, int flag, const char *value, struct outrider_request *request)
{
	double x;

	if (flag == FLAG_DRY_MULTIPLIER) {
		if (cli_sampling("--dry-multiplier", value, SAMPLING_DRY_MULTIPLIER, &x))
			return EX_USAGE;
		flags->dry_multiplier = (float)x;
	} else {
		flags->has_dry = true;
	}
	if (flag == FLAG_DRY_BREAKER)
		return outrider_request_add_dry_breaker(request, value);
	if (flag == FLAG_DRY_BASE) {
		if (cli_sampling("--dry-base", value, SAMPLING_DRY_BASE, &x))
			return EX_USAGE;
		flags->dry_base = (float)x;
	} else if (flag == FLAG_DRY_ALLOWED_LENGTH) {
		if (cli_sampling("--dry-allowed-length", value, SAMPLING_DRY_ALLOWED_LENGTH, &x))
			return EX_USAGE;
		flags->dry_allowed_length = (uint32_t)x;
	} else if (flag == FLAG_DRY_WINDOW) {
		if (cli_sampling("--dry-window", value, SAMPLING_DRY_WINDOW, &x))
			return EX_USAGE;
		flags->dry_window = (uint32_t)x;
	}
	return outrider_request_set_dry(request, flags->dry_multiplier, flags->dry_base,
		flags->dry_allowed_length, flags->dry_window);
}

static int sampling_flag(
	struct request_flags *flags, int flag, const char *value, struct outrider_request *request)
{
	double x;

	switch (flag) {
	case FLAG_TOP_K:
		if (cli_sampling("--top-k", value, SAMPLING_TOP_K, &x))
			return EX_USAGE;
		return outrider_request_set_top_k(request, (uint32_t)x);
	case FLAG_REPEAT_PENALTY:
	case FLAG_REPEAT_WINDOW:
		return repeat_flag(flags, flag, value, request);
	case FLAG_XTC_PROBABILITY:
	case FLAG_XTC_THRESHOLD:
		return xtc_flag(flags, flag, value, request);
	case FLAG_DRY_MULTIPLIER:
	case FLAG_DRY_BASE:
	case FLAG_DRY_ALLOWED_LENGTH:
	case FLAG_DRY_WINDOW:
	case FLAG_DRY_BREAKER:
		return dry_flag(flags, flag, value, request);
	default:
		return sampling_number(flag, value, request);
	}
}

static int logit_bias_flag(const char *value, struct outrider_request *request)
{
	const char *equals = strchr(value, '=');
	int64_t token;
	double bias;
	char id[16];

	if (!equals || (size_t)(equals - value) >= sizeof id)
		return cli_fail(EX_USAGE, "--logit-bias \"%.64s\": expected ID=BIAS", value);
	memcpy(id, value, (size_t)(equals - value));
	id[equals - value] = '\0';
	if (cli_integer("--logit-bias", id, 0, INT32_MAX, &token) ||
		cli_sampling("--logit-bias", equals + 1, SAMPLING_LOGIT_BIAS, &bias))
		return EX_USAGE;
	return outrider_request_add_logit_bias(request, (int32_t)token, (float)bias);
}

/* The flags may come in any order: each sets all that is known by then. */
static int budget_flag(
	struct request_flags *flags, int flag, const char *value, struct outrider_request *request)
{
	if (flag == FLAG_BUDGET_RANKING)
		flags->budget_ranking = value;
	else if (flag == FLAG_BUDGET_COVERAGE)
		flags->budget_coverage = value;
	else
		flags->budget_experts = value;
	return outrider_request_set_budget(request,
		flags->budget_experts ? flags->budget_experts : "all", flags->budget_ranking,
		flags->budget_coverage);
}

static int seed_flag(const char *value, struct outrider_request *request)
{
	char *end;
	unsigned long long seed;

	errno = 0;
	seed = strtoull(value, &end, 10);
	if (errno || end == value || *end || value[0] == '-')
		return cli_fail(EX_USAGE, "--seed \"%.64s\": allowed are 0 to %llu", value,
			(unsigned long long)UINT64_MAX);
	outrider_request_set_seed(request, seed);
	return 0;
}

static int draft_flag(
	struct request_flags *flags, int flag, const char *value, struct outrider_request *request)
{
	const char *name = flag == FLAG_K	      ? "--k"
			   : flag == FLAG_DRAFT_WIDTH ? "--draft-width"
						      : "--draft-nodes";
	int64_t *to = flag == FLAG_K		 ? &flags->k
		      : flag == FLAG_DRAFT_WIDTH ? &flags->draft_width
						 : &flags->draft_nodes;
	int64_t most = flag == FLAG_K		  ? LIMIT_DRAFT_DEPTH
		       : flag == FLAG_DRAFT_WIDTH ? LIMIT_DRAFT_WIDTH
						  : LIMIT_DRAFT_NODES;

	if (cli_integer(name, value, flag == FLAG_K ? 0 : 1, most, to))
		return EX_USAGE;
	if (flag == FLAG_K)
		outrider_request_set_k(request, (int)flags->k);
	if (flags->draft_width == 0)
		return 0;
	int64_t nodes = flags->draft_nodes;
	if (nodes == 0)
		nodes = flags->draft_width * (flags->k > 0 ? flags->k : TREE_DEPTH);
	return outrider_request_set_draft_tree(request,
		(uint32_t)(nodes < LIMIT_DRAFT_NODES ? nodes : LIMIT_DRAFT_NODES),
		(uint32_t)flags->draft_width);
}

static int length_flag(
	struct request_flags *flags, int flag, const char *value, struct outrider_request *request)
{
	int64_t n;
	double x;

	if (flag == FLAG_MAX_TOKENS) {
		if (cli_integer("--max-tokens", value, 0, INT32_MAX, &n))
			return EX_USAGE;
		flags->max_tokens = (uint32_t)n;
		outrider_request_set_max_tokens(request, flags->max_tokens);
	} else {
		if (cli_seconds("--timeout", value, 0.001, 1e6, &x))
			return EX_USAGE;
		outrider_request_set_deadline_ms(request, (uint64_t)(x * 1000));
	}
	return 0;
}

/* Refuses the variables that the service itself sets for every conversation. */
static int set_flag(struct request_flags *flags, const char *value)
{
	static const char *const own[] = {"messages", "add_generation_prompt"};
	struct error err = {""};

	if (!flags->variables)
		flags->variables = json_object();
	if (!flags->variables)
		return cli_fail(EX_OSERR, "no memory for --set");
	if (chat_set_variable(flags->variables, value, &err))
		return cli_fail(EX_USAGE, "--set: %s", err.text);
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		if (json_object_get(flags->variables, own[i]))
			return cli_fail(EX_USAGE, "--set: %s cannot be set", own[i]);
	return 0;
}

static int grammar_flag(
	struct request_flags *flags, int flag, const char *value, struct outrider_request *request)
{
	const char *name = flag == FLAG_JSON_SCHEMA   ? "--json-schema"
			   : flag == FLAG_JSON_OBJECT ? "--json-object"
			   : flag == FLAG_REGEX	      ? "--regex"
						      : "--grammar";
	char *text = NULL;
	size_t bytes;
	int code = 0;

	if (flags->grammar)
		return cli_fail(EX_USAGE, "%s: %s already says what the answer must match", name,
			flags->grammar);
	flags->grammar = name;
	if (flag == FLAG_JSON_OBJECT)
		return outrider_request_set_grammar(request, "json-object", "");
	if (flag == FLAG_REGEX)
		return outrider_request_set_grammar(request, "regex", value);
	code = cli_read_file(value, &text, &bytes);
	if (code == 0 && strlen(text) != bytes)
		code = cli_fail(EX_DATAERR, "%s: %s contains a NUL byte", name, value);
	if (code == 0)
		code = outrider_request_set_grammar(
			request, flag == FLAG_GRAMMAR ? "gbnf" : "json-schema", text);
	free(text);
	return code;
}

static int take(
	struct request_flags *flags, int flag, const char *value, struct outrider_request *request)
{
	switch (flag) {
	case FLAG_RUNTIME_DIR:
		flags->runtime_dir = value;
		return 0;
	case FLAG_SYSTEM:
		flags->system = value;
		return 0;
	case FLAG_SET:
		return set_flag(flags, value);
	case FLAG_STATS:
		flags->stats = true;
		return 0;
	case FLAG_WAIT:
		return cli_seconds("--wait", value, 0, 86400, &flags->wait_s);
	case FLAG_MAX_TOKENS:
	case FLAG_TIMEOUT:
		return length_flag(flags, flag, value, request);
	case FLAG_K:
	case FLAG_DRAFT_WIDTH:
	case FLAG_DRAFT_NODES:
		return draft_flag(flags, flag, value, request);
	case FLAG_SEED:
		return seed_flag(value, request);
	case FLAG_STOP:
		return outrider_request_add_stop(request, value);
	case FLAG_LOGIT_BIAS:
		return logit_bias_flag(value, request);
	case FLAG_CLASS:
		return outrider_request_set_class(request, value);
	case FLAG_COUPLING:
		return outrider_request_set_coupling(request, value);
	case FLAG_DRAFT_METHOD:
		flags->draft_method = value;
		return outrider_request_set_draft_method(request, value);
	case FLAG_BUDGET_EXPERTS:
	case FLAG_BUDGET_RANKING:
	case FLAG_BUDGET_COVERAGE:
		return budget_flag(flags, flag, value, request);
	case FLAG_JSON_SCHEMA:
	case FLAG_JSON_OBJECT:
	case FLAG_REGEX:
	case FLAG_GRAMMAR:
		return grammar_flag(flags, flag, value, request);
	case FLAG_IGNORE_EOS:
		outrider_request_set_ignore_eos(request, true);
		return 0;
	default:
		return sampling_flag(flags, flag, value, request);
	}
}

int request_flag(
	struct request_flags *flags, int flag, const char *value, struct outrider_request *request)
{
	int status = take(flags, flag, value, request);

	if (status == INT32_MAX)
		return -1;
	/* The SDK refuses with -errno and a sentence. */
	return status < 0 ? cli_fail(EX_USAGE, "%s", outrider_error()) : status;
}

int request_flags_check(const struct request_flags *flags, const char *command, bool replays)
{
	const char *method = flags->draft_method ? flags->draft_method : "";

	if (flags->has_repeat_window && !flags->has_repeat_penalty)
		return cli_fail(EX_USAGE, "%s: --repeat-window needs --repeat-penalty", command);
	if (flags->has_xtc_threshold && flags->xtc_probability == 0)
		return cli_fail(EX_USAGE, "%s: --xtc-threshold needs --xtc-probability", command);
	if (flags->has_dry && flags->dry_multiplier == 0)
		return cli_fail(EX_USAGE, "%s: the flags of DRY need --dry-multiplier", command);
	if (flags->draft_nodes > 0 && flags->draft_width == 0)
		return cli_fail(EX_USAGE, "%s: --draft-nodes needs --draft-width", command);
	if ((flags->budget_ranking || flags->budget_coverage) && !flags->budget_experts)
		return cli_fail(EX_USAGE,
			"%s: --budget-ranking and --budget-coverage need --budget-experts",
			command);
	if (strcmp(method, "replay") == 0 && !replays)
		return cli_fail(
			EX_USAGE, "%s: --draft-method replay needs outrider run --replay", command);
	if (strcmp(method, "none") == 0 && flags->k > 0)
		return cli_fail(EX_USAGE,
			"%s: --draft-method none drafts nothing: --k %lld is impossible, allowed "
			"is 0",
			command, (long long)flags->k);
	return 0;
}

int request_flags_variables(
	const struct request_flags *flags, const json_t *others, struct outrider_request *request)
{
	json_t *all = others ? json_copy((json_t *)others) : json_object();
	char *text = NULL;
	int code = all && flags->variables ? json_object_update(all, flags->variables) : 0;

	if (all && code == 0 && json_object_size(all))
		text = json_dumps(all, JSON_COMPACT);
	if (!all || code || (json_object_size(all) && !text))
		code = cli_fail(EX_OSERR, "no memory for the template's variables");
	else if (text && outrider_request_set_variables(request, text) < 0)
		code = cli_fail(EX_DATAERR, "%s", outrider_error());
	free(text);
	json_decref(all);
	return code;
}

void request_flags_free(struct request_flags *flags)
{
	json_decref(flags->variables);
	flags->variables = NULL;
}

/* What a process says: the value of the detail NAME=VALUE, or "". NULL: it does not answer. */
static const char *said_by(
	const struct outrider_status *status, const char *process, const char *name)
{
	size_t bytes = strlen(name);

	for (size_t i = 0; i < outrider_status_count(status); i++) {
		const struct outrider_process *p = outrider_status_process(status, i);

		if (strcmp(p->name, process) != 0 || p->n_details == 0)
			continue;
		for (size_t d = 0; d < p->n_details; d++)
			if (strncmp(p->details[d], name, bytes) == 0 && p->details[d][bytes] == '=')
				return p->details[d] + bytes + 1;
		return "";
	}
	return NULL;
}

/* A verifier without an adapter would draft nothing. */
static int check_adapter(const struct request_flags *flags)
{
	struct outrider_status *status = NULL;
	int code = 0;

	if (outrider_status(flags->runtime_dir, STATUS_MS, &status) < 0)
		return 0;
	const char *has = said_by(status, "verifier", "adapter");
	const char *masks = said_by(status, "verifier", "adapter_masks");
	if (has && *has && !*masks)
		code = cli_fail(EX_DATAERR,
			"--draft-method mtp-lora: the service has no adapter%s%s; outrider up "
			"--adapter FILE gives it one",
			strcmp(has, "none") != 0 ? ": " : "", strcmp(has, "none") != 0 ? has : "");
	outrider_status_free(&status);
	return code;
}

/* A drafter without the model or head that is asked for would silently draft with n-grams. One that
 * does not answer has not said that it lacks it. */
static int check_draft_method(const struct request_flags *flags)
{
	const char *method = flags->draft_method ? flags->draft_method : "";
	if (strcmp(method, "mtp-lora") == 0)
		return check_adapter(flags);
	bool head = strcmp(method, "eagle3") == 0 || strcmp(method, "mtp") == 0;
	bool skip = strcmp(method, "layer-skip") == 0, model = strcmp(method, "model") == 0;
	struct outrider_status *status = NULL;
	int code = 0;

	if ((!head && !skip && !model) ||
		outrider_status(flags->runtime_dir, STATUS_MS, &status) < 0)
		return 0;
	const char *has = said_by(status, "drafter", skip ? "layer_skip" : head ? "head" : "draft");
	const char *drafts = said_by(status, "drafter", "head");
	if (skip && has && strncmp(has, "refused: ", 9) == 0)
		code = cli_fail(EX_DATAERR, "--draft-method layer-skip: %s", has + 9);
	else if (model && has && strcmp(has, "none") == 0)
		code = cli_fail(EX_DATAERR,
			"--draft-method model: the service has no draft model; outrider up "
			"--draft FILE gives it one");
	else if (model && drafts && strcmp(drafts, "eagle3") == 0)
		code = cli_fail(EX_DATAERR,
			"--draft-method model: the service has no draft model but an EAGLE-3 head; "
			"--draft-method eagle3 drafts with it");
	else if (head && has && *has && strcmp(has, method) != 0)
		code = cli_fail(EX_DATAERR,
			strcmp(method, "mtp") == 0
				? "--draft-method mtp: the model has no layer for drafts, or the "
				  "drafter uses what --draft names"
				: "--draft-method eagle3: the service has no EAGLE-3 head; "
				  "outrider up --draft FILE gives it one");
	outrider_status_free(&status);
	return code;
}

int request_flags_connect(const struct request_flags *flags, struct outrider **client)
{
	const struct timespec pause = {.tv_nsec = CONNECT_AGAIN_MS * 1000000};
	int64_t wait_ms = (int64_t)(flags->wait_s * 1000);
	uint64_t end_ns = clock_ns() + (wait_ms > 0 ? (uint64_t)wait_ms * 1000000 : 0);
	int code;

	/* The program that starts the service makes the directory: without it there is nothing to
	 * wait for yet. */
	while ((code = outrider_connect(flags->runtime_dir, client)) == -ECONNREFUSED &&
		clock_ns() < end_ns)
		nanosleep(&pause, NULL);
	if (code == -ECONNREFUSED)
		return cli_fail(EX_UNAVAILABLE,
			"%s; start a service with outrider up, or name its directory with "
			"--runtime-dir",
			outrider_error());
	if (code == 0 && flags->wait_s >= 0)
		code = outrider_set_wait(*client, wait_ms, wait_ms);
	return code < 0 ? cli_fail(request_exit_status(code), "%s", outrider_error())
			: check_draft_method(flags);
}

int request_exit_status(int code)
{
	switch (-code) {
	case ETIMEDOUT: /* here: a service that went away */
		return EX_UNAVAILABLE;
	case E2BIG:
	case EMSGSIZE:
		return EX_DATAERR;
	default:
		return error_exit_status(code);
	}
}
