/*
 * Classes of requests: how urgent a request is, and how fast its answer is to come. The setting
 * `classes` names them; a request names one of them, or has the class "default". A session keeps
 * its class as it was described when the session was admitted, also across restarts. Any thread.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/base/limits.h"

#include <stdint.h>

#define CLASSES_DEFAULT "default"
/* The form of the setting, for help and messages. */
#define CLASSES_FORM "NAME [priority=N] [tpot=TIME] [ttft=TIME], ..."

struct request_class {
	char name[LIMIT_NAME]; /* letters, digits, '-' and '_'; the rest is 0 */
	int32_t priority; /* -LIMIT_PRIORITY..LIMIT_PRIORITY; the greater, the more urgent */
	uint32_t pad;
	/* Targets, in ns; 0: none. tpot: the time per output token behind the first; ttft: the time
	 * to the first token, from the session's admission on. */
	uint64_t tpot_ns, ttft_ns;
};

struct request_classes {
	uint32_t n; /* at least 1: the class "default" is always there, and is first */
	uint32_t pad;
	struct request_class at[LIMIT_CLASSES];
};

/* Reads the setting, "" for none but the default: "chat priority=10 tpot=50ms ttft=1s, batch
 * priority=-10". -EINVAL names the place and what is allowed; *out is unchanged. */
int classes_read(const char *text, struct request_classes *out, struct error *err);
/* The class of that name; "": the default. NULL: there is none. */
const struct request_class *classes_find(const struct request_classes *classes, const char *name);
/* -EINVAL for a class that classes_read cannot have made; one without a name is a default. */
int classes_check(const struct request_class *one, struct error *err);
/* The names, separated by commas, for messages. */
void classes_names(const struct request_classes *classes, char *out, size_t bytes);
