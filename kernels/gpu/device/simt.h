/*
 * What the kernels are written in, on a device. kernels/gpu/emulated/simt.h has the same names and
 * says what they do; -I chooses. Compiled with -fmad=false and without fast-math, so that every
 * operation rounds once. PTX instructions: "PTX ISA", sections "mma", "cp.async".
 */
#pragma once

#include "kernels/cpu/half.h"
#include "kernels/gpu/runtime.h"

#include <cuda_runtime.h>

#define KERNEL static __global__ void
#define DEV static __device__ __forceinline__

#define UNROLL _Pragma("unroll")
#define WARP_ALL 0xffffffffu

typedef dim3 simt_dim;

/* What a stream is for LAUNCH. */
cudaStream_t stream_cuda(struct stream *stream);
/* Records the error of a launch, if there was one; stream_wait returns it. */
void stream_launched(struct stream *stream, const char *name);
/* Records that a library's function has failed. */
void stream_failed(struct stream *stream, const char *name);

template <class... P, class... A>
static inline void simt_launch(struct stream *stream, const char *name, void (*kernel)(P...),
	simt_dim grid, unsigned threads, size_t shared, A... args)
{
	static_assert(sizeof...(P) == sizeof...(A), "the kernel's arguments");
	/* More than 48 KiB must be asked for. */
	if (shared > 48 << 10)
		(void)cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
			cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
	kernel<<<grid, threads, shared, stream_cuda(stream)>>>(args...);
	stream_launched(stream, name);
}

#define LAUNCH(stream, kernel, grid, threads, shared, ...) \
	simt_launch(stream, #kernel, kernel, grid, threads, shared, __VA_ARGS__)

template <class T> __device__ __forceinline__ T &shared_memory()
{
	extern __shared__ __align__(128) unsigned char simt_shared[];

	return *reinterpret_cast<T *>(simt_shared);
}

template <unsigned BYTES> __device__ __forceinline__ void async_copy(void *to, const void *from)
{
	unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));

	asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(BYTES)
		     : "memory");
}
DEV void async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}
template <unsigned LEFT> __device__ __forceinline__ void async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#include "kernels/cpu/math.h"

DEV float f_fma(float a, float b, float c)
{
	return __fmaf_rn(a, b, c);
}
DEV float f_mul(float a, float b)
{
	return __fmul_rn(a, b);
}
DEV float f_add(float a, float b)
{
	return __fadd_rn(a, b);
}
DEV float f_sub(float a, float b)
{
	return __fsub_rn(a, b);
}
DEV float f_div(float a, float b)
{
	return __fdiv_rn(a, b);
}
DEV float f_sqrt(float a)
{
	return __fsqrt_rn(a);
}

DEV uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t s)
{
	return __byte_perm(a, b, s);
}

#define SIMT_MMA(A, B)                                                         \
	asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." A "." B          \
		     ".s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
		     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])          \
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define MMA(c, a, b, a_signed, b_signed) simt_mma<a_signed, b_signed>(c, a, b)
template <bool A_SIGNED, bool B_SIGNED>
DEV void simt_mma(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
	if (A_SIGNED && B_SIGNED)
		SIMT_MMA("s8", "s8");
	else if (A_SIGNED)
		SIMT_MMA("s8", "u8");
	else if (B_SIGNED)
		SIMT_MMA("u8", "s8");
	else
		SIMT_MMA("u8", "u8");
}
