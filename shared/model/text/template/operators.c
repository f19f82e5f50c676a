/* Arithmetic, as in Python: // and % round down, / gives a float, strings and lists add and repeat.
 */
#include "shared/model/text/template/strings.h"

#include <math.h>
#include <string.h>

__attribute__((noreturn)) static void unsupported(
	struct render *r, const char *operator, struct value a, struct value b)
{
	render_need_defined(r, a);
	render_need_defined(r, b);
	render_fail(r, "unsupported operands for %s: '%s' and '%s'", operator, value_type(a),
		value_type(b));
}

__attribute__((noreturn)) static void overflow(struct render *r)
{
	render_fail(r, "an integer does not fit 64 bits");
}

static int64_t floor_divide(struct render *r, int64_t a, int64_t b, int64_t *rest)
{
	if (b == 0)
		render_fail(r, "division by zero");
	if (b == -1) {
		*rest = 0;
		if (a == INT64_MIN)
			overflow(r);
		return -a;
	}
	int64_t q = a / b;
	*rest = a % b;
	if (*rest != 0 && (*rest < 0) != (b < 0)) {
		q--;
		*rest += b;
	}
	return q;
}

static double float_modulo(double a, double b)
{
	double rest = fmod(a, b);
	if (rest != 0 && (rest < 0) != (b < 0))
		return rest + b;
	return rest == 0 ? copysign(0, b) : rest;
}

static struct value power(struct render *r, struct value a, struct value b)
{
	if (!value_is_int(a) || !value_is_int(b) || value_as_int(b) < 0) {
		double x = value_as_float(a), y = value_as_float(b), z = pow(x, y);
		if (x == 0 && y < 0)
			render_fail(r, "0 cannot be raised to a negative power");
		if (isfinite(x) && isfinite(y) && !isfinite(z))
			render_fail(r, "a power is out of range");
		return value_float(z);
	}
	int64_t base = value_as_int(a), exponent = value_as_int(b), result = 1;
	while (exponent) {
		if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
			overflow(r);
		exponent >>= 1;
		if (exponent && __builtin_mul_overflow(base, base, &base))
			overflow(r);
	}
	return value_int(result);
}

static struct value integers(struct render *r, enum node_op op, int64_t a, int64_t b)
{
	int64_t result = 0, rest;
	bool over = false;
	switch (op) {
	case OP_ADD:
		over = __builtin_add_overflow(a, b, &result);
		break;
	case OP_SUB:
		over = __builtin_sub_overflow(a, b, &result);
		break;
	case OP_MUL:
		over = __builtin_mul_overflow(a, b, &result);
		break;
	case OP_FLOORDIV:
		result = floor_divide(r, a, b, &rest);
		break;
	default:
		floor_divide(r, a, b, &result);
		break;
	}
	if (over)
		overflow(r);
	return value_int(result);
}

static struct value numbers(struct render *r, enum node_op op, struct value a, struct value b)
{
	double x = value_as_float(a), y = value_as_float(b);
	if (op == OP_POW)
		return power(r, a, b);
	if (op != OP_DIV && value_is_int(a) && value_is_int(b))
		return integers(r, op, value_as_int(a), value_as_int(b));
	switch (op) {
	case OP_ADD:
		return value_float(x + y);
	case OP_SUB:
		return value_float(x - y);
	case OP_MUL:
		return value_float(x * y);
	default:
		break;
	}
	if (y == 0)
		render_fail(r, "division by zero");
	if (op == OP_DIV)
		return value_float(x / y);
	double rest = float_modulo(x, y);
	if (op == OP_MOD)
		return value_float(rest);
	/* As in CPython: the quotient of what is left without the remainder, rounded down. */
	double quotient = (x - rest) / y, whole = floor(quotient);
	return value_float(
		quotient == 0 ? copysign(0, x / y) : whole + (quotient - whole > 0.5 ? 1 : 0));
}

/* Text that is marked safe stays safe: what is added to it is escaped. */
static struct value add_strings(struct render *r, const struct string *a, const struct string *b)
{
	struct builder out;
	bool markup = a->markup || b->markup;
	builder_init(&out, &r->arena, r->limits->output_bytes);
	builder_reserve(&out, a->bytes + b->bytes);
	builder_string(&out, markup && !a->markup ? strings_escape(r, a) : a);
	builder_string(&out, markup && !b->markup ? strings_escape(r, b) : b);
	struct string *s = builder_finish(&out);
	s->markup = markup;
	return value_string(s);
}

static struct value add_lists(struct render *r, struct value a, struct value b)
{
	struct list *list = list_new(r, a.list->n + b.list->n);
	for (size_t i = 0; i < a.list->n; i++)
		list_add(r, list, a.list->items[i]);
	for (size_t i = 0; i < b.list->n; i++)
		list_add(r, list, b.list->items[i]);
	return value_list(a.kind, list);
}

static struct value repeat(struct render *r, struct value v, int64_t n)
{
	if (n < 0)
		n = 0;
	if (v.kind == VALUE_STRING) {
		struct builder b;
		builder_init(&b, &r->arena, r->limits->output_bytes);
		for (int64_t i = 0; v.s->bytes && i < n; i++) {
			render_charge(r, 1);
			builder_string(&b, v.s);
		}
		struct string *s = builder_finish(&b);
		s->markup = v.s->markup;
		return value_string(s);
	}
	struct list *list = list_new(r, 0);
	for (int64_t k = 0; v.list->n && k < n; k++)
		for (size_t i = 0; i < v.list->n; i++)
			list_add(r, list, v.list->items[i]);
	return value_list(v.kind, list);
}

static bool repeats(struct value v)
{
	return v.kind == VALUE_STRING || v.kind == VALUE_LIST || v.kind == VALUE_TUPLE;
}

struct value operator_binary(struct render *r, enum node_op op, struct value a, struct value b)
{
	static const char *const names[] = {[OP_ADD] = "+",
		[OP_SUB] = "-",
		[OP_MUL] = "*",
		[OP_DIV] = "/",
		[OP_FLOORDIV] = "//",
		[OP_MOD] = "%",
		[OP_POW] = "**"};
	if (value_is_number(a) && value_is_number(b))
		return numbers(r, op, a, b);
	if (op == OP_ADD && a.kind == b.kind && a.kind == VALUE_STRING)
		return add_strings(r, a.s, b.s);
	if (op == OP_ADD && a.kind == b.kind && (a.kind == VALUE_LIST || a.kind == VALUE_TUPLE))
		return add_lists(r, a, b);
	if (op == OP_MUL && repeats(a) && value_is_int(b))
		return repeat(r, a, value_as_int(b));
	if (op == OP_MUL && repeats(b) && value_is_int(a))
		return repeat(r, b, value_as_int(a));
	if (op == OP_MOD && a.kind == VALUE_STRING)
		return format_percent(r, a.s, b);
	unsupported(r, names[op], a, b);
}

struct value operator_negate(struct render *r, struct value v)
{
	render_need_defined(r, v);
	if (v.kind == VALUE_FLOAT)
		return value_float(-v.f);
	if (!value_is_int(v))
		render_fail(r, "bad operand for unary -: '%s'", value_type(v));
	if (value_as_int(v) == INT64_MIN)
		overflow(r);
	return value_int(-value_as_int(v));
}
