/* The files of the page at / (services/gateway/page), which are part of the program. */
#pragma once

#include <stdbool.h>

struct exchange;

/* Handlers of routes. */
bool page_html(struct exchange *exchange);
bool page_script(struct exchange *exchange);
bool page_style(struct exchange *exchange);
bool page_icon(struct exchange *exchange);

/* Content-Security-Policy of the page: it loads nothing from elsewhere, and runs nothing but its
 * own file. */
extern const char page_policy[];
