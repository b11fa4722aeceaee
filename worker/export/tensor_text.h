/* A checkpoint's names and shapes for people and for JSON. */
#ifndef WORKER_EXPORT_TENSOR_TEXT_H
#define WORKER_EXPORT_TENSOR_TEXT_H

#include <cJSON.h>

#include "ps/checkpoint/safetensors.h"

enum { TENSOR_SHAPE_TEXT = 96 };

/* "[784,500]" */
void tensor_shape_text(const struct safetensors_tensor *tensor, char text[TENSOR_SHAPE_TEXT]);
cJSON *tensor_shape_json(const struct safetensors_tensor *tensor);

/* A name or value of the header as an unescaped C string, which the caller frees; NULL if out of memory. */
char *tensor_copy_text(const struct safetensors_text *text);

#endif
