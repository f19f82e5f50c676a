/* The lines of Prometheus's text format. Names get the prefix "outrider_". */
#pragma once

#include "services/gateway/news.h"
#include "services/gateway/text.h"

#include <stdint.h>

void metrics_line(struct text *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* # HELP and # TYPE. */
void metrics_head(struct text *out, const char *name, const char *type, const char *help);
/* A metric with one value. A gauge that is not known (NAN) is left out. */
void metrics_counter(struct text *out, const char *name, const char *help, uint64_t value);
void metrics_gauge(struct text *out, const char *name, const char *help, double value);
/* The metrics of the service. */
void metrics_service(const struct watch_news *news, struct text *out);
