/* A look at the service as JSON, for the gateway's page and for programs: docs/http.md lists the fields. */
#pragma once

#include "client/summary/look.h"
#include "services/gateway/news.h"

/* One line, a JSON object; freed by the caller. NULL: no memory. */
char *report_print(const struct look *look, const struct watch_news *news);
