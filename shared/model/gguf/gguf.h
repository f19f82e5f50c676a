/*
 * GGUF v2/v3 files (the GGUF specification; ../shared/design/GGUF_NOTES.md section 1), memory-mapped read-only.
 * Every count, length and offset is checked against the bytes that remain before it is used; nothing is allocated
 * in proportion to an unchecked number. Errors name the key, tensor or offset. Owner: whoever opened it.
 *
 * A split model (NAME-00001-of-00003.gguf and so on; split.no, split.count, split.tensors.count) is opened by its first
 * part and looks like one file: its parts are mapped one after the other, each from a page boundary, and every offset
 * here counts from the start of the first one's mapping. Who reads by offset from the files themselves finds the part
 * in gguf_part_at; offsets within a page are the same there. The metadata are the first part's.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gguf_value_type {
	GGUF_U8,
	GGUF_I8,
	GGUF_U16,
	GGUF_I16,
	GGUF_U32,
	GGUF_I32,
	GGUF_F32,
	GGUF_BOOL,
	GGUF_STRING,
	GGUF_ARRAY,
	GGUF_U64,
	GGUF_I64,
	GGUF_F64,
};

struct gguf_string {
	const char *data; /* into the mapping, no NUL */
	size_t bytes;
};

struct gguf_tensor {
	struct gguf_string name;
	uint32_t type; /* GGUF type id; may be one the engine lacks */
	uint32_t n_dims;
	uint64_t ne[4]; /* fastest first; unused are 1 */
	uint64_t
		offset; /* in the mapping: in the file, of a split model in the parts one after the other */
	uint64_t bytes;
};

/* A name from the file as text for a message: at most 95 bytes, unprintable bytes as '?'. */
struct gguf_name_text {
	char text[96];
};
struct gguf_name_text gguf_name_text(struct gguf_string name);

struct gguf;

int gguf_open(const char *path, struct gguf **out, struct error *err);
/* The same for checking: what is wrong with single keys or tensors is reported, one sentence each, and such a tensor
 * left out; only a file that cannot be read on is an error. What is returned is as safe to use as any. */
typedef void gguf_report(void *arg, const char *problem);
int gguf_open_checked(
	const char *path, gguf_report *report, void *arg, struct gguf **out, struct error *err);
int gguf_open_memory_checked(const void *data, size_t bytes, gguf_report *report, void *arg,
	struct gguf **out, struct error *err);
/* For those who read on: rc unless the file was opened for checking; then *err is reported (if rc is not 0) and 0 comes
 * back, so that the reading goes on to the next problem. -ENOMEM stays itself. */
int gguf_problem(const struct gguf *gguf, int rc, const struct error *err);
/* Problems reported so far. */
uint64_t gguf_n_problems(const struct gguf *gguf);
/* Parses bytes already in memory (fuzzing); borrows them. */
int gguf_open_memory(const void *data, size_t bytes, struct gguf **out, struct error *err);
void gguf_close(struct gguf **gguf);
/* For a service's start that found `code` wrong with a file: -EAGAIN, with the reason behind what *err says, when the file,
 * or a part of a split one, was written to within the last seconds: a copy may not have come to its end. Else code, which
 * is also what a missing file and the like stay. */
#define GGUF_SETTLED_S 10
int gguf_unsettled(const char *path, int code, struct error *err);
/* Puts the path, shortened from its front when long, before a message; returns code. */
int gguf_error_prefix(struct error *err, int code, const char *path);

const char *gguf_path(const struct gguf *gguf); /* as it was opened: the first part's */
int gguf_fd(const struct gguf *gguf); /* the first part's; -1 when parsed from memory */
const void *gguf_data(const struct gguf *gguf); /* the whole mapping */
size_t gguf_bytes(const struct gguf *gguf); /* of the mapping */

#define GGUF_PARTS_MAX 256
/* Which file it was and how it stood when it was opened (gguf_watch.h). */
struct gguf_stamp {
	uint64_t device, inode, bytes;
	int64_t changed_s, changed_ns;
};
struct gguf_part {
	char *path; /* "" when parsed from memory */
	uint64_t base; /* where it begins in the mapping: a multiple of the page size */
	uint64_t bytes; /* of the file */
	int fd; /* open for reading; -1 when parsed from memory */
	struct gguf_stamp stamp;
	uint64_t touched_ns; /* st_ctim then: when it, or what is known about it, was changed */
};
/* One part for a single file. Parts are in ascending order of base. */
size_t gguf_n_parts(const struct gguf *gguf);
const struct gguf_part *gguf_part_at(const struct gguf *gguf, size_t i);
/* The same model, or not: FNV-1a over what precedes the weights in every part, all sizes, and a sample of every tensor's
 * bytes, which tells a fine-tuned or later checkpoint of the same shape apart. Reads at most some thousand pages. The first
 * answer is what was loaded, to gguf_look_again. */
uint64_t gguf_fingerprint(const struct gguf *gguf);
/* What gguf_fingerprint reads, as a part of a sentence: "its size, its header and ... of its weights". Returns out. */
#define GGUF_SAMPLE_TEXT 160
const char *gguf_sample_text(const struct gguf *gguf, char out[static GGUF_SAMPLE_TEXT]);
uint32_t gguf_version(const struct gguf *gguf);

size_t gguf_n_tensors(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name); /* or NULL */
/* The first by name of those whose name is not before this text, or NULL. */
const struct gguf_tensor *gguf_tensor_from(const struct gguf *gguf, const char *name);
/* Whether what follows touches a little here and there (vectors, while loading) or long runs: reading ahead of the former
 * would read a large part of the file. */
void gguf_expect_scattered(const struct gguf *gguf, bool scattered);
/* Bytes of the mapping will be read at once, all of them (wanted): reading begins. Or they are not needed any more: their
 * pages go, out of the page cache too where the kernel lets us (a file of our own) and nobody else has them mapped.
 * Nothing happens to what does not lie in the mapping. Any thread. */
void gguf_advise(const struct gguf *gguf, const void *from, size_t bytes, bool wanted);
/* The tensor's bytes in the mapping; NULL for NULL. */
const void *gguf_tensor_data(const struct gguf *gguf, const struct gguf_tensor *tensor);
/* Name of a GGUF tensor type, also of those the engine does not compute with; NULL when the format has no such id. */
const char *gguf_tensor_type_name(uint32_t type);

/* Metadata. 0, -ENOENT when the key is absent (no message), -EINVAL with a message when it is of another type or
 * out of min..max. Any integer type is accepted for u64; f32 and f64 for f64. */
bool gguf_has(const struct gguf *gguf, const char *key);
int gguf_get_u64(const struct gguf *gguf, const char *key, uint64_t min, uint64_t max,
	uint64_t *out, struct error *err);
int gguf_get_f64(const struct gguf *gguf, const char *key, double *out, struct error *err);
int gguf_get_bool(const struct gguf *gguf, const char *key, bool *out, struct error *err);
int gguf_get_string(
	const struct gguf *gguf, const char *key, struct gguf_string *out, struct error *err);

/* Arrays: the element type and count, then elements in ascending order through an iterator-free accessor. String
 * arrays are indexed at open, so access is O(1). */
int gguf_get_array(const struct gguf *gguf, const char *key, enum gguf_value_type *type,
	uint64_t *n, struct error *err);
/* i < n, of the array's own type; callers have checked both with gguf_get_array. */
struct gguf_string gguf_array_string(const struct gguf *gguf, const char *key, uint64_t i);
int64_t gguf_array_i64(const struct gguf *gguf, const char *key, uint64_t i);
double gguf_array_f64(const struct gguf *gguf, const char *key, uint64_t i);
/* The raw elements of a fixed-size element array (not strings), unaligned. */
const void *gguf_array_raw(const struct gguf *gguf, const char *key);

/* Iteration for `outrider-model info`. value_text renders a short form of the value. */
size_t gguf_n_keys(const struct gguf *gguf);
struct gguf_string gguf_key_at(const struct gguf *gguf, size_t i);
/* Key i as it lies in the file: name, type and value. */
const void *gguf_key_raw(const struct gguf *gguf, size_t i, size_t *bytes);
void gguf_value_text(const struct gguf *gguf, size_t i, char *out, size_t out_bytes);
