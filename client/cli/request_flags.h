/* The flags of `run` and `chat` that control the generation. */
#pragma once

#include "client/include/outrider.h"

#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>

enum {
	FLAG_RUNTIME_DIR = 256,
	FLAG_MAX_TOKENS,
	FLAG_TEMPERATURE,
	FLAG_TOP_K,
	FLAG_TOP_P,
	FLAG_MIN_P,
	FLAG_REPEAT_PENALTY,
	FLAG_REPEAT_WINDOW,
	FLAG_PRESENCE_PENALTY,
	FLAG_FREQUENCY_PENALTY,
	FLAG_DRY_MULTIPLIER,
	FLAG_DRY_BASE,
	FLAG_DRY_ALLOWED_LENGTH,
	FLAG_DRY_WINDOW,
	FLAG_DRY_BREAKER,
	FLAG_TOP_N_SIGMA,
	FLAG_XTC_PROBABILITY,
	FLAG_XTC_THRESHOLD,
	FLAG_SEED,
	FLAG_STOP,
	FLAG_LOGIT_BIAS,
	FLAG_COUPLING,
	FLAG_K,
	FLAG_DRAFT_WIDTH,
	FLAG_DRAFT_NODES,
	FLAG_DRAFT_METHOD,
	FLAG_BUDGET_EXPERTS,
	FLAG_BUDGET_RANKING,
	FLAG_BUDGET_COVERAGE,
	FLAG_IGNORE_EOS,
	FLAG_JSON_SCHEMA,
	FLAG_JSON_OBJECT,
	FLAG_REGEX,
	FLAG_GRAMMAR,
	FLAG_CLASS,
	FLAG_TIMEOUT,
	FLAG_WAIT,
	FLAG_STATS,
	FLAG_SYSTEM,
	FLAG_SET,
	FLAG_OWN, /* the commands' own flags begin here */
};

#define REQUEST_FLAGS                                                                     \
	{"runtime-dir", required_argument, NULL, FLAG_RUNTIME_DIR},                       \
		{"max-tokens", required_argument, NULL, FLAG_MAX_TOKENS},                 \
		{"temperature", required_argument, NULL, FLAG_TEMPERATURE},               \
		{"top-k", required_argument, NULL, FLAG_TOP_K},                           \
		{"top-p", required_argument, NULL, FLAG_TOP_P},                           \
		{"min-p", required_argument, NULL, FLAG_MIN_P},                           \
		{"repeat-penalty", required_argument, NULL, FLAG_REPEAT_PENALTY},         \
		{"repeat-window", required_argument, NULL, FLAG_REPEAT_WINDOW},           \
		{"presence-penalty", required_argument, NULL, FLAG_PRESENCE_PENALTY},     \
		{"frequency-penalty", required_argument, NULL, FLAG_FREQUENCY_PENALTY},   \
		{"dry-multiplier", required_argument, NULL, FLAG_DRY_MULTIPLIER},         \
		{"dry-base", required_argument, NULL, FLAG_DRY_BASE},                     \
		{"dry-allowed-length", required_argument, NULL, FLAG_DRY_ALLOWED_LENGTH}, \
		{"dry-window", required_argument, NULL, FLAG_DRY_WINDOW},                 \
		{"dry-breaker", required_argument, NULL, FLAG_DRY_BREAKER},               \
		{"top-n-sigma", required_argument, NULL, FLAG_TOP_N_SIGMA},               \
		{"xtc-probability", required_argument, NULL, FLAG_XTC_PROBABILITY},       \
		{"xtc-threshold", required_argument, NULL, FLAG_XTC_THRESHOLD},           \
		{"seed", required_argument, NULL, FLAG_SEED},                             \
		{"stop", required_argument, NULL, FLAG_STOP},                             \
		{"logit-bias", required_argument, NULL, FLAG_LOGIT_BIAS},                 \
		{"coupling", required_argument, NULL, FLAG_COUPLING},                     \
		{"k", required_argument, NULL, FLAG_K},                                   \
		{"draft-width", required_argument, NULL, FLAG_DRAFT_WIDTH},               \
		{"draft-nodes", required_argument, NULL, FLAG_DRAFT_NODES},               \
		{"draft-method", required_argument, NULL, FLAG_DRAFT_METHOD},             \
		{"budget-experts", required_argument, NULL, FLAG_BUDGET_EXPERTS},         \
		{"budget-ranking", required_argument, NULL, FLAG_BUDGET_RANKING},         \
		{"budget-coverage", required_argument, NULL, FLAG_BUDGET_COVERAGE},       \
		{"ignore-eos", no_argument, NULL, FLAG_IGNORE_EOS},                       \
		{"json-schema", required_argument, NULL, FLAG_JSON_SCHEMA},               \
		{"json-object", no_argument, NULL, FLAG_JSON_OBJECT},                     \
		{"regex", required_argument, NULL, FLAG_REGEX},                           \
		{"grammar", required_argument, NULL, FLAG_GRAMMAR},                       \
		{"class", required_argument, NULL, FLAG_CLASS},                           \
		{"timeout", required_argument, NULL, FLAG_TIMEOUT},                       \
		{"wait", required_argument, NULL, FLAG_WAIT},                             \
		{"stats", no_argument, NULL, FLAG_STATS},                                 \
		{"system", required_argument, NULL, FLAG_SYSTEM},                         \
		{"set", required_argument, NULL, FLAG_SET},                               \
	{                                                                                 \
		"help", no_argument, NULL, 'h'                                            \
	}

extern const char request_flags_help[];

struct request_flags {
	const char *runtime_dir, *system;
	const char *draft_method; /* NULL: not given */
	const char *budget_experts, *budget_ranking, *budget_coverage; /* NULL: not given */
	/* an object with the variables of --set; NULL: none. Freed by request_flags_free */
	json_t *variables;
	bool stats;
	int64_t k; /* -1: not given */
	int64_t draft_width, draft_nodes; /* 0: not given */
	const char *grammar; /* the name of the flag that sets a grammar; NULL: none */
	uint32_t max_tokens; /* 0: until the context is full */
	bool has_repeat_penalty, has_repeat_window, has_xtc_threshold, has_dry;
	double wait_s; /* < 0: the SDK's default */
	float repeat_penalty;
	uint32_t repeat_window;
	float xtc_probability, xtc_threshold;
	float dry_multiplier, dry_base;
	uint32_t dry_allowed_length, dry_window;
};

#define REQUEST_FLAGS_INIT                                                        \
	{                                                                         \
		.wait_s = -1, .repeat_penalty = 1, .repeat_window = 0, .k = -1,   \
		.xtc_threshold = 0.1f, .dry_base = 1.75f, .dry_allowed_length = 2 \
	}

/* 0: the flag was one of these; EX_USAGE after an error message; -1: it is none of these. */
int request_flag(
	struct request_flags *flags, int flag, const char *value, struct outrider_request *request);
/* Refuses flags that have no effect, or exclude each other: EX_USAGE after naming them, else 0.
 * command: the command that has them. replays: the command provides a replay. */
int request_flags_check(const struct request_flags *flags, const char *command, bool replays);
/* Passes the variables of --set to the template, over those in `others`, an object with what a file
 * said in addition to its messages, or NULL. 0, or a sysexits status after an error message. */
int request_flags_variables(
	const struct request_flags *flags, const json_t *others, struct outrider_request *request);
void request_flags_free(struct request_flags *flags);
/* Connects, as the flags say, to a service that has the draft model that they need; 0, or a
 * sysexits status after an error message. */
int request_flags_connect(const struct request_flags *flags, struct outrider **client);
/* The exit status for a failed SDK call. */
int request_exit_status(int code);
