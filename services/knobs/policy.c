#include "services/knobs/policy.h"

static const char *const policy_names[] = {"yield", "cascade", "static:", NULL};

#define KEY(field) offsetof(struct settings, field)
/* NOLINTBEGIN(bugprone-macro-parentheses): a field name cannot stand in parentheses. */
#define INT_KEY(key, field, low, high, value, what, text)                                         \
	{                                                                                         \
		.section = "", .name = key, .type = CONFIG_INT, .offset = KEY(field),             \
		.min = (low), .max = (high), .fallback = (value), .unit = (what), .help = (text), \
		.live = KNOB_LIVE, .scope = KNOB_SESSION                                          \
	}
/* NOLINTEND(bugprone-macro-parentheses) */

static_assert(LIMIT_DRAFT_DEPTH == 63, "the range of policy names it");
const struct config_key settings_keys[] = {
	{.section = "",
		.name = "policy",
		.type = CONFIG_STRING,
		.offset = KEY(policy),
		.size = sizeof(((struct settings *)NULL)->policy),
		.names = policy_names,
		.fallback = "yield",
		.unit = "yield, cascade, static:0 to static:63",
		.help = "How K is chosen: yield (the most expected tokens per second), cascade "
			"(test-and-set), or static:K for the same K always.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	INT_KEY("k_max", k_max, 1, LIMIT_DRAFT_DEPTH, "15", "tokens",
		"The largest K that cascade and yield use."),
	INT_KEY("k_start", k_start, 1, LIMIT_DRAFT_DEPTH, "3", "tokens",
		"The first K that cascade tries in a session it knows nothing about, and yield's "
		"longest trial of a session with few drafts; at most k_max."),
	INT_KEY("trial", trial, 1, 64, "4", "iterations", "Length of one trial of cascade (t)."),
	INT_KEY("trials", trials, 1, SETTINGS_TRIALS_MAX, "4", "trials",
		"The most trials of one test phase of cascade (M)."),
	INT_KEY("set", set, 1, 4096, "16", "iterations",
		"How long the K that a test found is kept (S)."),
	INT_KEY("set_max", set_max, 1, 65536, "2048", "iterations",
		"Where the growth of S ends while speculation does not pay."),
	INT_KEY("baseline", baseline, 1, 64, "4", "iterations",
		"Iterations at K = 0 that measure the time without speculation."),
	INT_KEY("refresh", refresh, 1, 1000000, "100", "iterations",
		"How old that measurement may grow before it is made again: in a set phase that is "
		"longer, or before the next test."),
	{.section = "",
		.name = "refresh_missed",
		.type = CONFIG_BOOL,
		.offset = KEY(refresh_missed),
		.fallback = "yes",
		.help = "Whether cascade also makes it again before each test when experts were "
			"missing since: what is resident decides what an iteration takes. no: by "
			"its age "
			"alone, as published.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "medians",
		.type = CONFIG_BOOL,
		.offset = KEY(medians),
		.fallback = "yes",
		.help = "Whether cascade takes the median time of iterations with equally many "
			"drafted tokens, which one delayed iteration does not move. no: the mean "
			"of all, as published.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "threshold",
		.type = CONFIG_DOUBLE,
		.offset = KEY(threshold),
		.min = 0.5,
		.max = 2,
		.fallback = "1",
		.unit = "times K = 0",
		.help = "Utility below which speculation is turned off.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "converge",
		.type = CONFIG_DOUBLE,
		.offset = KEY(converge),
		.min = 0,
		.max = 1,
		.fallback = "0.1",
		.unit = "share",
		.help = "A test ends when the utilities of two successive trials differ by at most "
			"this share.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	INT_KEY("backoff", backoff, 1, 16, "2", "times",
		"How much longer S becomes each time a test of cascade ends at K = 0."),
	INT_KEY("falls", falls, 1, SETTINGS_TRIALS_MAX, "2", "trials",
		"A test of cascade ends when the utility fell in so many successive trials."),
	INT_KEY("history", history, 1, 16, "16", "results",
		"How many results cascade remembers: the next test starts from the best K of "
		"them."),
	INT_KEY("late", late, 0, 1024, "32", "iterations",
		"Iterations of another K than cascade asked for that do not count, in a row."),
	INT_KEY("carry", carry, 0, 256, "128", "times",
		"A session that begins while cascade has speculation turned off in the one before "
		"goes "
		"on waiting, for at most so many times S; 0 does not wait."),
	INT_KEY("memory", memory, 4, 65536, "48", "iterations",
		"How long yield remembers which drafted tokens of a session were accepted."),
	INT_KEY("horizon", horizon, 0, 65536, "64", "iterations",
		"How long yield expects to profit from what it finds out; 0 explores nothing."),
	INT_KEY("phase", phase, 1, 1000000, "64", "iterations",
		"How long yield expects a session's acceptance to stay what it is, until the "
		"session "
		"shows it."),
	{.section = "",
		.name = "alarm",
		.type = CONFIG_DOUBLE,
		.offset = KEY(alarm),
		.min = 0.5,
		.max = 100,
		.fallback = "3",
		.unit = "log-likelihood ratio",
		.help = "Evidence (log-likelihood ratio) at which yield takes a session's "
			"acceptance "
			"for changed.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "purse",
		.type = CONFIG_DOUBLE,
		.offset = KEY(purse),
		.min = 0,
		.max = 1000,
		.fallback = "3",
		.unit = "iterations",
		.help = "What yield may lose against K = 0 at once, in each session.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "spend",
		.type = CONFIG_DOUBLE,
		.offset = KEY(spend),
		.min = 0,
		.max = 1,
		.fallback = "0.01",
		.unit = "share",
		.help = "What yield may lose against K = 0 on and on, as a share of its "
			"iterations.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "rest_at_zero",
		.type = CONFIG_BOOL,
		.offset = KEY(rest_at_zero),
		.fallback = "yes",
		.help = "Whether the drafter rests where K stays 0: that saves reading along (2 to "
			"3 %, as published), and a trial waits until it caught up. no: it never "
			"does; the first draft is not stale.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "run_ahead",
		.type = CONFIG_BOOL,
		.offset = KEY(run_ahead),
		.fallback = "yes",
		.help = "Whether the drafter may draft on while the verifier works; its own "
			"setting comes first.",
		.live = KNOB_LIVE,
		.scope = KNOB_GLOBAL},
	{.section = "",
		.name = "poll",
		.type = CONFIG_NS,
		.offset = KEY(poll_ns),
		.min = 0,
		.max = 1e9,
		.fallback = "10ms",
		.help = "How often records are looked for while they come; sooner when one is due "
			"that decides, later with slow iterations, all of it within 0.6 % of a "
			"core; 0: the verifier rings, at a system call each.",
		.live = KNOB_LIVE,
		.scope = KNOB_GLOBAL},
	{.section = "",
		.name = "journal",
		.type = CONFIG_BYTES,
		.offset = KEY(journal_bytes),
		.min = 0,
		.max = 4294967296.0,
		.fallback = "16M",
		.help = "Size of the journal of iterations, policy.journal in the state directory "
			"(the runtime directory without one); less than 64K keeps none. One of "
			"another "
			"size is kept as policy.journal.old."},
	{.name = NULL},
};
