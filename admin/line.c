#include "admin/line.h"

#include "shared/base/options.h"
#include "shared/base/units.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { KNOB_WORDS = 2 /* "knob set" */ };
/* Bounds of --for. */
#define FOR_NS_MIN UINT64_C(1000000)
#define FOR_NS_MAX (30 * UINT64_C(86400000000000))
/* Above all letters, so that getopt_long's optopt distinguishes a letter from a word. */
enum {
	FLAG_RUNTIME_DIR = 256,
	FLAG_FORMAT,
	FLAG_VERSION,
	FLAG_OPTION = 1 << 16, /* plus one of enum line_option */
};
/* '-': words are reported in order, as flag 1; ':': a missing value is reported as ':'. */
static const char letters[] = "-:h";
static const struct option flags[] = {
	{"json", no_argument, NULL, FLAG_OPTION | LINE_JSON},
	{"session", required_argument, NULL, FLAG_OPTION | LINE_SESSION},
	{"for", required_argument, NULL, FLAG_OPTION | LINE_FOR},
	{"persist", no_argument, NULL, FLAG_OPTION | LINE_PERSIST},
	{"next-start", no_argument, NULL, FLAG_OPTION | LINE_NEXT_START},
	{"if", required_argument, NULL, FLAG_OPTION | LINE_IF},
	{"last", required_argument, NULL, FLAG_OPTION | LINE_LAST},
	{"layers", no_argument, NULL, FLAG_OPTION | LINE_LAYERS},
	{"once", no_argument, NULL, FLAG_OPTION | LINE_ONCE},
	{"all", no_argument, NULL, FLAG_OPTION | LINE_ALL},
	{"runtime-dir", required_argument, NULL, FLAG_RUNTIME_DIR},
	{"format", required_argument, NULL, FLAG_FORMAT},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, FLAG_VERSION},
	{0},
};

/* The option of an entry of flags; 0: none that commands list. */
static unsigned option_of(int flag)
{
	return flag & FLAG_OPTION ? (unsigned)(flag & ~FLAG_OPTION) : 0;
}

static int take_time(const char *text, uint64_t *out)
{
	uint64_t ns = 0;

	if (units_read_time(text, &ns) < 0 || ns < FOR_NS_MIN || ns > FOR_NS_MAX)
		return ctl_fail(EX_USAGE,
			"--for \"%.64s\": allowed are times from 1ms to 30d, such as 30s, 10m or "
			"2h; a number without a unit is seconds",
			text);
	*out = ns;
	return 0;
}

static int take_last(const char *text, uint32_t *out)
{
	uint64_t number = 0;

	if (!ctl_number(text, UINT32_MAX, &number) || number == 0)
		return ctl_fail(EX_USAGE, "--last \"%.32s\": allowed are 1 to %u changes", text,
			UINT32_MAX);
	*out = (uint32_t)number;
	return 0;
}

/* --if is for the word before it; the first one, if no word is before it, is for the first knob. */
static int take_expected(struct ctl *ctl, const struct line *line, char *value)
{
	if (ctl->n_expected == CTL_EXPECTED_MAX)
		return ctl_fail(EX_USAGE, "--if is given more than %d times", CTL_EXPECTED_MAX);
	ctl->expected[ctl->n_expected].argument =
		line->n_words > KNOB_WORDS ? line->words[line->n_words - 1] : NULL;
	ctl->expected[ctl->n_expected++].value = value;
	return 0;
}

static int take_option(struct ctl *ctl, struct line *line, unsigned option)
{
	line->given |= option;
	switch (option) {
	case LINE_SESSION:
		ctl->session_text = optarg;
		return ctl_session_text(optarg) ? 0 : ctl_session_bad(optarg);
	case LINE_FOR:
		return take_time(optarg, &ctl->for_ns);
	case LINE_IF:
		return take_expected(ctl, line, optarg);
	case LINE_LAST:
		return take_last(optarg, &ctl->last);
	default:
		ctl->json |= option == LINE_JSON;
		ctl->persist |= option == LINE_PERSIST;
		ctl->next_start |= option == LINE_NEXT_START;
		ctl->layers |= option == LINE_LAYERS;
		ctl->once |= option == LINE_ONCE;
		ctl->all |= option == LINE_ALL;
		return 0;
	}
}

static int take_word(struct line *line, char *word)
{
	if (line->n_words == LINE_WORDS_MAX)
		return ctl_fail(EX_USAGE, "more than %d arguments", LINE_WORDS_MAX);
	line->words[line->n_words++] = word;
	return 0;
}

static int take_format(struct ctl *ctl, struct line *line, const char *name)
{
	if (strcmp(name, "json") != 0 && strcmp(name, "text") != 0)
		return ctl_fail(EX_USAGE, "--format \"%.32s\": allowed are text and json", name);
	ctl->json = name[0] == 'j';
	if (ctl->json)
		line->given |= LINE_JSON;
	return 0;
}

static int take_flag(struct ctl *ctl, struct line *line, int flag, char **argv)
{
	char refused[128];

	switch (flag) {
	case 1:
		return take_word(line, optarg);
	case FLAG_RUNTIME_DIR:
		line->runtime_dir = optarg;
		return 0;
	case FLAG_FORMAT:
		return take_format(ctl, line, optarg);
	case FLAG_VERSION:
		line->version = true;
		return 0;
	case 'h':
		line->help = true;
		return 0;
	case '?':
	case ':':
		options_refused(flag, letters + 1, argv, refused, sizeof refused);
		return ctl_fail(EX_USAGE,
			"%s; outriderctl COMMAND --help lists the options of a command", refused);
	default:
		return take_option(ctl, line, option_of(flag));
	}
}

json_t *line_options_json(unsigned options)
{
	json_t *list = json_array();

	for (const struct option *f = flags; f->name; f++)
		if (option_of(f->val) & options)
			json_array_append_new(list, json_sprintf("--%s", f->name));
	return list;
}

bool line_wants_json(int argc, char **argv)
{
	return options_want_json(argc, argv, letters, flags);
}

int line_read(struct ctl *ctl, int argc, char **argv, struct line *line)
{
	int flag, status = 0;

	opterr = 0;
	while (status == 0 && (flag = getopt_long(argc, argv, letters, flags, NULL)) != -1)
		status = take_flag(ctl, line, flag, argv);
	/* The words after "--". */
	for (; status == 0 && optind < argc; optind++)
		status = take_word(line, argv[optind]);
	for (size_t i = 0; i < ctl->n_expected; i++)
		if (!ctl->expected[i].argument && line->n_words > KNOB_WORDS)
			ctl->expected[i].argument = line->words[KNOB_WORDS];
	if (status == 0 && ctl->persist && ctl->next_start)
		status = ctl_fail(EX_USAGE,
			"--persist and --next-start exclude each other: the first "
			"applies now and at every start, the second only at every start");
	if (status == 0 && (ctl->persist || ctl->next_start) && (ctl->for_ns || ctl->session_text))
		status = ctl_fail(EX_USAGE,
			"%s makes a permanent change for all sessions: it excludes --for and "
			"--session",
			ctl->persist ? "--persist" : "--next-start");
	return status;
}

int line_check(const struct line *line, const char *command, unsigned taken,
	void (*who)(unsigned option, char *out, size_t bytes))
{
	char others[256];

	for (const struct option *f = flags; f->name; f++) {
		if (!(line->given & ~taken & option_of(f->val)))
			continue;
		who(option_of(f->val), others, sizeof others);
		return ctl_fail(
			EX_USAGE, "%s takes no --%s, which is for %s", command, f->name, others);
	}
	return 0;
}

const char *ctl_take_expected(struct ctl *ctl, const char *argument)
{
	for (size_t i = 0; i < ctl->n_expected; i++)
		if (ctl->expected[i].argument == argument) {
			ctl->expected[i].used = true;
			return ctl->expected[i].value;
		}
	return NULL;
}

int ctl_all_expected_taken(const struct ctl *ctl)
{
	for (size_t i = 0; i < ctl->n_expected; i++)
		if (!ctl->expected[i].used)
			return ctl_fail(EX_USAGE,
				"--if \"%.32s\": it belongs to no knob, or its knob has another "
				"--if",
				ctl->expected[i].value);
	return 0;
}
