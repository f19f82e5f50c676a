/* The commands of outrider-model that only read the model file. argv[0] is the command; each
 * returns an exit status. */
#pragma once

int command_info(int argc, char **argv);
int command_tokenize(int argc, char **argv);
int command_check(int argc, char **argv);
int command_pack(int argc, char **argv);
int command_synth(int argc, char **argv);
int command_render(int argc, char **argv);
