/*
 * Logging: one line per event to stderr, or to the journal with fields when systemd started us.
 * Thread-safe. Nothing on the per-token path logs above debug level.
 */
#pragma once

#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_NOTICE, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* process: this process's name, shown in every line. verbosity: 0 = notice, 1 = info, 2 = debug. */
void log_init(const char *process, int verbosity);
void log_set_verbosity(int verbosity);

void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same about one session; iteration 0 means none. In the journal these are SESSION= and ITERATION=. */
void log_session(enum log_level level, uint64_t session, uint64_t iteration, const char *format,
	...) __attribute__((format(printf, 4, 5)));

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_notice(...) log_write(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)
