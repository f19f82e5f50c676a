#include "services/knobs/policy.h"

static const char *const policy_names[] = {"yield", "goodput", "cascade", "static:", NULL};

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
		.unit = "yield, goodput, cascade, static:0 to static:63, static:SHAPE",
		.help = "How K is chosen: yield (most expected tokens/s), goodput (the same within "
			"tpot and ttft), cascade (test and set), static:K (always K), static:SHAPE "
			"(a tree; 4x2x1: 4, then 2 each, then 1 each).",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	INT_KEY("k_max", k_max, 1, LIMIT_DRAFT_DEPTH, "15", "tokens",
		"The largest K that cascade and yield use."),
	INT_KEY("k_start", k_start, 1, LIMIT_DRAFT_DEPTH, "3", "tokens",
		"The first K that cascade tries in a session it knows nothing about, and the "
		"longest trial of yield in a session with few drafts; at most k_max."),
	INT_KEY("trial", trial, 1, 64, "4", "iterations", "Length of one trial of cascade (t)."),
	INT_KEY("trials", trials, 1, SETTINGS_TRIALS_MAX, "4", "trials",
		"The most trials in one test phase of cascade (M)."),
	INT_KEY("set", set, 1, 4096, "16", "iterations",
		"How long cascade keeps the K that a test found (S)."),
	INT_KEY("set_max", set_max, 1, 65536, "2048", "iterations",
		"The largest S while speculation does not pay."),
	INT_KEY("baseline", baseline, 1, 64, "4", "iterations",
		"Iterations at K = 0 that measure the time without speculation."),
	INT_KEY("refresh", refresh, 1, 1000000, "100", "iterations",
		"The greatest age of that measurement. It is repeated during a longer set phase, "
		"or before the next test."),
	{.section = "",
		.name = "refresh_missed",
		.type = CONFIG_BOOL,
		.offset = KEY(refresh_missed),
		.fallback = "yes",
		.help = "Whether cascade also repeats it before each test if experts were missing "
			"since: the time of an iteration depends on which experts are resident. "
			"no: only by its age, as published.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "medians",
		.type = CONFIG_BOOL,
		.offset = KEY(medians),
		.fallback = "yes",
		.help = "Whether cascade takes the median time of iterations with the same number "
			"of drafted tokens, which one delayed iteration does not move. no: the "
			"mean of all, as published.",
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
		.help = "Speculation is turned off below this utility.",
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
		"Factor by which S grows each time a test of cascade ends at K = 0."),
	INT_KEY("falls", falls, 1, SETTINGS_TRIALS_MAX, "2", "trials",
		"A test of cascade ends after this many successive trials with falling utility."),
	INT_KEY("history", history, 1, 16, "16", "results",
		"Results that cascade remembers. The next test starts from the best K of them."),
	INT_KEY("late", late, 0, 1024, "32", "iterations",
		"The most successive iterations with another K than cascade asked for that it "
		"ignores."),
	INT_KEY("carry", carry, 0, 256, "128", "times",
		"If cascade has speculation turned off in the previous session, a new session goes "
		"on waiting for at most this many times S. 0: it does not wait."),
	INT_KEY("memory", memory, 4, 65536, "48", "iterations",
		"How long yield remembers which drafted tokens of a session were accepted."),
	INT_KEY("horizon", horizon, 0, 65536, "64", "iterations",
		"How long yield expects to profit from what a trial shows. 0: it explores "
		"nothing."),
	INT_KEY("phase", phase, 1, 1000000, "64", "iterations",
		"How long yield expects a session's acceptance to stay the same, until the session "
		"shows it."),
	{.section = "",
		.name = "alarm",
		.type = CONFIG_DOUBLE,
		.offset = KEY(alarm),
		.min = 0.5,
		.max = 100,
		.fallback = "3",
		.unit = "log-likelihood ratio",
		.help = "Evidence (log-likelihood ratio) at which yield concludes that a session's "
			"acceptance has changed.",
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
		.help = "Iterations that yield may lose against K = 0 at once, in each session.",
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
		.help = "Share of its iterations that yield may lose against K = 0 in the long "
			"run.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "tpot",
		.type = CONFIG_NS,
		.offset = KEY(tpot_ns),
		.min = 0,
		.max = 3600e9,
		.fallback = "0",
		.help = "Target of goodput: the time per token of a session, which drafts of "
			"others may not exceed. Its class may have a stricter one. 0: none.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "ttft",
		.type = CONFIG_NS,
		.offset = KEY(ttft_ns),
		.min = 0,
		.max = 3600e9,
		.fallback = "0",
		.help = "Target of goodput: the time to a first token. No iteration with drafts "
			"may take longer: a request that arrives waits for its end. A class may "
			"have a stricter one. 0: none.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "rest_at_zero",
		.type = CONFIG_BOOL,
		.offset = KEY(rest_at_zero),
		.fallback = "yes",
		.help = "Whether the drafter rests while K stays 0. This saves reading along (2 to "
			"3 %, as published), but a trial waits until it has caught up. no: it "
			"never rests, and the first draft is not stale.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	{.section = "",
		.name = "by_experts",
		.type = CONFIG_BOOL,
		.offset = KEY(by_experts),
		.fallback = "no",
		.help = "yes: under yield, the verifier leaves out drafted tokens whose experts "
			"cost more time than the tokens are expected to save. no: it verifies "
			"every drafted token.",
		.live = KNOB_LIVE,
		.scope = KNOB_SESSION},
	INT_KEY("width", width, 1, 32, "1", "tokens",
		"How many alternatives yield may ask for at each drafted token. Above 1, drafts "
		"become trees where the alternatives pay."),
	{.section = "",
		.name = "run_ahead",
		.type = CONFIG_BOOL,
		.offset = KEY(run_ahead),
		.fallback = "yes",
		.help = "Whether the drafter may draft on while the verifier works. The drafter's "
			"own setting comes first.",
		.live = KNOB_LIVE,
		.scope = KNOB_GLOBAL},
	{.section = "",
		.name = "poll",
		.type = CONFIG_NS,
		.offset = KEY(poll_ns),
		.min = 0,
		.max = 1e9,
		.fallback = "10ms",
		.help = "How often records are read while they come: sooner if one is due that "
			"decides, later with slow iterations, within 0.6 % of a core. 0: the "
			"verifier rings, with a system call for each.",
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
			"(else in the runtime directory). Below 64K no journal is kept. A journal "
			"of another size is kept as policy.journal.old."},
	{.name = NULL},
};
