/* Sends requests and prints replies. */
#include "admin/ctl.h"

#include "shared/base/clock.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sysexits.h>
#include <time.h>

enum { TIMEOUT_MS = 3000, AGAIN_MS = 50 };
#define LATE_NS UINT64_C(1000000000)
/* A process that was killed is up again after 50 ms and its time to start; one that dies again and
 * again, after a second. */
#define AWAY_NS UINT64_C(3000000000)

static bool errors_as_json;

void ctl_errors_as_json(void)
{
	errors_as_json = true;
}

int ctl_fail(int status, const char *format, ...)
{
	va_list args;
	char text[2048];

	fflush(stdout);
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	error_tame(text);
	/* Without memory for JSON it prints text, so that the message is not lost. */
	if (!errors_as_json || !json_tell(stderr, status, text))
		fprintf(stderr, "outriderctl: %s\n", text);
	return status;
}

static int ask(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, int timeout_ms, const struct bus_late *late,
	Outrider__Envelope **reply, struct error *err)
{
	char endpoint[300];
	int code;

	peers_admin_endpoint(ctl->runtime_dir, process, endpoint, sizeof endpoint);
	code = bus_call(ctl->zmq, endpoint, request, timeout_ms, late, reply, err);
	if (code == 0 && (*reply)->body_case != expected) {
		code = error_set(err, EPROTO, "answered with message %d, expected %d",
			(int)(*reply)->body_case, (int)expected);
		bus_free(reply);
	}
	return code;
}

int ctl_ask(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, int timeout_ms, Outrider__Envelope **reply,
	struct error *err)
{
	return ask(ctl, process, request, expected, timeout_ms, NULL, reply, err);
}

/* The process that is asked, and the command that asks. */
struct asked {
	struct ctl *ctl;
	const char *process;
	int timeout_ms;
};

/* Only once for each process, because one that hangs may be asked several times. */
static void tell_late(void *arg)
{
	const struct asked *asked = arg;

	if (asked->ctl->waits_for && strcmp(asked->ctl->waits_for, asked->process) == 0)
		return;
	asked->ctl->waits_for = asked->process;
	ctl_fail(0, "%s has not answered yet; waiting %d s at most", asked->process,
		asked->timeout_ms / 1000);
}

/* Lists the processes that listen, except `but`: "verifier, drafter". */
static void who_listens(const struct ctl *ctl, const char *but, char *out, size_t bytes)
{
	size_t used = 0;

	out[0] = '\0';
	for (size_t i = 0; peers_all[i]; i++) {
		char endpoint[300];

		if (strcmp(peers_all[i], but) == 0)
			continue;
		peers_admin_endpoint(ctl->runtime_dir, peers_all[i], endpoint, sizeof endpoint);
		if (used < bytes && bus_probe(bus_ipc_path(endpoint), SOCK_STREAM, NULL) == 0)
			used += (size_t)snprintf(
				out + used, bytes - used, "%s%s", used ? ", " : "", peers_all[i]);
	}
}

int ctl_ask_patiently(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, int timeout_ms, Outrider__Envelope **reply,
	struct error *err)
{
	const struct timespec pause = {.tv_nsec = AGAIN_MS * 1000000};
	struct asked asked = {ctl, process, timeout_ms};
	const struct bus_late late = {LATE_NS, tell_late, &asked};
	char others[64];

	for (;;) {
		int code = ask(ctl, process, request, expected, timeout_ms, &late, reply, err);

		if (code != -ECONNREFUSED)
			return code;
		who_listens(ctl, process, others, sizeof others);
		if (!others[0])
			return code;
		if (ctl->away_until_ns == 0)
			ctl->away_until_ns = clock_ns() + AWAY_NS;
		if (clock_ns() >= ctl->away_until_ns)
			return code;
		nanosleep(&pause, NULL);
	}
}

int ctl_no_service(const struct ctl *ctl, const char *process)
{
	char others[64];

	who_listens(ctl, process, others, sizeof others);
	if (!others[0])
		return ctl_fail(EX_UNAVAILABLE, "%s is not running in %s; " CTL_NO_SERVICE, process,
			ctl->runtime_dir);
	return ctl_fail(EX_UNAVAILABLE,
		"%s was not running for %.0f s, although the rest of the service in %s is (%s): it "
		"is being restarted, or it was stopped or given up; outriderctl status shows when "
		"it is back, the service's log says why",
		process, (double)AWAY_NS / 1e9, ctl->runtime_dir, others);
}

int ctl_no_answer(const char *process, int timeout_ms, bool changes)
{
	return ctl_fail(EX_UNAVAILABLE,
		"%s has not answered in %d s: its process is stopped or hangs; outriderctl status "
		"shows when it answers again, the service's log says why%s",
		process, timeout_ms / 1000,
		changes ? "; it may still make the change then: outriderctl knob get shows the "
			  "value"
			: "");
}

int ctl_call(struct ctl *ctl, const char *process, Outrider__Envelope *request,
	Outrider__Envelope__BodyCase expected, Outrider__Envelope **reply)
{
	return ctl_call_about(ctl, process, process, request, expected, reply);
}

int ctl_call_about(struct ctl *ctl, const char *process, const char *subject,
	Outrider__Envelope *request, Outrider__Envelope__BodyCase expected,
	Outrider__Envelope **reply)
{
	struct error err = {""};
	int code = ctl_ask_patiently(ctl, process, request, expected, TIMEOUT_MS, reply, &err);

	if (code == 0)
		return 0;
	if (code == -ECONNREFUSED)
		return ctl_no_service(ctl, process);
	if (code == -ETIMEDOUT)
		return ctl_no_answer(process, TIMEOUT_MS, false);
	/* A refusal is about the request, not about the service. */
	return ctl_fail(code == -EREMOTEIO ? EX_DATAERR : error_exit_status(code), "%s: %s",
		subject, err.text);
}

int ctl_print_json(json_t *root)
{
	if (!root)
		return ctl_fail(EX_SOFTWARE, "no memory for the answer as JSON");
	json_dumpf(root, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(root);
	return 0;
}

bool ctl_number(const char *text, uint64_t max, uint64_t *number)
{
	/* strtoull accepts a sign, white space before it, and with base 0 other bases. */
	if (!*text || strspn(text, "0123456789") != strlen(text))
		return false;
	errno = 0;
	*number = strtoull(text, NULL, 10);
	return errno == 0 && *number <= max;
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

json_t *ctl_measured_json(double value)
{
	return value > 0 ? json_real(value) : json_null();
}

const char *ctl_share(double part, double whole, int digits, char *out, size_t bytes)
{
	if (whole > 0)
		snprintf(out, bytes, "%.*f%%", digits, 100 * part / whole);
	else
		snprintf(out, bytes, "-");
	return out;
}

json_t *ctl_share_json(double part, double whole)
{
	return whole > 0 ? json_real(part / whole) : json_null();
}
