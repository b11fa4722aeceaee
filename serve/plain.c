/*
 * Plain posts: what curl --data-binary sends of a file, answered as `trainer predict` answers for that file. Rows (CSV,
 * TSV, NPY) come back as CSV with what the model says behind them; pictures (PNG, BMP, PGM) as JSON.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/protocol.h"
#include "worker/data/image/fit.h"
#include "worker/data/image/image.h"
#include "worker/export/outcome.h"
#include "worker/export/predict_rows.h"

enum { TOP = 3 };

/* Rows are answered while they are read. */
struct table_answer {
    char *csv;
    size_t size;
};

static bool read_rows(struct call *call, struct intake *intake, struct error *error)
{
    struct table_answer form = {0};
    FILE *out = open_memstream(&form.csv, &form.size);
    if (!out) {
        return error_set(error, "out of memory for the answer");
    }
    const struct version *version = call->version;
    bool done = predict_rows_bytes(&version->trained, version->engines[intake->worker], "body", call->body, call->size,
                                   out, error);
    fclose(out);
    call->format = done ? malloc(sizeof form) : NULL;
    if (!call->format) {
        free(form.csv);
        return done ? error_set(error, "out of memory for the answer") : false;
    }
    memcpy(call->format, &form, sizeof form);
    return true;
}

static bool read_picture(struct call *call, struct intake *intake, struct error *error)
{
    const int inputs = version_inputs(call->version);
    struct image image;
    if (!image_decode(&image, call->body, call->size, error)) {
        return false;
    }
    uint8_t *pixels = malloc((size_t)inputs);
    bool done = pixels ? image_fit_inputs(&image, inputs, pixels, error) && intake_add_bytes(intake, pixels, error)
                       : error_set(error, "out of memory for the picture");
    free(pixels);
    image_free(&image);
    return done;
}

static bool read_call(struct call *call, struct intake *intake, struct error *error)
{
    if (!version_is_of_pictures(call->version)) {
        return read_rows(call, intake, error);
    }
    if (!image_is_known(call->body, call->size)) {
        return error_set(error, "the body is no picture (PNG, BMP or PGM), and the model was trained on pictures");
    }
    return read_picture(call, intake, error);
}

static const char *write_rows(struct call *call, struct text *body)
{
    struct table_answer *form = call->format;
    text_add_bytes(body, form->csv, form->size);
    free(form->csv);
    form->csv = NULL;
    return "text/csv; charset=utf-8";
}

static int likeliest(const struct outcome *outcome, const bool *taken)
{
    int best = -1;
    for (int i = 0; i < outcome->count; i++) {
        if (!taken[i] && (best < 0 || outcome->values[i] > outcome->values[best])) {
            best = i;
        }
    }
    return best;
}

static const char *write_answer(struct call *call, const struct answers *answers, struct text *body, char headers[512])
{
    const struct trained *trained = &answers->version->trained;
    struct outcome outcome;
    (void)headers;
    if (call->format) {
        return write_rows(call, body);
    }
    bool *taken = calloc((size_t)outcome_count(trained), sizeof *taken);
    if (!taken || !outcome_create(&outcome, trained)) {
        free(taken);
        body->failed = true;
        return NULL;
    }
    outcome_find(trained, answers->outputs, answers->wanted, 0, &outcome);
    json_open(body, NULL, '{');
    json_string(body, "model", call->served->name);
    json_integer(body, "version", answers->version->number);
    json_integer(body, "class", outcome.best);
    json_open(body, "top", '[');
    for (int i = 0; i < TOP && i < outcome.count; i++) {
        const int best = likeliest(&outcome, taken);
        taken[best] = true;
        json_open(body, NULL, '{');
        json_integer(body, "class", best);
        json_number(body, "probability", outcome.values[best]);
        json_close(body, '}');
    }
    json_close(body, ']');
    json_close(body, '}');
    outcome_free(&outcome);
    free(taken);
    return "application/json";
}

/* What was not written. */
static void forget(struct call *call)
{
    struct table_answer *form = call->format;
    if (form) {
        free(form->csv);
    }
}

const struct protocol protocol_plain = {.read = read_call, .write = write_answer, .forget = forget};
