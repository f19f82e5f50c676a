#include "shared/base/log.h"

#include "shared/base/clock.h"
#include "shared/base/error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

static char log_process[32] = "outrider";
static atomic_int log_threshold = LOG_LEVEL_NOTICE;
static bool log_to_journal;

/* systemd sets JOURNAL_STREAM=device:inode when our stderr is the journal (systemd.exec(5)). It
 * must match this stderr, because a child may have inherited the variable and have another stderr.
 */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	if (!stream)
		return false;
	char *end;
	unsigned long long device = strtoull(stream, &end, 10);
	if (*end != ':')
		return false;
	unsigned long long inode = strtoull(end + 1, NULL, 10);
	struct stat st;
	return fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

void log_init(const char *process, int verbosity)
{
	snprintf(log_process, sizeof(log_process), "%s", process);
	log_to_journal = stderr_is_journal();
	log_set_verbosity(verbosity);
}

void log_set_verbosity(int verbosity)
{
	int level = LOG_LEVEL_NOTICE + (verbosity < 0 ? 0 : verbosity);
	atomic_store_explicit(&log_threshold, level > LOG_LEVEL_DEBUG ? LOG_LEVEL_DEBUG : level,
		memory_order_relaxed);
}

static void log_emit(enum log_level level, uint64_t session, uint64_t iteration, const char *text)
{
	static const int priority[] = {LOG_ERR, LOG_NOTICE, LOG_INFO, LOG_DEBUG};
	static const char *const word[] = {"error: ", "", "", "debug: "};

	if (log_to_journal) {
		if (session)
			sd_journal_send("MESSAGE=%s", text, "PRIORITY=%d", priority[level],
				"OUTRIDER_PROCESS=%s", log_process, "SESSION=%llu",
				(unsigned long long)session, "ITERATION=%llu",
				(unsigned long long)iteration, NULL);
		else
			sd_journal_send("MESSAGE=%s", text, "PRIORITY=%d", priority[level],
				"OUTRIDER_PROCESS=%s", log_process, NULL);
		return;
	}
	/* One write per line, so that lines of several threads and processes do not mix. */
	char line[1400];
	int n;
	if (session)
		n = snprintf(line, sizeof(line), "%s: %ssession %llu, iteration %llu: %s\n",
			log_process, word[level], (unsigned long long)session,
			(unsigned long long)iteration, text);
	else
		n = snprintf(line, sizeof(line), "%s: %s%s\n", log_process, word[level], text);
	if (n < 0)
		return;
	if ((size_t)n >= sizeof(line)) {
		n = (int)sizeof(line) - 1;
		line[n - 1] = '\n';
	}
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return; /* there is nowhere left to report it */
}

static bool log_wanted(enum log_level level)
{
	return (int)level <= atomic_load_explicit(&log_threshold, memory_order_relaxed);
}

static void log_text(enum log_level level, uint64_t session, uint64_t iteration, const char *format,
	va_list args)
{
	char text[1024];
	vsnprintf(text, sizeof(text), format, args);
	error_tame(text);
	log_emit(level, session, iteration, text);
}

void log_write(enum log_level level, const char *format, ...)
{
	if (!log_wanted(level))
		return;
	va_list args;
	va_start(args, format);
	log_text(level, 0, 0, format, args);
	va_end(args);
}

/* True when the place may log now; *unsaid: how many lines it had to leave out before. */
static bool log_allowed(struct log_limit *limit, uint32_t *unsaid)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	uint64_t now_ns = clock_ns();

	pthread_mutex_lock(&lock);
	*unsaid = 0;
	if (limit->said == 0 || now_ns - limit->begun_ns > LOG_LIMIT_NS) {
		*unsaid = limit->unsaid;
		*limit = (struct log_limit){.begun_ns = now_ns};
	}
	bool allowed = limit->said < LOG_LIMIT_LINES;
	if (allowed)
		limit->said++;
	else
		limit->unsaid++;
	pthread_mutex_unlock(&lock);
	return allowed;
}

void log_limit_write(struct log_limit *limit, enum log_level level, const char *format, ...)
{
	uint32_t unsaid;

	if (!log_wanted(level) || !log_allowed(limit, &unsaid))
		return;
	va_list args;
	va_start(args, format);
	log_text(level, 0, 0, format, args);
	va_end(args);
	if (unsaid > 0)
		log_write(level, "(%u more like the last line were not logged)", unsaid);
}

void log_session(
	enum log_level level, uint64_t session, uint64_t iteration, const char *format, ...)
{
	if (!log_wanted(level))
		return;
	va_list args;
	va_start(args, format);
	log_text(level, session, iteration, format, args);
	va_end(args);
}
