/* Parts are found by their boundary; nothing is copied. */
#include "serve/form.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MOST_BOUNDARY = 70 /* by RFC 2046 */, MOST_HEAD = 8192 };

/* A parameter of a content type, "; name=value" or "; name=\"value\"". False: it is not there, or too long. */
static bool parameter(const char *type, const char *name, char *value, size_t size)
{
    const size_t length = strlen(name);
    for (const char *at = strchr(type, ';'); at; at = strchr(at, ';')) {
        at += 1 + strspn(at + 1, " \t");
        if (strncasecmp(at, name, length) != 0 || at[length] != '=') {
            continue;
        }
        at += length + 1;
        const size_t used = *at == '"' ? strcspn(at + 1, "\"") : strcspn(at, "; \t");
        at += *at == '"';
        if (used == 0 || used >= size) {
            return false;
        }
        memcpy(value, at, used);
        value[used] = '\0';
        return true;
    }
    return false;
}

/* The part from `at` on, after its boundary: its headers, and its content up to the next boundary. */
struct part {
    const char *head, *content;
    size_t head_size, size;
};

/* Finds the next part; *at moves behind it. False: there is none. */
static bool next_part(const char **at, const char *end, const char *boundary, struct part *part)
{
    const size_t length = strlen(boundary);
    const char *begin = *at, *head_end;
    if (end - begin < 2 || memcmp(begin, "\r\n", 2) != 0) { /* "--" ends the form */
        return false;
    }
    head_end = memmem(begin, (size_t)(end - begin), "\r\n\r\n", 4);
    if (!head_end || head_end - begin > MOST_HEAD) {
        return false;
    }
    const char *content = head_end + 4;
    const char *behind = memmem(content - 2, (size_t)(end - content) + 2, boundary, length);
    if (!behind) {
        return false;
    }
    *part = (struct part){.head = begin,
                          .content = content,
                          .head_size = (size_t)(head_end - begin),
                          .size = behind > content ? (size_t)(behind - content) : 0};
    *at = behind + length;
    return true;
}

static bool has_file(const struct part *part)
{
    char head[MOST_HEAD + 1];
    memcpy(head, part->head, part->head_size);
    head[part->head_size] = '\0';
    return strcasestr(head, "filename=") || strcasestr(head, "filename*=");
}

static bool take_file(struct call *call, const char *boundary, struct error *error)
{
    const char *at = (const char *)call->body, *const end = at + call->size;
    const size_t length = strlen(boundary);
    struct part part, chosen = {.head = NULL};
    int files = 0, others = 0;
    /* The first boundary has no line before it if it begins the body. */
    if (call->size >= length - 2 && memcmp(at, boundary + 2, length - 2) == 0) {
        at += length - 2;
    } else {
        const char *first = memmem(at, call->size, boundary, length);
        at = first ? first + length : end;
    }
    while (next_part(&at, end, boundary, &part)) {
        const bool is_file = has_file(&part);
        if (is_file || (files == 0 && others == 0)) {
            chosen = part;
        }
        files += is_file;
        others += !is_file;
    }
    if (files > 1 || (files == 0 && others > 1)) {
        return error_set(error, "the form has %d %s; send one file at a time", files + others,
                         files > 1 ? "files" : "fields and no file");
    }
    if (!chosen.head) {
        return error_set(error, "the form is not complete: no part ends with its boundary");
    }
    call->body = (const uint8_t *)chosen.content;
    call->size = chosen.size;
    return true;
}

bool form_open(struct call *call, struct error *error)
{
    const char *type = http_request_header(call->request, "content-type");
    char text[MOST_BOUNDARY + 1], boundary[MOST_BOUNDARY + 8];
    if (!type) {
        return true;
    }
    if (parameter(type, "charset", text, sizeof text) && strcasecmp(text, "utf-8") != 0 &&
        strcasecmp(text, "utf8") != 0 && strcasecmp(text, "us-ascii") != 0) {
        return call_fault(call, 415, error, "charset=%.40s: text is read as UTF-8; convert it, for instance by iconv",
                          text);
    }
    if (strncasecmp(type, "multipart/form-data", 19) != 0) {
        return true;
    }
    if (!parameter(type, "boundary", text, sizeof text)) {
        return error_set(error, "Content-Type %.64s: has no boundary", type);
    }
    snprintf(boundary, sizeof boundary, "\r\n--%s", text);
    return take_file(call, boundary, error);
}
