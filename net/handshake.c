/*
 * Hello, welcome and refused. All checks are on the answering side, in the order most useful to a person: a wrong
 * member or cluster explains a wrong config, not the other way round.
 */
#include "net/handshake.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cJSON.h>
#include <sodium.h>

#include "base/text/text.h"
#include "net/local.h"

enum { DIFFERENCES_SHOWN = 3, DIFFERENCE_DEPTH = 8 };

uint64_t handshake_new_incarnation(void)
{
    uint64_t number;
    do {
        randombytes_buf(&number, sizeof number);
    } while (number == 0);
    return number;
}

static void fill_peer(struct peer *peer, struct member member, uint64_t incarnation, uint64_t fleet_version,
                      uint32_t lease_ms, const char *program, const char *digest)
{
    peer->member = member;
    peer->incarnation = incarnation;
    peer->fleet_version = fleet_version;
    peer->lease_ms = lease_ms;
    snprintf(peer->program, sizeof peer->program, "%s", program);
    snprintf(peer->digest, sizeof peer->digest, "%s", digest);
}

/* A member as a peer claims it: true if it is possible. */
static bool member_is_sane(uint8_t role, int32_t index)
{
    if (role == MEMBER_OPERATOR) {
        return index == MEMBER_ANY_INDEX;
    }
    return (role == MEMBER_PS || role == MEMBER_WORKER) && index >= 0 && index <= MEMBER_MAX_INDEX;
}

/* It has no index yet, and asks for one. */
static bool has_no_number(const struct message_hello *hello)
{
    return hello->role == MEMBER_WORKER && hello->index == MEMBER_ANY_INDEX && hello->digest[0] == '\0';
}

/* True if the certificate names no member, or this one. */
static bool credential_covers(const struct connection *connection, const struct member *claimed)
{
    struct member credential = connection_credential(connection);
    return member_matches(&credential, claimed);
}

static bool send_hello(struct channel *channel, const struct hello_identity *identity, const struct member *expected,
                       double deadline_s, struct error *error)
{
    struct message_hello hello = {
        .version_min = PROTOCOL_VERSION_MIN,
        .version_max = PROTOCOL_VERSION_MAX,
        .program = identity->program,
        .role = (uint8_t)identity->member.role,
        .index = identity->member.index,
        .expected_role = (uint8_t)expected->role,
        .expected_index = expected->index,
        .incarnation = identity->incarnation,
        .cluster = identity->cluster,
        .fleet_version = identity->fleet_version,
        .digest = identity->digest,
        .job = identity->job,
    };
    return channel_send(channel, MESSAGE_hello, ++channel->next_request, &hello, deadline_s, error);
}

bool handshake_connect(struct channel *channel, const struct hello_identity *identity, const struct member *expected,
                       struct peer *peer, double deadline_s, uint16_t *reason, struct error *error)
{
    const char *name = connection_name(channel->connection);
    if (reason) {
        *reason = 0;
    }
    if (!send_hello(channel, identity, expected, deadline_s, error) || !channel_receive(channel, deadline_s, error)) {
        return false;
    }
    if (channel->frame.type == MESSAGE_refused) {
        const struct message_refused *refused = &channel->message.refused;
        if (reason) {
            *reason = refused->reason;
        }
        return error_set(error, "%s refused us: %s", name, refused->message);
    }
    if (channel->frame.type != MESSAGE_welcome) {
        return error_set(error, "%s: answered hello with %s", name, message_name(channel->frame.type));
    }
    const struct message_welcome *welcome = &channel->message.welcome;
    struct member member = {(enum member_role)welcome->role, welcome->index};
    if (welcome->version < PROTOCOL_VERSION_MIN || welcome->version > PROTOCOL_VERSION_MAX ||
        welcome->version != channel->frame.version) {
        return error_set(error, "%s: wants protocol version %u, which was not offered", name, welcome->version);
    }
    if (!member_is_sane(welcome->role, welcome->index) || !member_matches(expected, &member) ||
        !credential_covers(channel->connection, &member)) {
        return error_set(error, "%s: is not the expected member (role %u, index %d)", name, welcome->role,
                         welcome->index);
    }
    channel->version = peer->version = welcome->version;
    channel->generation = channel->frame.generation;
    fill_peer(peer, member, welcome->incarnation, welcome->fleet_version, welcome->lease_ms, welcome->program,
              welcome->digest);
    return true;
}

static uint16_t refusal(enum refusal reason, struct error *message, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static uint16_t refusal(enum refusal reason, struct error *message, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message->text, sizeof message->text, format, arguments);
    va_end(arguments);
    return (uint16_t)reason;
}

/* The reason to refuse this hello, checked in the order most useful to a person; 0: none. */
static uint16_t check_hello(const struct channel *channel, const struct hello_identity *identity,
                            const struct handshake_rules *rules, struct peer *peer, struct error *message)
{
    const struct message_hello *hello = &channel->message.hello;
    char our_name[MEMBER_TEXT], their_name[MEMBER_TEXT], expected_name[MEMBER_TEXT];
    member_format(&identity->member, ' ', our_name);
    if (!member_is_sane(hello->role, hello->index) && !has_no_number(hello)) {
        return refusal(REFUSAL_MEMBER, message, "there is no member with role %u and index %d", hello->role,
                       hello->index);
    }
    struct member claimed = {(enum member_role)hello->role, hello->index};
    member_format(&claimed, ' ', their_name);
    if (hello->version_max < PROTOCOL_VERSION_MIN || hello->version_min > PROTOCOL_VERSION_MAX) {
        return refusal(REFUSAL_VERSION, message,
                       "%s (%s) speaks protocol versions %u to %u, %s (%s) speaks %u to %u: upgrade the older one",
                       their_name, hello->program, hello->version_min, hello->version_max, our_name, identity->program,
                       PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX);
    }
    if (!credential_covers(channel->connection, &claimed)) {
        char credential_name[MEMBER_TEXT];
        struct member credential = connection_credential(channel->connection);
        member_format(&credential, ':', credential_name);
        return refusal(REFUSAL_MEMBER, message, "it claims to be %s, but its certificate is for %s", their_name,
                       credential_name);
    }
    struct member expected = {(enum member_role)hello->expected_role, hello->expected_index};
    if (!member_matches(&expected, &identity->member)) {
        bool sane = member_is_sane(hello->expected_role, hello->expected_index);
        member_format(sane ? &expected : &(struct member){MEMBER_NONE, MEMBER_ANY_INDEX}, ' ', expected_name);
        return refusal(REFUSAL_MEMBER, message,
                       "%s expects %s here, but this is %s: do all members have the same ps_hosts and worker_hosts?",
                       their_name, sane ? expected_name : "no known member", our_name);
    }
    if (strcmp(hello->cluster, identity->cluster) != 0) {
        return refusal(REFUSAL_CLUSTER, message, "%s belongs to cluster \"%s\", %s to \"%s\"", their_name,
                       hello->cluster, our_name, identity->cluster);
    }
    bool without_config = hello->digest[0] == '\0';
    bool known =
        strcmp(hello->digest, identity->digest) == 0 || (rules->knows && rules->knows(rules->context, hello->digest));
    if (!without_config && !known && hello->fleet_version != identity->fleet_version) {
        bool behind = hello->fleet_version < identity->fleet_version;
        return refusal(behind ? REFUSAL_BEHIND : REFUSAL_AHEAD, message,
                       "%s has version %llu of the config, %s has version %llu; %s", their_name,
                       (unsigned long long)hello->fleet_version, our_name, (unsigned long long)identity->fleet_version,
                       behind ? "it waits for the newer one" : "it waits until that is rolled out");
    }
    if (!without_config && !known) {
        (rules->describe_difference ? rules->describe_difference : handshake_describe_difference)(
            rules->context, their_name, hello->job, our_name, identity->job, message);
        return REFUSAL_CONFIG;
    }
    fill_peer(peer, claimed, hello->incarnation, hello->fleet_version, 0, hello->program, hello->digest);
    peer->version = hello->version_max < PROTOCOL_VERSION_MAX ? hello->version_max : PROTOCOL_VERSION_MAX;
    return rules->admit ? rules->admit(rules->context, peer, message) : 0;
}

static bool send_refused(struct channel *channel, uint16_t reason, const char *message, double deadline_s,
                         struct error *error)
{
    struct message_refused refused = {
        .reason = reason, .message = message, .version_min = PROTOCOL_VERSION_MIN, .version_max = PROTOCOL_VERSION_MAX};
    return channel_send(channel, MESSAGE_refused, channel->frame.request, &refused, deadline_s, error);
}

static bool send_welcome(struct channel *channel, const struct hello_identity *identity, double deadline_s,
                         struct error *error)
{
    struct message_welcome welcome = {.version = channel->version,
                                      .program = identity->program,
                                      .role = (uint8_t)identity->member.role,
                                      .index = identity->member.index,
                                      .incarnation = identity->incarnation,
                                      .fleet_version = identity->fleet_version,
                                      .digest = identity->digest,
                                      .lease_ms = identity->lease_ms};
    return channel_send(channel, MESSAGE_welcome, channel->frame.request, &welcome, deadline_s, error);
}

bool handshake_accept(struct channel *channel, const struct hello_identity *identity,
                      const struct handshake_rules *rules, struct peer *peer, double deadline_s, struct error *error)
{
    struct error message = {""}, ignored;
    const char *address = connection_peer(channel->connection);
    if (!channel_receive(channel, deadline_s, error)) {
        return error_wrap(error, "no member was admitted from %s", address);
    }
    if (channel->frame.type != MESSAGE_hello) {
        return error_set(error, "refused %s: its first message is %s, not hello", address,
                         message_name(channel->frame.type));
    }
    uint16_t reason = check_hello(channel, identity, rules, peer, &message);
    if (reason != 0) {
        send_refused(channel, reason, message.text, deadline_s, &ignored);
        return error_set(error, "refused %s: %s", address, message.text);
    }
    channel->version = peer->version;
    connection_rename(channel->connection, &peer->member);
    return send_welcome(channel, identity, deadline_s, error);
}

/* Differences found so far, as a message that grows. */
struct comparison {
    const char *their_name, *our_name;
    struct error *message;
    int found;
};

static void note_difference(struct comparison *comparison, const char *path, const cJSON *theirs, const cJSON *ours)
{
    char text[400];
    if (++comparison->found > DIFFERENCES_SHOWN) {
        return;
    }
    char *their_text = theirs ? cJSON_PrintUnformatted(theirs) : NULL;
    char *our_text = ours ? cJSON_PrintUnformatted(ours) : NULL;
    snprintf(text, sizeof text, "%s%s has %s=%.80s, %s has %.80s", comparison->found > 1 ? "; " : "",
             comparison->their_name, path, their_text ? their_text : "(default)", comparison->our_name,
             our_text ? our_text : "(default)");
    cJSON_free(their_text);
    cJSON_free(our_text);
    size_t used = strlen(comparison->message->text);
    snprintf(comparison->message->text + used, sizeof comparison->message->text - used, "%s", text);
}

static void compare(struct comparison *comparison, const char *path, int depth, const cJSON *theirs, const cJSON *ours)
{
    char inner[128];
    if (depth >= DIFFERENCE_DEPTH || !cJSON_IsObject(theirs) || !cJSON_IsObject(ours)) {
        if (!theirs || !ours || !cJSON_Compare(theirs, ours, true)) {
            note_difference(comparison, path, theirs, ours);
        }
        return;
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, ours)
    {
        snprintf(inner, sizeof inner, "%.60s%s%.60s", path, path[0] ? "." : "", item->string);
        compare(comparison, inner, depth + 1, cJSON_GetObjectItemCaseSensitive(theirs, item->string), item);
    }
    cJSON_ArrayForEach(item, theirs)
    {
        if (!cJSON_GetObjectItemCaseSensitive(ours, item->string)) {
            snprintf(inner, sizeof inner, "%.60s%s%.60s", path, path[0] ? "." : "", item->string);
            note_difference(comparison, inner, item, NULL);
        }
    }
}

void handshake_describe_difference(void *context, const char *their_name, const char *theirs, const char *our_name,
                                   const char *ours, struct error *message)
{
    (void)context;
    struct comparison comparison = {their_name, our_name, message, 0};
    cJSON *their_json = cJSON_Parse(theirs), *our_json = cJSON_Parse(ours);
    message->text[0] = '\0';
    if (cJSON_IsObject(their_json) && cJSON_IsObject(our_json)) {
        compare(&comparison, "", 0, their_json, our_json);
    }
    if (comparison.found > DIFFERENCES_SHOWN) {
        size_t used = strlen(message->text);
        snprintf(message->text + used, sizeof message->text - used, "; and %d more keys differ",
                 comparison.found - DIFFERENCES_SHOWN);
    } else if (comparison.found == 0) {
        snprintf(message->text, sizeof message->text,
                 "%s and %s have different job configs: compare `trainer config show` on both", their_name, our_name);
    }
    cJSON_Delete(their_json);
    cJSON_Delete(our_json);
}

bool handshake_offer_memory(struct channel *channel, double deadline_s, struct error *why_not, struct error *error)
{
    struct local_offer offer;
    struct local *local;
    char shown[256];
    int fd;
    why_not->text[0] = '\0';
    if (!local_offer(&offer, why_not)) {
        return true;
    }
    const struct message_local message = {.name = offer.name, .secret = offer.secret};
    uint16_t code;
    bool open = channel_call(channel, MESSAGE_local, &message, MESSAGE_local_taken, deadline_s, &code, error);
    if (!open && code != 0) { /* refused */
        open = true;
        *why_not = *error;
    } else if (open && channel->message.local_taken.why_not[0] != '\0') {
        error_set(why_not, "%s", printable(shown, sizeof shown, channel->message.local_taken.why_not));
    } else if (open) { /* the peer has moved: there is no way back */
        open = local_accept(&local, &fd, &offer, error) && connection_move(channel->connection, local, fd, error);
    }
    local_offer_end(&offer);
    return open;
}
