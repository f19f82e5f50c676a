/* Any bytes as the policy-controller's journal, read and replayed. After an 'e' they are entries, to which the right head,
 * numbers and check sums are put; else they are the file. */
#include "bench/src/policy_sim.h"
#include "services/policy-controller/journal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEAD_BYTES = 4096, SESSIONS = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Check sums keep a fuzzer out: the right one is put in (journal.c). */
static void seal(unsigned char *entry, uint64_t number)
{
	uint64_t words[sizeof(struct journal_entry) / 8], h = 0xcbf29ce484222325u;
	memcpy(words, entry, sizeof(words));
	words[1] = number;
	for (size_t i = 1; i < sizeof(words) / sizeof(words[0]); i++) {
		h = (h ^ words[i]) * 0x100000001b3u;
		h ^= h >> 32;
	}
	words[0] = h;
	memcpy(entry, words, sizeof(words));
}

static void write_all(int fd, const void *from, size_t bytes)
{
	if (write(fd, from, bytes) != (ssize_t)bytes)
		abort();
}

static void write_entries(int fd, const uint8_t *data, size_t bytes)
{
	unsigned char head[HEAD_BYTES] = {0}, entry[JOURNAL_ENTRY_BYTES];
	uint64_t n = bytes / JOURNAL_ENTRY_BYTES, magic = 0x4c4e524a5452554f;
	uint32_t layout = 3, entry_bytes = JOURNAL_ENTRY_BYTES;
	memcpy(head, &magic, 8);
	memcpy(head + 8, &layout, 4);
	memcpy(head + 12, &entry_bytes, 4);
	memcpy(head + 16, &n, 8);
	write_all(fd, head, sizeof(head));
	for (uint64_t i = 0; i < n; i++) {
		memcpy(entry, data + i * sizeof(entry), sizeof(entry));
		seal(entry, i == 0 ? n : i);
		write_all(fd, entry, sizeof(entry));
	}
}

static void check(const struct sim_point *point)
{
	if (point->run > point->available || point->available > LIMIT_DRAFT_DEPTH)
		abort();
	for (uint32_t i = 0; i < LIMIT_DRAFT_DEPTH; i++)
		if (!(point->confidence[i] >= 0 && point->confidence[i] <= 1))
			abort();
}

static void replay(const char *path)
{
	struct sim_journal *journal;
	struct sim_curve curve = {0};
	struct error err = {""};
	if (sim_journal_open(path, &journal, &err) < 0) {
		if (err.text[0] == '\0')
			abort();
		return;
	}
	for (uint64_t i = 0; i < SESSIONS; i++) {
		struct sim_text text = {0};
		if (sim_journal_text(journal, i, &text, &err) == 0)
			for (uint32_t x = 0; x < text.n; x++)
				check(&text.points[x]);
		sim_text_exit(&text);
	}
	if (sim_journal_curve(journal, &curve, &err) == 0)
		for (uint32_t n = 1; n < 40; n++)
			if (!(sim_curve_cost(&curve, n) >= 1 - 1e-9))
				abort();
	sim_journal_close(&journal);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char path[64];
	int fd = memfd_create("journal", MFD_CLOEXEC);
	if (fd < 0 || bytes == 0) {
		close(fd);
		return 0;
	}
	if (data[0] == 'e')
		write_entries(fd, data + 1, bytes - 1);
	else
		write_all(fd, data + 1, bytes - 1);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	replay(path);
	close(fd);
	return 0;
}
