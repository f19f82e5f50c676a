#include "fibers.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt
{

enum { STACK = 128 << 10, GUARD = 4096, CANARY = 4096 };

thread_local struct block *now;

/* What one thread of the host needs to run blocks. It is kept from launch to launch. */
struct host {
	struct block block;
	const struct launch *launch;
	unsigned n, done, warps;
	uint64_t rng;
	void *main_sp, *main_fake;
	const void *main_bottom;
	size_t main_bytes;
	unsigned char *shared, *stacks;
	void *fibers[THREADS_MAX]; /* of the thread sanitizer */
	void *main_fiber;
	struct thread threads[THREADS_MAX];
};

static thread_local struct host *host;

void die(const char *format, ...)
{
	va_list args;
	const struct thread *s = now ? now->self : nullptr;

	fprintf(stderr, "simt: kernel %s, block %u,%u, thread %u: ",
		host && host->launch ? host->launch->name : "?", now ? now->bid.x : 0,
		now ? now->bid.y : 0, s ? s->tid.x : 0);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	abort();
}

/* ---- Switching stacks. ---- */

#if defined(__x86_64__)
/* Saves the registers that a call must keep, and goes on where `load` was saved. */
extern "C" void simt_switch(void **save, void *load);
asm(".text\n.globl simt_switch\n.type simt_switch,@function\nsimt_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size simt_switch,.-simt_switch\n");

static void prepare(struct thread *s, void (*enter)(void))
{
	void **sp = reinterpret_cast<void **>(static_cast<char *>(s->stack) + STACK - 64);

	/* At its entry a function finds a return address at rsp, with rsp % 16 == 8. */
	*--sp = reinterpret_cast<void *>(abort);
	*--sp = reinterpret_cast<void *>(enter);
	for (int r = 0; r < 6; r++)
		*--sp = nullptr;
	s->sp = sp;
}
#else
static thread_local ucontext_t contexts[THREADS_MAX + 1];

static void simt_switch(void **save, void *load)
{
	ucontext_t *from = static_cast<ucontext_t *>(*save);

	swapcontext(from, static_cast<ucontext_t *>(load));
}

static void prepare(struct thread *s, void (*enter)(void))
{
	ucontext_t *context = &contexts[s->tid.x];

	getcontext(context);
	context->uc_stack.ss_sp = s->stack;
	context->uc_stack.ss_size = STACK;
	context->uc_link = nullptr;
	makecontext(context, enter, 0);
	s->sp = context;
	host->main_sp = &contexts[THREADS_MAX];
}
#endif

static void to_main(bool last)
{
	struct thread *s = now->self;

	(void)last;
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_start_switch_fiber(
		last ? nullptr : &s->fake, host->main_bottom, host->main_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
	__tsan_switch_to_fiber(host->main_fiber, 0);
#endif
	simt_switch(&s->sp, host->main_sp);
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(s->fake, nullptr, nullptr);
#endif
}

static void enter(void)
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(nullptr, &host->main_bottom, &host->main_bytes);
#endif
	host->launch->body(host->launch->args);
	now->self->state = DONE;
	to_main(true);
	abort();
}

static void resume(struct thread *s)
{
	now->self = s;
#if defined(__SANITIZE_ADDRESS__)
	void *fake;
	__sanitizer_start_switch_fiber(&fake, s->stack, STACK);
#endif
#if defined(__SANITIZE_THREAD__)
	__tsan_switch_to_fiber(host->fibers[s->tid.x], 0);
#endif
	simt_switch(&host->main_sp, s->sp);
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
	now->self = nullptr;
}

/* ---- What threads wait for. ---- */

void meet(unsigned mask, const void *site, const void *bring, size_t bytes, on_meeting *meeting)
{
	struct thread *s = now->self;

	if (!(mask >> s->lane & 1))
		die("a lane that its own mask does not name");
	s->slot ^= 1;
	memcpy(&s->bring[s->slot], bring, bytes);
	s->mask = mask;
	s->site = site;
	s->meeting = meeting;
	s->state = WARP;
	to_main(false);
}

void barrier(const void *site)
{
	struct thread *s = now->self;

	s->site = site;
	s->state = BLOCK;
	to_main(false);
}

const struct words *lane_words(unsigned mask, unsigned lane)
{
	const struct thread *first = now->self - now->self->lane, *s = &first[lane % LANES];

	if (!(mask >> lane % LANES & 1))
		die("lane %u takes a value of lane %u, which the mask does not name",
			now->self->lane, lane % LANES);
	return &s->bring[s->taken];
}

void copy_begin(void *to, const void *from, unsigned bytes)
{
	struct thread *s = now->self;

	if (s->n_copies == COPIES_MAX)
		die("more than %d asynchronous copies are on their way", COPIES_MAX);
	if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
		die("an asynchronous copy of %u bytes that is not aligned", bytes);
	s->copies[s->n_copies++] = {to, from, bytes, s->group};
}

void copy_commit(void)
{
	now->self->group++;
}

void copy_wait(unsigned left)
{
	struct thread *s = now->self;
	unsigned kept = 0;

	for (unsigned i = 0; i < s->n_copies; i++) {
		const struct copy *c = &s->copies[i];

		if (c->group + left < s->group)
			memcpy(c->to, c->from, c->bytes);
		else
			s->copies[kept++] = *c;
	}
	s->n_copies = kept;
}

static int dot(const int16_t *a, const int16_t *b)
{
	int sum = 0;

	for (unsigned k = 0; k < 32; k++)
		sum += a[k] * b[k];
	return sum;
}

static void widen(uint32_t word, bool is_signed, int16_t *out)
{
	for (unsigned j = 0; j < 4; j++) {
		uint8_t byte = static_cast<uint8_t>(word >> 8 * j);

		out[j] = is_signed ? static_cast<int8_t>(byte) : byte;
	}
}

void mma_meeting(struct thread *lanes)
{
	int16_t a[16][32], b[8][32];

	for (unsigned l = 0; l < LANES; l++) {
		const uint32_t *w = lanes[l].bring[lanes[l].taken].w;
		unsigned g = l / 4, k = l % 4 * 4;

		for (unsigned i = 0; i < 4; i++)
			widen(w[i], w[6] & 1, &a[g + i % 2 * 8][k + i / 2 * 16]);
		for (unsigned i = 0; i < 2; i++)
			widen(w[4 + i], w[6] & 2, &b[g][k + i * 16]);
	}
	for (unsigned l = 0; l < LANES; l++) {
		uint32_t *w = lanes[l].bring[lanes[l].taken].w;

		for (unsigned i = 0; i < 4; i++)
			w[i] = static_cast<uint32_t>(
				dot(a[l / 4 + i / 2 * 8], b[l % 4 * 2 + i % 2]));
	}
}

/* ---- One block. ---- */

static unsigned chance(unsigned n)
{
	host->rng = host->rng * 6364136223846793005u + 1442695040888963407u;
	return static_cast<unsigned>(host->rng >> 33) % n;
}

/* Lets the lanes of a mask go on if all of them have come. */
static bool release_lanes(struct thread *warp, unsigned lanes, struct thread *s)
{
	for (unsigned l = 0; l < LANES; l++) {
		if (!(s->mask >> l & 1))
			continue;
		now->self = s;
		if (l >= lanes)
			die("a mask names lanes that the block does not have");
		if (warp[l].state == DONE)
			die("a mask names lane %u, which has ended", l);
		if (warp[l].state != WARP) {
			now->self = nullptr;
			return false;
		}
		if (warp[l].site != s->site || warp[l].mask != s->mask)
			die("lanes of one mask are at different operations of the warp");
	}
	now->self = nullptr;
	for (unsigned l = 0; l < LANES; l++)
		if (s->mask >> l & 1) {
			warp[l].state = RUN;
			warp[l].taken = warp[l].slot;
		}
	if (s->meeting)
		s->meeting(warp);
	return true;
}

/* Runs a warp until none of its lanes can go on. */
static bool run_warp(unsigned w)
{
	struct thread *warp = &host->threads[w * LANES];
	unsigned left = host->n - w * LANES, lanes = left < 32 ? left : 32;
	bool any = false, again = true;

	while (again) {
		unsigned start = host->launch->seed ? chance(LANES) : 0;
		unsigned step = host->launch->seed ? 2 * chance(LANES / 2) + 1 : 1;

		again = false;
		for (unsigned i = 0; i < LANES; i++) {
			unsigned l = (start + i * step) % LANES;

			if (l >= lanes || warp[l].state != RUN)
				continue;
			resume(&warp[l]);
			host->done += warp[l].state == DONE;
			any = true;
		}
		for (unsigned l = 0; l < lanes; l++)
			if (warp[l].state == WARP && release_lanes(warp, lanes, &warp[l]))
				again = true;
	}
	return any;
}

static void release_block(void)
{
	struct thread *first = nullptr;

	for (unsigned i = 0; i < host->n; i++) {
		struct thread *s = &host->threads[i];

		now->self = s;
		if (s->state == WARP)
			die("deadlock: some lanes of the mask %08x never come", s->mask);
		if (s->state == DONE)
			continue;
		if (host->done > 0)
			die("a barrier of the block, but another thread has ended");
		if (first && s->site != first->site)
			die("threads are at different barriers of the block");
		first = s;
		s->state = RUN;
	}
	now->self = nullptr;
}

static void begin_thread(unsigned i)
{
	struct thread *s = &host->threads[i];

	s->tid = {i, 0, 0};
	s->lane = i % LANES;
	s->warp = i / LANES;
	s->state = RUN;
	s->slot = s->taken = 0;
	s->n_copies = s->group = 0;
	s->fake = nullptr;
	s->stack = host->stacks + static_cast<size_t>(i) * (STACK + GUARD) + GUARD;
	prepare(s, enter);
#if defined(__SANITIZE_THREAD__)
	if (!host->fibers[i])
		host->fibers[i] = __tsan_create_fiber(0);
#endif
}

static void run_block(struct simt_dim bid)
{
	const struct launch *l = host->launch;
	size_t shared = (l->shared + 15) / 16 * 16;

	host->block = {bid, {l->threads, 1, 1}, l->grid, nullptr, host->shared, l->shared};
	now = &host->block;
	memset(host->shared, 0xff, shared + CANARY);
	host->done = 0;
	for (unsigned i = 0; i < host->n; i++)
		begin_thread(i);
	while (host->done < host->n) {
		unsigned first = l->seed ? chance(host->warps) : 0;
		bool any = false;

		for (unsigned w = 0; w < host->warps; w++)
			any |= run_warp((first + w) % host->warps);
		if (host->done < host->n)
			release_block();
		else if (!any)
			die("nothing ran");
	}
	for (size_t i = l->shared; i < shared + CANARY; i++)
		if (host->shared[i] != 0xff)
			die("a write %zu bytes behind the end of shared memory", i - l->shared);
	now = nullptr;
}

/* ---- Launches. ---- */

static void *map(size_t bytes)
{
	void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED) {
		fprintf(stderr, "simt: no memory for %zu bytes\n", bytes);
		abort();
	}
	return at;
}

static void begin_host(void)
{
	size_t stacks = static_cast<size_t>(THREADS_MAX) * (STACK + GUARD);

	host = static_cast<struct host *>(map(sizeof(*host)));
	host->shared = static_cast<unsigned char *>(map(SHARED_MAX + CANARY));
	host->stacks = static_cast<unsigned char *>(map(stacks));
	for (unsigned i = 0; i < THREADS_MAX; i++)
		if (mprotect(host->stacks + static_cast<size_t>(i) * (STACK + GUARD), GUARD,
			    PROT_NONE) < 0)
			abort();
#if defined(__SANITIZE_THREAD__)
	host->main_fiber = __tsan_get_current_fiber();
#endif
}

void end_thread(void)
{
	if (!host)
		return;
#if defined(__SANITIZE_THREAD__)
	for (unsigned i = 0; i < THREADS_MAX; i++)
		if (host->fibers[i])
			__tsan_destroy_fiber(host->fibers[i]);
#endif
	munmap(host->stacks, static_cast<size_t>(THREADS_MAX) * (STACK + GUARD));
	munmap(host->shared, SHARED_MAX + CANARY);
	munmap(host, sizeof(*host));
	host = nullptr;
}

void run(const struct launch *launch)
{
	uint64_t blocks = static_cast<uint64_t>(launch->grid.x) * launch->grid.y * launch->grid.z;

	if (!host)
		begin_host();
	host->launch = launch;
	host->n = launch->threads;
	host->warps = (launch->threads + LANES - 1) / LANES;
	host->rng = launch->seed * 0x9e3779b97f4a7c15u + 1;
	if (launch->threads == 0 || launch->threads > THREADS_MAX || launch->shared > SHARED_MAX ||
		blocks == 0 || launch->grid.y > 65535 || launch->grid.z > 65535)
		die("no device runs %u threads with %zu bytes of shared memory in a grid of "
		    "%u x %u x %u",
			launch->threads, launch->shared, launch->grid.x, launch->grid.y,
			launch->grid.z);
	/* A seed also turns the order of the blocks around, every other time. */
	bool back = launch->seed && chance(2);
	for (uint64_t i = 0; i < blocks; i++) {
		uint64_t b = back ? blocks - 1 - i : i;
		uint64_t yz = b / launch->grid.x;

		run_block({static_cast<unsigned>(b % launch->grid.x),
			static_cast<unsigned>(yz % launch->grid.y),
			static_cast<unsigned>(yz / launch->grid.y)});
	}
	host->launch = nullptr;
}

} // namespace simt
