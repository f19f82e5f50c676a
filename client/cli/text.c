/* Arguments and files, for all commands. */
#include "client/cli/cli.h"

#include "shared/base/config.h"
#include "shared/base/decimal.h"
#include "shared/base/file.h"
#include "shared/base/options.h"
#include "shared/base/units.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { FILE_BYTES_MAX = 64 << 20 };

static bool errors_as_json;

void cli_errors_as_json(void)
{
	errors_as_json = true;
}

int cli_help(void (*usage)(FILE *to))
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *to = errors_as_json ? open_memstream(&text, &bytes) : NULL;

	if (!to) {
		usage(stdout);
		return EX_OK;
	}
	usage(to);
	if (fclose(to) == 0) {
		json_t *root = json_pack("{s:s}", "help", text);

		json_dumpf(root, stdout, 0);
		putchar('\n');
		json_decref(root);
	}
	free(text);
	return EX_OK;
}

int cli_fail(int status, const char *format, ...)
{
	va_list args;
	char text[2048];

	/* What was printed of the answer comes first. */
	fflush(stdout);
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	error_tame(text);
	/* Without memory for JSON it prints text, so that the message is not lost. */
	if (!errors_as_json || !json_tell(stderr, status, text))
		fprintf(stderr, "outrider: %s\n", text);
	return status;
}

int cli_bad_option(const char *command, int flag, const char *letters, char **argv)
{
	char refused[128];

	options_refused(flag, letters, argv, refused, sizeof refused);
	return cli_fail(EX_USAGE, "%s: %s; see outrider %s --help", command, refused, command);
}

int cli_integer(const char *flag, const char *text, int64_t low, int64_t high, int64_t *out)
{
	char *end;
	long long value;

	errno = 0;
	value = strtoll(text, &end, 10);
	if (errno || end == text || *end || value < low || value > high)
		return cli_fail(EX_USAGE,
			"%s \"%.64s\": allowed are whole numbers from %lld to %lld", flag, text,
			(long long)low, (long long)high);
	*out = value;
	return 0;
}

int cli_sampling(const char *flag, const char *text, enum sampling_value what, double *out)
{
	const char *end;
	double value = decimal_read(text, &end);
	struct error err;

	if (end == text || *end)
		return cli_fail(
			EX_USAGE, "%s \"%.64s\": allowed are %s", flag, text, sampling_range(what));
	if (sampling_check(what, value, &err) < 0)
		return cli_fail(EX_USAGE, "%s", err.text);
	if ((what == SAMPLING_TOP_K || what == SAMPLING_REPEAT_WINDOW ||
		    what == SAMPLING_DRY_ALLOWED_LENGTH || what == SAMPLING_DRY_WINDOW) &&
		value != (double)(int64_t)value)
		return cli_fail(EX_USAGE, "%s \"%.64s\": allowed are whole numbers, %s", flag, text,
			sampling_range(what));
	*out = value;
	return 0;
}

int cli_seconds(const char *flag, const char *text, double low_s, double high_s, double *out)
{
	uint64_t ns = 0;
	int code = units_read_time(text, &ns);
	double seconds = (double)ns / 1e9;

	char low[CONFIG_TIME_BYTES], high[CONFIG_TIME_BYTES];

	if (code < 0 || seconds < low_s || seconds > high_s)
		return cli_fail(EX_USAGE,
			"%s \"%.64s\": allowed are times from %s to %s, such as 3s, 500ms or 2m; a "
			"number without a unit is seconds",
			flag, text, config_time((uint64_t)(low_s * 1e9 + 0.5), low, sizeof low),
			config_time((uint64_t)(high_s * 1e9 + 0.5), high, sizeof high));
	*out = seconds;
	return 0;
}

/* What follows a token: blanks and brackets, and at most one comma; *comma: there was one. */
static const char *skip(const char *text, bool *comma)
{
	const char *blanks = " \t\r\n[]";

	text += strspn(text, blanks);
	*comma = *text == ',';
	if (*comma)
		text += 1 + strspn(text + 1, blanks);
	return text;
}

int cli_tokens(const char *what, const char *text, int32_t **tokens, size_t *n)
{
	size_t room = 0;
	bool comma;

	*tokens = NULL;
	*n = 0;
	for (text = skip(text, &comma); *text || comma; text = skip(text, &comma)) {
		char *end;
		long value;

		errno = 0;
		value = strtol(text, &end, 10);
		if (errno || end == text || value < 0 || value > INT32_MAX || (comma && *n == 0) ||
			(*end && !strchr(", \t\r\n]", *end))) {
			int bytes = (int)strcspn(text, ", \t\r\n");

			free(*tokens);
			return bytes == 0 || (comma && *n == 0)
				       ? cli_fail(
						 EX_DATAERR, "%s: a comma without a token id", what)
				       : cli_fail(EX_DATAERR, "%s: \"%.*s\" is not a token id",
						 what, bytes < 64 ? bytes : 64, text);
		}
		if (*n == room) {
			int32_t *grown;

			room = room ? 2 * room : 256;
			grown = realloc(*tokens, room * sizeof *grown);
			if (!grown) {
				free(*tokens);
				return cli_fail(EX_OSERR, "%s: no memory", what);
			}
			*tokens = grown;
		}
		(*tokens)[(*n)++] = (int32_t)value;
		text = end;
	}
	return 0;
}

int cli_read_file(const char *path, char **text, size_t *bytes)
{
	struct error err = {""};
	int code = file_read(path, FILE_BYTES_MAX, text, bytes, &err);

	return code ? cli_fail(error_exit_status(code), "%s", err.text) : 0;
}
