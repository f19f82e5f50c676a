#include "shared/model/gguf/gguf_watch.h"

#include "shared/model/gguf/gguf_internal.h"

#include <stdio.h>
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
		[GGUF_REPORTED] =
			"the file was written to while it was in use, as the expert-cache found",
	};
	error_set(err, ESTALE, "%s; its model is lost, and a restart serves the file as it is then",
		texts[loss]);
	return gguf_error_prefix(err, -ESTALE, path);
}

/* FNV-1a, a word at a time */
#define HASH_BEGIN 0xcbf29ce484222325u
static uint64_t add_word(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x100000001b3u;
	return hash ^ hash >> 32;
}

static uint64_t add_times(uint64_t hash, const struct gguf_stamp *stamp, uint64_t touched_ns)
{
	hash = add_word(hash, (uint64_t)stamp->changed_s);
	hash = add_word(hash, (uint64_t)stamp->changed_ns);
	return add_word(hash, touched_ns);
}

/* The state of a part's open file. Its times are added to *times. */
static enum gguf_loss look(const struct gguf_part *part, uint64_t *times)
{
	struct stat status;
	if (fstat(part->fd, &status) != 0)
		return GGUF_UNREADABLE;
	struct gguf_stamp now = gguf_stamp_of(&status);
	*times = add_times(*times, &now, gguf_touched_ns(&status));
	return now.bytes < part->stamp.bytes   ? GGUF_SHORTER
	       : now.bytes > part->stamp.bytes ? GGUF_WRITTEN
					       : GGUF_WHOLE;
}

/* For atomics in a const gguf: const protects the content of the file, and these only describe it.
 */
static _Atomic uint64_t *writable(const _Atomic uint64_t *word)
{
	return (_Atomic uint64_t *)(uintptr_t)word;
}

uint64_t gguf_state(const struct gguf *gguf)
{
	uint64_t state = atomic_load_explicit(writable(&gguf->state), memory_order_acquire);
	if (state != 0)
		return state;
	state = HASH_BEGIN;
	for (size_t i = 0; i < gguf_n_parts(gguf); i++) {
		const struct gguf_part *part = gguf_part_at(gguf, i);
		state = add_times(state, &part->stamp, part->touched_ns);
	}
	return state;
}

enum gguf_loss gguf_state_now(const struct gguf *gguf, uint64_t *state, size_t *part)
{
	*state = HASH_BEGIN;
	for (size_t i = 0; gguf->mapped && i < gguf_n_parts(gguf); i++) {
		enum gguf_loss loss = look(gguf_part_at(gguf, i), state);
		*part = i;
		if (loss != GGUF_WHOLE)
			return loss;
	}
	return GGUF_WHOLE;
}

uint64_t gguf_files(const struct gguf *gguf)
{
	uint64_t hash = HASH_BEGIN;
	for (size_t i = 0; i < gguf_n_parts(gguf); i++) {
		const struct gguf_stamp *stamp = &gguf_part_at(gguf, i)->stamp;
		hash = add_word(hash, stamp->device);
		hash = add_word(hash, stamp->inode);
		hash = add_word(hash, stamp->bytes);
	}
	return hash;
}

uint64_t gguf_stamps(const struct gguf *gguf)
{
	return add_word(gguf_files(gguf), gguf_state(gguf));
}

enum gguf_name gguf_name(const struct gguf *gguf, size_t *part)
{
	enum gguf_name name = GGUF_NAME_SAME;
	for (size_t i = 0; gguf->mapped && i < gguf_n_parts(gguf); i++) {
		const struct gguf_part *p = gguf_part_at(gguf, i);
		struct stat status;
		if (name == GGUF_NAME_OTHER)
			break;
		if (stat(p->path, &status) != 0) {
			name = GGUF_NAME_GONE;
			*part = i;
		} else if (status.st_dev != p->stamp.device || status.st_ino != p->stamp.inode) {
			name = GGUF_NAME_OTHER;
			*part = i;
		}
	}
	return name;
}

bool gguf_news(const struct gguf *gguf, struct gguf_news *news, char *out, size_t out_bytes)
{
	static const char *const texts[] = {
		[GGUF_NAME_SAME] = "the file that was opened has its name again",
		[GGUF_NAME_OTHER] = "another file has this name now; the opened file stays in use, "
				    "and a restart takes the new one",
		[GGUF_NAME_GONE] = "no file has this name any more; the opened file stays in use, "
				   "and a restart fails until a file has this name",
	};
	size_t part = 0;
	enum gguf_name name = gguf_name(gguf, &part);
	if (name == news->name)
		return false;
	/* The part that has its name again is the one that was missing. */
	if (name == GGUF_NAME_SAME)
		part = news->part;
	*news = (struct gguf_news){.name = name, .part = part};
	struct error err;
	error_set(&err, ESTALE, "%s", texts[name]);
	gguf_error_prefix(&err, -ESTALE, gguf_part_at(gguf, part)->path);
	snprintf(out, out_bytes, "%s", err.text);
	return true;
}

void gguf_lose(const struct gguf *gguf, enum gguf_loss loss, size_t part)
{
	uint64_t whole = GGUF_WHOLE;
	/* Release, so that a thread that reads zeros there and then asks gets the answer. */
	atomic_compare_exchange_strong_explicit(writable(&gguf->loss), &whole,
		(uint64_t)part << 8 | loss, memory_order_release, memory_order_relaxed);
}

int gguf_lost(const struct gguf *gguf, struct error *err)
{
	uint64_t loss = atomic_load_explicit(writable(&gguf->loss), memory_order_acquire);
	if (loss == GGUF_WHOLE)
		return 0;
	return say(
		err, gguf_part_at(gguf, (size_t)(loss >> 8))->path, (enum gguf_loss)(loss & 0xff));
}

/* part: the one to name if the weights differ. */
static int look_again(const struct gguf *gguf, size_t part, struct error *err)
{
	uint64_t first = atomic_load_explicit(writable(&gguf->fingerprint), memory_order_relaxed);
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
	uint64_t now;
	size_t part = 0;
	if (!gguf->mapped)
		return gguf_lost(gguf, err);
	enum gguf_loss loss = gguf_state_now(gguf, &now, &part);
	if (loss != GGUF_WHOLE)
		gguf_lose(gguf, loss, part);
	/* The times were read before the weights, so a write in between changes them again. */
	if (gguf_lost(gguf, err) == 0 && now != gguf_state(gguf) &&
		look_again(gguf, part, err) == 0)
		atomic_store_explicit(writable(&gguf->state), now, memory_order_release);
	return gguf_lost(gguf, err);
}

void gguf_prove(const struct gguf *gguf, uint64_t state)
{
	atomic_store_explicit(writable(&gguf->proven), state, memory_order_release);
}

bool gguf_proven(const struct gguf *gguf)
{
	uint64_t proven = atomic_load_explicit(writable(&gguf->proven), memory_order_acquire);
	/* 0: nothing has touched it since it was opened, unless its state says otherwise. */
	return proven != 0
		       ? proven == gguf_state(gguf)
		       : atomic_load_explicit(writable(&gguf->state), memory_order_acquire) == 0;
}
