#include "services/gateway/page.h"

#include "services/gateway/exchange.h"

/* The assembler includes a file as it is. Paths are relative to the root of the tree, where
 * everything is built. */
/* NOLINTBEGIN(bugprone-macro-parentheses): a name that is declared cannot stand in parentheses. */
#define FILE_IN_PROGRAM(name, path)                                                       \
	__asm__(".pushsection .rodata\n" #name ":\n.incbin \"services/gateway/page/" path \
		"\"\n" #name "_end:\n.popsection\n");                                     \
	extern const char name[] __attribute__((visibility("hidden")));                   \
	extern const char name##_end[] __attribute__((visibility("hidden")))
/* NOLINTEND(bugprone-macro-parentheses) */

FILE_IN_PROGRAM(file_html, "index.html");
FILE_IN_PROGRAM(file_script, "page.js");
FILE_IN_PROGRAM(file_style, "page.css");
FILE_IN_PROGRAM(file_icon, "icon.svg");

const char page_policy[] =
	"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
	"connect-src 'self'; base-uri 'none'; form-action 'none'; "
	"frame-ancestors 'none'";

static bool give(struct exchange *exchange, const char *begin, const char *end)
{
	text_add(&exchange->out, begin, (size_t)(end - begin));
	exchange->complete = true;
	return !exchange->out.failed ||
	       fault_set(&exchange->fault, 500, NULL, "internal_error", "no memory for the answer");
}

bool page_html(struct exchange *exchange)
{
	return give(exchange, file_html, file_html_end);
}

bool page_script(struct exchange *exchange)
{
	return give(exchange, file_script, file_script_end);
}

bool page_style(struct exchange *exchange)
{
	return give(exchange, file_style, file_style_end);
}

bool page_icon(struct exchange *exchange)
{
	return give(exchange, file_icon, file_icon_end);
}
