/* Filters of numbers and of anything. */
#include "shared/model/text/template/strings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name)                                                                         \
	static struct value name(struct render *r, struct value v, const struct value *args, \
		const struct call *call)
#define UNUSED ((void)args, (void)call)

FILTER(default_value)
{
	(void)call;
	bool boolean = value_truth(args[1]);
	if (v.kind != VALUE_UNDEFINED && (!boolean || value_truth(v)))
		return v;
	return args[0].kind == VALUE_MISSING ? value_string(text_literal(&r->arena, "")) : args[0];
}

FILTER(absolute)
{
	UNUSED;
	if (!value_is_number(v)) {
		render_need_defined(r, v);
		render_fail(r, "abs is for numbers, not '%s'", value_type(v));
	}
	if (v.kind == VALUE_FLOAT)
		return value_float(fabs(v.f));
	return value_as_int(v) < 0 ? operator_negate(r, v) : value_int(value_as_int(v));
}

/* Text as a number, with Python's white space and underscores between digits. */
static bool number_text(
	struct render *r, const struct string *s, char out[400], size_t *n, bool *real)
{
	s = strings_strip(r, s, NULL, true, true);
	*n = 0;
	*real = false;
	if (!s->bytes || s->bytes >= 400)
		return false;
	render_charge_text(r, s->bytes);
	for (size_t i = 0; i < s->bytes; i++) {
		char c = s->data[i];
		bool between = i > 0 && i + 1 < s->bytes &&
			       unicode_is_digit(r, (unsigned char)s->data[i - 1]) &&
			       unicode_is_digit(r, (unsigned char)s->data[i + 1]);
		if (c == '_' && between)
			continue;
		if (!c || !strchr("0123456789abcdefinotyABCDEFINOTYxX+-.", c))
			return false;
		*real |= !unicode_is_digit(r, (unsigned char)c) && c != '+' && c != '-';
		out[(*n)++] = c;
	}
	out[*n] = '\0';
	return true;
}

static bool parse_float(struct render *r, struct value v, double *out)
{
	char text[400], *end;
	size_t n;
	bool real;
	if (value_is_number(v)) {
		*out = value_as_float(v);
		return true;
	}
	render_need_defined(r, v);
	/* No hexadecimal floats in Python. */
	if (v.kind != VALUE_STRING || !number_text(r, v.s, text, &n, &real) || strpbrk(text, "xX"))
		return false;
	*out = strtod(text, &end);
	return end == text + n;
}

static int64_t truncated(struct render *r, double f)
{
	if (!(f > -9.2233720368547758e18 && f < 9.2233720368547758e18))
		render_fail(r, "an integer does not fit 64 bits");
	return (int64_t)f;
}

FILTER(integer)
{
	(void)call;
	struct value otherwise = args[0].kind == VALUE_MISSING ? value_int(0) : args[0];
	int64_t base = argument_int(r, args[1], 10, "base");
	char text[400], *end;
	size_t n;
	bool real;
	double f;
	if (value_is_int(v))
		return value_int(value_as_int(v));
	if (v.kind == VALUE_STRING && base >= 2 && base <= 36 &&
		number_text(r, v.s, text, &n, &real) && (!real || base != 10)) {
		errno = 0;
		int64_t i = strtoll(text, &end, (int)base);
		if (errno == ERANGE)
			render_fail(r, "an integer does not fit 64 bits");
		if (end == text + n)
			return value_int(i);
	}
	if (!parse_float(r, v, &f) || !isfinite(f))
		return otherwise;
	return value_int(truncated(r, f));
}

FILTER(real)
{
	(void)call;
	double f;
	if (parse_float(r, v, &f))
		return value_float(f);
	return args[0].kind == VALUE_MISSING ? value_float(0) : args[0];
}

/* Half to even on the decimal value, as Python rounds: printf does the same. */
static double round_decimal(double f, int64_t digits)
{
	char text[700];
	if (!isfinite(f) || digits > 300)
		return f;
	if (digits >= 0) {
		snprintf(text, sizeof(text), "%.*f", (int)digits, f);
		return strtod(text, NULL);
	}
	if (digits < -308)
		return copysign(0, f);
	double unit = pow(10, (double)-digits);
	return nearbyint(f / unit) * unit;
}

FILTER(rounded)
{
	(void)call;
	int64_t digits = argument_int(r, args[0], 0, "precision");
	const struct string *method = args[1].kind == VALUE_MISSING
					      ? text_literal(&r->arena, "common")
					      : print_text(r, args[1]);
	render_need_defined(r, v);
	render_charge(r, RENDER_FORMAT);
	if (!value_is_number(v))
		render_fail(r, "round is for numbers, not '%s'", value_type(v));
	double f = value_as_float(v), unit = pow(10, (double)digits);
	if (text_is(method, "ceil") || text_is(method, "floor")) {
		double whole = text_is(method, "ceil") ? ceil(f * unit) : floor(f * unit);
		if (!isfinite(whole / unit))
			render_fail(r, "round: the precision is out of range");
		return value_float(whole / unit);
	}
	if (!text_is(method, "common"))
		render_fail(r, "round: the method must be common, ceil or floor");
	if (v.kind != VALUE_FLOAT)
		return digits >= 0 ? value_int(value_as_int(v))
				   : value_int(truncated(r, round_decimal(f, digits)));
	return value_float(round_decimal(f, digits));
}

FILTER(tojson)
{
	(void)call;
	return json_dump(r, v, args);
}

FILTER(attribute)
{
	(void)call;
	if (args[0].kind != VALUE_STRING)
		render_fail(r, "attr needs the name of an attribute");
	/* Attributes only, not elements. */
	if (v.kind == VALUE_DICT && !function_find(methods_dict, args[0].s->data, args[0].s->bytes))
		return render_undefined(r, value_type(v), args[0]);
	return attribute_get(r, v, args[0].s);
}

const struct function filters_any[] = {
	{"default", default_value, "default_value,boolean", 0},
	{"d", default_value, "default_value,boolean", 0},
	{"abs", absolute, "", 0},
	{"int", integer, "default,base", 0},
	{"float", real, "default", 0},
	{"round", rounded, "precision,method", 0},
	{"tojson", tojson, "ensure_ascii,indent,separators,sort_keys", 0},
	{"attr", attribute, "name", 1},
	{NULL, NULL, NULL, 0},
};
