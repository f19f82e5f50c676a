/* exp, log, sincos and pow against libm, and float16 against its definition. */
#include "kernels/cpu/fma.h"
#include "kernels/cpu/half.h"
#include "tests/kernels/reference.h"

/* Distance in units of the last place of the correctly rounded float32. */
static double ulps(float got, double exact)
{
	float rounded = (float)exact;
	double unit = (double)nextafterf(fabsf(rounded), INFINITY) - (double)fabsf(rounded);

	return fabs((double)got - exact) / unit;
}

static void exp_is_within_two_ulp_over_its_range(void **state)
{
	double worst = 0;

	(void)state;
	for (int i = 0; i <= 475000; i++) {
		float x = fminf(-87.3f + (float)i * 0.00037055f, 88.7228f);

		worst = fmax(worst, ulps(kernels_exp(x), exp((double)x)));
	}
	for (int i = 0; i < 27000; i++) {
		float x = (float)(ldexp(1, -40) * pow(1.001, i));

		worst = fmax(worst, ulps(kernels_exp(x), exp((double)x)));
		worst = fmax(worst, ulps(kernels_exp(-x), exp(-(double)x)));
	}
	print_message("# exp: %.3f ulp\n", worst);
	assert_true(worst < 2);
}

static void exp_of_its_limits_is_zero_one_infinity_and_nan(void **state)
{
	(void)state;
	assert_true(same_float(kernels_exp(0), 1) && same_float(kernels_exp(-0.0f), 1));
	assert_true(same_float(kernels_exp(-87.4f), 0) && same_float(kernels_exp(-INFINITY), 0));
	assert_true(same_float(kernels_exp(-3e38f), 0));
	assert_true(kernels_exp(-87.3f) > 0 && isfinite(kernels_exp(88.72283f)));
	assert_true(isinf(kernels_exp(88.73f)) && isinf(kernels_exp(INFINITY)));
	assert_true(isinf(kernels_exp(3e38f)) && isnan(kernels_exp(NAN)));
	assert_true(isnan(kernels_exp(float_from(0x7fc001ff))) && isnan(kernels_exp(-NAN)));
}

static void log_is_within_two_ulp_subnormals_included(void **state)
{
	double worst = 0;

	(void)state;
	for (uint32_t bits = 1; bits < 0x7f800000u; bits += 1013) {
		float x = float_from(bits);

		worst = fmax(worst, ulps(kernels_log(x), log((double)x)));
	}
	/* Around 1, where log is small and its relative error shows. */
	for (uint32_t bits = 0x3f000000u; bits < 0x40000000u; bits += 7) {
		float x = float_from(bits);

		worst = fmax(worst, x == 1 ? 0 : ulps(kernels_log(x), log((double)x)));
	}
	print_message("# log: %.3f ulp\n", worst);
	assert_true(worst < 2);
	assert_true(same_float(kernels_log(1), 0));
	assert_true(kernels_log(0) == -INFINITY && kernels_log(INFINITY) == INFINITY);
	assert_true(isnan(kernels_log(-1)) && isnan(kernels_log(NAN)));
}

static void check_sincos(double angle, double *worst)
{
	double s, c;

	kernels_sincos(angle, &s, &c);
	*worst = fmax(*worst, fabs(s - sin(angle)) / fmax(fabs(sin(angle)), 1e-300));
	*worst = fmax(*worst, fabs(c - cos(angle)) / fmax(fabs(cos(angle)), 1e-300));
}

static void sincos_has_fifteen_digits_up_to_two_to_the_twenty(void **state)
{
	double worst = 0, s, c;
	uint64_t rng = 1;

	(void)state;
	for (int i = 1; i < 400000; i++) {
		check_sincos((double)random_float(&rng) * 0x1p20, &worst);
		check_sincos((double)random_float(&rng) * 7, &worst);
	}
	/* Near multiples of pi/2 the reduction shows: the result is what is left of the angle. */
	for (int n = 1; n < 667544; n += 7)
		check_sincos(n * 0x1.921fb54442d18p0, &worst);
	print_message("# sincos: %.3g relative\n", worst);
	assert_true(worst < 1e-15);
	kernels_sincos(0, &s, &c);
	assert_true(s == 0 && c == 1);
	kernels_sincos((double)INFINITY, &s, &c);
	assert_true(isnan(s) && isnan(c));
	kernels_sincos(1e300, &s, &c);
	assert_true(isnan(s) && isnan(c));
}

static void pow_has_fifteen_digits_for_rope_bases(void **state)
{
	double worst = 0;
	uint64_t rng = 2;

	(void)state;
	for (int i = 0; i < 400000; i++) {
		double base = exp((double)random_float(&rng) * 20);
		double exponent = (double)random_float(&rng) * 3;
		double exact = pow(base, exponent);

		worst = fmax(worst, fabs(kernels_pow(base, exponent) - exact) / exact);
	}
	print_message("# pow: %.3g relative\n", worst);
	assert_true(worst < 1e-15);
	assert_true(
		kernels_pow(10000, 0) == 1 && kernels_pow(1, 5) == 1 && kernels_pow(2, 10) == 1024);
	assert_true(kernels_pow(10, -1000) == 0 && isinf(kernels_pow(10, 1000)));
}

static void half_floats_convert_by_their_definition(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 0x10000; h++) {
		float value = float_of_half((uint16_t)h);

		assert_true(same_float(value, reference_half((uint16_t)h)));
		if (!isnan(value))
			assert_int_equal(half_of_float(value), h);
	}
	/* Every midpoint between neighbours goes to the even one, and its neighbours to the nearer. */
	for (uint32_t h = 0; h < 0x7bff; h++) {
		float low = reference_half((uint16_t)h), high = reference_half((uint16_t)(h + 1));
		float middle = (low + high) / 2;

		assert_int_equal(half_of_float(middle), h + (h & 1));
		assert_int_equal(half_of_float(nextafterf(middle, 0)), h);
		assert_int_equal(half_of_float(-nextafterf(middle, INFINITY)), (h + 1) | 0x8000);
	}
	assert_int_equal(half_of_float(65519.996f), 0x7bff);
	assert_int_equal(half_of_float(65520), 0x7c00);
	assert_int_equal(half_of_float(-INFINITY), 0xfc00);
	assert_int_equal(half_of_float(NAN) & 0x7e00, 0x7e00);
}

static void our_fma_rounds_once(void **state)
{
	uint64_t rng = 3;

	(void)state;
	for (int i = 0; i < 3000000; i++) {
		float a = float_from((uint32_t)random_bits(&rng));
		float b = float_from((uint32_t)random_bits(&rng));
		float c = float_from((uint32_t)random_bits(&rng));

		/* Half the time c is of the product's size, where the last bits decide. */
		if (i % 2)
			c = a * b * random_float(&rng) *
			    ldexpf(1, (int)random_below(&rng, 60) - 30);
		/* And some results are subnormal. */
		if (i % 8 == 1) {
			a *= 0x1p-60f;
			c *= 0x1p-60f;
		}
		if (!same_float(fma32(a, b, c), fmaf(a, b, c)))
			fail_msg("fma(%a, %a, %a) is %a, expected %a", (double)a, (double)b,
				(double)c, (double)fma32(a, b, c), (double)fmaf(a, b, c));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exp_is_within_two_ulp_over_its_range),
		cmocka_unit_test(exp_of_its_limits_is_zero_one_infinity_and_nan),
		cmocka_unit_test(log_is_within_two_ulp_subnormals_included),
		cmocka_unit_test(sincos_has_fifteen_digits_up_to_two_to_the_twenty),
		cmocka_unit_test(pow_has_fifteen_digits_for_rope_bases),
		cmocka_unit_test(half_floats_convert_by_their_definition),
		cmocka_unit_test(our_fma_rounds_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
