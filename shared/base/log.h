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

/* For what others can make happen as often as they like: each place that says it is heard LOG_LIMIT_LINES times in
 * LOG_LIMIT_NS, then only how often more there was. */
enum { LOG_LIMIT_LINES = 5 };
#define LOG_LIMIT_NS 10000000000u
struct log_limit {
	uint64_t begun_ns;
	uint32_t said, unsaid;
};
void log_limit_write(struct log_limit *limit, enum log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
#define log_limited(level, ...)                                       \
	do {                                                          \
		static struct log_limit log_limit_here;               \
		log_limit_write(&log_limit_here, level, __VA_ARGS__); \
	} while (0)

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_notice(...) log_write(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)
