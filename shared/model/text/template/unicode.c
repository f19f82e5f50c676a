#include "shared/model/text/template/unicode.h"

#include <wctype.h>

static locale_t locale(struct render *r)
{
	if (!r->locale)
		r->locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
	if (!r->locale)
		render_fail_code(r, ENOTSUP,
			"the C library has no C.UTF-8 locale, which characters beyond ASCII need");
	return r->locale;
}

bool unicode_is_printable(struct render *r, uint32_t c)
{
	if (c < 0x7F)
		return c >= 0x20;
	/* Format characters count as printable in C. Python escapes them, and other spaces, and
	 * code points that are no characters. */
	if (text_is_space(c) || c == 0xAD || (c >= 0x200B && c <= 0x200F) ||
		(c >= 0x202A && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF ||
		(c >= 0xD800 && c < 0xF900) || (c >= 0xFFF9 && c <= 0xFFFB) || c >= 0xE0000)
		return false;
	return iswprint_l(c, locale(r));
}

bool unicode_is_alpha(struct render *r, uint32_t c)
{
	if (c < 0x80)
		return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
	return iswalpha_l(c, locale(r)) && !iswdigit_l(c, locale(r));
}

bool unicode_is_digit(struct render *r, uint32_t c)
{
	(void)r;
	return c >= '0' && c <= '9';
}

bool unicode_is_upper(struct render *r, uint32_t c)
{
	return c < 0x80 ? c >= 'A' && c <= 'Z' : iswupper_l(c, locale(r));
}

bool unicode_is_lower(struct render *r, uint32_t c)
{
	return c < 0x80 ? c >= 'a' && c <= 'z' : iswlower_l(c, locale(r));
}

static uint32_t change(struct render *r, uint32_t c, enum unicode_case how)
{
	bool up = how == UNICODE_UPPER || how == UNICODE_TITLE;
	if (c < 0x80) {
		bool letter = up ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z';
		return letter ? c ^ 0x20 : c;
	}
	return (uint32_t)(up ? towupper_l(c, locale(r)) : towlower_l(c, locale(r)));
}

void unicode_add(struct render *r, struct builder *b, const struct string *s, size_t from,
	size_t to, enum unicode_case how)
{
	uint32_t code;
	render_charge_text(r, to - from);
	for (size_t n; from < to; from += n) {
		n = text_char(s->data + from, to - from, &code);
		bool literal = text_literal_at(s, from);
		/* The sharp s is the one letter in common use whose other cases are two letters. */
		if (code == 0xDF && how != UNICODE_LOWER)
			builder_add(b,
				how == UNICODE_UPPER   ? "SS"
				: how == UNICODE_TITLE ? "Ss"
						       : "ss",
				2, literal);
		else
			builder_code_point(b, change(r, code, how), literal);
	}
}
