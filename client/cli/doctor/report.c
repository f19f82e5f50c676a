#include "client/cli/doctor/doctor.h"

#include "shared/base/columns.h"
#include "shared/base/plural.h"
#include "shared/base/units.h"

enum { TEXT_COLUMN = 32 };

static void print_findings(const struct findings *findings, FILE *to)
{
	for (size_t i = 0; i < findings->n; i++) {
		const struct finding *f = &findings->all[i];

		fprintf(to, "%-8s %-22s ", finding_level_name(f->level), f->name);
		columns_fold(to, f->text, TEXT_COLUMN, TEXT_COLUMN);
		if (!f->todo[0])
			continue;
		fprintf(to, "%*s", TEXT_COLUMN - 3, "");
		fputs("-> ", to);
		columns_fold(to, f->todo, TEXT_COLUMN, TEXT_COLUMN);
	}
}

static void print_rows(const struct prediction *p, bool has_device, FILE *to)
{
	char speed[PREDICT_SPEED_TEXT];

	fprintf(to,
		"\nExpected%s: one session, 512 tokens of context, no drafts\n"
		"      budget  experts  computing ms   disk ms  tokens/s\n",
		has_device ? " on the CPU" : "");
	for (uint32_t i = 0; i < p->n_rows; i++) {
		const struct predict_row *r = &p->rows[i];

		fprintf(to, "%12s  %5.0f %%  %12.2f  %8.2f  %8s%s\n", UNITS_SIZE(r->bytes),
			100 * r->share, r->compute_ms, r->disk_ms,
			predict_speed_text(r->tokens_s, 4, speed),
			r->planned ? "  budget auto" : "");
	}
	if (p->n_rows == 0)
		fprintf(to, "%12s  %7s  %12.2f  %8s  %8s\n", "-", "none", 1e3 / p->tokens_s, "-",
			predict_speed_text(p->tokens_s, 4, speed));
	else
		fputs("A trained model uses some experts again and again: with less than all of "
		      "them it is\nfaster than that.\n",
			to);
}

static void print_drafts(const struct prediction *p, FILE *to)
{
	fputs("\nDrafts: what K drafted tokens cost, and from which acceptance on they pay\n"
	      "   K  a pass costs  pays from\n",
		to);
	for (int i = 0; i < PREDICT_DRAFTS; i++) {
		const struct predict_draft *d = &p->drafts[i];

		fprintf(to, "%4u  %6.2f tokens  ", d->k, d->cost);
		if (d->break_even > 1)
			fputs("never\n", to);
		else
			fprintf(to, "%7.0f %%\n", 100 * d->break_even);
	}
}

static void print_settings(const struct doctor *d, FILE *to)
{
	const struct plan *p = &d->plan;

	fprintf(to,
		"\nSettings\n"
		"  threads       0 (%u: one per core within the CPU time)\n"
		"  context       %u%s\n"
		"  sessions_max  %lld\n",
		d->machine.cpus.threads, p->context, p->smaller ? " (more would not fit)" : "",
		(long long)p->sessions);
	if (p->all && p->context_most > p->context)
		fprintf(to,
			"                (all experts still fit with one session of up to %u "
			"tokens)\n",
			p->context_most);
	if (d->model.experts)
		fprintf(to, "  budget        auto (%s, %.0f %% of the experts)\n",
			UNITS_SIZE(p->budget_bytes), 100 * p->share);
	if (d->device)
		fprintf(to, "  device        %s\n", d->device);
	if (d->device_memory)
		fprintf(to, "  device_memory %s\n", d->device_memory);
	if (d->prefix_dir)
		fprintf(to, "  prefix_dir    %s (its buffers take %s)\n", d->prefix_dir,
			UNITS_SIZE(p->disk_bytes));
	fputs("  policy        yield (it measures what drafts cost and bring, and sets K)\n", to);
	fprintf(to, "  draft         %s\n",
		d->has_draft || d->is_head ? d->draft_path
					   : "none (n-grams: repetitions in the text)");
}

static void print_sum(const struct findings *findings, FILE *to)
{
	size_t problems = findings_count(findings, FINDING_PROBLEM);
	size_t advice = findings_count(findings, FINDING_ADVICE);

	fprintf(to, "\n%zu problem%s, %zu piece%s of advice\n", problems, plural(problems), advice,
		plural(advice));
}

void doctor_report(const struct doctor *d, FILE *to)
{
	print_findings(&d->findings, to);
	if (d->has_prediction) {
		print_rows(&d->prediction, d->has_device, to);
		print_drafts(&d->prediction, to);
	}
	if (d->has_model && d->plan.runs)
		print_settings(d, to);
	print_sum(&d->findings, to);
}
