/* From JSON to values of the template language. The other direction, tojson, is json_dump in
 * render.h. */
#pragma once

#include "shared/model/text/template/render.h"

/* Puts every member of a JSON object (NULL: none) into dict. trusted: its strings may be special
 * tokens. Strings are borrowed. */
void json_load_members(struct render *r, struct dict *dict, const json_t *object, bool trusted);
