/* From argv to a call of one command. */
#include "base/cli/command.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config/keys.h"
#include "base/config/versions.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/program.h"
#include "base/process/restart.h"
#include "base/text/text.h"
#include "base/trust.h"

/* --- Words of a command line --- */

/* One pass over the words; each is an operand, or a flag, which may take the next word as its value. */

enum { SHOWN = 64 }; /* characters of a word that errors quote */

/* Index of the flag called name[0..length), -1 if there is none; *off: it is --noflag. */
static int find_flag(const struct flag *flags, int flag_count, const char *name, size_t length, bool *off)
{
    *off = false;
    for (int i = 0; i < flag_count; i++) {
        if (strlen(flags[i].name) == length && memcmp(flags[i].name, name, length) == 0) {
            return i;
        }
    }
    if (length > 2 && memcmp(name, "no", 2) == 0) {
        int index = find_flag(flags, flag_count, name + 2, length - 2, off);
        *off = true;
        return index >= 0 && flags[index].is_switch ? index : -1;
    }
    return -1;
}

static bool unknown_flag(const struct flag *flags, int flag_count, const char *name, size_t length, struct error *error)
{
    char word[SHOWN + 1] = "";
    memcpy(word, name, length < SHOWN ? length : SHOWN);
    struct suggestion suggestion = {.word = word};
    for (int i = 0; i < flag_count; i++) {
        suggest_offer(&suggestion, flags[i].name);
    }
    if (suggestion.best) {
        return error_set(error, "unknown flag --%s; did you mean --%s?", word, suggestion.best);
    }
    return error_set(error, "unknown flag --%s; `trainer help flags` lists them all", word);
}

/* value NULL: no "=value" follows. */
static bool set_switch(const struct flag *flag, const char *value, bool off, const char **text, struct error *error)
{
    bool on = !off;
    if (off && value) {
        return error_set(error, "--no%s takes no value; write --%s=%.*s", flag->name, flag->name, SHOWN, value);
    }
    if (value && !flags_switch(value, &on)) {
        return error_set(error, "--%s: must be true or false, not \"%.*s\"", flag->name, SHOWN, value);
    }
    *text = on ? "true" : "false";
    return true;
}

/* argv[*at] begins with a dash; *at advances to the last word of the flag. */
static bool parse_flag(const struct flag *flags, int flag_count, int argc, char *const *argv, int *at,
                       const char **values, struct error *error)
{
    const char *word = argv[*at];
    const char *name = word + (word[1] == '-' ? 2 : 1);
    size_t length = strcspn(name, "=");
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    bool off;
    int index = find_flag(flags, flag_count, name, length, &off);
    if (length == 0) {
        return error_set(error, "%s: not a flag; flags are written --name=value", word);
    }
    if (index < 0) {
        return unknown_flag(flags, flag_count, name, length, error);
    }
    const struct flag *flag = &flags[index];
    if (word[1] != '-') {
        return error_set(error, "%.*s: flags begin with two dashes: --%s", SHOWN, word, flag->name);
    }
    if (values[index]) {
        return error_set(error, "--%s is given twice", flag->name);
    }
    if (flag->is_switch) {
        return set_switch(flag, value, off, &values[index], error);
    }
    if (!value) {
        if (*at + 1 == argc || strncmp(argv[*at + 1], "--", 2) == 0) {
            return error_set(error, "--%s needs a value: --%s=...", flag->name, flag->name);
        }
        value = argv[++*at];
    }
    values[index] = value;
    return true;
}

bool flags_parse(const struct flag *flags, int flag_count, int argc, char *const *argv, const char **values,
                 char **operands, int *operand_count, struct error *error)
{
    for (int i = 0; i < flag_count; i++) {
        values[i] = NULL;
    }
    *operand_count = 0;
    for (int at = 0; at < argc; at++) {
        bool is_operand = argv[at][0] != '-' || argv[at][1] == '\0'; /* a single dash stands for standard input */
        if (is_operand) {
            operands[(*operand_count)++] = argv[at];
        } else if (!parse_flag(flags, flag_count, argc, argv, &at, values, error)) {
            return false;
        }
    }
    return true;
}

/*
 * All flags of one command in one list: its own, then --config and the keys' (if takes_config), then --trust_folder and
 * --help.
 */
struct flag_set {
    struct flag *flags;
    const char **values;
    int count, own_count;
    int config_at, trust_at; /* -1: no --config */
};

static int index_of(const struct command *command, const char *name)
{
    int index = 0;
    while (command->flags[index].name && strcmp(command->flags[index].name, name) != 0) {
        index++;
    }
    assert(command->flags[index].name);
    return index;
}

const char *command_value(const struct command_call *call, const char *name)
{
    return call->values[index_of(call->command, name)];
}

bool command_switch(const struct command_call *call, const char *name)
{
    const char *text = command_value(call, name);
    return text && strcmp(text, "true") == 0;
}

static void flag_set_create(struct flag_set *set, const struct command *command)
{
    int most = COMMAND_MAX_FLAGS + 3 + config_key_count;
    *set = (struct flag_set){.flags = must_zero((size_t)most, sizeof *set->flags, "flags"),
                             .values = must_zero((size_t)most, sizeof *set->values, "flags"),
                             .config_at = -1};
    for (const struct command_flag *flag = command->flags; flag && flag->name; flag++) {
        assert(set->own_count < COMMAND_MAX_FLAGS);
        set->flags[set->own_count++] = (struct flag){flag->name, !flag->value};
    }
    set->count = set->own_count;
    if (command->takes_config) {
        set->config_at = set->count;
        set->flags[set->count++] = (struct flag){"config", false};
        for (const struct config_key *key = config_keys; key->section; key++) {
            if (!key->no_flag) {
                set->flags[set->count++] = (struct flag){key->name, key->type == KEY_SWITCH};
            }
        }
    }
    set->trust_at = set->count;
    set->flags[set->count++] = (struct flag){"trust_folder", false};
    set->flags[set->count++] = (struct flag){"help", true};
}

static void flag_set_free(struct flag_set *set)
{
    free(set->flags);
    free(set->values);
}

/* Everything that main owns while it runs. */
struct invocation {
    struct command_call call;
    struct flag_set set;
    struct config config;
    struct config_setting *settings;
    char **operands;
};

/* Number of words of the command's name that argv begins with; 0 if argv names another command. */
static int match_name(const struct command *command, int argc, char *const *argv)
{
    const char *blank = strchr(command->name, ' ');
    if (!blank) {
        return argc >= 1 && strcmp(argv[0], command->name) == 0 ? 1 : 0;
    }
    size_t first = (size_t)(blank - command->name);
    bool both = argc >= 2 && strlen(argv[0]) == first && memcmp(argv[0], command->name, first) == 0 &&
                strcmp(argv[1], blank + 1) == 0;
    return both ? 2 : 0;
}

/* Explains a first word that names no command, or a second word that is not in its family. */
static bool unknown_command(const struct command *const *commands, int argc, char *const *argv, struct error *error)
{
    char members[256] = "", first[64], nearest[64];
    struct suggestion suggestion = {.word = argv[0]};
    size_t length = strlen(argv[0]);
    for (int i = 0; commands[i]; i++) {
        const char *name = commands[i]->name;
        if (strncmp(name, argv[0], length) == 0 && name[length] == ' ') {
            size_t used = strlen(members);
            snprintf(members + used, sizeof members - used, "%s%s", used > 0 ? ", " : "", name + length + 1);
        }
        snprintf(first, sizeof first, "%.*s", (int)strcspn(name, " "), name);
        suggest_offer(&suggestion, first);
        if (suggestion.best == first) {
            suggestion.best = strcpy(nearest, first);
        }
    }
    if (members[0] != '\0' && argc > 1 && argv[1][0] != '-') {
        return error_set(error, "unknown command %s %.64s; expected one of: %s", argv[0], argv[1], members);
    }
    if (members[0] != '\0') {
        return error_set(error, "%s needs a subcommand: %s", argv[0], members);
    }
    if (suggestion.best) {
        return error_set(error, "unknown command %.64s; did you mean %s?", argv[0], suggestion.best);
    }
    return error_set(error, "unknown command %.64s; `trainer help` lists them all", argv[0]);
}

/* The table must contain the name. */
static const struct command *command_named(const struct command *const *commands, const char *name)
{
    int index = 0;
    while (commands[index] && strcmp(commands[index]->name, name) != 0) {
        index++;
    }
    assert(commands[index]);
    return commands[index];
}

/* *words: number of words of argv that name the command. */
static const struct command *find_command(const struct command *const *commands, int argc, char *const *argv,
                                          int *words, struct error *error)
{
    *words = 0;
    if (argc > 0 && strcmp(argv[0], "--version") == 0) {
        *words = 1;
        return command_named(commands, "version");
    }
    if (argc == 0 || argv[0][0] == '-') {
        return commands[0];
    }
    for (int i = 0; commands[i]; i++) {
        *words = match_name(commands[i], argc, argv);
        if (*words > 0) {
            return commands[i];
        }
    }
    unknown_command(commands, argc, argv, error);
    return NULL;
}

static bool check_operands(const struct command_call *call, struct error *error)
{
    const struct command *command = call->command;
    if (call->operand_count <= command->max_operands) {
        return true;
    }
    const char *stray = call->operands[command->max_operands];
    if (command->max_operands > 0) {
        return error_set(error, "%.64s: unexpected argument; `trainer help %s` shows what %s takes", stray,
                         command->name, command->name);
    }
    const char *ending = strrchr(stray, '.');
    if (command->takes_config && ending && strcmp(ending, ".json") == 0) {
        return error_set(error, "%.64s: unexpected argument; --config=%.64s reads it instead of config.json", stray,
                         stray);
    }
    return error_set(error, "%.64s: unexpected argument; %s takes only flags, written --name=value", stray,
                     command->name);
}

/* The parent of --supervise stays in the installed program: it starts the others. */
static bool is_parent(const struct invocation *run)
{
    return command_switch(&run->call, "supervise") && !supervise_is_child();
}

/* A key's flag as it was given; NULL: it was not. */
static const char *key_value(const struct invocation *run, const char *name)
{
    for (int i = run->set.config_at + 1; i < run->set.trust_at; i++) {
        if (strcmp(run->set.flags[i].name, name) == 0) {
            return run->set.values[i];
        }
    }
    return NULL;
}

/*
 * Was it started as a member of a fleet? Only then is a program looked for beside its config: who trains in some folder
 * does not ask for one.
 */
static bool is_member(const struct invocation *run)
{
    return run->set.values[run->set.config_at] || command_switch(&run->call, "supervise") ||
           key_value(run, "job_name") || key_value(run, "cluster") || getenv("TF_CONFIG");
}

/* The config, and the folder of its versions, decide what this process writes, to whom it listens, and what it runs. */
static bool check_trust(const char *path, struct error *error)
{
    char folder[VERSIONS_PATH];
    return trust_file(path, error) && versions_path(path, NULL, folder, error) &&
           (!file_exists(folder) || trust_folder(folder, error));
}

/* A damaged record of versions must not stop a member for good: nobody may be near its machine. */
static void heal_versions(const char *path)
{
    struct probation probation;
    const bool has_failed = probation_read(path, &probation) && probation.failed;
    versions_heal(path, has_failed ? probation.target : 0);
}

static bool load_config(struct invocation *run, struct error *error)
{
    int count = 0;
    run->settings = must_zero((size_t)run->set.count, sizeof *run->settings, "flags");
    for (int i = run->set.config_at + 1; i < run->set.trust_at; i++) {
        if (run->set.values[i]) {
            run->settings[count++] = (struct config_setting){run->set.flags[i].name, run->set.values[i]};
        }
    }
    const char *given = run->set.values[run->set.config_at], *path = given ? given : CONFIG_DEFAULT_PATH;
    if (run->call.command->only_shows) {
        trust_everything();
    }
    const bool is_there = given || file_exists(path); /* one that appears later decides nothing here */
    if (is_there && !check_trust(path, error)) {
        return false;
    }
    if (run->call.command->vouches && is_member(run) && is_there) {
        probation_check(path);
        heal_versions(path);
        if (!is_parent(run)) {
            program_launch(path, run->call.command->vouches);
        }
    }
    if (!config_load(&run->config, given, run->settings, count, error)) {
        return false;
    }
    run->call.config = &run->config;
    log_setup(run->config.output.log_format, LOG_INFO);
    return true;
}

/* argv without the command's name. */
static bool prepare(struct invocation *run, int argc, char *const *argv, struct error *error)
{
    const struct command *command = run->call.command;
    run->operands = must_zero((size_t)argc + 1, sizeof *run->operands, "operands");
    flag_set_create(&run->set, command);
    if (!flags_parse(run->set.flags, run->set.count, argc, argv, run->set.values, run->operands,
                     &run->call.operand_count, error)) {
        return false;
    }
    memcpy(run->call.values, run->set.values, (size_t)run->set.own_count * sizeof run->call.values[0]);
    run->call.operands = run->operands;
    return check_operands(&run->call, error) && trust_folders(run->set.values[run->set.trust_at], error) &&
           (!command->takes_config || load_config(run, error));
}

/* Errors about the configuration, or before it is known, must already use the requested format. */
static enum log_format asked_log_format(int argc, char *const *argv)
{
    static const char flag[] = "--log_format";
    for (int i = 0; i < argc; i++) {
        bool two_words = strcmp(argv[i], flag) == 0 && i + 1 < argc && strcmp(argv[i + 1], "json") == 0;
        if (two_words || strcmp(argv[i], "--log_format=json") == 0) {
            return LOG_JSON;
        }
    }
    return LOG_TEXT;
}

static bool asks_for_help(int argc, char *const *argv)
{
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

/* `trainer eval --help` is `trainer help eval`, and `trainer --help` is `trainer help`. */
static int show_help(const struct command *const *commands, const struct command *about, int words)
{
    char topic[64];
    char *operands[] = {topic};
    snprintf(topic, sizeof topic, "%s", about->name);
    struct command_call call = {.command = command_named(commands, "help"), .commands = commands, .operands = operands};
    assert(call.command);
    call.operand_count = words > 0 && about != call.command ? 1 : 0;
    return call.command->run(&call);
}

bool command_may_use_gpus(const struct config *config)
{
    const struct config_train *train = &config->train;
    bool may = train->device == DEVICE_GPU || train->towers[0] != '\0';
    for (size_t i = 0; i < sizeof train->placement / sizeof train->placement[0]; i++) {
        may = may || train->placement[i] >= LAYER_ON_GPU;
    }
    return may;
}

/* Commands read checkpoints, data and answers of others, too. */
static void confine_command(const struct command_call *call)
{
    const struct config *config = call->config;
    const bool launches = config && call->command->confine == CONFINE_READER && command_may_use_gpus(config);
    if (!config || config->security.seccomp) {
        confine_if_possible(launches ? CONFINE_LAUNCHER : call->command->confine);
    }
}

/*
 * If the caller closed a standard stream, the next file opened would get its number, and log lines would end up in a
 * checkpoint. Occupy it with a descriptor that can be neither read nor written; O_PATH on "/" works even in an empty
 * chroot.
 */
static void occupy_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/", O_PATH) != fd) {
            _exit(COMMAND_FAILED); /* and there is nowhere to say why */
        }
    }
}

/* A full disk or a closed pipe on standard output is a failure, even if the command itself succeeded. */
static int finish_output(int status)
{
    bool is_written = fflush(stdout) == 0 && !ferror(stdout);
    int reason = is_written ? log_lost() : errno != 0 ? errno : EIO;
    if (reason == 0) {
        return status;
    }
    log_error("cannot write to standard output: %s", strerror(reason));
    return status == COMMAND_DONE ? COMMAND_FAILED : status;
}

int command_main(const struct command *const *commands, int argc, char *const *argv)
{
    struct error error;
    struct invocation run = {.call = {.commands = commands, .arguments = argv}};
    int words, status = COMMAND_MISUSED;
    occupy_closed_streams();
    restart_remember(argv);
    int count = argc > 0 ? argc - 1 : 0;
    char *const *rest = argv + (argc - count);
    log_setup(asked_log_format(count, rest), LOG_INFO);
    if (!trust_begin(&error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    run.call.command = find_command(commands, count, rest, &words, &error);
    if (run.call.command && asks_for_help(count, rest)) {
        status = show_help(commands, run.call.command, words);
    } else if (!run.call.command || !prepare(&run, count - words, rest + words, &error)) {
        log_error("%s", error.text);
    } else {
        confine_command(&run.call);
        status = run.call.command->run(&run.call);
    }
    config_free(&run.config);
    flag_set_free(&run.set);
    free(run.settings);
    free(run.operands);
    int finished = finish_output(status);
    if (status == RESTART_STATUS) {
        restart_now();
    }
    return finished;
}
