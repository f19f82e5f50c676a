/* The setting that describes classes of requests. */
#include "shared/spec/classes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct request_classes classes;

static void refused(const char *text, const char *words)
{
	struct error err = {.text = ""};

	assert_int_equal(classes_read(text, &classes, &err), -EINVAL);
	if (strstr(err.text, words) == NULL)
		fail_msg("\"%s\" for \"%s\" lacks \"%s\"", err.text, text, words);
}

static void classes_have_names_priorities_and_targets(void **state)
{
	char names[256];

	(void)state;
	assert_int_equal(classes_read(" chat priority=10 ttft=1s\ttpot=50ms, batch priority=-7",
				 &classes, NULL),
		0);
	assert_int_equal(classes.n, 3);
	assert_string_equal(classes.at[1].name, "chat");
	assert_int_equal(classes.at[1].priority, 10);
	assert_int_equal(classes.at[1].tpot_ns, 50000000);
	assert_int_equal(classes.at[1].ttft_ns, 1000000000);
	assert_ptr_equal(classes_find(&classes, "batch"), &classes.at[2]);
	assert_int_equal(classes.at[2].priority, -7);
	assert_int_equal(classes.at[2].tpot_ns, 0);
	classes_names(&classes, names, sizeof(names));
	assert_string_equal(names, "default, chat, batch");
}

static void the_default_is_always_there_and_may_be_described(void **state)
{
	(void)state;
	assert_int_equal(classes_read("", &classes, NULL), 0);
	assert_int_equal(classes.n, 1);
	assert_ptr_equal(classes_find(&classes, ""), &classes.at[0]);
	assert_ptr_equal(classes_find(&classes, "default"), &classes.at[0]);
	assert_null(classes_find(&classes, "chat"));
	assert_int_equal(classes_read("a, default priority=1", &classes, NULL), 0);
	assert_int_equal(classes.n, 2);
	assert_int_equal(classes_find(&classes, "")->priority, 1);
}

static void what_is_wrong_is_named(void **state)
{
	(void)state;
	classes.n = 77;
	refused("chat priority=101", "priority=101 of chat: allowed are -100 to 100");
	refused("chat priority=", "priority= of chat");
	refused("chat priority=1x", "priority=1x of chat");
	refused("chat tpot=0", "tpot=0 of chat");
	refused("chat ttft=2h", "ttft=2h of chat");
	refused("chat speed=3", "\"speed=3\" of chat");
	refused("chat, chat", "chat occurs twice");
	refused("chat,,batch priority", "\"priority\" of batch");
	refused("ch@t", "\"ch@t\" is not a class");
	refused("abcdefghijklmnopqrstuvwxyz0123456", "is not a class");
	refused("a,b,c,d,e,f,g,h", "more than 8, with default");
	/* Unchanged. */
	assert_int_equal(classes.n, 77);
}

static void a_class_from_a_page_is_checked(void **state)
{
	struct request_class one = {.name = "chat"};
	struct error err;

	(void)state;
	assert_int_equal(classes_check(&one, &err), 0);
	one.priority = 101;
	assert_int_equal(classes_check(&one, &err), -EINVAL);
	one.priority = 0;
	one.tpot_ns = UINT64_MAX;
	assert_int_equal(classes_check(&one, &err), -EINVAL);
	one.tpot_ns = 0;
	memset(one.name, 'a', sizeof(one.name));
	assert_int_equal(classes_check(&one, &err), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(classes_have_names_priorities_and_targets),
		cmocka_unit_test(the_default_is_always_there_and_may_be_described),
		cmocka_unit_test(what_is_wrong_is_named),
		cmocka_unit_test(a_class_from_a_page_is_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
