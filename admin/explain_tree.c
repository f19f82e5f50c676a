/* outriderctl policy explain: the last draft of the session whose tokens the verifier took by what
 * they cost (services/verifier/pass/node_pick.h). */
#include "admin/ctl.h"

#include "shared/base/columns.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* By enum pick_why. */
static const char *const reasons[] = {"taken", "costs more than it brings", "behind one left out"};
enum { REASONS = sizeof(reasons) / sizeof(*reasons), INDENT_MAX = 24 };

static const char *reason_of(const Outrider__DraftTreeNode *node)
{
	return node->why < REASONS ? reasons[node->why] : "for a reason that is not known here";
}

static bool is_taken(const Outrider__DraftTreeNode *node)
{
	return node->why == 0;
}

static uint32_t n_taken(const Outrider__DraftTree *tree)
{
	uint32_t n = 0;

	for (size_t i = 0; i < tree->n_nodes; i++)
		n += is_taken(tree->nodes[i]);
	return n;
}

static json_t *text_of(const Outrider__DraftTreeNode *node)
{
	char text[128] = "";
	size_t bytes = node->text.len < sizeof(text) ? node->text.len : sizeof(text) - 1;

	if (bytes > 0)
		memcpy(text, node->text.data, bytes);
	return json_text(text);
}

static json_t *node_json(const Outrider__DraftTreeNode *node)
{
	bool weighed = node->why != 2;

	return json_pack("{s:I,s:o,s:I,s:f,s:f,s:o,s:o,s:o,s:o,s:b,s:s}", "token",
		(json_int_t)node->token, "text", text_of(node), "parent", (json_int_t)node->parent,
		"confidence", (double)node->confidence, "chance", (double)node->chance, "cost_us",
		weighed ? json_real((double)node->cost_ns / 1e3) : json_null(), "experts_in_slots",
		weighed ? json_integer(node->in_slots) : json_null(), "experts_in_flight",
		weighed ? json_integer(node->in_flight) : json_null(), "experts_to_load",
		weighed ? json_integer(node->to_load) : json_null(), "taken", is_taken(node), "why",
		reason_of(node));
}

json_t *ctl_tree_json(const Outrider__DraftTree *tree)
{
	if (tree == NULL)
		return json_null();
	json_t *nodes = json_array();

	for (size_t i = 0; i < tree->n_nodes; i++)
		json_array_append_new(nodes, node_json(tree->nodes[i]));
	return json_pack("{s:I,s:s,s:f,s:f,s:f,s:f,s:I,s:o}", "iteration",
		(json_int_t)tree->iteration, "method", tree->method, "token_us",
		(double)tree->token_ns / 1e3, "row_us", (double)tree->row_ns / 1e3, "expert_us",
		(double)tree->expert_ns / 1e3, "load_us", (double)tree->load_ns / 1e3, "taken",
		(json_int_t)n_taken(tree), "nodes", nodes);
}

static void print_node(const Outrider__DraftTreeNode *node, int depth)
{
	json_t *text = text_of(node);
	char *quoted = json_dumps(text, JSON_ENCODE_ANY);
	int indent = depth < INDENT_MAX ? depth : INDENT_MAX;

	printf("  %c %5.1f%% ", is_taken(node) ? '*' : ' ', 100 * (double)node->chance);
	if (node->why == 2)
		printf("%9s %5s %6s %4s", "", "", "", "");
	else
		printf("%9.1f %5u %6u %4u", (double)node->cost_ns / 1e3, node->in_slots,
			node->in_flight, node->to_load);
	printf("  %*s%s%s%s\n", indent, "", quoted ? quoted : "", is_taken(node) ? "" : "  ",
		is_taken(node) ? "" : reason_of(node));
	free(quoted);
	json_decref(text);
}

/* The children of `parent`, each followed by what is behind it. Nothing from the message ends the
 * program: a node whose parent does not come before it is shown nowhere. */
static void print_behind(const Outrider__DraftTree *tree, int32_t parent, int depth)
{
	for (size_t i = parent < 0 ? 0 : (size_t)parent + 1; i < tree->n_nodes; i++) {
		if (tree->nodes[i]->parent != parent)
			continue;
		print_node(tree->nodes[i], depth);
		print_behind(tree, (int32_t)i, depth + 1);
	}
}

void ctl_print_tree(const Outrider__DraftTree *tree)
{
	char head[320];

	if (tree == NULL)
		return;
	snprintf(head, sizeof(head),
		"The last draft that was judged (iteration %" PRIu64 ", %s): %u of %zu tokens were "
		"verified. A token is worth %.0f us; a row of the pass costs %.1f us, an expert "
		"%.2f us, and %.1f us more if it must be loaded.",
		tree->iteration, tree->method, n_taken(tree), tree->n_nodes,
		(double)tree->token_ns / 1e3, (double)tree->row_ns / 1e3,
		(double)tree->expert_ns / 1e3, (double)tree->load_ns / 1e3);
	fputs("\n  ", stdout);
	columns_fold(stdout, head, 2, 2);
	puts("\n    CHANCE   COST US SLOTS FLIGHT LOAD  TOKEN");
	print_behind(tree, -1, 0);
}
