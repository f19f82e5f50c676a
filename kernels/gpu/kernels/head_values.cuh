/* Operations of a warp on a head's values in shared memory. */
#pragma once

#include "kernels/gpu/kernels/attend_numbers.cuh"

/* y = RMS norm of x[n] in shared memory, in place. */
DEV void warp_rms_norm(float *x, const float *w, float eps, unsigned n, unsigned lane)
{
	float ss = warp_square_sum(x, n, lane);
	float factor = 1.0f / f_sqrt(ss / (float)n + eps);

	for (unsigned i = lane; i < n; i += 32)
		x[i] = f_mul(f_mul(x[i], factor), w[i]);
	__syncwarp();
}

DEV void warp_rope(float *x, const float *cos_sin, unsigned n_rot, bool neox, unsigned lane)
{
	for (unsigned i = lane; i < n_rot / 2; i += 32) {
		unsigned one = neox ? i : 2 * i, two = neox ? i + n_rot / 2 : 2 * i + 1;
		float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], a = x[one], b = x[two];

		x[one] = f_fma(a, c, -f_mul(b, s));
		x[two] = f_fma(a, s, f_mul(b, c));
	}
	__syncwarp();
}

/* Loads x[n] and adds the bias. */
DEV void warp_load(const float *from, const float *bias, unsigned n, unsigned lane, float *x)
{
	for (unsigned i = lane; i < n; i += 32)
		x[i] = bias ? f_add(from[i], bias[i]) : from[i];
	__syncwarp();
}
