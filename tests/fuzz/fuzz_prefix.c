/* Any bytes as a prefix file. After an 's' they get the right checksum, which would keep a fuzzer out. What is accepted is written
 * as it was read. */
#include "services/verifier/prefixes/prefix_file.h"
#include "shared/base/checksum.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	const struct prefix_shape want = {1, 2, 3, 0, 4, 2, 16, 16, 0, 0};
	struct prefix_header header, again;
	struct error err;

	if (bytes == 0)
		return 0;
	size_t n = bytes - 1;
	/* Of its own size, so that a read beyond it is seen. */
	unsigned char *file = malloc(n + 1), out[PREFIX_HEADER_BYTES];
	if (file == NULL)
		return 0;
	memcpy(file, data + 1, n);
	if (data[0] == 's' && n >= PREFIX_HEADER_BYTES) {
		uint64_t sum = checksum(0, file, PREFIX_HEADER_BYTES - 8);

		for (int i = 0; i < 8; i++)
			file[PREFIX_HEADER_BYTES - 8 + i] = (unsigned char)(sum >> 8 * i);
	}
	if (prefix_header_read(file, n, &header, &err) == 0) {
		if (header.content_bytes != n - PREFIX_HEADER_BYTES)
			abort();
		(void)prefix_shape_check(&header.shape, &want, &err);
		(void)prefix_content_check(&header, file + PREFIX_HEADER_BYTES, &err);
		prefix_header_write(&header, out);
		if (prefix_header_read(out, n, &again, &err) != 0 ||
			memcmp(&header, &again, sizeof(header)) != 0)
			abort();
	}
	free(file);
	return 0;
}
