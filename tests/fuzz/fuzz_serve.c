/*
 * Prediction requests as arbitrary bytes: both JSON protocols, binary tensors after their JSON, and posted files. Each
 * is refused with a reason, or becomes rows with finite inputs and valid categories; answers are valid JSON, or JSON of
 * the stated length followed by tensors of the stated sizes.
 *
 * The first byte chooses the protocol and the model, the next two where the JSON ends (0: with the body).
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "base/text/json.h"
#include "observe/http/internal.h"
#include "serve/protocol.h"
#include "tests/serve/models.h"
#include "worker/engine.h"

static const struct protocol *const protocols[] = {&protocol_open_inference, &protocol_tensorflow_predict,
                                                   &protocol_tensorflow_classify, &protocol_plain};

size_t cpu_engine_most_bytes(const struct model *model)
{
    return 0;
}

/* The code that loads models is linked, but nothing is loaded: engines are not decoders (tests/fuzz.mk). */
bool cpu_engine_create(struct engine **engine, const struct engine_options *options, struct error *error)
{
    *engine = NULL;
    return error_set(error, "there are no engines here");
}

/* The limit below, what growing copies, and constants: a reader's buffers, a batch of rows, intakes kept. */
FUZZ_MEMORY(2 * HTTP_TIMES, 3 * 1024 * 1024)

static void check_rows(const struct examples *rows)
{
    for (int i = 0; i < rows->count * rows->numbers; i++) {
        assert(isfinite(rows->values[i]));
    }
    for (int i = 0; i < rows->count * rows->codes; i++) {
        assert(rows->places[i] == -1 || (rows->places[i] >= 0 && rows->places[i] < rows->inputs - rows->numbers));
    }
}

static void check_answer(const struct call *call, const char *type, const char *headers, const char *bytes, size_t size)
{
    struct json_place place;
    struct error error;
    size_t json_size = size;
    if (strcmp(type, "application/octet-stream") == 0) {
        assert(sscanf(headers, "Inference-Header-Content-Length: %zu", &json_size) == 1 && json_size <= size);
    }
    if (strncmp(type, "text/csv", 8) != 0) {
        assert(json_check(bytes, json_size, &place, &error));
    }
}

static void answer_call(struct call *call, struct intake *intake)
{
    char headers[512] = "";
    struct error error;
    const size_t count = (size_t)intake->examples.count;
    float *outputs = calloc(2 * count + 1, sizeof *outputs);
    const struct answers answers = {.version = call->version, .outputs = outputs, .count = (int)count};
    assert(adding_forward(NULL, false, &intake->examples, 0, (int)count, outputs, &error));
    size_t size;
    const char *type = call->protocol->write(call, &answers, &call->text, headers);
    const size_t charged = call->text.room;
    char *bytes = text_buffer_take(&call->text, &size);
    if (bytes && !call->tail.failed) {
        assert(type);
        check_answer(call, type, headers, bytes, size);
        budget_release(call->account, charged);
    } else {
        assert(budget_refusal(call->account) == BUDGET_NEVER);
    }
    text_buffer_free(&call->tail);
    free(bytes);
    free(outputs);
}

/* The header with the length of the JSON, as a server's request has it. */
static void set_length(struct http_request *request, char head[64], uint16_t length)
{
    static const char name[] = "inference-header-content-length";
    memset(request, 0, sizeof *request);
    if (length > 0) {
        memcpy(head, name, sizeof name);
        snprintf(head + sizeof name, 64 - sizeof name, "%u", (unsigned)length - 1);
        request->head = head;
        request->headers[request->header_count++] = (struct header){.name = 0, .value = sizeof name};
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct version pictures, table;
    static struct engine *engines[2], engine;
    static struct schema schema;
    static struct intake intake;
    static struct served served = {.name = "model"};
    struct http_request request;
    struct input input = input_of(bytes, size);
    struct error error = {""};
    char head[64];
    if (!engine.table) {
        make_version(&pictures, &engines[0], &engine, 1);
        make_version(&table, &engines[1], &engine, 1);
        make_schema(&schema);
        table.trained.schema = &schema;
        assert(version_sort_columns(&table, &error));
        assert(drift_begin(&table.drift, &table.trained, &error));
    }
    const uint8_t choice = input_byte(&input);
    const uint16_t low = input_byte(&input), length = (uint16_t)(low | input_byte(&input) << 8);
    set_length(&request, head, length);
    /* As in a server with --max_memory_mb=4; everything must be charged, or FUZZ_MEMORY tells. */
    struct budget budget = {.most = (size_t)1 << 30};
    struct budget_account account = {.budget = &budget, .most = ((size_t)1 << 20) + HTTP_TIMES * size};
    struct call call = {.request = &request,
                        .account = &account,
                        .text = {.account = &account},
                        .tail = {.account = &account},
                        .served = &served,
                        .version = choice & 4 ? &table : &pictures,
                        .protocol = protocols[choice & 3]};
    call.body = input_bytes(&input, size, &call.size);
    assert(intake_begin(&intake, 0, call.version, &error));
    intake_charge(&intake, call.account);
    if (call.protocol->read(&call, &intake, &error)) {
        check_rows(&intake.examples);
        answer_call(&call, &intake);
    } else {
        check_beginning(&error, ""); /* it may quote names of the body, which the answer's JSON escapes */
    }
    if (call.protocol->forget) {
        call.protocol->forget(&call);
    }
    free(call.format);
    text_buffer_free(&call.text);
    text_buffer_free(&call.tail);
    intake_shrink(&intake);
    assert(atomic_load(&account.used) == call.charged + intake.charged);
    return 0;
}
