/* Files in forms, as browsers and `curl -F file=@new.csv` post them: multipart/form-data, RFC 7578. */
#ifndef SERVE_FORM_H
#define SERVE_FORM_H

#include "serve/work.h"

/*
 * Sets the call's body to the form's file: the only part with a file's name, or the only part. Other bodies stay. False
 * also if the content type names an encoding of text other than UTF-8.
 */
bool form_open(struct call *call, struct error *error);

#endif
