#include "client/cli/supervisor.h"

#include "shared/base/cgroup.h"
#include "shared/base/clock.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
#define SETTLE_NS_MAX (5000 * MS) /* from all being ready to all having connected to each other */
#define STARVING_NS (5000 * MS) /* from the kernel's count of killed processes to their ends */

static void tell_all(const struct supervisor *supervisor, int number)
{
	for (int i = 0; i < supervisor->n_children; i++)
		if (supervisor->children[i].pid)
			kill(supervisor->children[i].pid, number);
}

static void begin_stop(struct supervisor *supervisor, int exit_status)
{
	bool again = supervisor->stopping;

	if (!again)
		supervisor->exit_status = exit_status;
	supervisor->stopping = true;
	/* All are stopped until all have the signal: one that got it later would see the others
	 * end, and complain. */
	if (!again)
		tell_all(supervisor, SIGSTOP);
	/* The signal came twice, so the person does not want to wait. */
	tell_all(supervisor, again ? SIGKILL : SIGTERM);
	tell_all(supervisor, SIGCONT);
	for (int i = 0; i < supervisor->n_children; i++) {
		struct child *child = &supervisor->children[i];

		child->deadline_ns = 0;
		child->killed |= again;
		child->kill_ns = child->pid ? clock_ns() + CHILD_STOP_S_MAX * 1000 * MS : 0;
	}
}

/*
 * The kernel counts the processes that it kills before they end, and may count several that end one
 * by one. So the count is read before the dead are looked at, for some time after, and so often
 * that a rise for other processes is old when one of ours ends. If the count cannot be read, it
 * says nothing; the first reading is of the past.
 */
static void look_starving(struct supervisor *supervisor)
{
	uint64_t kills, now = clock_ns();

	if (cgroup_oom_kills(&cgroup_files, &kills)) {
		if (supervisor->oom_known && kills > supervisor->oom_kills)
			supervisor->oom_ns = now;
		supervisor->oom_kills = kills;
		supervisor->oom_known = true;
	}
	supervisor->starving = supervisor->oom_ns && now - supervisor->oom_ns < STARVING_NS;
}

static void reap(struct supervisor *supervisor)
{
	look_starving(supervisor);
	for (int i = 0; i < supervisor->n_children; i++) {
		struct child *child = &supervisor->children[i];
		int status, verdict;

		if (!child->pid || waitpid(child->pid, &status, WNOHANG) != child->pid)
			continue;
		verdict = child_ended(supervisor, child, status);
		if (verdict)
			begin_stop(supervisor, verdict);
	}
}

static void take_signals(struct supervisor *supervisor)
{
	struct signalfd_siginfo info;

	while (read(supervisor->signal_fd, &info, sizeof info) == sizeof info)
		;
	reap(supervisor);
}

static void take_stops(struct supervisor *supervisor)
{
	struct stop stop;

	while (stop_taken(supervisor->stop_fd, &stop)) {
		if (!supervisor->stopping)
			supervisor->stop = stop;
		begin_stop(supervisor, stop.number == SIGHUP ? stop_status(&stop) : EX_OK);
	}
}

/* The service is ready when all processes are, and none lacks another; what a process still lacks
 * after a while, it may lack for good. */
static void look_ready(struct supervisor *supervisor)
{
	uint64_t now = clock_ns();
	bool degraded = false;

	if (supervisor->all_ready || supervisor->stopping)
		return;
	for (int i = 0; i < supervisor->n_children; i++) {
		if (supervisor->children[i].state != CHILD_READY) {
			supervisor->settle_ns = 0;
			return;
		}
		degraded |= supervisor->children[i].degraded[0] != '\0';
	}
	if (!supervisor->settle_ns)
		supervisor->settle_ns = now + SETTLE_NS_MAX;
	if (degraded && now < supervisor->settle_ns)
		return;
	supervisor->all_ready = true;
	if (supervisor->on_ready)
		supervisor->on_ready(supervisor->arg);
}

/*
 * After a pause of this process (the machine slept, or gave it no time): what the children sent
 * meanwhile is not known, and some had no time either. As it looks four times per period in which
 * they must report, it can tell its own pause from one of theirs.
 */
static void forgive_pause(struct supervisor *supervisor, uint64_t now)
{
	if (!supervisor->due_ns || now <= supervisor->due_ns + supervisor->watchdog_ns / 2)
		return;
	for (int i = 0; i < supervisor->n_children; i++)
		child_forgive(&supervisor->children[i], now, now - supervisor->due_ns,
			supervisor->watchdog_ns);
}

/* False when stopping is done. */
static bool tick(struct supervisor *supervisor, int *timeout_ms)
{
	uint64_t now = clock_ns(), next = UINT64_MAX;
	bool any = false;

	forgive_pause(supervisor, now);
	look_starving(supervisor);
	for (int i = 0; i < supervisor->n_children; i++) {
		struct child *child = &supervisor->children[i];
		uint64_t at;
		int verdict = child_tick(supervisor, child, now);

		if (verdict)
			begin_stop(supervisor, verdict);
		any |= child->pid != 0;
		if (supervisor->stopping && !child->pid)
			continue;
		at = child_next_ns(child);
		if (at < next)
			next = at;
	}
	if (!supervisor->all_ready && supervisor->settle_ns && next > supervisor->settle_ns)
		next = supervisor->settle_ns;
	if (supervisor->watchdog_ns && next > now + supervisor->watchdog_ns / 4)
		next = now + supervisor->watchdog_ns / 4;
	supervisor->due_ns = supervisor->watchdog_ns ? next : 0;
	if (supervisor->oom_known && next > now + STARVING_NS)
		next = now + STARVING_NS;
	*timeout_ms = next == UINT64_MAX	? -1
		      : next <= now		? 0
		      : next - now > 60000 * MS ? 60000
						: (int)((next - now + MS - 1) / MS);
	return any || !supervisor->stopping;
}

static void wait_and_serve(struct supervisor *supervisor, int timeout_ms)
{
	struct pollfd fds[2 + 2 * SUPERVISOR_CHILDREN_MAX];
	nfds_t n = 0;

	fds[n++] = (struct pollfd){.fd = supervisor->signal_fd, .events = POLLIN};
	fds[n++] = (struct pollfd){.fd = supervisor->stop_fd, .events = POLLIN};
	for (int i = 0; i < supervisor->n_children; i++) {
		struct child *child = &supervisor->children[i];

		fds[n++] = (struct pollfd){.fd = child->notify_fd, .events = POLLIN};
		fds[n++] = (struct pollfd){.fd = child->output_fd, .events = POLLIN};
	}
	if (poll(fds, n, timeout_ms) <= 0)
		return;
	for (int i = 0; i < supervisor->n_children; i++) {
		if (fds[2 + 2 * i].revents)
			notify_receive(supervisor, &supervisor->children[i]);
		if (fds[3 + 2 * i].revents)
			child_output(&supervisor->children[i]);
	}
	/* Before the dead are reaped, because a child that the same signal ended must not be
	 * started again. */
	if (fds[1].revents)
		take_stops(supervisor);
	/* Last, so that a child's last output is read before its death is handled. */
	if (fds[0].revents)
		take_signals(supervisor);
}

int supervisor_run(struct supervisor *supervisor)
{
	sigset_t signals;
	struct error err = {""};
	int timeout_ms;

	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	supervisor->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	supervisor->started_ns = clock_ns();
	look_starving(supervisor);
	for (int i = 0; i < supervisor->n_children; i++)
		if (child_prepare(&supervisor->children[i], &err) < 0) {
			fprintf(stderr, "outrider up: %s\n", err.text);
			return EX_OSERR;
		}
	while (tick(supervisor, &timeout_ms)) {
		wait_and_serve(supervisor, timeout_ms);
		look_ready(supervisor);
	}
	for (int i = 0; i < supervisor->n_children; i++)
		child_close(&supervisor->children[i]);
	close(supervisor->signal_fd);
	/* The others' output while they were stopped came after it. */
	if (supervisor->cause[0])
		fprintf(stderr, "outrider up: %s\n", supervisor->cause);
	return supervisor->exit_status;
}
