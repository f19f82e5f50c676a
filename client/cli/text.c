/* What the commands share about arguments and files. */
#include "client/cli/cli.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { FILE_BYTES_MAX = 64 << 20 };

int cli_fail(int status, const char *format, ...)
{
	va_list args;
	char text[2048];

	/* What was answered so far comes first. */
	fflush(stdout);
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	error_tame(text);
	fprintf(stderr, "outrider: %s\n", text);
	return status;
}

int cli_bad_option(const char *command, int flag, char **argv)
{
	const char *name = argv[optind > 1 ? optind - 1 : 1];

	if (flag == ':')
		return cli_fail(EX_USAGE, "%s: %.64s needs a value; see outrider %s --help",
			command, name, command);
	/* Of letters that were given together, the one. */
	if (name[0] != '-' || name[1] != '-')
		return cli_fail(EX_USAGE, "%s: unknown option -%c; see outrider %s --help", command,
			optopt, command);
	return cli_fail(EX_USAGE, "%s: unknown option %.64s%s; see outrider %s --help", command,
		name, optopt ? ", which takes no value" : "", command);
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

int cli_real(const char *flag, const char *text, double low, double high, double *out)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= low && value <= high))
		return cli_fail(EX_USAGE, "%s \"%.64s\": allowed are numbers from %g to %g", flag,
			text, low, high);
	*out = value;
	return 0;
}

/* Behind a token: blanks and brackets, and at most one comma, which *comma says. */
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
	bool is_stdin = strcmp(path, "-") == 0;
	const char *name = is_stdin ? "stdin" : path;
	FILE *file = is_stdin ? stdin : fopen(path, "re");
	size_t room = 0, got;
	int status = 0;

	*text = NULL;
	*bytes = 0;
	if (!file)
		return cli_fail(error_exit_status(errno), "%s: %s", name, strerror(errno));
	errno = 0;
	do {
		char *grown = realloc(*text, (room = room ? 2 * room : 65536) + 1);

		if (!grown) {
			status = cli_fail(EX_OSERR, "%s: no memory for %zu bytes", name, room);
			break;
		}
		*text = grown;
		got = fread(*text + *bytes, 1, room - *bytes, file);
		*bytes += got;
	} while (*bytes == room && room < FILE_BYTES_MAX);
	if (status == 0 && ferror(file))
		status = cli_fail(error_exit_status(errno ? errno : EIO), "%s: %s", name,
			strerror(errno ? errno : EIO));
	else if (status == 0 && *bytes >= FILE_BYTES_MAX)
		status = cli_fail(EX_DATAERR, "%s: more than %d bytes", name, FILE_BYTES_MAX);
	if (!is_stdin)
		fclose(file);
	if (status == 0 && *text)
		(*text)[*bytes] = '\0';
	else
		free(*text);
	return status;
}
