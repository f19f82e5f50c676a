#include "shared/base/decimal.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>

static bool is_decimal(const char *text)
{
	while (isspace((unsigned char)*text))
		text++;
	text += *text == '+' || *text == '-';
	if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
		return false;
	return isdigit((unsigned char)text[text[0] == '.']);
}

double decimal_read(const char *text, const char **end)
{
	char *behind;

	*end = text;
	if (!is_decimal(text))
		return 0;
	double value = strtod(text, &behind);
	*end = behind;
	return value;
}
