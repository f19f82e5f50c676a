#include "kernels/cpu/math.h"

#include "kernels/cpu/functions.h"
#include "kernels/kernels.h"

#include <stdint.h>

#define LN2_HIGH 0x1.62e42feep-1 /* 32 bits, so that its product with an exponent is exact */
#define LN2_LOW 0x1.a39ef35793c76p-33

/* a * b exactly (Dekker's product with Veltkamp's split); far from overflow, as all callers are. */
static struct pair product_exact(double a, double b)
{
	const double split = 0x1p27 + 1;
	double ac = a * split, bc = b * split;
	double ah = ac - (ac - a), bh = bc - (bc - b);
	double al = a - ah, bl = b - bh;
	double product = a * b;

	return (struct pair){product, ((ah * bh - product) + ah * bl + al * bh) + al * bl};
}

float kernels_exp(float x)
{
	return exp32(x);
}

float kernels_log(float x)
{
	return log32(x);
}

void kernels_sincos(double angle, double *sine, double *cosine)
{
	sincos64(angle, sine, cosine);
}

/* log x to about 2^-66, for kernels_pow. */
static struct pair log_pair(double x)
{
	double m, f, s, s_low, z, tail;
	int32_t exponent = split_exponent(x, &m);
	struct pair divisor, back, sum;

	f = m - 1; /* exact */
	divisor = sum_exact(2, f);
	s = f / divisor.high;
	back = product_exact(s, divisor.high);
	s_low = (((f - back.high) - back.low) - s * divisor.low) / divisor.high;
	z = s * s;
	tail = 1 / 21.0 + z * (1 / 23.0);
	for (int k = 19; k >= 3; k -= 2)
		tail = 1.0 / k + z * tail;
	tail = 2 * s * (z * tail);
	sum = sum_exact(exponent * LN2_HIGH, 2 * s);
	return (struct pair){sum.high, sum.low + (exponent * LN2_LOW + (2 * s_low + tail))};
}

double kernels_pow(double base, double exponent)
{
	struct pair log, y;
	double n, r, p;

	if (exponent == 0 || base == 1)
		return 1;
	log = log_pair(base);
	y = product_exact(log.high, exponent);
	y.low += log.low * exponent;
	if (!(y.high > -708))
		return y.high == y.high ? 0 : y.high;
	if (y.high > 709)
		return __builtin_inf();
	n = (y.high * 0x1.71547652b82fep0 + 0x1.8p52) - 0x1.8p52;
	r = (y.high - n * LN2_HIGH) + (y.low - n * LN2_LOW);
	/* |r| < 0.35: the series to the 14th power leaves 2^-62. */
	p = 1 / 13.0 + r * (1 / (13.0 * 14.0));
	for (int k = 12; k >= 2; k--)
		p = (1 + r * p) / k;
	p = 1 + (r + r * (r * p));
	return double_of_bits(bits_of_double(p) + ((uint64_t)(int64_t)n << 52));
}
