/* The table of the gateway's settings, and the structure that it fills. Plain data. */
#pragma once

#include "shared/base/config.h"

struct gateway_config {
	char listen[256]; /* "ADDRESS:PORT" or "unix:PATH" */
	char keys[4096]; /* a file with one key per line; "": no key is required */
	char origin[256]; /* Access-Control-Allow-Origin; "": it is not sent */
	bool share_prefixes;
	int64_t connections, queue, body_bytes;
	int64_t request_timeout_ns, ping_ns, answer_timeout_ns;
};

extern const struct config_key gateway_keys[];
