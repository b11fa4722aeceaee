/* A worker without data asks worker 0 about them, until it gets an answer, and accepts nothing that does not fit. */
#include "tests/check.h"
#include "worker/remote/remote_worker.h"

#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"

static struct {
    struct fake_member chief;
    const char *units;  /* its answer; NULL: it refuses for good */
    const char *schema; /* NULL: images */
    int objections;     /* before its first answer */
    int odd;            /* answers of another type, before that */
    int strays;         /* answers to requests that were never made, before that... */
    int stray;          /* ...of this type of request */
    int cuts;           /* connections that end in the middle of the schema */
    int asked;
} said;

static bool answer(struct fake_member *member, struct channel *channel)
{
    const bool about_layers = channel->frame.type == MESSAGE_layers;
    said.asked += about_layers;
    if (!about_layers && channel->frame.type != MESSAGE_describe) {
        return false;
    }
    if (about_layers && (said.objections > 0 || !said.units)) {
        said.objections--;
        return fake_member_object(channel, ERROR_NOT_READY);
    }
    if (said.odd > 0) {
        said.odd--;
        return fake_member_say(channel, MESSAGE_pong, &(struct message_pong){1});
    }
    if (said.strays > 0 && channel->frame.type == said.stray) {
        said.strays--;
        channel->frame.request++;
    }
    if (about_layers) {
        return fake_member_say(channel, MESSAGE_layers, &(struct message_layers){said.units});
    }
    const struct message_description description = {.digest = ""};
    struct iovec bulk = {(void *)(uintptr_t)said.schema, said.schema ? strlen(said.schema) : 0};
    const struct outgoing frame = {.type = MESSAGE_description,
                                   .request = channel->frame.request,
                                   .message = &description,
                                   .bulk = &bulk,
                                   .bulk_parts = said.schema ? 1 : 0};
    struct error error;
    if (said.cuts > 0) {
        said.cuts--;
        return said.schema &&
               fake_member_break_off(channel, MESSAGE_description, &description, bulk.iov_base, bulk.iov_len);
    }
    return channel_send_frame(channel, &frame, fake_member_soon(), &error);
}

/* NULL: it was learnt. */
static const char *learn(struct config *config, const char *layers_key, const char *layers)
{
    static struct error error;
    struct identity identity;
    struct traffic traffic = {.retries = 0};
    struct dataset dataset = {.train = {.count = 0}};
    fake_member_listen(&said.chief, MEMBER_WORKER, 0);
    char hosts[80];
    snprintf(hosts, sizeof hosts, "%s,127.0.0.1:2", said.chief.host);
    const struct config_setting settings[] = {{"insecure", "true"}, {layers_key, layers},   {"worker_hosts", hosts},
                                              {"ps_hosts", "a:1"},  {"job_name", "worker"}, {"task_index", "1"}};
    listen_in();
    if (!config_load(config, NULL, settings, 6, &error) ||
        !identity_create(&identity, config, (struct member){MEMBER_WORKER, 1}, &error)) {
        fail_msg("%s", error.text);
    }
    const struct hello_identity chief = identity.hello; /* the same job */
    fake_member_start(&said.chief, &chief, answer);
    const bool done = data_shape_learn(&dataset, config, &identity, &traffic, &error);
    heard();
    fake_member_stop(&said.chief);
    dataset_free(&dataset);
    identity_destroy(&identity);
    return done ? NULL : error.text;
}

TEST(layers_follow_from_its_data)
{
    struct config config;
    memset(&said, 0, sizeof said);
    said.units = "784,32,10";
    const char *why = learn(&config, "hidden", "32");
    if (why) {
        fail_msg("%s", why);
    }
    assert_int_equal(config.model.layer_count, 3);
    assert_int_equal(config.model.layers[0], 784);
    assert_int_equal(config.model.layers[1], 32);
    assert_int_equal(config.model.layers[2], 10);
    assert_int_equal(said.asked, 1);
    assert_true(data_shape_is_unknown(&config));
    config_free(&config);
    memset(&said, 0, sizeof said);
    said.units = "784,64,10"; /* hidden layers of another job */
    assert_non_null(learn(&config, "hidden", "32"));
    config_free(&config);
}

/* A worker whose layers are configured learns nothing new about them. */
TEST(layers_that_are_known)
{
    struct config config;
    memset(&said, 0, sizeof said);
    said.units = "6,3";
    const char *why = learn(&config, "layers", "784,5,10");
    if (why) {
        fail_msg("%s", why);
    }
    assert_int_equal(config.model.layer_count, 3);
    assert_int_equal(config.model.layers[0], 784);
    assert_false(data_shape_is_unknown(&config));
    config_free(&config);
}

/* After a failure, or an invalid answer, it asks again on another connection. */
TEST(it_is_asked_again)
{
    struct config config;
    for (int i = 0; i < 5; i++) {
        memset(&said, 0, sizeof said);
        said.units = "784,32,10";
        said.objections = i == 0 ? 2 : 0;
        said.odd = i == 1 ? 2 : 0;
        said.cuts = i == 2 ? 2 : 0;
        said.strays = i >= 3 ? 2 : 0;
        said.stray = i == 3 ? MESSAGE_layers : MESSAGE_describe;
        const char *why = learn(&config, "hidden", "32");
        if (why) {
            fail_msg("%s", why);
        }
        assert_int_equal(said.asked, 3);
        assert_int_equal(atomic_load(&said.chief.connections), 3);
        config_free(&config);
    }
}

TEST(a_schema_that_is_none)
{
    struct config config;
    memset(&said, 0, sizeof said);
    said.units = "784,32,10";
    said.schema = "{\"columns\":7}";
    said.cuts = 2; /* in the middle of it, without any effect */
    assert_non_null(learn(&config, "hidden", "32"));
    assert_int_equal(said.asked, 3); /* and then another answer would be the same */
    config_free(&config);
}

int main(void)
{
    return check_run(NULL, NULL);
}
