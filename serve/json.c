/* Bodies and answers in JSON; serve/tensor.c reads the values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text/json.h"
#include "serve/protocol.h"
#include "worker/data/table/number.h"

bool json_open_body(struct json_body *body, struct call *call, size_t size, struct error *error)
{
    const uint8_t *bytes = call->body;
    struct json_place place;
    *body = (struct json_body){.size = size, .call = call};
    if (size == 0) {
        return error_set(error, "the body is empty; docs/serving.md shows requests");
    }
    const char *type = http_request_header(call->request, "content-type");
    if (type && strncasecmp(type, "multipart/", 10) == 0) {
        return call_fault(call, 415, error,
                          "the body is a form (%.40s); send the JSON itself: curl --data-binary @file.json", type);
    }
    if (!json_check_data((const char *)bytes, size, &place, error)) {
        return error_wrap(error, "the body is not JSON: line %d, column %d", place.line, place.column);
    }
    body->root = json_whole((const char *)bytes, size);
    return true;
}

void json_close_body(struct json_body *body)
{
    free(body->texts);
    body->texts = NULL;
}

bool json_text(struct json_value value, char *room, size_t size)
{
    room[0] = '\0';
    if (value.kind != JSON_STRING || value.size > size) {
        return false;
    }
    room[json_unescape(value, room)] = '\0';
    return true;
}

void json_outcome(struct text_buffer *text, const struct outcome *outcome, int index)
{
    const bool is_share = outcome->kind == OUTCOME_CLASS || outcome->kind == OUTCOME_FLAGS;
    json_write_number(text, NULL, is_share ? (double)(float)outcome->values[index] : outcome->values[index]);
}

bool json_count(struct json_value value, int64_t *count)
{
    double number;
    if (value.kind != JSON_NUMBER || number_parse(value.text, value.size, &number) != NUMBER_FINITE ||
        !(number >= 0 && number <= 1 << 30) || number != floor(number)) {
        return false;
    }
    *count = (int64_t)number;
    return true;
}
