#include "shared/measure/peaks.h"

#include "shared/base/median.h"
#include "shared/base/clock.h"
#include "shared/base/huge_pages.h"
#include "shared/base/memory_fits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Bytes are FILL_BASE and any of the bits below it, so that two of them are a normal float16 of about one, and one of them a
 * scale of MXFP4 whose products are normal floats: on subnormal ones the processor is slow, which weights of models are not. */
#define FILL_BITS 0x1fu
#define FILL_BASE 0x20u

enum {
	READ_ITEM = 1 << 20, /* bytes of one item of the pool */
	AHEAD = 2048, /* bytes from a load to what is fetched meanwhile: 3 to 9 % more on Zen 5 */
	STEPS = 1 << 20, /* of a register loop */
	CHAINS = 12, /* independent sums, enough to hide the latency of a multiply-add */
	GOES = 3,
};

int peaks_memory_get(struct peaks_memory *memory, size_t bytes, struct error *err)
{
	/* Not all systems have huge ones; the figures then say what small pages give. */
	struct huge_pages pages;
	struct memory_limit limit;
	const uint64_t every = 0x0101010101010101u;
	uint64_t state = 1;
	void *data;
	int rc = huge_pages_map(bytes, &pages, &data, err);

	if (rc != 0)
		return rc;
	*memory = (struct peaks_memory){data, bytes, pages.bytes};
	memory_limit_now(&limit);
	rc = pages.kind == HUGE_POOL
		     ? 0
		     : memory_fits(&limit, bytes, "the memory that is read to measure takes", NULL,
			       err);
	if (rc != 0) {
		peaks_memory_put(memory);
		return rc;
	}
	for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		((uint64_t *)data)[i] =
			((state ^ state >> 31) & (FILL_BITS * every)) | (FILL_BASE * every);
	}
	return 0;
}

void peaks_memory_put(struct peaks_memory *memory)
{
	if (memory->data)
		munmap(memory->data, memory->mapped);
	*memory = (struct peaks_memory){0};
}

/* A loop over registers or memory: returns something of its result, so that it is not left out. */
struct loops {
	uint64_t (*read)(const unsigned char *data, size_t bytes);
	uint64_t (*int8)(uint32_t steps);
	double int8_ops; /* of one chain's step */
	uint64_t (*int16)(uint32_t steps);
	double int16_ops;
	uint64_t (*f32)(uint32_t steps);
	double f32_ops;
	uint64_t (*bf16)(uint32_t steps); /* or NULL */
	double bf16_ops;
};

static uint64_t read_plain(const unsigned char *data, size_t bytes)
{
	const uint64_t *p = (const uint64_t *)data;
	uint64_t sum[8] = {0};

	for (size_t i = 0; i + 8 <= bytes / sizeof(*p); i += 8)
		for (size_t j = 0; j < 8; j++)
			sum[j] += p[i + j];
	return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

static uint64_t int8_plain(uint32_t steps)
{
	int32_t sum[CHAINS] = {0};
	volatile int8_t a = 3;

	for (uint32_t i = 0; i < steps; i++) {
		int32_t x = a;
		for (uint32_t j = 0; j < CHAINS; j++)
			sum[j] += x * (int32_t)j;
	}
	return (uint64_t)(uint32_t)(sum[0] ^ sum[CHAINS - 1]);
}

static uint64_t f32_plain(uint32_t steps)
{
	float sum[CHAINS] = {0};
	volatile float a = 0.5f;

	for (uint32_t i = 0; i < steps; i++) {
		float x = a;
		for (uint32_t j = 0; j < CHAINS; j++)
			sum[j] += x * (float)j;
	}
	return (uint64_t)sum[0] + (uint64_t)sum[CHAINS - 1];
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vnni")))
/* Keeps the compiler from seeing that a chain's operands never change. */
#define OPAQUE(x) __asm__ volatile("" : "+v"(x))
/* CHAINS sums, from zero by `step` with an x that is new each time, joined in `all`. Unrolled, so that they lie in registers. */
#define SUM_UP(zero, x, step, join)                                                   \
	_Pragma("GCC unroll 12") for (uint32_t j = 0; j < CHAINS; j++) sum[j] = zero; \
	for (uint32_t i = 0; i < steps; i++) {                                        \
		_Pragma("GCC unroll 12") for (uint32_t j = 0; j < CHAINS; j++)        \
		{                                                                     \
			OPAQUE(x);                                                    \
			sum[j] = step;                                                \
		}                                                                     \
	}                                                                             \
	all = sum[0];                                                                 \
	_Pragma("GCC unroll 12") for (uint32_t j = 1; j < CHAINS; j++) all = join(all, sum[j])

AVX2 static uint64_t read_avx2(const unsigned char *data, size_t bytes)
{
	const __m256i *p = (const __m256i *)data;
	__m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;

	for (size_t i = 0; i + 4 <= bytes / sizeof(*p); i += 4) {
		for (size_t line = 0; line < 4 * sizeof(*p); line += 64)
			_mm_prefetch((const char *)(p + i) + AHEAD + line, _MM_HINT_T0);
		a = _mm256_add_epi64(a, _mm256_load_si256(p + i));
		b = _mm256_add_epi64(b, _mm256_load_si256(p + i + 1));
		c = _mm256_add_epi64(c, _mm256_load_si256(p + i + 2));
		d = _mm256_add_epi64(d, _mm256_load_si256(p + i + 3));
	}
	a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
	return (uint64_t)_mm256_extract_epi64(a, 0) ^ (uint64_t)_mm256_extract_epi64(a, 3);
}

/* Without VNNI a product of bytes is three instructions: maddubs, madd, add. */
AVX2 static uint64_t int8_avx2(uint32_t steps)
{
	__m256i sum[CHAINS], x = _mm256_set1_epi8(3), w = x, ones = _mm256_set1_epi16(1), all;

	SUM_UP(_mm256_setzero_si256(), x,
		_mm256_add_epi32(sum[j], _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones)),
		_mm256_xor_si256);
	return (uint64_t)_mm256_extract_epi64(all, 0);
}

AVX2 static uint64_t int16_avx2(uint32_t steps)
{
	__m256i sum[CHAINS], x = _mm256_set1_epi16(3), all;

	SUM_UP(_mm256_setzero_si256(), x, _mm256_add_epi32(sum[j], _mm256_madd_epi16(x, x)),
		_mm256_xor_si256);
	return (uint64_t)_mm256_extract_epi64(all, 0);
}

AVX2 static uint64_t f32_avx2(uint32_t steps)
{
	__m256 sum[CHAINS], x = _mm256_set1_ps(0.5f), all;

	SUM_UP(_mm256_setzero_ps(), x, _mm256_fmadd_ps(x, x, sum[j]), _mm256_add_ps);
	return (uint64_t)_mm256_cvtss_f32(all);
}

AVX512 static uint64_t fold_avx512(__m512i x)
{
	uint64_t lane[8];

	_mm512_storeu_si512(lane, x);
	return lane[0] ^ lane[1] ^ lane[2] ^ lane[3] ^ lane[4] ^ lane[5] ^ lane[6] ^ lane[7];
}

AVX512 static uint64_t read_avx512(const unsigned char *data, size_t bytes)
{
	const __m512i *p = (const __m512i *)data;
	__m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;

	for (size_t i = 0; i + 4 <= bytes / sizeof(*p); i += 4) {
		for (size_t line = 0; line < 4 * sizeof(*p); line += 64)
			_mm_prefetch((const char *)(p + i) + AHEAD + line, _MM_HINT_T0);
		a = _mm512_add_epi64(a, _mm512_load_si512(p + i));
		b = _mm512_add_epi64(b, _mm512_load_si512(p + i + 1));
		c = _mm512_add_epi64(c, _mm512_load_si512(p + i + 2));
		d = _mm512_add_epi64(d, _mm512_load_si512(p + i + 3));
	}
	a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
	return fold_avx512(a);
}

AVX512 static uint64_t int8_avx512(uint32_t steps)
{
	__m512i sum[CHAINS], x = _mm512_set1_epi8(3), w = x, all;

	SUM_UP(_mm512_setzero_si512(), x, _mm512_dpbusd_epi32(sum[j], w, x), _mm512_xor_si512);
	return fold_avx512(all);
}

AVX512 static uint64_t int16_avx512(uint32_t steps)
{
	__m512i sum[CHAINS], x = _mm512_set1_epi16(3), all;

	SUM_UP(_mm512_setzero_si512(), x, _mm512_dpwssd_epi32(sum[j], x, x), _mm512_xor_si512);
	return fold_avx512(all);
}

AVX512 static uint64_t f32_avx512(uint32_t steps)
{
	__m512 sum[CHAINS], x = _mm512_set1_ps(0.5f), all;

	SUM_UP(_mm512_setzero_ps(), x, _mm512_fmadd_ps(x, x, sum[j]), _mm512_add_ps);
	return (uint64_t)_mm512_cvtss_f32(all);
}

__attribute__((target("avx512f,avx512bw,avx512bf16"))) static uint64_t bf16_avx512(uint32_t steps)
{
	__m512 sum[CHAINS], all;
	__m512i half = _mm512_set1_epi16(0x3f00); /* 0.5 in bfloat16 */

	SUM_UP(_mm512_setzero_ps(), half, _mm512_dpbf16_ps(sum[j], (__m512bh)half, (__m512bh)half),
		_mm512_add_ps);
	return (uint64_t)_mm512_cvtss_f32(all);
}
#endif

static struct loops best_loops(void)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512vnni"))
		return (struct loops){read_avx512, int8_avx512, 128, int16_avx512, 64, f32_avx512,
			32, __builtin_cpu_supports("avx512bf16") ? bf16_avx512 : NULL, 64};
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return (struct loops){
			read_avx2, int8_avx2, 64, int16_avx2, 32, f32_avx2, 16, NULL, 0};
#endif
	return (struct loops){read_plain, int8_plain, 2, int8_plain, 2, f32_plain, 2, NULL, 0};
}

struct run {
	struct loops loops;
	const struct peaks_memory *memory; /* of read_item */
	uint64_t (*loop)(uint32_t steps); /* of loop_item */
	_Atomic uint64_t sink;
};

static void read_item(void *arg, uint32_t item, uint32_t thread)
{
	struct run *run = arg;
	size_t at = (size_t)item * READ_ITEM;

	(void)thread;
	run->sink ^= run->loops.read(run->memory->data + at, READ_ITEM);
}

static void loop_item(void *arg, uint32_t item, uint32_t thread)
{
	struct run *run = arg;

	(void)item;
	(void)thread;
	run->sink ^= run->loop(STEPS);
}

static double least_seconds(
	struct pool *pool, void (*fn)(void *, uint32_t, uint32_t), struct run *run, uint32_t items)
{
	double least = 0;

	for (uint32_t go = 0; go < GOES; go++) {
		uint64_t start = clock_ns();

		pool_run(pool, fn, run, items);
		double took = (double)(clock_ns() - start) / 1e9;
		least = go == 0 || took < least ? took : least;
	}
	return least;
}

double peaks_read(const struct peaks_memory *memory, struct pool *pool)
{
	struct run run = {.loops = best_loops(), .memory = memory};
	uint32_t blocks = (uint32_t)(memory->bytes / READ_ITEM);

	return (double)blocks * READ_ITEM / 1e9 / least_seconds(pool, read_item, &run, blocks);
}

/* Of a loop over registers with so many operations in one chain's step. */
static double loop_gop_s(struct pool *pool, uint64_t (*loop)(uint32_t steps), double ops)
{
	struct run run = {.loop = loop};
	uint32_t threads = pool_threads(pool);

	return (double)STEPS * CHAINS * threads * ops / 1e9 /
	       least_seconds(pool, loop_item, &run, threads);
}

void peaks_measure(const struct peaks_memory *memory, struct pool *pool, struct peaks *out)
{
	struct loops loops = best_loops();

	out->read_gb_s = peaks_read(memory, pool);
	out->int8_gop_s = loop_gop_s(pool, loops.int8, loops.int8_ops);
	out->int16_gop_s = loop_gop_s(pool, loops.int16, loops.int16_ops);
	out->f32_gop_s = loop_gop_s(pool, loops.f32, loops.f32_ops);
	out->bf16_gop_s = loops.bf16 ? loop_gop_s(pool, loops.bf16, loops.bf16_ops) : 0;
}

double peaks_gop_s(const struct peaks *peaks, const struct tensor_type_info *type)
{
	return type->quantised ? peaks->int8_gop_s : peaks->f32_gop_s;
}

double peaks_attention_gop_s(
	const struct peaks *peaks, enum kv_type type, double k_dim, double v_dim)
{
	double scores = type == KV_Q8_0	   ? peaks->int8_gop_s
			: type == KV_Q16_0 ? peaks->int16_gop_s
					   : peaks->f32_gop_s;
	double values = kv_in_blocks(type) ? peaks->int16_gop_s : peaks->f32_gop_s;

	return (k_dim + v_dim) / (k_dim / scores + v_dim / values);
}

struct peaks peaks_median(const struct peaks *rounds, uint32_t n)
{
	static const size_t fields[] = {offsetof(struct peaks, read_gb_s),
		offsetof(struct peaks, int8_gop_s), offsetof(struct peaks, int16_gop_s),
		offsetof(struct peaks, f32_gop_s), offsetof(struct peaks, bf16_gop_s)};
	double values[PEAKS_ROUNDS], middle;
	struct peaks out;

	for (size_t field = 0; field < sizeof(fields) / sizeof(*fields); field++) {
		for (uint32_t i = 0; i < n; i++)
			memcpy(&values[i], (const char *)&rounds[i] + fields[field],
				sizeof(*values));
		middle = median(values, n);
		memcpy((char *)&out + fields[field], &middle, sizeof(middle));
	}
	return out;
}
