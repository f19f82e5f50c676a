#include "admin/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t came; /* the last signal, 0: none */

static void on_signal(int number)
{
	came = number;
}

void interrupt_watch(bool once)
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
	const struct sigaction action = {
		.sa_handler = on_signal, .sa_flags = once ? (int)SA_RESETHAND : 0};

	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		sigaction(numbers[i], &action, NULL);
}

bool interrupted(void)
{
	return came != 0;
}

int interrupt_status(int status)
{
	if (came == 0 || came == SIGINT)
		return status;
	signal(came, SIG_DFL);
	raise(came);
	return 128 + came;
}
