/*
 * `outrider doctor`: all its results, from which the report and the configuration are written. The
 * command (client/cli/doctor.c) fills them in, in this order; one thread.
 */
#pragma once

#include "client/cli/doctor/device.h"
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
	const char *device; /* the same; NULL: auto, and nothing is written of it */
	const char *device_memory; /* the most of the device's memory, likewise */
	const char *prefix_dir; /* or NULL */
	bool has_model, has_draft; /* they could be opened */
	bool is_head; /* the draft is an EAGLE-3 head for the model, so it has no facts */
	struct facts model, draft;
	struct doctor_file_error model_error, draft_error; /* why they could not be opened */
	struct storage storage; /* of the model */
	struct plan plan; /* with a model */
	bool has_device; /* with a model, and a device that can be used */
	struct device_plan on_device;
	bool has_measured, has_prediction;
	struct measured measured;
	struct prediction prediction;
};

/* model.c: doctor_open_files opens the files and plans, after the machine was read;
 * doctor_judge_files adds findings about the files, and how they fit this machine. */
void doctor_open_files(struct doctor *doctor);
void doctor_judge_files(struct doctor *doctor);
void doctor_close(struct doctor *doctor);

/* device_judge.c: plans for the device with the sessions and the context of the plan, and adds a finding
 * about it if there is one. */
void doctor_judge_device(struct doctor *doctor);

/* speed.c: measures, adds findings about the results, and predicts. */
void doctor_measure(struct doctor *doctor);

/* report.c, report_json.c. The caller owns the JSON; NULL: memory is exhausted. */
void doctor_report(const struct doctor *doctor, FILE *to);
json_t *doctor_json(const struct doctor *doctor);

/* settings.c: writes the files that the services read to `directory`, which is made if it does not
 * exist. Without force no file is replaced, and either all are written or none. -errno with the
 * file's name. */
int doctor_write(const struct doctor *doctor, const char *directory, bool force, struct error *err);
