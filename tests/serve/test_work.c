/* The queue and its workers: what is computed together, which requests are refused, and who is at fault. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "serve/work.h"
#include "tests/check.h"
#include "tests/serve/models.h"

/* --- requests without a server: each remembers its answer --- */

struct fake_request {
    const char *encoding, *accepted; /* of the body; of the answer */
    uint8_t body[512];
    size_t size;
    struct budget_account *account;
    int status;
    char answer[4096], headers[512];
    size_t answer_size;
    sem_t answered;
};

const char *__wrap_http_request_header(const struct http_request *request, const char *name);
bool __wrap_http_request_accepts(const struct http_request *request, const char *header, const char *word);
const uint8_t *__wrap_http_request_body(const struct http_request *request, size_t *size);
struct budget_account *__wrap_http_request_account(struct http_request *request);
void __wrap_http_answer(struct http_request *request, const struct http_answer *answer);
void __wrap_http_answer_error(struct http_request *request, int status, const char *format, ...);

const char *__wrap_http_request_header(const struct http_request *request, const char *name)
{
    return strcmp(name, "content-encoding") == 0 ? ((const struct fake_request *)request)->encoding : NULL;
}

bool __wrap_http_request_accepts(const struct http_request *request, const char *header, const char *word)
{
    const struct fake_request *fake = (const struct fake_request *)request;
    return strcmp(header, "accept-encoding") == 0 && fake->accepted && strcmp(fake->accepted, word) == 0;
}

const uint8_t *__wrap_http_request_body(const struct http_request *request, size_t *size)
{
    const struct fake_request *fake = (const struct fake_request *)request;
    *size = fake->size;
    return fake->body;
}

struct budget_account *__wrap_http_request_account(struct http_request *request)
{
    return ((struct fake_request *)request)->account;
}

void __wrap_http_answer(struct http_request *request, const struct http_answer *answer)
{
    struct fake_request *fake = (struct fake_request *)request;
    fake->status = answer->status;
    fake->answer_size = answer->size + answer->tail_size;
    assert_true(fake->answer_size < sizeof fake->answer);
    memcpy(fake->answer, answer->body, answer->size);
    if (answer->tail_size > 0) {
        memcpy(fake->answer + answer->size, answer->tail, answer->tail_size);
    }
    fake->answer[fake->answer_size] = '\0';
    snprintf(fake->headers, sizeof fake->headers, "%s", answer->headers ? answer->headers : "");
    if (answer->release) {
        answer->release(answer->owner);
    }
    budget_release(fake->account, answer->charged);
    sem_post(&fake->answered);
}

void __wrap_http_answer_error(struct http_request *request, int status, const char *format, ...)
{
    struct fake_request *fake = (struct fake_request *)request;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fake->answer, sizeof fake->answer, format, arguments);
    va_end(arguments);
    fake->status = status;
    sem_post(&fake->answered);
}

/* --- a protocol: images of 4 bytes; "wait" first waits for the test, "bad" is invalid; LENT of them are lent --- */

enum { MOST_BODY = 4 * 64, LENT = 64, TALKATIVE = 8 /* requests of this size have long answers */ };

static sem_t reading, go_on;

static bool fake_read(struct call *call, struct intake *intake, struct error *error)
{
    if (call->size == 5 && memcmp(call->body, "wait", 4) == 0) {
        sem_post(&reading);
        sem_wait(&go_on);
    }
    if (call->size == 3) {
        return error_set(error, "row 0: is bad");
    }
    if (call->size == (size_t)4 * LENT && intake_lend_bytes(intake, call->body, LENT)) {
        return true;
    }
    for (size_t i = 0; i + 4 <= call->size; i += 4) {
        if (!intake_add_bytes(intake, call->body + i, error)) {
            return false;
        }
    }
    return true;
}

static const char *fake_write(struct call *call, const struct answers *answers, struct text_buffer *body,
                              char headers[512])
{
    for (int i = 0; i < answers->count; i++) {
        text_buffer_add(call->size == (size_t)4 * LENT && i > 0 ? &call->tail : body, "%g ",
                        (double)answers->outputs[2 * i]);
    }
    for (int i = 0; call->size == TALKATIVE && call->served->name[0] == 'l' && i < 400; i++) {
        text_buffer_add(body, "%g and ", (double)answers->outputs[0]);
    }
    return "text/plain";
}

static const struct protocol fake = {.read = fake_read, .write = fake_write};

/* One that takes long: until the test says so, or the worker must stop. */

static sem_t computing, computed;
static atomic_int running, most_running;
static atomic_int answered_before[4], begun; /* requests, when each of them began */

static bool slow_compute(struct call *call, struct engine *engine, const struct examples *rows, struct error *error)
{
    (void)engine, (void)rows;
    const int now = 1 + atomic_fetch_add(&running, 1);
    atomic_store(&answered_before[atomic_fetch_add(&begun, 1)], (int)atomic_load(&call->served->counts.answered));
    if (now > atomic_load(&most_running)) {
        atomic_store(&most_running, now);
    }
    sem_post(&computing);
    bool goes_on = true;
    while (goes_on && sem_trywait(&computed) != 0) {
        goes_on = call_goes_on(call, error);
        sched_yield();
    }
    atomic_fetch_sub(&running, 1);
    return goes_on;
}

static const struct protocol slow = {.read = fake_read, .compute = slow_compute, .write = fake_write};

/* --- what each test has --- */

enum { REQUESTS = 12 };

struct scene {
    struct version version, other;
    struct engine *engines[2], *both[2], engine, other_engine;
    struct served served;
    struct work *work;
    struct fake_request requests[REQUESTS];
};

static int set_up(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);
    make_version(&scene->version, &scene->engines[0], &scene->engine, 1);
    make_version(&scene->other, &scene->engines[1], &scene->other_engine, 1);
    strcpy(scene->served.name, "sums");
    for (int i = 0; i < REQUESTS; i++) {
        sem_init(&scene->requests[i].answered, 0, 0);
    }
    sem_init(&reading, 0, 0);
    sem_init(&go_on, 0, 0);
    sem_init(&computing, 0, 0);
    sem_init(&computed, 0, 0);
    atomic_store(&most_running, 0);
    atomic_store(&begun, 0);
    batch_count = 0;
    *state = scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *scene = *state;
    work_stop(scene->work);
    work_free(scene->work);
    assert_int_equal(atomic_load(&scene->version.holders), 1);
    assert_int_equal(atomic_load(&scene->other.holders), 1);
    free(scene);
    return 0;
}

static void begin_workers(struct scene *scene, int workers, int most_rows, int most_waiting, double most_wait_s)
{
    struct error error;
    const struct work_options options = {.workers = workers,
                                         .most_rows = most_rows,
                                         .most_waiting = most_waiting,
                                         .most_wait_s = most_wait_s,
                                         .most_body = MOST_BODY};
    assert_true(work_start(&scene->work, &options, &error));
}

static void begin(struct scene *scene, int most_rows, int most_waiting, double most_wait_s)
{
    begin_workers(scene, 1, most_rows, most_waiting, most_wait_s);
}

static void send_by(struct scene *scene, const struct protocol *protocol, int index, struct version *version,
                    const void *body, size_t size)
{
    struct fake_request *request = &scene->requests[index];
    memcpy(request->body, body, size);
    request->size = size;
    atomic_fetch_add(&version->holders, 1);
    work_take(scene->work, (struct http_request *)request, &scene->served, version, protocol);
}

static void send_to(struct scene *scene, int index, struct version *version, const void *body, size_t size)
{
    send_by(scene, &fake, index, version, body, size);
}

static void send_slow(struct scene *scene, int index)
{
    send_by(scene, &slow, index, &scene->version, "\7\0\0\0", 4);
}

static void send_bytes(struct scene *scene, int index, const void *body, size_t size)
{
    send_to(scene, index, &scene->version, body, size);
}

/* From now on, until go_on, the worker is busy with request 0. */
static void occupy(struct scene *scene)
{
    send_bytes(scene, 0, "wait", 5);
    sem_wait(&reading);
}

static void expect(struct scene *scene, int index, int status, const char *answer)
{
    struct fake_request *request = &scene->requests[index];
    sem_wait(&request->answered);
    assert_int_equal(request->status, status);
    assert_string_equal(request->answer, answer);
}

/* --- tests --- */

TEST_WITH(test_what_waits_is_computed_together, set_up, tear_down)
{
    struct scene *scene = *state;
    begin(scene, 4, 100, 0);
    occupy(scene);
    for (int i = 1; i <= 6; i++) {
        send_bytes(scene, i, (uint8_t[]){(uint8_t)i, 1, 0, 0, (uint8_t)i, 2, 0, 0}, i == 3 ? 8 : 4);
    }
    assert_int_equal(work_waiting(scene->work), 6);
    sem_post(&go_on);
    expect(scene, 0, 200, "437 "); /* w + a + i + t */
    expect(scene, 1, 200, "2 ");
    expect(scene, 3, 200, "4 5 ");
    expect(scene, 6, 200, "7 ");
    assert_int_equal(batch_count, 3);
    assert_int_equal(batches[0], 1);
    assert_int_equal(batches[1], 5); /* of four requests */
    assert_int_equal(batches[2], 2);
    assert_string_equal(scene->requests[6].headers, "Model-Name: sums\r\nModel-Version: 7\r\n");
    assert_int_equal(atomic_load(&scene->served.counts.answered), 7);
    assert_int_equal(atomic_load(&scene->served.counts.rows), 8);
}

TEST_WITH(test_versions_are_not_mixed, set_up, tear_down)
{
    struct scene *scene = *state;
    begin(scene, 8, 100, 0);
    occupy(scene);
    send_bytes(scene, 1, "\1\0\0\0", 4);
    send_to(scene, 2, &scene->other, "\2\0\0\0", 4);
    send_bytes(scene, 3, "\3\0\0\0", 4);
    sem_post(&go_on);
    expect(scene, 3, 200, "3 ");
    expect(scene, 2, 200, "2 ");
    assert_int_equal(batch_count, 4);
}

TEST_WITH(test_a_full_queue_refuses_at_once, set_up, tear_down)
{
    struct scene *scene = *state;
    begin(scene, 4, 2, 0);
    occupy(scene);
    send_bytes(scene, 1, "\1\0\0\0", 4);
    send_bytes(scene, 2, "\2\0\0\0", 4);
    send_bytes(scene, 3, "\3\0\0\0", 4);
    expect(scene, 3, 503, "{\"error\":\"too many requests are waiting; try again\"}");
    assert_non_null(strstr(scene->requests[3].headers, "Retry-After: 1\r\n"));
    work_take(scene->work, (struct http_request *)&scene->requests[4], &scene->served, NULL, &fake);
    expect(scene, 4, 503, "{\"error\":\"the model is not loaded yet; /readyz says why\"}");
    sem_post(&go_on);
    expect(scene, 2, 200, "2 ");
    assert_int_equal(atomic_load(&scene->served.counts.refused), 2);
}

TEST_WITH(test_a_bad_request_is_its_own_fault, set_up, tear_down)
{
    struct scene *scene = *state;
    begin(scene, 8, 100, 0);
    occupy(scene);
    send_bytes(scene, 1, "\1\0\0\0", 4);
    send_bytes(scene, 2, "bad", 3);
    send_bytes(scene, 3, "\3\0\0\0", 4);
    sem_post(&go_on);
    expect(scene, 1, 200, "1 ");
    expect(scene, 2, 400, "row 0: is bad");
    expect(scene, 3, 200, "3 ");
    assert_int_equal(batches[1], 2);
    assert_int_equal(atomic_load(&scene->served.counts.faulty), 1);
}

TEST_WITH(test_the_first_waits_for_others, set_up, tear_down)
{
    struct scene *scene = *state;
    begin(scene, 2, 100, 3600);
    send_bytes(scene, 0, "\1\0\0\0", 4);
    send_bytes(scene, 1, "\2\0\0\0", 4); /* the batch is full now */
    expect(scene, 0, 200, "1 ");
    expect(scene, 1, 200, "2 ");
    assert_int_equal(batch_count, 1);
}

TEST_WITH(test_what_waits_is_answered_before_the_end, set_up, tear_down)
{
    struct scene *scene = *state;
    begin(scene, 8, 100, 3600);
    send_bytes(scene, 0, "\1\0\0\0", 4);
    work_stop(scene->work);
    work_free(scene->work);
    scene->work = NULL;
    expect(scene, 0, 200, "1 ");
}

/* Whatever takes long leaves a worker to the others, and does not fill their queue. */
TEST_WITH(test_slow_requests_leave_a_worker, set_up, tear_down)
{
    struct scene *scene = *state;
    scene->both[0] = scene->both[1] = &scene->engine;
    scene->version.engines = scene->both;
    scene->version.workers = 2;
    begin_workers(scene, 2, 8, 2, 0);
    send_slow(scene, 0);
    sem_wait(&computing);
    send_slow(scene, 1);
    send_slow(scene, 2);
    send_slow(scene, 3);
    expect(scene, 3, 503, "{\"error\":\"too many requests are waiting; try again\"}");
    for (int i = 4; i < 8; i++) {
        send_bytes(scene, i, "\1\0\0\0", 4);
        expect(scene, i, 200, "1 ");
    }
    assert_int_equal(work_waiting(scene->work), 2);
    for (int i = 0; i < 3; i++) {
        sem_post(&computed);
    }
    for (int i = 0; i < 3; i++) {
        expect(scene, i, 200, "7 ");
    }
    assert_int_equal(atomic_load(&most_running), 1);
}

TEST_WITH(test_a_single_worker_takes_quick_requests_first, set_up, tear_down)
{
    struct scene *scene = *state;
    begin(scene, 8, 100, 0);
    for (int i = 0; i < 2; i++) {
        send_slow(scene, i);
    }
    sem_wait(&computing);
    send_bytes(scene, 2, "\1\0\0\0", 4);
    sem_post(&computed);
    expect(scene, 2, 200, "1 ");
    sem_post(&computed);
    expect(scene, 1, 200, "7 ");
    assert_int_equal(atomic_load(&answered_before[1]), 2);
}

TEST_WITH(test_slow_requests_end_with_the_server, set_up, tear_down)
{
    struct scene *scene = *state;
    begin(scene, 8, 100, 0);
    send_slow(scene, 0);
    sem_wait(&computing);
    send_slow(scene, 1);
    send_bytes(scene, 2, "\1\0\0\0", 4);
    work_stop(scene->work);
    expect(scene, 0, 503, "the server stops; ask again later");
    expect(scene, 1, 503, "the server stops; ask again later");
    expect(scene, 2, 200, "1 ");
    assert_int_equal(atomic_load(&scene->served.counts.refused), 2);
    work_free(scene->work);
    scene->work = NULL;
}

/* Its client: the next one gets its turn. */
TEST_WITH(test_slow_requests_end_with_their_client, set_up, tear_down)
{
    struct scene *scene = *state;
    struct budget budget = {.most = 1 << 20};
    struct budget_account gone = {.budget = &budget};
    begin(scene, 8, 100, 0);
    scene->requests[0].account = &gone;
    send_slow(scene, 0);
    sem_wait(&computing);
    send_slow(scene, 1);
    budget_close(&gone);
    sem_wait(&computing);
    sem_post(&computed);
    expect(scene, 1, 200, "7 ");
    assert_int_equal(atomic_load(&scene->served.counts.left), 1);
    work_stop(scene->work);
    assert_int_equal(atomic_load(&budget.used), 0);
    work_free(scene->work);
    scene->work = NULL;
}

static size_t pack(uint8_t *to, size_t room, const uint8_t *bytes, size_t size)
{
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)bytes, .avail_in = (uInt)size, .next_out = to};
    stream.avail_out = (uInt)room;
    assert_int_equal(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    deflateEnd(&stream);
    return room - stream.avail_out;
}

TEST_WITH(test_bodies_in_gzip, set_up, tear_down)
{
    struct scene *scene = *state;
    uint8_t packed[200], large[4096] = {0};
    const size_t size = pack(packed, sizeof packed, (const uint8_t *)"\1\2\0\0", 4);
    begin(scene, 8, 100, 0);
    for (int i = 0; i < 4; i++) {
        scene->requests[i].encoding = i < 3 ? "gzip" : "br";
    }
    send_bytes(scene, 0, packed, size);
    expect(scene, 0, 200, "3 ");
    send_bytes(scene, 1, packed, size - 3);
    expect(scene, 1, 400, "the body is not complete gzip");
    send_bytes(scene, 2, packed, pack(packed, sizeof packed, large, sizeof large));
    expect(scene, 2, 413,
           "the body is more than 256 bytes unpacked; send fewer rows at a time, or raise --max_body_mb");
    send_bytes(scene, 3, packed, 4);
    expect(scene, 3, 415, "Content-Encoding br is not known here; send gzip, deflate, or the bytes as they are");
}

/* Requests that make up a whole batch are computed in place, whatever comes with them. */
TEST_WITH(test_large_requests_are_not_copied, set_up, tear_down)
{
    struct scene *scene = *state;
    uint8_t large[4 * LENT] = {0};
    char wanted[4 * LENT] = "";
    for (int i = 0; i < LENT; i++) {
        large[4 * i] = (uint8_t)i;
        snprintf(wanted + strlen(wanted), sizeof wanted - strlen(wanted), "%d ", i);
    }
    begin(scene, 8, 100, 0);
    occupy(scene);
    send_bytes(scene, 1, "\1\0\0\0", 4);
    send_bytes(scene, 2, large, sizeof large);
    send_bytes(scene, 3, "\3\0\0\0", 4);
    send_bytes(scene, 4, large, sizeof large);
    sem_post(&go_on);
    expect(scene, 1, 200, "1 ");
    expect(scene, 2, 200, wanted);
    expect(scene, 3, 200, "3 ");
    expect(scene, 4, 200, wanted);
    assert_int_equal(batch_count, 4);
    assert_int_equal(batches[1], 2);
    assert_int_equal(batches[2], LENT);
    assert_int_equal(batches[3], LENT);
    assert_ptr_equal(batch_images[2], scene->requests[2].body);
    assert_ptr_equal(batch_images[3], scene->requests[4].body);
    assert_int_equal(atomic_load(&scene->served.counts.rows), 3 + 2 * LENT);
}

/* By then the unpacked copy has been freed. */
TEST_WITH(test_packed_requests_are_copied, set_up, tear_down)
{
    struct scene *scene = *state;
    uint8_t packed[200], large[4 * LENT] = {0};
    scene->requests[0].encoding = "gzip";
    begin(scene, 8, 100, 0);
    send_bytes(scene, 0, packed, pack(packed, sizeof packed, large, sizeof large));
    sem_wait(&scene->requests[0].answered);
    assert_int_equal(scene->requests[0].status, 200);
    assert_int_equal(batches[0], LENT);
    assert_ptr_not_equal(batch_images[0], scene->requests[0].body);
}

static void unpack_answer(const struct fake_request *request, int window, const char *wanted)
{
    char text[4096];
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)request->answer, .avail_in = (uInt)request->answer_size};
    stream.next_out = (Bytef *)text;
    stream.avail_out = sizeof text - 1;
    assert_int_equal(inflateInit2(&stream, window), Z_OK);
    assert_int_equal(inflate(&stream, Z_FINISH), Z_STREAM_END);
    inflateEnd(&stream);
    text[sizeof text - 1 - stream.avail_out] = '\0';
    assert_string_equal(text, wanted);
}

/* If requested, if it pays, and if no other request waits. */
TEST_WITH(test_answers_in_gzip, set_up, tear_down)
{
    static const char *const accepted[] = {NULL, "gzip", "deflate", "gzip", "br", "gzip"};
    struct scene *scene = *state;
    char wanted[4096] = "3 0 ";
    strcpy(scene->served.name, "long");
    for (int i = 0; i < 400; i++) {
        strcat(wanted, "3 and ");
    }
    begin(scene, 8, 100, 0);
    for (int i = 0; i < 6; i++) {
        scene->requests[i].accepted = accepted[i];
        send_bytes(scene, i, "\1\2\0\0\0\0\0\0", i == 5 ? 4 : TALKATIVE);
        sem_wait(&scene->requests[i].answered);
    }
    assert_string_equal(scene->requests[0].answer, wanted);
    assert_null(strstr(scene->requests[0].headers, "Content-Encoding"));
    assert_non_null(strstr(scene->requests[0].headers, "Vary: Accept-Encoding\r\n"));
    unpack_answer(&scene->requests[1], 15 + 16, wanted);
    unpack_answer(&scene->requests[2], 15, wanted);
    unpack_answer(&scene->requests[3], 15 + 16, wanted);
    assert_non_null(strstr(scene->requests[1].headers, "Content-Encoding: gzip\r\n"));
    assert_non_null(strstr(scene->requests[2].headers, "Content-Encoding: deflate\r\n"));
    assert_string_equal(scene->requests[4].answer, wanted);
    assert_string_equal(scene->requests[5].answer, "3 "); /* too short */
    assert_null(strstr(scene->requests[5].headers, "Vary"));
}

TEST_WITH(test_nothing_is_packed_while_others_wait, set_up, tear_down)
{
    struct scene *scene = *state;
    strcpy(scene->served.name, "long");
    begin(scene, 1, 100, 0);
    occupy(scene);
    for (int i = 1; i <= 4; i++) {
        scene->requests[i].accepted = "gzip";
        send_bytes(scene, i, "\1\2\0\0\0\0\0\0", TALKATIVE);
    }
    sem_post(&go_on);
    for (int i = 1; i <= 4; i++) {
        sem_wait(&scene->requests[i].answered);
    }
    assert_null(strstr(scene->requests[1].headers, "Content-Encoding")); /* three wait for the only worker */
    assert_null(strstr(scene->requests[2].headers, "Content-Encoding"));
    assert_non_null(strstr(scene->requests[3].headers, "Content-Encoding: gzip"));
    assert_non_null(strstr(scene->requests[4].headers, "Content-Encoding: gzip"));
}

/* Members follow each other, as `cat a.gz b.gz` makes them; codings are the same in capitals. */
TEST_WITH(test_all_members_of_gzip, set_up, tear_down)
{
    struct scene *scene = *state;
    uint8_t packed[400];
    size_t size = 0;
    begin(scene, 8, 100, 0);
    for (int i = 0; i < 3; i++) {
        const uint8_t row[] = {(uint8_t)(i + 1), 0, 0, 0};
        size += pack(packed + size, sizeof packed - size, row, sizeof row);
    }
    static const char *const codings[] = {"gzip", "GZIP", "x-gzip"};
    for (int i = 0; i < 3; i++) {
        scene->requests[i].encoding = codings[i];
        send_bytes(scene, i, packed, size);
        expect(scene, i, 200, "1 2 3 ");
    }
    scene->requests[3].encoding = "gzip";
    packed[size] = 'x';
    send_bytes(scene, 3, packed, size + 1);
    expect(scene, 3, 400, "the body is not complete gzip");
    scene->requests[4].encoding = "Identity";
    send_bytes(scene, 4, "\1\0\0\0", 4);
    expect(scene, 4, 200, "1 ");
}

/* What one may never take is 413, what others take at the moment 503; all is returned. */
TEST_WITH(test_memory_is_charged, set_up, tear_down)
{
    struct scene *scene = *state;
    struct budget budget = {.most = 64 * 1024, .setting = "--max_memory_mb"};
    struct budget_account mine = {.budget = &budget, .most = 20 * 1024}, other = {.budget = &budget};
    struct error error;
    uint8_t rows[400] = {1};
    strcpy(scene->served.name, "long");
    begin(scene, 8, 100, 0);
    scene->requests[0].account = scene->requests[1].account = scene->requests[2].account = &mine;
    send_bytes(scene, 0, "\1\2\0\0\0\0\0\0", TALKATIVE);
    sem_wait(&scene->requests[0].answered);
    assert_int_equal(scene->requests[0].status, 200);
    mine.most = 2048; /* less than that answer needs */
    send_bytes(scene, 1, "\1\2\0\0\0\0\0\0", TALKATIVE);
    sem_wait(&scene->requests[1].answered);
    assert_int_equal(scene->requests[1].status, 413);
    assert_non_null(strstr(scene->requests[1].answer, "--max_memory_mb"));
    atomic_store(&mine.refusal, (int)BUDGET_FITS);
    mine.most = 0;
    assert_true(budget_charge(&other, budget.most - 100, &error));
    send_bytes(scene, 2, rows, sizeof rows);
    sem_wait(&scene->requests[2].answered);
    assert_int_equal(scene->requests[2].status, 503);
    assert_non_null(strstr(scene->requests[2].answer, "are in use; try again"));
    budget_release(&other, budget.most - 100);
    work_stop(scene->work);
    assert_int_equal(atomic_load(&mine.used), 0);
    assert_int_equal(atomic_load(&budget.used), 0);
    work_free(scene->work);
    scene->work = NULL;
}

/* Nothing is computed for those who have left, queued or read already; others in their batch get their answers. */
TEST_WITH(test_who_has_left_costs_nothing, set_up, tear_down)
{
    struct scene *scene = *state;
    struct budget budget = {.most = 1 << 20};
    struct budget_account gone = {.budget = &budget}, here = {.budget = &budget};
    begin(scene, 8, 100, 0);
    scene->requests[0].account = &gone;
    scene->requests[1].account = scene->requests[2].account = &gone;
    scene->requests[3].account = &here;
    occupy(scene); /* it is being read */
    send_bytes(scene, 1, "\1\0\0\0", 4);
    send_bytes(scene, 2, "\1\0\0\0", 4);
    send_bytes(scene, 3, "\5\0\0\0", 4);
    budget_close(&gone);
    sem_post(&go_on);
    expect(scene, 3, 200, "5 ");
    for (int i = 0; i < 3; i++) {
        sem_wait(&scene->requests[i].answered);
        assert_int_equal(scene->requests[i].status, 503);
    }
    assert_int_equal(batch_count, 1);
    assert_int_equal(batches[0], 1);
    work_stop(scene->work);
    assert_int_equal(atomic_load(&scene->served.counts.left), 3);
    assert_int_equal(atomic_load(&scene->served.counts.faulty), 0);
    assert_int_equal(atomic_load(&budget.used), 0);
    work_free(scene->work);
    scene->work = NULL;
}

int main(void)
{
    return check_run(NULL, NULL);
}
