#include "shared/model/gguf_watch.h"

#include "shared/model/gguf_internal.h"

#include <string.h>
#include <sys/stat.h>

struct gguf_stamp gguf_stamp_of(const struct stat *status)
{
	return (struct gguf_stamp){
		.device = status->st_dev,
		.inode = status->st_ino,
		.bytes = (uint64_t)status->st_size,
		.changed_s = status->st_mtim.tv_sec,
		.changed_ns = status->st_mtim.tv_nsec,
	};
}

uint64_t gguf_touched_ns(const struct stat *status)
{
	return (uint64_t)status->st_ctim.tv_sec * 1000000000u + (uint64_t)status->st_ctim.tv_nsec;
}

static int say(struct error *err, const char *path, enum gguf_loss loss)
{
	static const char *const texts[] = {
		[GGUF_SHORTER] = "the file became shorter while it was in use",
		[GGUF_UNREADABLE] = "the file could not be read while it was in use",
		[GGUF_WRITTEN] = "the file was written to while it was in use",
		[GGUF_REPLACED] = "the file was replaced by another while it was in use",
		[GGUF_REPORTED] = "the file was changed while it was in use, says the expert-cache",
	};
	error_set(err, ESTALE, "%s; its model is lost until the service is started again",
		texts[loss]);
	return gguf_error_prefix(err, -ESTALE, path);
}

/* *touched_ns stays as it is when the name is gone. */
static enum gguf_loss compare(
	const char *path, const struct gguf_stamp *stamp, uint64_t *touched_ns, struct error *err)
{
	struct stat status;
	if (stat(path, &status) != 0)
		return GGUF_WHOLE;
	struct gguf_stamp now = gguf_stamp_of(&status);
	*touched_ns = gguf_touched_ns(&status);
	enum gguf_loss loss = GGUF_WHOLE;
	if (now.device != stamp->device || now.inode != stamp->inode)
		loss = GGUF_REPLACED;
	else if (now.bytes < stamp->bytes)
		loss = GGUF_SHORTER;
	else if (now.bytes != stamp->bytes || now.changed_s != stamp->changed_s ||
		 now.changed_ns != stamp->changed_ns)
		loss = GGUF_WRITTEN;
	if (loss != GGUF_WHOLE)
		say(err, path, loss);
	return loss;
}

enum gguf_loss gguf_stamp_compare(
	const char *path, const struct gguf_stamp *stamp, struct error *err)
{
	uint64_t touched_ns;
	return compare(path, stamp, &touched_ns, err);
}

/* FNV-1a, a word at a time */
#define HASH_BEGIN 0xcbf29ce484222325u
static uint64_t add_word(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x100000001b3u;
	return hash ^ hash >> 32;
}

/* When the parts were touched, as one number, up to which their weights are known to be the same. */
static uint64_t touched(const struct gguf *gguf)
{
	uint64_t hash = atomic_load_explicit(
		(_Atomic uint64_t *)(uintptr_t)&gguf->touched, memory_order_relaxed);
	if (hash != 0)
		return hash;
	hash = HASH_BEGIN;
	for (size_t i = 0; i < gguf_n_parts(gguf); i++)
		hash = add_word(hash, gguf_part_at(gguf, i)->touched_ns);
	return hash;
}

uint64_t gguf_stamps(const struct gguf *gguf)
{
	uint64_t hash = HASH_BEGIN;
	for (size_t i = 0; i < gguf_n_parts(gguf); i++) {
		const struct gguf_stamp *stamp = &gguf_part_at(gguf, i)->stamp;
		const uint64_t words[] = {stamp->device, stamp->inode, stamp->bytes,
			(uint64_t)stamp->changed_s, (uint64_t)stamp->changed_ns};
		for (size_t w = 0; w < sizeof(words) / sizeof(words[0]); w++)
			hash = add_word(hash, words[w]);
	}
	return add_word(hash, touched(gguf));
}

void gguf_lose(const struct gguf *gguf, enum gguf_loss loss, size_t part)
{
	uint64_t whole = GGUF_WHOLE;
	/* Who holds a const gguf may not change what is in the file; that it is lost is about
	 * the file. Released, so that who finds pages of nothing there and then asks is told. */
	atomic_compare_exchange_strong_explicit((_Atomic uint64_t *)(uintptr_t)&gguf->loss, &whole,
		(uint64_t)part << 8 | loss, memory_order_release, memory_order_relaxed);
}

int gguf_lost(const struct gguf *gguf, struct error *err)
{
	uint64_t loss = atomic_load_explicit(
		(_Atomic uint64_t *)(uintptr_t)&gguf->loss, memory_order_acquire);
	if (loss == GGUF_WHOLE)
		return 0;
	return say(
		err, gguf_part_at(gguf, (size_t)(loss >> 8))->path, (enum gguf_loss)(loss & 0xff));
}

/* part: the one to name when the weights are others. */
static int look_again(const struct gguf *gguf, size_t part, struct error *err)
{
	uint64_t first = atomic_load_explicit(
		(_Atomic uint64_t *)(uintptr_t)&gguf->fingerprint, memory_order_relaxed);
	if (gguf->mapped && first != 0 && gguf_fingerprint(gguf) != first)
		gguf_lose(gguf, GGUF_WRITTEN, part);
	return gguf_lost(gguf, err);
}

int gguf_look_again(const struct gguf *gguf, struct error *err)
{
	return look_again(gguf, 0, err);
}

int gguf_watch(const struct gguf *gguf, struct error *err)
{
	uint64_t now = HASH_BEGIN;
	size_t last = 0; /* that was touched */
	for (size_t i = 0; gguf->mapped && i < gguf_n_parts(gguf); i++) {
		const struct gguf_part *part = gguf_part_at(gguf, i);
		uint64_t touched_ns = part->touched_ns;
		enum gguf_loss loss = compare(part->path, &part->stamp, &touched_ns, err);
		if (loss != GGUF_WHOLE)
			gguf_lose(gguf, loss, i);
		now = add_word(now, touched_ns);
		last = touched_ns != part->touched_ns ? i : last;
	}
	/* The times were read before the weights are: what is written meanwhile changes them again. */
	if (gguf->mapped && gguf_lost(gguf, err) == 0 && now != touched(gguf) &&
		look_again(gguf, last, err) == 0)
		atomic_store_explicit(
			(_Atomic uint64_t *)(uintptr_t)&gguf->touched, now, memory_order_relaxed);
	return gguf_lost(gguf, err);
}
