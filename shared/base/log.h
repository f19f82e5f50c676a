/*
 * Logging: one line per event, to stderr, or with fields to the journal if systemd started this
 * process. Any thread. Nothing on the per-token path logs above debug level.
 */
#pragma once

#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_NOTICE, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* process: the name of this process, which begins every line. verbosity: 0 = notice, 1 = info, 2 =
 * debug. */
void log_init(const char *process, int verbosity);
void log_set_verbosity(int verbosity);

void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Like log_write, about one session; iteration 0: none. In the journal they are the fields SESSION=
 * and ITERATION=. */
void log_session(enum log_level level, uint64_t session, uint64_t iteration, const char *format,
	...) __attribute__((format(printf, 4, 5)));

/* For events that others can cause as often as they like. Each place in the code logs
 * LOG_LIMIT_LINES lines in LOG_LIMIT_NS; after that it only logs how many more there were. */
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
