/*
 * What the kernels are written in, emulated on the CPU (fibers.h). kernels/gpu/device/simt.h has the
 * same names for a device; -I chooses. CUDA's own names are used where C++ allows it.
 *
 * KERNEL begins a kernel, DEV a function that kernels call. A kernel takes its arguments by value,
 * 4096 bytes at most. LAUNCH(stream, kernel, grid, threads, shared, arguments...) queues it; a
 * template with a comma in its name goes in parentheses.
 */
#pragma once

#include "fibers.h"
#include "kernels/cpu/half.h"
#include "kernels/gpu/runtime.h"

#include <cmath>
#include <cstring>
#include <new>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define KERNEL static __attribute__((unused)) void
#define DEV static inline __attribute__((unused))

/* Before a loop that a device's compiler must unroll. */
#define UNROLL
#define WARP_ALL 0xffffffffu

/* An address that names this place in the source. */
#define SIMT_SITE                                      \
	({                                             \
		static const char simt_site = 0;       \
		static_cast<const void *>(&simt_site); \
	})

#define threadIdx (simt::now->self->tid)
#define blockIdx (simt::now->bid)
#define blockDim (simt::now->bdim)
#define gridDim (simt::now->gdim)

/* ---- Launches. ---- */

/* Before the launch is queued: loses the device, if it is to be lost there. Then, with each argument
 * that the kernel gets, and with the arrays that were made for it: ends the process if there is an
 * address of weights in the host's memory. */
void stream_begins(struct stream *stream, const char *kernel);
void stream_check(struct stream *stream, const char *kernel, const void *argument, size_t bytes);
void stream_check_arrays(struct stream *stream, const char *kernel);

namespace simt
{

static inline bool same_launch(const struct launch *one, const struct launch *two)
{
	return one->grid.x == two->grid.x && one->grid.y == two->grid.y &&
	       one->grid.z == two->grid.z && one->threads == two->threads &&
	       one->shared == two->shared;
}

/* What lies in the padding of a value is anything, also a half of an address. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
#define SIMT_CLEARS_PADDING
template <class T> void clear_padding(T *value)
{
	__builtin_clear_padding(value);
}
#endif
#endif

/* True when two values are equal but for their padding, and for addresses of arrays, which have moved.
 */
template <class T>
bool same_value(const T &recorded, const T &now, const struct stream_moved *moved)
{
#ifdef SIMT_CLEARS_PADDING
	T one = recorded, two = now;

	clear_padding(&one);
	clear_padding(&two);
	return stream_same(&one, &two, sizeof(T), moved);
#endif
	return (void)recorded, (void)now, (void)moved, true;
}

template <class T> void check_value(struct stream *stream, const char *name, T value)
{
#ifdef SIMT_CLEARS_PADDING
	clear_padding(&value);
#endif
	stream_check(stream, name, &value, sizeof(value));
}

template <class... P> struct record {
	struct launch launch;
	void (*kernel)(P...);
	std::tuple<P...> args;

	static void body(const void *at)
	{
		const record *r = static_cast<const record *>(at);

		std::apply(r->kernel, r->args);
	}
	template <size_t... I>
	static bool same_args(const record *one, const record *two,
		const struct stream_moved *moved, std::index_sequence<I...>)
	{
		return (same_value(std::get<I>(one->args), std::get<I>(two->args), moved) && ...);
	}
	static const char *differs(
		const void *recorded, const void *now, const struct stream_moved *moved)
	{
		const record *one = static_cast<const record *>(recorded);
		const record *two = static_cast<const record *>(now);

		return one->kernel == two->kernel && same_launch(&one->launch, &two->launch) &&
				       same_args(one, two, moved, std::index_sequence_for<P...>())
			       ? nullptr
			       : two->launch.name;
	}
	static void go(void *at, unsigned seed)
	{
		record *r = static_cast<record *>(at);

		r->launch.args = r;
		r->launch.seed = seed;
		run(&r->launch);
	}
};

template <class... P, class... A>
void queue_launch(struct stream *stream, const char *name, void (*kernel)(P...), simt_dim grid,
	unsigned threads, size_t shared, A... args)
{
	typedef record<P...> item;
	static_assert(sizeof(std::tuple<P...>) <= 4096, "a kernel's arguments");
	static_assert((std::is_trivially_copyable_v<P> && ...), "arguments are copied as bytes");
	stream_begins(stream, name);
	void *at = stream_push(stream, sizeof(item), item::go, item::differs);

	new (at) item{{name, item::body, nullptr, grid, threads, shared, 0}, kernel,
		std::tuple<P...>(args...)};
	(check_value<P>(stream, name, args), ...);
	stream_check_arrays(stream, name);
	stream_commit(stream);
}

} // namespace simt

#define LAUNCH(stream, kernel, grid, threads, shared, ...) \
	simt::queue_launch(stream, #kernel, kernel, grid, threads, shared, __VA_ARGS__)

/* ---- Threads together. ---- */

#define __syncthreads() simt::barrier(SIMT_SITE)
#define SIMT_MASK(mask, ...) (mask)
#define __syncwarp(...) \
	simt::meet(SIMT_MASK(__VA_ARGS__ __VA_OPT__(, ) WARP_ALL), SIMT_SITE, "", 0, nullptr)

template <class T> inline T simt_lane(unsigned mask, unsigned lane)
{
	T value;

	memcpy(&value, simt::lane_words(mask, lane), sizeof(value));
	return value;
}

/* Values of 4 or 8 bytes. lane is computed before the lanes meet. */
template <class T> inline T simt_shuffle(unsigned mask, const void *site, T value, unsigned lane)
{
	static_assert(sizeof(T) == 4 || sizeof(T) == 8, "what a shuffle takes");
	simt::meet(mask, site, &value, sizeof(value), nullptr);
	return simt_lane<T>(mask, lane);
}
#define SIMT_LANE (simt::now->self->lane)
#define __shfl_sync(mask, value, lane) \
	simt_shuffle(mask, SIMT_SITE, value, static_cast<unsigned>(lane))
#define __shfl_xor_sync(mask, value, bits) \
	simt_shuffle(mask, SIMT_SITE, value, SIMT_LANE ^ static_cast<unsigned>(bits))
/* Lanes without a partner keep their own value. */
#define __shfl_up_sync(mask, value, n) \
	simt_shuffle(mask, SIMT_SITE, value, SIMT_LANE < (n) ? SIMT_LANE : SIMT_LANE - (n))
#define __shfl_down_sync(mask, value, n) \
	simt_shuffle(mask, SIMT_SITE, value, SIMT_LANE + (n) > 31 ? SIMT_LANE : SIMT_LANE + (n))

inline unsigned simt_ballot(unsigned mask, const void *site, bool is)
{
	uint32_t mine = is, votes = 0;

	simt::meet(mask, site, &mine, sizeof(mine), nullptr);
	for (unsigned l = 0; l < 32; l++)
		if (mask >> l & 1)
			votes |= simt_lane<uint32_t>(mask, l) << l;
	return votes;
}
#define __ballot_sync(mask, is) simt_ballot(mask, SIMT_SITE, is)
#define __any_sync(mask, is) (__ballot_sync(mask, is) != 0)
#define __all_sync(mask, is) (__ballot_sync(mask, is) == (mask))

template <class T> inline T &shared_memory()
{
	if (sizeof(T) > simt::now->shared_bytes)
		simt::die("shared memory has %zu bytes, but the kernel needs %zu",
			simt::now->shared_bytes, sizeof(T));
	return *reinterpret_cast<T *>(simt::now->shared);
}

/* Asynchronous copies of 4, 8 or 16 bytes from global to shared memory: begun, committed as a
 * group, and there after a wait for all but the newest `left` groups. */
template <unsigned BYTES> inline void async_copy(void *to, const void *from)
{
	static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "what cp.async takes");
	simt::copy_begin(to, from, BYTES);
}
DEV void async_commit(void)
{
	simt::copy_commit();
}
template <unsigned LEFT> inline void async_wait(void)
{
	simt::copy_wait(LEFT);
}

/* Atomic operations on global or shared memory; each returns what was there before. */
template <class T> inline T atomicAdd(T *at, T value)
{
	return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <class T> inline T atomicOr(T *at, T value)
{
	return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
template <class T> inline T atomicMax(T *at, T value)
{
	T old = *at;

	if (value > old)
		*at = value;
	return old;
}
DEV void __threadfence(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}
DEV void __threadfence_system(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

DEV int __popc(unsigned x)
{
	return __builtin_popcount(x);
}
DEV int __ffs(int x)
{
	return __builtin_ffs(x);
}
DEV int __clz(int x)
{
	return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}

/* ---- Arithmetic: each operation rounds once (kernels/numerics.md). ---- */

#include "kernels/cpu/math.h"

DEV float f_fma(float a, float b, float c)
{
	return fma32(a, b, c);
}
DEV float f_mul(float a, float b)
{
	return a * b;
}
DEV float f_add(float a, float b)
{
	return a + b;
}
DEV float f_sub(float a, float b)
{
	return a - b;
}
DEV float f_div(float a, float b)
{
	return a / b;
}
DEV float f_sqrt(float a)
{
	return __builtin_sqrtf(a);
}

/* Bytes of {a, b} that the nibbles of s name. */
DEV uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t s)
{
	uint64_t both = static_cast<uint64_t>(b) << 32 | a;
	uint32_t out = 0;

	for (unsigned i = 0; i < 4; i++)
		out |= static_cast<uint32_t>(both >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
	return out;
}

/* mma.m16n8k32: c += a * b, of bytes with sign or without. Lane (g, t) = (lane / 4, lane % 4) has of
 * a the words t and t + 4 (four k each) of rows g and g + 8: a[0] row g, word t; a[1] row g + 8,
 * word t; a[2], a[3] the same with word t + 4. Of b it has words t and t + 4 of column g. Of c it has
 * row g, columns 2t and 2t + 1, then row g + 8. Sums wrap around at 2^32. */
#define MMA(c, a, b, a_signed, b_signed) simt_mma(c, a, b, a_signed, b_signed, SIMT_SITE)
DEV void simt_mma(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bool a_signed,
	bool b_signed, const void *site)
{
	const uint32_t bring[8] = {
		a[0], a[1], a[2], a[3], b[0], b[1], uint32_t{a_signed} | uint32_t{b_signed} << 1};

	simt::meet(WARP_ALL, site, bring, sizeof(bring), simt::mma_meeting);
	const struct simt::words *sums = simt::lane_words(WARP_ALL, SIMT_LANE);
	for (unsigned i = 0; i < 4; i++)
		c[i] = static_cast<int32_t>(static_cast<uint32_t>(c[i]) + sums->w[i]);
}
