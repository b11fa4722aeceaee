/* Names in a checkpoint are not NUL-terminated; here they become text and JSON. */
#include "worker/export/tensor_text.h"
#include "base/text/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void tensor_shape_text(const struct safetensors_tensor *tensor, char text[TENSOR_SHAPE_TEXT])
{
    size_t used = (size_t)snprintf(text, TENSOR_SHAPE_TEXT, "[");
    for (int i = 0; i < tensor->dimensions; i++) {
        used +=
            (size_t)snprintf(text + used, TENSOR_SHAPE_TEXT - used, "%s%" PRId64, i > 0 ? "," : "", tensor->shape[i]);
    }
    snprintf(text + used, TENSOR_SHAPE_TEXT - used, "]");
}

cJSON *tensor_shape_json(const struct safetensors_tensor *tensor)
{
    cJSON *shape = cJSON_CreateArray();
    for (int i = 0; i < tensor->dimensions; i++) {
        json_append(shape, cJSON_CreateNumber((double)tensor->shape[i]));
    }
    return shape;
}

char *tensor_copy_text(const struct safetensors_text *text)
{
    return strndup(text->bytes, text->size);
}
