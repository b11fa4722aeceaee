/* Help is printed to standard output, so that `trainer help config | less` works. */

#include <stdio.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/cli/internal.h"
#include "base/config/keys.h"
#include "base/log.h"
#include "base/text/suggest.h"

enum { WIDTH = 80, COLUMN = 26 };

const char *details_next(const char **rest, size_t *size, bool *is_command)
{
    static const char name[] = "trainer ";
    const char *begin = *rest + strspn(*rest, " \n");
    const char *end = begin + strcspn(begin, "\n");
    *is_command = strncmp(begin, name, strlen(name)) == 0;
    while (!*is_command && *end != '\0' && end[1] != '\n' && strncmp(end + 1, name, strlen(name)) != 0) {
        end += 1 + strcspn(end + 1, "\n");
    }
    *size = (size_t)(end - begin);
    *rest = end;
    return *size > 0 ? begin : NULL;
}

/*
 * Prints text from column `at`, where the cursor is already; further lines are indented to `indent`. White space only
 * marks where a line may break.
 */
static void print_part(int at, int indent, const char *text, size_t size)
{
    const char *end = text + size;
    int column = at;
    text += strspn(text, " \n");
    while (text < end) {
        int length = (int)strcspn(text, " \n");
        length = length < end - text ? length : (int)(end - text);
        bool first = column == at;
        if (!first && column + 1 + length > WIDTH) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            putchar(' ');
            column++;
        }
        printf("%.*s", length, text);
        column += length;
        text += length;
        text += strspn(text, " \n");
        at = -1;
    }
    putchar('\n');
}

static void print_wrapped(int at, int indent, const char *text)
{
    print_part(at, indent, text, strlen(text));
}

/* Commands stand out; what follows one is about it. */
static void print_details(const char *details)
{
    const char *part;
    size_t size;
    bool is_command, was_command = false, has_commands = false;
    while ((part = details_next(&details, &size, &is_command))) {
        if (!was_command) {
            putchar('\n');
        }
        has_commands = has_commands || is_command;
        const int indent = has_commands ? is_command ? 4 : 6 : 2;
        printf("%*s", indent, "");
        print_part(indent, indent, part, size);
        was_command = is_command;
    }
}

static void print_paragraph(const char *text)
{
    print_wrapped(0, 0, text);
}

/* "  term        text"; a term that is too long puts the text on the next line. */
static void print_entry(const char *term, const char *text)
{
    int length = printf("  %s", term);
    if (length + 2 > COLUMN) {
        printf("\n%*s", COLUMN, "");
    } else {
        printf("%*s", COLUMN - length, "");
    }
    print_wrapped(COLUMN, COLUMN, text);
}

static void print_overview(const struct command *const *commands)
{
    printf("trainer trains small dense networks: softmax regression, multi-layer\nperceptrons.\n\n"
           "Usage: trainer [command] [--flag=value ...]\n\nCommands (the first is the default):\n");
    for (int i = 0; commands[i]; i++) {
        char term[64];
        const char *operands = commands[i]->operands;
        snprintf(term, sizeof term, "%s%s%s", commands[i]->name, operands ? " " : "", operands ? operands : "");
        print_entry(term, commands[i]->summary);
    }
    printf("\nMore:\n");
    print_entry("help COMMAND", "a command and its flags; same as `trainer COMMAND --help`");
    print_entry("help config", "every key of config.json");
    print_entry("help flags", "every key as a flag");
    print_entry("help KEY", "one key or flag");
    print_entry("help files", "files that are read and written");
    printf("\nExample: trainer --layers=784,500,10 --optimizer=adam --epochs=5 --train_dir=run\n");
}

static void print_command(const struct command *command)
{
    printf("trainer %s%s%s%s\n\n  ", command->name, command->operands ? " " : "",
           command->operands ? command->operands : "",
           command->takes_config || command->flags ? " [--flag=value ...]" : "");
    print_wrapped(2, 2, command->summary);
    if (command->details) {
        print_details(command->details);
    }
    if (command->flags) {
        printf("\nFlags of this command:\n");
    }
    for (const struct command_flag *flag = command->flags; flag && flag->name; flag++) {
        char term[64];
        snprintf(term, sizeof term, "--%s%s%s", flag->name, flag->value ? "=" : "", flag->value ? flag->value : "");
        print_entry(term, flag->description);
    }
    if (command->takes_config) {
        printf("\n");
        print_entry("--config=FILE", "read FILE instead of config.json in the current folder");
        print_entry("--KEY=VALUE", "any key of config.json: `trainer help flags`");
        print_entry("--trust_folder=DIR", TRUST_FOLDER_TEXT);
    }
}

/* "tables: sgd 0.02, ...; pictures: ...": what learning_rate auto means. */
static void print_learning_rates(bool of_table)
{
    char text[256], rate[32];
    size_t used = 0;
    for (int kind = OPTIMIZER_SGD; kind < OPTIMIZER_KINDS && used < sizeof text; kind++) {
        config_number_text(config_default_learning_rate((enum optimizer_kind)kind, of_table), rate);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s",
                                 kind > 0   ? ", "
                                 : of_table ? "auto for tables: "
                                            : "auto for pictures: ",
                                 config_optimizer_name((enum optimizer_kind)kind), rate);
    }
    printf("%*s", COLUMN, "");
    print_wrapped(COLUMN, COLUMN, text);
}

static void print_key(const struct config_key *key)
{
    char text[512], allowed[256];
    config_key_allowed(key, allowed, sizeof allowed);
    const char *initial = key->initial[0] == '\0' ? "empty" : key->initial;
    snprintf(text, sizeof text, "%s; default %s; scope %s; change %s", allowed, initial, config_scope_name(key->scope),
             config_change_name(key->change));
    print_entry(key->name, key->description);
    printf("%*s", COLUMN, "");
    print_wrapped(COLUMN, COLUMN, text);
    if (key->offset == offsetof(struct config, train.learning_rate)) {
        print_learning_rates(true);
        print_learning_rates(false);
    }
}

static void print_key_legend(void)
{
    printf("\n");
    print_paragraph("Each key lists its allowed values, default, scope, and when a running job can change it. Scope "
                    "job: all members must agree, and the job's digest covers it; machine: each machine has its own "
                    "value. Change live: at the same step on every member; local: when this member restarts; job: "
                    "through a checkpoint and a restart of the whole job.");
}

static void print_config(const char *only_section)
{
    print_paragraph(
        "config.json is one JSON object of sections, each an object of keys; omitted keys keep their defaults. Flags "
        "override it; `trainer config show` prints the values in effect and where each comes "
        "from.");
    const char *section = "";
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (only_section && strcmp(key->section, only_section) != 0) {
            continue;
        }
        if (strcmp(section, key->section) != 0) {
            section = key->section;
            printf("\n%s\n", section);
        }
        print_key(key);
    }
    print_key_legend();
}

/* Placeholder after --name= in the help. */
static void flag_value(const struct config_key *key, char *text, size_t size)
{
    static const char *const names[] = {
        [KEY_COUNT] = "N",
        [KEY_LONG] = "N",
        [KEY_NUMBER] = "X",
        [KEY_TEXT] = "TEXT",
        [KEY_WORD] = "",
        [KEY_LAYERS] = "N,N,...",
        [KEY_HIDDEN] = "auto|N,N,...",
        [KEY_NAMES] = "COLUMN,...",
        [KEY_HOSTS] = "HOST:PORT,...",
        [KEY_DEVICES] = "DEVICE,...",
        [KEY_DEVICE] = "auto|cpu|gpu|gpu:N",
        [KEY_LAYER_DEVICES] = "LAYER=DEVICE,...",
    };
    size_t used = (size_t)snprintf(text, size, "%s%s", key->takes_auto ? "auto|" : "", names[key->type]);
    for (int i = 0; key->type == KEY_WORD && key->words[i] && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? "|" : "", key->words[i]);
    }
}

static void print_flag(const struct config_key *key)
{
    char term[128], text[512], value[64];
    if (key->type == KEY_SWITCH) {
        snprintf(term, sizeof term, "--[no]%s", key->name);
    } else {
        flag_value(key, value, sizeof value);
        snprintf(term, sizeof term, "--%s=%s", key->name, value);
    }
    snprintf(text, sizeof text, "%s (%s)", key->description, key->initial[0] == '\0' ? "empty" : key->initial);
    print_entry(term, text);
}

static void print_flags(void)
{
    print_paragraph("Flags override config.json. They are written --flag=value or --flag value; switches --issync, "
                    "--noissync or --issync=true|false; lists use commas. Defaults are in parentheses.");
    const char *section = "";
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (key->no_flag) {
            continue;
        }
        if (strcmp(section, key->section) != 0) {
            section = key->section;
            printf("\n%s\n", section);
        }
        print_flag(key);
    }
    printf("\nothers\n");
    print_entry("--config=FILE", "read FILE instead of config.json in the current folder");
    print_entry("--trust_folder=DIR", TRUST_FOLDER_TEXT);
    print_entry("--help", "help on the command");
}

const struct help_file help_files[] = {
    {"config.json", "in the current folder, if present; --config=FILE names another", false},
    {"data_dir/",
     "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or "
     "gzipped (.gz): MNIST, Fashion-MNIST, or your own; or train*.tfrecord* and test*.tfrecord*; or images in "
     "train/CLASS/ and test/CLASS/; or tables: train*.csv, .tsv, .npy, .npz and test*, with --target",
     false},
    {"train_dir/", "training resumes from the newest intact checkpoint here, so a new run needs a new folder", true},
    {"  model-STEP.safetensors",
     "a checkpoint, readable by any safetensors library: parameters, optimizer slots, moving averages, step", true},
    {"  best.safetensors", "the best checkpoint by validation", true},
    {"  summaries/", "event files for TensorBoard; summary_dir names another folder", true},
    {"  *.damaged", "damaged checkpoints, set aside", true},
    {"  trainer.lock", "held by the process that trains here", true},
    {NULL, NULL, false},
};

static void print_files(void)
{
    printf("Read:\n");
    print_entry("TF_CONFIG", "an environment variable, not a file: job_name, task_index, ps_hosts and worker_hosts as "
                             "TensorFlow's controllers set them; it overrides config.json, and flags override it");
    bool written = false;
    for (const struct help_file *file = help_files; file->name; file++) {
        if (file->is_written && !written) {
            printf("\nWritten, and read on resume, if train_dir is set:\n");
            written = true;
        }
        print_entry(file->name, file->text);
    }
}

static void suggest_topic(const struct command *const *commands, const char *topic)
{
    struct suggestion suggestion = {.word = topic};
    for (int i = 0; commands[i]; i++) {
        suggest_offer(&suggestion, commands[i]->name);
    }
    for (const struct config_key *key = config_keys; key->section; key++) {
        suggest_offer(&suggestion, key->name);
    }
    static const char *const topics[] = {"config", "flags", "files"};
    for (int i = 0; i < 3; i++) {
        suggest_offer(&suggestion, topics[i]);
    }
    if (suggestion.best) {
        log_error("no help on %.64s; did you mean `trainer help %s`?", topic, suggestion.best);
    } else {
        log_error("no help on %.64s; `trainer help` lists the topics", topic);
    }
}

/* By flag, or by path. */
static const struct config_key *find_key(const char *topic)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        char path[CONFIG_PATH_SIZE];
        config_key_path(key, path);
        if (strcmp(path, topic) == 0 || (!key->no_flag && strcmp(key->name, topic) == 0)) {
            return key;
        }
    }
    return NULL;
}

static bool show_commands(const struct command *const *commands, const char *topic)
{
    bool found = false;
    size_t length = strlen(topic);
    for (int i = 0; commands[i]; i++) {
        const char *name = commands[i]->name;
        if (strncmp(name, topic, length) == 0 && (name[length] == '\0' || name[length] == ' ')) {
            printf("%s", found ? "\n" : "");
            print_command(commands[i]);
            found = true;
        }
    }
    return found;
}

static bool show_section(const char *topic)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (strcmp(key->section, topic) == 0) {
            print_config(topic);
            return true;
        }
    }
    return false;
}

/* Shows both if a command and a key share a name, as profile does. */
static bool show_command_and_key(const struct command *const *commands, const char *topic)
{
    bool found = show_commands(commands, topic);
    const struct config_key *key = find_key(topic);
    if (key) {
        printf("%s", found ? "\n" : "");
        print_key(key);
        print_key_legend();
    }
    return found || key;
}

static int show(const struct command *const *commands, const char *topic)
{
    if (strcmp(topic, "config") == 0) {
        print_config(NULL);
        printf("\n");
        show_commands(commands, topic);
    } else if (strcmp(topic, "flags") == 0) {
        print_flags();
    } else if (strcmp(topic, "files") == 0) {
        print_files();
    } else if (!show_command_and_key(commands, topic) && !show_section(topic)) {
        suggest_topic(commands, topic);
        return COMMAND_MISUSED;
    }
    return COMMAND_DONE;
}

static int run(const struct command_call *call)
{
    char topic[128];
    if (call->operand_count == 0) {
        print_overview(call->commands);
        return COMMAND_DONE;
    }
    snprintf(topic, sizeof topic, "%s%s%s", call->operands[0], call->operand_count > 1 ? " " : "",
             call->operand_count > 1 ? call->operands[1] : "");
    return show(call->commands, topic);
}

const struct command command_help = {
    .name = "help",
    .operands = "[topic]",
    .max_operands = 2,
    .summary = "this overview, or help on a topic",
    .run = run,
};
