/* The tests: what can stand behind "is". */
#include "shared/model/text/template/unicode.h"

#define TEST(name)                                                                           \
	static struct value name(struct render *r, struct value v, const struct value *args, \
		const struct call *call)
#define UNUSED ((void)r, (void)args, (void)call)
#define SIMPLE_TEST(name, expression)          \
	TEST(name)                             \
	{                                      \
		UNUSED;                        \
		return value_bool(expression); \
	}

SIMPLE_TEST(is_defined, v.kind != VALUE_UNDEFINED)
SIMPLE_TEST(is_undefined, v.kind == VALUE_UNDEFINED)
SIMPLE_TEST(is_none, v.kind == VALUE_NONE)
SIMPLE_TEST(is_boolean, v.kind == VALUE_BOOL)
SIMPLE_TEST(is_true, v.kind == VALUE_BOOL && v.b)
SIMPLE_TEST(is_false, v.kind == VALUE_BOOL && !v.b)
SIMPLE_TEST(is_integer, v.kind == VALUE_INT)
SIMPLE_TEST(is_float, v.kind == VALUE_FLOAT)
SIMPLE_TEST(is_number, value_is_number(v))
SIMPLE_TEST(is_string, v.kind == VALUE_STRING)
SIMPLE_TEST(is_mapping, v.kind == VALUE_DICT)
SIMPLE_TEST(is_sequence, v.kind == VALUE_STRING || v.kind == VALUE_DICT ||
				 v.kind == VALUE_UNDEFINED || value_is_sequence(v))
SIMPLE_TEST(is_iterable, v.kind == VALUE_STRING || v.kind == VALUE_DICT ||
				 v.kind == VALUE_UNDEFINED || v.kind == VALUE_VIEW ||
				 v.kind == VALUE_ITERATOR || v.kind == VALUE_LOOP ||
				 value_is_sequence(v))
SIMPLE_TEST(is_callable, v.kind == VALUE_MACRO || v.kind == VALUE_FUNCTION ||
				 v.kind == VALUE_METHOD || v.kind == VALUE_LOOP ||
				 v.kind == VALUE_UNDEFINED)
SIMPLE_TEST(is_escaped, v.kind == VALUE_STRING && v.s->markup)
SIMPLE_TEST(is_equal, value_equal(r, v, args[0]))
SIMPLE_TEST(is_not_equal, !value_equal(r, v, args[0]))
SIMPLE_TEST(is_less, value_compare(r, v, args[0], "<") < 0)
SIMPLE_TEST(is_less_equal, value_compare(r, v, args[0], "<=") <= 0)
SIMPLE_TEST(is_greater, value_compare(r, v, args[0], ">") > 0)
SIMPLE_TEST(is_greater_equal, value_compare(r, v, args[0], ">=") >= 0)
SIMPLE_TEST(is_in, value_contains(r, args[0], v))

static const struct string *name_text(struct render *r, struct value v)
{
	if (v.kind == VALUE_LIST || v.kind == VALUE_DICT)
		render_fail(r, "unhashable type: '%s'", value_type(v));
	return v.kind == VALUE_STRING ? v.s : text_literal(&r->arena, "");
}

SIMPLE_TEST(is_filter, filter_find(name_text(r, v)))
SIMPLE_TEST(is_test, test_find(name_text(r, v)))

/* Python's identity: what is equal and cannot be told apart is one object where that matters to
 * templates. */
TEST(is_same)
{
	UNUSED;
	struct value other = args[0];
	if (v.kind != other.kind)
		return value_bool(false);
	switch (v.kind) {
	case VALUE_NONE:
		return value_bool(true);
	case VALUE_BOOL:
		return value_bool(v.b == other.b);
	case VALUE_INT:
		return value_bool(v.i == other.i);
	case VALUE_FLOAT:
		return value_bool(false);
	default:
		return value_bool(v.list == other.list);
	}
}

static int64_t remainder_of(struct render *r, struct value v, struct value by)
{
	struct value rest = operator_binary(r, OP_MOD, v, by);
	if (rest.kind == VALUE_FLOAT)
		return rest.f == 0 ? 0 : rest.f == 1 ? 1 : -1;
	if (rest.kind != VALUE_INT)
		render_fail(r, "this test is for numbers, not '%s'", value_type(v));
	return rest.i;
}

SIMPLE_TEST(is_odd, remainder_of(r, v, value_int(2)) == 1)
SIMPLE_TEST(is_even, remainder_of(r, v, value_int(2)) == 0)
SIMPLE_TEST(is_divisible, remainder_of(r, v, args[0]) == 0)

/* True when s has letters with case, and all of them are in this case. */
static bool has_case(struct render *r, const struct string *s, bool upper)
{
	bool any = false;
	uint32_t code;
	render_charge_text(r, s->bytes);
	for (size_t at = 0; at < s->bytes;) {
		at += text_char(s->data + at, s->bytes - at, &code);
		if (upper ? unicode_is_lower(r, code) : unicode_is_upper(r, code))
			return false;
		any |= upper ? unicode_is_upper(r, code) : unicode_is_lower(r, code);
	}
	return any;
}

SIMPLE_TEST(is_lower, has_case(r, print_text(r, v), false))
SIMPLE_TEST(is_upper, has_case(r, print_text(r, v), true))

const struct function tests[] = {
	{"defined", is_defined, "", 0},
	{"undefined", is_undefined, "", 0},
	{"none", is_none, "", 0},
	{"boolean", is_boolean, "", 0},
	{"true", is_true, "", 0},
	{"false", is_false, "", 0},
	{"integer", is_integer, "", 0},
	{"float", is_float, "", 0},
	{"number", is_number, "", 0},
	{"string", is_string, "", 0},
	{"mapping", is_mapping, "", 0},
	{"sequence", is_sequence, "", 0},
	{"iterable", is_iterable, "", 0},
	{"callable", is_callable, "", 0},
	{"escaped", is_escaped, "", 0},
	{"sameas", is_same, "other", 1},
	{"in", is_in, "seq", 1},
	{"odd", is_odd, "", 0},
	{"even", is_even, "", 0},
	{"divisibleby", is_divisible, "num", 1},
	{"lower", is_lower, "", 0},
	{"upper", is_upper, "", 0},
	{"filter", is_filter, "", 0},
	{"test", is_test, "", 0},
	{"eq", is_equal, "other", 1},
	{"equalto", is_equal, "other", 1},
	{"==", is_equal, "other", 1},
	{"ne", is_not_equal, "other", 1},
	{"!=", is_not_equal, "other", 1},
	{"lt", is_less, "other", 1},
	{"lessthan", is_less, "other", 1},
	{"<", is_less, "other", 1},
	{"le", is_less_equal, "other", 1},
	{"<=", is_less_equal, "other", 1},
	{"gt", is_greater, "other", 1},
	{"greaterthan", is_greater, "other", 1},
	{">", is_greater, "other", 1},
	{"ge", is_greater_equal, "other", 1},
	{">=", is_greater_equal, "other", 1},
	{NULL, NULL, NULL, 0},
};
