/* The result of a look at the service as JSON, for the gateway's page and for programs:
 * docs/http.md lists the fields. */
#pragma once

#include "client/summary/look.h"
#include "services/gateway/news.h"

/* One line, a JSON object, which the caller frees. NULL: memory is exhausted. */
char *report_print(const struct look *look, const struct watch_news *news);
