#include "services/gateway/fault.h"

#include "shared/base/json_text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

bool fault_set(struct fault *fault, unsigned status, const char *param, const char *code,
	const char *format, ...)
{
	va_list args;

	fault->status = status;
	fault->code = code;
	snprintf(fault->param, sizeof fault->param, "%s", param ? param : "");
	va_start(args, format);
	vsnprintf(fault->message, sizeof fault->message, format, args);
	va_end(args);
	return false;
}

void fault_of_service(struct fault *fault, int code, const char *sentence)
{
	static const struct {
		int code;
		unsigned status;
		const char *name;
	} known[] = {
		{-EBUSY, 429, "queue_full"},
		{-EINVAL, 400, "invalid_value"},
		{-ERANGE, 400, "invalid_value"},
		{-E2BIG, 400, "context_length_exceeded"},
		{-EMSGSIZE, 413, "request_too_large"},
		{-EILSEQ, 400, "invalid_utf8"},
		{-EEXIST, 409, "idempotency_key_reused"},
		{-ETIMEDOUT, 504, "timeout"},
		{-ECONNREFUSED, 503, "not_ready"},
	};

	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (known[i].code == code) {
			fault_set(fault, known[i].status, NULL, known[i].name, "%s", sentence);
			return;
		}
	fault_set(fault, 500, NULL, "internal_error", "%s", sentence);
}

static const char *type_of(unsigned status)
{
	switch (status) {
	case 401:
		return "authentication_error";
	case 429:
		return "rate_limit_error";
	case 500:
	case 503:
	case 504:
		return "server_error";
	default:
		return "invalid_request_error";
	}
}

json_t *fault_json(const struct fault *fault)
{
	return json_pack("{s:{s:o,s:s,s:o,s:o}}", "error", "message", json_text(fault->message),
		"type", type_of(fault->status), "param",
		fault->param[0] ? json_text(fault->param) : json_null(), "code",
		fault->code ? json_string(fault->code) : json_null());
}
