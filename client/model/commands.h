/* The commands of outrider-model that run the model. argv[0] is the command; each returns an exit
 * status. Those that only read the file are in file_commands.h. */
#pragma once

int command_logits(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_routes(int argc, char **argv);
int command_perplexity(int argc, char **argv);
