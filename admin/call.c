/* Asking, and printing what came. */
#include "admin/ctl.h"

#include "shared/base/utf8.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>

enum { TIMEOUT_MS = 3000 };

int ctl_fail(int status, const char *format, ...)
{
	va_list args;
	char text[2048];

	fflush(stdout);
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	error_tame(text);
	fprintf(stderr, "outriderctl: %s\n", text);
	return status;
}

int ctl_ask(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, int timeout_ms, Outrider__Envelope **reply,
	struct error *err)
{
	char endpoint[300];
	int code;

	peers_admin_endpoint(ctl->runtime_dir, process, endpoint, sizeof endpoint);
	code = bus_call(ctl->zmq, endpoint, request, timeout_ms, reply, err);
	if (code == 0 && (*reply)->body_case != expected) {
		code = error_set(err, EPROTO, "answered with message %d, expected %d",
			(int)(*reply)->body_case, (int)expected);
		bus_free(reply);
	}
	return code;
}

int ctl_no_service(const struct ctl *ctl, const char *process)
{
	return ctl_fail(EX_UNAVAILABLE, "%s does not run in %s; " CTL_NO_SERVICE, process,
		ctl->runtime_dir);
}

int ctl_call(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, Outrider__Envelope **reply)
{
	struct error err = {""};
	int code = ctl_ask(ctl, process, request, expected, TIMEOUT_MS, reply, &err);

	if (code == 0)
		return 0;
	if (code == -ECONNREFUSED)
		return ctl_no_service(ctl, process);
	/* A refusal is about what was asked, not about the service. */
	return ctl_fail(code == -EREMOTEIO   ? EX_DATAERR
			: code == -ETIMEDOUT ? EX_UNAVAILABLE
					     : error_exit_status(code),
		"%s: %s", process, err.text);
}

json_t *ctl_text_json(const char *text)
{
	size_t bytes;
	char *clean = utf8_clean(text, strlen(text), &bytes);
	json_t *json = clean ? json_stringn(clean, bytes) : NULL;

	free(clean);
	return json;
}

int ctl_print_json(json_t *root)
{
	json_dumpf(root, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(root);
	return 0;
}

int ctl_session(const char *text, uint64_t *session)
{
	char *end;

	errno = 0;
	*session = strtoull(text, &end, 0);
	if (end == text || *end || errno || *session == 0 || strchr(text, '-'))
		return ctl_fail(EX_USAGE, "session \"%.32s\": not the number of a session", text);
	return 0;
}

const char *ctl_measured(double value, int digits, char *out, size_t bytes)
{
	if (value > 0)
		snprintf(out, bytes, "%.*f", digits, value);
	else
		snprintf(out, bytes, "-");
	return out;
}

const char *ctl_wall(uint64_t time_ns, char out[CTL_WALL_BYTES])
{
	time_t seconds = (time_t)(time_ns / 1000000000u);
	struct tm tm;

	out[0] = '\0';
	if (localtime_r(&seconds, &tm))
		strftime(out, CTL_WALL_BYTES, "%Y-%m-%d %H:%M:%S", &tm);
	return out;
}

double ctl_rate(uint64_t hits, uint64_t misses)
{
	return hits + misses ? (double)hits / (double)(hits + misses) : 0;
}
