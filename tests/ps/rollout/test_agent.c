/* A member's agent thread: what it reports when, and what it does with the answers. */
#include "tests/check.h"
#include "tests/ps/rollout/agency.h"

/* --- Tests --- */

TEST_WITH(a_member_says_how_it_is_and_hears_how_ps_0_is, set_up, tear_down)
{
    char digest[CONFIG_DIGEST_HEX + 1];
    begin(MEMBER_WORKER, 2);
    AWAIT(reports() >= 2);
    const struct message_report report = last_report();
    assert_int_equal(report.version, 1);
    assert_int_equal(report.target, 0);
    assert_int_equal(report.phase, PHASE_NONE);
    assert_true(report.ready && report.loss == 0.25f);
    assert_int_equal(version_here(digest), 1);
    assert_string_equal(leads.digest, digest);
    assert_true(atomic_load(&host.heard) >= 1 && atomic_load(&host.has_model));
    assert_int_equal(atomic_load(&host.version), 1);
    assert_int_equal(times(told(), "arrived"), 1);
    assert_false(agent_is_rolling(agent));
    assert_false(agent_is_rolling(NULL));
    assert_true(agent_knows(agent, digest));
    assert_false(agent_knows(agent, "0000"));
    assert_false(show()->is_under_way);
    assert_string_equal(shown.text, "");
}

/* A loss, or an address for HTTP, may be missing. */
TEST_WITH(a_member_without_a_loss_says_so, set_up, tear_down)
{
    load(MEMBER_WORKER, 2);
    struct agent_options options = options_of(MEMBER_WORKER);
    options.loss = NULL;
    options.heard = NULL;
    start(&options);
    AWAIT(reports() >= 1);
    assert_true(last_report().loss == -1);
}

/* Version 2 is staged, and shown. */
static void stage_and_show(struct participant_order order)
{
    char before[CONFIG_DIGEST_HEX + 1], after[CONFIG_DIGEST_HEX + 1];
    version_here(before);
    digest_of(text_of(2, 0.25, 2), after);
    lead(ROLLOUT_STAGING, order);
    AWAIT(last_report().phase == PHASE_STAGED);
    assert_int_equal(last_report().target, 2);
    AWAIT(agent_knows(agent, after));
    assert_true(agent_knows(agent, before));
    assert_false(agent_is_rolling(agent));
    assert_true(show()->is_under_way && shown.since_s > 0);
    assert_int_equal(shown.version, 2);
    assert_string_equal(shown.phase, "staging");
    assert_string_equal(shown.text, "version 2: staging");
    assert_int_equal(shown.diff_count, 1);
    assert_non_null(strstr(shown.diff[0], "train.learning_rate"));
}

TEST_WITH(a_live_rollout_is_followed_and_shown, set_up, tear_down)
{
    char after[CONFIG_DIGEST_HEX + 1], digest[CONFIG_DIGEST_HEX + 1];
    begin(MEMBER_WORKER, 2);
    digest_of(text_of(2, 0.25, 2), after);
    struct participant_order order = order_to(0.25, 2);
    stage_and_show(order);
    const double since_s = shown.since_s;
    assert_true(show()->since_s == since_s); /* since when: the phase is the same */
    atomic_store(&host.now, 99);
    order.order = ORDER_SWITCH;
    order.step = 100;
    lead(ROLLOUT_SWITCHING, order);
    AWAIT(atomic_load(&host.switched_at) == 100 && agent_is_rolling(agent));
    assert_int_equal(version_here(digest), 1);
    atomic_store(&host.now, 100);
    AWAIT(version_here(digest) == 2);
    assert_string_equal(digest, after);
    AWAIT(last_report().phase == PHASE_SWITCHED);
    assert_int_equal(identity_hello(&identity)->fleet_version, 2);
    assert_string_equal(identity_hello(&identity)->digest, after);
    assert_non_null(strstr(identity_hello(&identity)->job, "0.25"));
    assert_true(show()->since_s > since_s);
    assert_int_equal(atomic_load(&host.settled), 0);
    lead(ROLLOUT_IDLE, (struct participant_order){.order = ORDER_NOTHING});
    AWAIT(atomic_load(&host.settled) == 1);
    AWAIT(!show()->is_under_way);
    assert_false(agent_is_rolling(agent));
    assert_string_equal(shown.text, "");
    free(shown.diff);
    memset(&shown, 0, sizeof shown);
}

/* Handshakes name the version in force, there and back. */
TEST_WITH(who_goes_back_introduces_itself_as_before, set_up, tear_down)
{
    char before[CONFIG_DIGEST_HEX + 1], digest[CONFIG_DIGEST_HEX + 1];
    begin(MEMBER_WORKER, 2);
    version_here(before);
    struct participant_order order = order_to(0.25, 2);
    lead(ROLLOUT_STAGING, order);
    AWAIT(last_report().phase == PHASE_STAGED);
    order.order = ORDER_SWITCH;
    lead(ROLLOUT_SWITCHING, order);
    AWAIT(last_report().phase == PHASE_SWITCHED);
    assert_non_null(strstr(identity_hello(&identity)->job, "0.25"));
    order.order = ORDER_BACK;
    lead(ROLLOUT_GOING_BACK, order);
    AWAIT(last_report().phase == PHASE_BACK);
    assert_int_equal(version_here(digest), 1);
    assert_string_equal(digest, before);
    assert_int_equal(identity_hello(&identity)->fleet_version, 1);
    assert_string_equal(identity_hello(&identity)->digest, before);
    assert_null(strstr(identity_hello(&identity)->job, "0.25"));
    assert_true(agent_is_rolling(agent));
}

/* It was in force when the process began, and is not known to be settled. */
TEST_WITH(what_is_not_settled_goes_on_after_a_restart, set_up, tear_down)
{
    begin(MEMBER_WORKER, 2);
    assert_false(agent_is_rolling(agent));
    lead(ROLLOUT_STAGING, order_to(0.25, 2));
    AWAIT(last_report().phase == PHASE_STAGED);
    agent_destroy(agent);
    leads.fails = true;
    const struct agent_options options = options_of(MEMBER_WORKER);
    start(&options);
    assert_true(agent_is_rolling(agent));
}

TEST_WITH(members_of_either_version_are_members, set_up, tear_down)
{
    begin(MEMBER_WORKER, 2);
    assert_false(agent_has_member(agent, (struct member){MEMBER_WORKER, 0})); /* no rollout so far */
    lead(ROLLOUT_STAGING, order_to(0.5, 4));
    AWAIT(last_report().phase == PHASE_STAGED);
    AWAIT(agent_has_member(agent, (struct member){MEMBER_WORKER, 3}));
    assert_false(agent_has_member(agent, (struct member){MEMBER_WORKER, 4}));
    assert_true(agent_has_member(agent, (struct member){MEMBER_PS, 0}));
    assert_false(agent_has_member(agent, (struct member){MEMBER_PS, 1}));
    struct participant_order torn = order_to(0.5, 4);
    torn.target = 3;
    torn.manifest_size--;
    lead(ROLLOUT_STAGING, torn);
    AWAIT(last_report().phase == PHASE_FAILED);
    AWAIT(!agent_has_member(agent, (struct member){MEMBER_WORKER, 3})); /* it knows of no rollout's members any more */
}

TEST_WITH(an_edit_by_hand_is_told, set_up, tear_down)
{
    char text[CONFIG_DRIFT_TEXT];
    begin(MEMBER_WORKER, 2);
    AWAIT(reports() >= 1);
    agent_drift(agent, text);
    assert_string_equal(text, "");
    lead(ROLLOUT_STAGING, (struct participant_order){.order = ORDER_NOTHING});
    write_text("config.json", text_of(1, 0.75, 2));
    AWAIT((agent_drift(agent, text), text[0] != '\0'));
    assert_non_null(strstr(text, "edited by hand"));
}

/* --- How often it reports --- */

TEST_WITH(while_nothing_is_rolled_out_it_reports_seldom, set_up, tear_down)
{
    begin(MEMBER_WORKER, 2);
    const double idle_s = pace_report_s(&config.cluster);
    const double pause_s = shortest_pause_s(1);
    assert_true(pause_s > 0.9 * idle_s && pause_s < idle_s + 20);
    lead(ROLLOUT_WATCHING, (struct participant_order){.order = ORDER_NOTHING});
    assert_true(shortest_pause_s(10) < 0.5 * idle_s);
    lead(ROLLOUT_IDLE, order_to(0.25, 2)); /* an order is reason enough */
    assert_true(shortest_pause_s(10) < 0.5 * idle_s);
}

/* ps 0 hears all, and all wait for every ps. */
TEST_WITH(of_very_many_each_reports_less_often, set_up, tear_down)
{
    lead(ROLLOUT_WATCHING, (struct participant_order){.order = ORDER_NOTHING});
    begin(MEMBER_WORKER, 79);
    const double pause_s = shortest_pause_s(6);
    assert_true(pause_s >= 0.195 && pause_s < 0.4);
    tear_down(NULL);
    set_up(NULL);
    lead(ROLLOUT_WATCHING, (struct participant_order){.order = ORDER_NOTHING});
    begin(MEMBER_PS, 79);
    assert_true(shortest_pause_s(10) < 0.15);
    tear_down(NULL);
    set_up(NULL);
    lead(ROLLOUT_WATCHING, (struct participant_order){.order = ORDER_NOTHING});
    begin(MEMBER_WORKER, 300);
    assert_true(shortest_pause_s(6) < 0.5);
}

/* A slow link is needed for training while a version is staged. */
TEST_WITH(a_slow_link_is_spared, set_up, tear_down)
{
    leads.answers_in_ms = 40;
    lead(ROLLOUT_STAGING, (struct participant_order){.order = ORDER_NOTHING});
    begin(MEMBER_WORKER, 2);
    assert_true(shortest_pause_s(1) >= 0.39);
    lead(ROLLOUT_WATCHING, (struct participant_order){.order = ORDER_NOTHING});
    assert_true(shortest_pause_s(8) < 0.3);
    leads.answers_in_ms = 300;
    lead(ROLLOUT_STAGING, (struct participant_order){.order = ORDER_NOTHING});
    assert_true(shortest_pause_s(2) < 2.5);
}

/* --- Over the network --- */

TEST_WITH(it_comes_to_ps_0_as_a_guest, set_up, tear_down)
{
    begin_remote();
    AWAIT(atomic_load(&host.heard) >= 2);
    assert_true(atomic_load(&host.has_model));
    assert_int_equal(atomic_load(&host.version), 1);
    assert_string_equal(leader.peer.digest, "");
    assert_int_equal(leader.peer.member.role, MEMBER_WORKER);
    assert_int_equal(leader.peer.member.index, 0);
    pthread_mutex_lock(&leads.lock);
    leads.says.has_model = false;
    pthread_mutex_unlock(&leads.lock);
    AWAIT(!atomic_load(&host.has_model));
    assert_int_equal(atomic_load(&leader.connections), 1);
}

TEST_WITH(manifests_come_by_network_too, set_up, tear_down)
{
    char digest[CONFIG_DIGEST_HEX + 1];
    begin_remote();
    struct participant_order order = order_to(0.25, 2);
    lead(ROLLOUT_STAGING, order);
    AWAIT(last_report().phase == PHASE_STAGED);
    order.order = ORDER_SWITCH;
    order.step = 7;
    lead(ROLLOUT_SWITCHING, order);
    AWAIT(atomic_load(&host.switched_at) == 7);
    atomic_store(&host.now, 7);
    AWAIT(version_here(digest) == 2);
}

TEST_WITH(what_breaks_is_tried_again, set_up, tear_down)
{
    static uint8_t large[MANIFEST_MAX_BYTES + 1];
    begin_remote();
    AWAIT(atomic_load(&host.heard) >= 1);
    pthread_mutex_lock(&leads.lock);
    leads.fails = true;
    pthread_mutex_unlock(&leads.lock);
    AWAIT(atomic_load(&leader.connections) >= 2); /* no refusal is final */
    pthread_mutex_lock(&leads.lock);
    leads.fails = false;
    pthread_mutex_unlock(&leads.lock);
    const int heard_before = atomic_load(&host.heard);
    AWAIT(atomic_load(&host.heard) > heard_before);
    const int connections = atomic_load(&leader.connections);
    lead(ROLLOUT_STAGING, (struct participant_order){
                              .order = ORDER_STAGE, .target = 2, .manifest = large, .manifest_size = sizeof large});
    AWAIT(atomic_load(&leader.connections) > connections);
    lead(ROLLOUT_STAGING,
         (struct participant_order){
             .order = ORDER_STAGE, .target = 3, .manifest = large, .manifest_size = MANIFEST_MAX_BYTES});
    AWAIT(last_report().target == 3); /* that much may be sent, and is no manifest all the same */
    assert_int_equal(last_report().phase, PHASE_FAILED);
    lead(ROLLOUT_STAGING, order_to(0.25, 2));
    AWAIT(last_report().phase == PHASE_STAGED);
    assert_int_equal(times(told(), "arrived"), 1);
}

/* A program that this machine lacks arrives in pieces, despite all failures. */
TEST_WITH(a_program_is_fetched_between_reports, set_up, tear_down)
{
    uint8_t *bytes;
    struct error error;
    assert_true(program_own_bytes(&bytes, &leads.program_size, &error));
    bytes[leads.program_size / 2] ^= 1; /* another one */
    leads.program = bytes;
    leads.lost_chunk = 2;
    leads.slow_chunk = 5;
    programs = (struct manifest_programs){.count = 1, .protocol = 1};
    struct manifest_program *program = &programs.items[0];
    program->size = leads.program_size;
    snprintf(program->architecture, sizeof program->architecture, "%s", program_own_architecture());
    checked_digest(bytes, leads.program_size, program->digest);
    begin_remote();
    lead(ROLLOUT_STAGING, order_to(0.5, 2));
    programs.count = 0;
    AWAIT(last_report().phase == PHASE_STAGED || last_report().phase == PHASE_FAILED);
    if (last_report().phase == PHASE_FAILED) {
        fail_msg("%s", leads.message);
    }
    const int pieces = (int)((leads.program_size + PROGRAM_CHUNK - 1) / PROGRAM_CHUNK);
    assert_int_equal(leads.chunks, pieces + 2);
    assert_int_equal(atomic_load(&leader.connections), 2);
    assert_true(leads.after_slow_s - leads.slow_s >= 0.69);
    struct programs kept;
    assert_true(programs_name(&kept, config_path, &error) && programs_have_whole(&kept, programs.items[0].digest));
    free(bytes);
}

/* --- Trouble --- */

TEST_WITH(whom_it_does_not_reach_for_long_is_told_once, set_up, tear_down)
{
    listen_in();
    log_setup(LOG_TEXT, LOG_WARNING);
    leads.fails = true;
    begin(MEMBER_WORKER, 2);
    AWAIT(reports() >= 2);
    assert_null(strstr(heard_so_far(), "has not been reached"));
    atomic_store(&ahead_s, 31);
    AWAIT(
        strstr(heard_so_far(), "ps 0 has not been reached for 30 s, so this member learns of no rollout: as the test"));
    const int before = reports();
    AWAIT(reports() >= before + 2);
    assert_int_equal(atomic_load(&host.heard), 0);
    atomic_store(&ahead_s, 0);
    assert_int_equal(times(heard(), "has not been reached"), 1);
    assert_string_equal(told(), ""); /* it has not arrived */
}

TEST_WITH(what_can_not_begin_is_no_agent, set_up, tear_down)
{
    struct error error;
    load(MEMBER_WORKER, 2);
    const struct agent_options options = options_of(MEMBER_WORKER);
    char *kept = config.cluster.ps_hosts.items[0];
    config.cluster.ps_hosts.items[0] = (char *)(uintptr_t) "nowhere at all";
    assert_false(agent_create(&agent, &options, &error));
    assert_null(agent);
    config.cluster.ps_hosts.items[0] = kept;
    agent_destroy(NULL);
}

int main(void)
{
    return check_run(NULL, NULL);
}
