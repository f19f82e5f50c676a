/*
 * `outrider doctor`: everything it knows after it has looked, which the report and the configuration are written from. The
 * command (client/cli/doctor.c) fills it in, in this order; one thread.
 */
#pragma once

#include "client/cli/doctor/finding.h"
#include "client/cli/doctor/machine.h"
#include "client/cli/doctor/plan.h"
#include "client/cli/doctor/predict.h"
#include "client/cli/doctor/storage.h"

#include <jansson.h>
#include <stdio.h>

struct doctor_file_error {
	int code; /* 0: none; -errno */
	struct error text;
};

struct doctor {
	struct machine machine;
	struct findings findings;
	const char *model_path, *draft_path; /* as they were given, or NULL */
	bool has_model, has_draft; /* they could be opened */
	struct facts model, draft;
	struct doctor_file_error model_error, draft_error; /* why not */
	struct storage storage; /* of the model */
	struct plan plan; /* with a model */
	bool has_measured, has_prediction;
	struct measured measured;
	struct prediction prediction;
};

/* model.c: opens the files and plans, once the machine has been read; then says what there is to say of the files, and how they
 * fit this machine. */
void doctor_open_files(struct doctor *doctor);
void doctor_judge_files(struct doctor *doctor);
void doctor_close(struct doctor *doctor);

/* speed.c: measures, says what that means, and predicts. */
void doctor_measure(struct doctor *doctor);

/* report.c, report_json.c. The caller owns the JSON; NULL: no memory. */
void doctor_report(const struct doctor *doctor, FILE *to);
json_t *doctor_json(const struct doctor *doctor);

/* settings.c: the files that the services read, in directory, which is made when it is not there. None is replaced without
 * force, and either all are written or none. -errno with the file's name. */
int doctor_write(const struct doctor *doctor, const char *directory, bool force, struct error *err);
