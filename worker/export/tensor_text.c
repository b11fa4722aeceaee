/* Names in a checkpoint are not NUL-terminated; here they become text and JSON. */
#include "worker/export/tensor_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/json.h"

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
    cJSON *string = cJSON_ParseWithLength(text->bytes - 1, text->size + 2); /* with the quotes around it */
    char *copy = cJSON_IsString(string) ? strdup(string->valuestring) : strndup(text->bytes, text->size);
    cJSON_Delete(string);
    return copy;
}
