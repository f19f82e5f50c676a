#include "shared/base/timeline.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

enum { SPANS = 1 << 14, WORDS = sizeof(struct timeline_span) / sizeof(uint64_t) };

static_assert(sizeof(struct timeline_span) == 48, "a span is whole words without padding");

static const struct timeline_info infos[TIMELINE_KINDS] = {
	[TIMELINE_ITERATION] = {"iteration", {"sessions", "tokens"}},
	[TIMELINE_DRAFT_WAIT] = {"wait for drafts", {"drafted"}},
	[TIMELINE_FORWARD] = {"verify", {"tokens", "distinct experts"}},
	[TIMELINE_SAMPLE] = {"sample", {"emitted"}},
	[TIMELINE_EXPERT_WAIT] = {"wait for experts", {"layer", "missing"}},
	[TIMELINE_DEVICE_WAIT] = {"wait for the device", {NULL}},
	[TIMELINE_DRAFT] = {"draft", {"requests", "drafted"}},
	[TIMELINE_DRAFT_IDLE] = {"read up, draft ahead", {NULL}},
	[TIMELINE_LOAD_DEMAND] = {"demand", {"layer", "expert"}},
	[TIMELINE_LOAD_PREFETCH] = {"prefetch", {"layer", "expert"}},
	[TIMELINE_LOAD_PRELOAD] = {"preload", {"layer", "expert"}},
	[TIMELINE_PACK] = {"pack", {"layer", "expert"}},
	[TIMELINE_COPY_DEMAND] = {"copy, demand", {"layer", "expert"}},
	[TIMELINE_COPY_PREFETCH] = {"copy, prefetch", {"layer", "expert"}},
	[TIMELINE_COPY_PRELOAD] = {"copy, preload", {"layer", "expert"}},
	[TIMELINE_DECISION] = {"decision", {"K before", "K now"}},
	[TIMELINE_DEVICE_EMBED] = {"embed", {NULL}},
	[TIMELINE_DEVICE_ATTENTION] = {"attention", {"layer"}},
	[TIMELINE_DEVICE_ROUTER] = {"router", {"layer"}},
	[TIMELINE_DEVICE_DENSE] = {"dense", {"layer"}},
	[TIMELINE_DEVICE_EXPERTS] = {"experts", {"layer"}},
	[TIMELINE_DEVICE_LOGITS] = {"logits", {NULL}},
	[TIMELINE_DEVICE_PICK] = {"pick", {NULL}},
	[TIMELINE_DEVICE_FLAG] = {"wait for copies", {"layer"}},
	[TIMELINE_DEVICE_COPY] = {"copy", {NULL}},
};

/*
 * Each slot is a seqlock, with the memory orders of shared/ipc/page.h. Its sequence is odd while a
 * span is written, and afterwards twice the number of the span plus two. Numbers are handed out to
 * writers. Two writers share a slot only if one of them sleeps while SPANS other spans are written;
 * the picture then has one wrong span.
 */
static struct {
	_Atomic uint64_t until_ns;
	_Atomic uint64_t head; /* number of spans handed out */
	struct {
		_Atomic uint64_t sequence;
		_Atomic uint64_t word[WORDS];
	} slot[SPANS];
} timeline;

const struct timeline_info *timeline_info(uint32_t kind)
{
	return kind < TIMELINE_KINDS ? &infos[kind] : NULL;
}

void timeline_enable(uint64_t until_ns)
{
	uint64_t before = atomic_load_explicit(&timeline.until_ns, memory_order_relaxed);
	while (before < until_ns &&
		!atomic_compare_exchange_weak_explicit(&timeline.until_ns, &before, until_ns,
			memory_order_relaxed, memory_order_relaxed))
		;
}

bool timeline_on(void)
{
	uint64_t until_ns = atomic_load_explicit(&timeline.until_ns, memory_order_relaxed);
	if (until_ns == 0)
		return false;
	if (clock_ns() < until_ns)
		return true;
	/* From now on the clock is not read, unless somebody has enabled the timeline again
	 * meanwhile. */
	atomic_compare_exchange_strong_explicit(
		&timeline.until_ns, &until_ns, 0, memory_order_relaxed, memory_order_relaxed);
	return false;
}

void timeline_add(const struct timeline_span *span)
{
	if (span->start_ns == 0 || !timeline_on())
		return;
	uint64_t words[WORDS];
	memcpy(words, span, sizeof(words));
	uint64_t number = atomic_fetch_add_explicit(&timeline.head, 1, memory_order_relaxed);
	_Atomic uint64_t *sequence = &timeline.slot[number % SPANS].sequence;
	_Atomic uint64_t *to = timeline.slot[number % SPANS].word;
	atomic_store_explicit(sequence, 2 * number + 1, memory_order_relaxed);
	/* Release pairs with the acquire in timeline_read: a reader that sees a word also sees the
	 * odd sequence before it. */
	for (int i = 0; i < WORDS; i++)
		atomic_store_explicit(&to[i], words[i], memory_order_release);
	atomic_store_explicit(sequence, 2 * number + 2, memory_order_release);
}

void timeline_end(uint64_t start_ns, enum timeline_kind kind, uint64_t session, uint64_t value0,
	uint64_t value1)
{
	if (start_ns == 0)
		return;
	timeline_add(&(struct timeline_span){.start_ns = start_ns,
		.end_ns = clock_ns(),
		.session = session,
		.kind = kind,
		.value = {value0, value1}});
}

/* Reads a span. False when it is being written or has been overwritten. */
static bool read_one(uint64_t number, struct timeline_span *out)
{
	const _Atomic uint64_t *sequence = &timeline.slot[number % SPANS].sequence;
	const _Atomic uint64_t *from = timeline.slot[number % SPANS].word;
	uint64_t words[WORDS];
	if (atomic_load_explicit(sequence, memory_order_acquire) != 2 * number + 2)
		return false;
	for (int i = 0; i < WORDS; i++)
		words[i] = atomic_load_explicit(&from[i], memory_order_acquire);
	if (atomic_load_explicit(sequence, memory_order_relaxed) != 2 * number + 2)
		return false;
	memcpy(out, words, sizeof(words));
	return true;
}

uint32_t timeline_read(uint64_t *next, struct timeline_span *out, uint32_t max, uint64_t *lost)
{
	uint64_t head = atomic_load_explicit(&timeline.head, memory_order_acquire);
	uint32_t n = 0;
	if (*next > head)
		*next = head;
	if (head - *next > SPANS) {
		*lost += head - SPANS - *next;
		*next = head - SPANS;
	}
	for (; *next < head && n < max; ++*next) {
		if (read_one(*next, &out[n]))
			n++;
		else
			++*lost;
	}
	return n;
}
