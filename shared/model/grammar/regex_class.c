#include "shared/model/grammar/regex_class.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static void add_all(
	struct rules *builder, struct charset *set, const struct charset_range *ranges, size_t n)
{
	for (size_t i = 0; i < n; i++)
		charset_add(builder, set, ranges[i].lo, ranges[i].hi);
}

/* ECMA-262, sections 22.2.2.9 and 12.2. */
bool regex_class_letter(struct rules *builder, struct charset *set, char letter)
{
	static const struct charset_range digits[] = {{'0', '9'}},
					  words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'},
						  {'a', 'z'}},
					  spaces[] = {{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0},
						  {0x1680, 0x1680}, {0x2000, 0x200A},
						  {0x2028, 0x2029}, {0x202F, 0x202F},
						  {0x205F, 0x205F}, {0x3000, 0x3000},
						  {0xFEFF, 0xFEFF}};

	switch (letter) {
	case 'd':
		add_all(builder, set, digits, 1);
		return true;
	case 'w':
		add_all(builder, set, words, sizeof(words) / sizeof(*words));
		return true;
	case 's':
		add_all(builder, set, spaces, sizeof(spaces) / sizeof(*spaces));
		return true;
	default:
		return false;
	}
}

void regex_class_dot(struct rules *builder, struct charset *set)
{
	charset_add(builder, set, '\n', '\n');
	charset_add(builder, set, '\r', '\r');
	charset_add(builder, set, 0x2028, 0x2029);
	charset_negate(builder, set);
}

static const struct {
	const char *name, *text;
} categories[] = {
	[UTF8PROC_CATEGORY_CN] = {"Cn", "Unassigned"},
	[UTF8PROC_CATEGORY_LU] = {"Lu", "Uppercase_Letter"},
	[UTF8PROC_CATEGORY_LL] = {"Ll", "Lowercase_Letter"},
	[UTF8PROC_CATEGORY_LT] = {"Lt", "Titlecase_Letter"},
	[UTF8PROC_CATEGORY_LM] = {"Lm", "Modifier_Letter"},
	[UTF8PROC_CATEGORY_LO] = {"Lo", "Other_Letter"},
	[UTF8PROC_CATEGORY_MN] = {"Mn", "Nonspacing_Mark"},
	[UTF8PROC_CATEGORY_MC] = {"Mc", "Spacing_Mark"},
	[UTF8PROC_CATEGORY_ME] = {"Me", "Enclosing_Mark"},
	[UTF8PROC_CATEGORY_ND] = {"Nd", "Decimal_Number"},
	[UTF8PROC_CATEGORY_NL] = {"Nl", "Letter_Number"},
	[UTF8PROC_CATEGORY_NO] = {"No", "Other_Number"},
	[UTF8PROC_CATEGORY_PC] = {"Pc", "Connector_Punctuation"},
	[UTF8PROC_CATEGORY_PD] = {"Pd", "Dash_Punctuation"},
	[UTF8PROC_CATEGORY_PS] = {"Ps", "Open_Punctuation"},
	[UTF8PROC_CATEGORY_PE] = {"Pe", "Close_Punctuation"},
	[UTF8PROC_CATEGORY_PI] = {"Pi", "Initial_Punctuation"},
	[UTF8PROC_CATEGORY_PF] = {"Pf", "Final_Punctuation"},
	[UTF8PROC_CATEGORY_PO] = {"Po", "Other_Punctuation"},
	[UTF8PROC_CATEGORY_SM] = {"Sm", "Math_Symbol"},
	[UTF8PROC_CATEGORY_SC] = {"Sc", "Currency_Symbol"},
	[UTF8PROC_CATEGORY_SK] = {"Sk", "Modifier_Symbol"},
	[UTF8PROC_CATEGORY_SO] = {"So", "Other_Symbol"},
	[UTF8PROC_CATEGORY_ZS] = {"Zs", "Space_Separator"},
	[UTF8PROC_CATEGORY_ZL] = {"Zl", "Line_Separator"},
	[UTF8PROC_CATEGORY_ZP] = {"Zp", "Paragraph_Separator"},
	[UTF8PROC_CATEGORY_CC] = {"Cc", "Control"},
	[UTF8PROC_CATEGORY_CF] = {"Cf", "Format"},
	[UTF8PROC_CATEGORY_CS] = {"Cs", "Surrogate"},
	[UTF8PROC_CATEGORY_CO] = {"Co", "Private_Use"},
};
enum { CATEGORIES = sizeof(categories) / sizeof(*categories) };

/* "Letter" is "L": stands for all categories whose names begin with the letter. */
static char group_of(const char *name, size_t bytes)
{
	static const char *const groups[] = {
		"Letter", "Mark", "Number", "Punctuation", "Symbol", "Z", "C"};
	static const char letters[] = "LMNPSZC";

	for (size_t i = 0; i < sizeof(groups) / sizeof(*groups); i++)
		if ((bytes == 1 && *name == letters[i]) ||
			(strlen(groups[i]) == bytes && memcmp(groups[i], name, bytes) == 0))
			return letters[i];
	if (bytes == 9 && memcmp(name, "Separator", 9) == 0)
		return 'Z';
	return bytes == 5 && memcmp(name, "Other", 5) == 0 ? 'C' : 0;
}

bool regex_class_category(
	struct rules *builder, struct charset *set, const char *name, size_t bytes)
{
	bool wanted[CATEGORIES] = {false}, any = false, in = false;
	char group = group_of(name, bytes);
	uint32_t from = 0;

	for (size_t i = 0; i < CATEGORIES; i++) {
		const char *one = categories[i].name, *text = categories[i].text;

		wanted[i] = (group != 0 && one[0] == group) ||
			    (strlen(one) == bytes && memcmp(one, name, bytes) == 0) ||
			    (strlen(text) == bytes && memcmp(text, name, bytes) == 0);
		any |= wanted[i];
	}
	for (uint32_t code = 0; any && code <= CHARSET_LAST + 1; code++) {
		bool now =
			code <= CHARSET_LAST && wanted[utf8proc_category((utf8proc_int32_t)code)];

		if (now && !in)
			from = code;
		if (!now && in)
			charset_add(builder, set, from, code - 1);
		in = now;
	}
	return any;
}
