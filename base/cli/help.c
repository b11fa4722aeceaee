/* Help is printed to standard output, so that `trainer help config | less` works. */
#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/config/keys.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text/text.h"
#include "base/version.h"

/* Files that the program reads and writes; names of files within a folder are indented. Ends with a name of NULL. */
struct help_file {
    const char *name, *text;
    bool is_written;
};

/* What help, manual and completion say of --trust_folder, a flag of every command. */
#define TRUST_FOLDER_TEXT "act on what is in these folders, whoever owns it or may change it; separated by colons"

enum { WIDTH = 80, COLUMN = 26 };

/*
 * The next part of a command's details: a line that begins with "trainer " is a command, a paragraph ends before one or
 * at an empty line. *rest moves on; NULL: there is no more.
 */
static const char *details_next(const char **rest, size_t *size, bool *is_command)
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
    {"  trials/, trials.jsonl, best.json, final/",
     "of trainer tune: its runs, their table, the best config, and that one trained in full", true},
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

static int run_help(const struct command_call *call)
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
    .run = run_help,
};

/* --- Manual pages --- */

/*
 * The manual pages, made from the tables that parse the command line and config.json, so that they can't disagree:
 * trainer(1) and trainer-config(5), in mdoc, the macros of BSD's manual.
 */

/* Lines of a manual's source are short, and each sentence begins one. */
enum { SOURCE_WIDTH = 78 };

static void put_word(const char *word, int length)
{
    for (int i = 0; i < length; i++) {
        if (word[i] == '\\') {
            fputs("\\e", stdout);
        } else {
            putchar(word[i]);
        }
    }
}

static bool ends_sentence(const char *word, int length)
{
    while (length > 0 && (word[length - 1] == ')' || word[length - 1] == '"')) {
        length--;
    }
    return length > 1 && strchr(".!?", word[length - 1]) && word[length - 2] != '.';
}

/* Running text, which ends with a full stop. */
static void put_text(const char *text)
{
    int column = 0;
    for (text += strspn(text, " \n"); *text != '\0'; text += strspn(text, " \n")) {
        int length = (int)strcspn(text, " \n");
        if (column > 0 && column + 1 + length > SOURCE_WIDTH) {
            putchar('\n');
            column = 0;
        } else if (column > 0) {
            putchar(' ');
            column++;
        }
        if (column == 0 && (*text == '.' || *text == '\'')) {
            fputs("\\&", stdout);
        }
        put_word(text, length);
        column += length;
        text += length;
        if (*text != '\0' && ends_sentence(text - length, length)) {
            putchar('\n');
            column = 0;
        }
    }
    puts(strchr(".?!", text[-1]) ? "" : ".");
}

/* A phrase of a table, as a sentence: with a capital, unless its first word is a name such as config.json. */
static void put_sentence(const char *phrase)
{
    char text[2048];
    size_t letters = strspn(phrase, "abcdefghijklmnopqrstuvwxyz'");
    snprintf(text, sizeof text, "%s", phrase);
    if (letters > 0 && strchr(" ,:;", phrase[letters])) {
        text[0] = (char)toupper((unsigned char)text[0]);
    }
    put_text(text);
}

/* A macro's argument is text, not another macro. */
static void put_argument(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        fputs(*text == '"' ? "\"\"" : *text == '\\' ? "\\e" : (char[2]){*text}, stdout);
    }
    putchar('"');
}

static void put_title(const char *name, int section, const char *purpose)
{
    char upper[64];
    size_t length = 0;
    for (; name[length] != '\0' && length + 1 < sizeof upper; length++) {
        upper[length] = (char)toupper((unsigned char)name[length]);
    }
    upper[length] = '\0';
    printf(".Dd %s\n.Dt %s %d\n.Os trainer ", version_date(), upper, section);
    put_argument(version_trainer());
    printf("\n.Sh NAME\n.Nm %s\n.Nd ", name);
    printf("%s\n", purpose);
}

/* --- trainer(1) --- */

/* "[topic]" is optional, "a|b" a choice; what it means is said in the text. */
static void put_operands(const char *operands)
{
    if (operands) {
        fputs(" Ar ", stdout);
        put_argument(operands);
    }
}

static void put_command_synopsis(const struct command *command)
{
    printf(".Nm\n.Cm ");
    put_argument(command->name);
    putchar('\n');
    if (command->takes_config || command->flags) {
        puts(".Op Fl Fl Ar flag Ns = Ns Ar value ...");
    }
    if (command->operands) {
        fputs(".Ar ", stdout);
        put_argument(command->operands);
        putchar('\n');
    }
}

static void put_details(const char *details)
{
    const char *part;
    size_t size;
    bool is_command, was_command = false, is_first = true;
    while ((part = details_next(&details, &size, &is_command))) {
        char *text = strndup(part, size);
        if (text && is_command) {
            printf("%s.Dl %s\n", was_command ? "" : ".Pp\n", text);
        } else if (text) {
            fputs(is_first || was_command ? "" : ".Pp\n", stdout);
            put_text(text);
        }
        free(text);
        was_command = is_command;
        is_first = false;
    }
}

static void put_command(const struct command *command)
{
    printf(".It Cm ");
    put_argument(command->name);
    put_operands(command->operands);
    putchar('\n');
    put_sentence(command->summary);
    if (command->details) {
        put_details(command->details);
    }
    if (command->takes_config) {
        puts("Takes\n.Fl -config\nand every key of\n.Xr trainer-config 5\nas a flag.");
    }
    const struct command_flag *flag = command->flags;
    if (!flag) {
        return;
    }
    puts(".Bl -tag -width Ds");
    for (; flag->name; flag++) {
        printf(".It Fl -%s", flag->name);
        if (flag->value) {
            fputs(" Ns = Ns Ar ", stdout);
            put_argument(flag->value);
        }
        putchar('\n');
        put_sentence(flag->description);
    }
    puts(".El");
}

static void put_files(void)
{
    puts(".Sh FILES\n.Bl -tag -width Ds");
    for (const struct help_file *file = help_files; file->name; file++) {
        fputs(".It Pa ", stdout);
        put_argument(file->name + strspn(file->name, " "));
        putchar('\n');
        put_sentence(file->text);
    }
    puts(".El");
}

static void put_program_page(const struct command *const *commands)
{
    put_title("trainer", 1, "train small dense networks on one machine or on a fleet, and use them");
    puts(".Sh SYNOPSIS");
    for (int i = 0; commands[i]; i++) {
        put_command_synopsis(commands[i]);
    }
    puts(".Sh DESCRIPTION");
    puts(".Nm");
    put_text("trains softmax regression and multi-layer perceptrons on pictures and tables. The same program is a "
             "parameter server, a worker, an evaluator, and the operator's tool, depending on its flags.");
    printf("Without a command it is\n.Cm \"%s\" .\nFlags are written\n.Fl -flag Ns = Ns Ar value\nor\n"
           ".Fl -flag Ar value ;\nswitches\n.Fl -issync ,\n.Fl -noissync .\n",
           command_train.name);
    put_text(
        "Files that decide what is run, what is written and who is trusted must belong to this user or to root, and "
        "nobody else may be able to write to them or to a folder above them.");
    puts("One flag of every command exempts folders:\n.Bl -tag -width Ds\n.It Fl -trust_folder Ns = Ns Ar DIR");
    put_sentence(TRUST_FOLDER_TEXT);
    puts(".El\n.Pp\nThe commands are:\n.Bl -tag -width Ds");
    for (int i = 0; commands[i]; i++) {
        put_command(commands[i]);
    }
    puts(".El\n.Sh ENVIRONMENT\n.Bl -tag -width Ds\n.It Ev TF_CONFIG\nThe cluster and the role of this process, as "
         "TensorFlow's\ncontrollers set them.\nIt overrides config.json, and flags override it.\n"
         ".It Ev CUDA_VISIBLE_DEVICES\nThe GPUs that this process may use.\n.It Ev NO_COLOR\n"
         "No colors on a terminal.\n.El");
    put_files();
    puts(".Sh EXIT STATUS\n.Bl -tag -width Ds\n.It 0\nThe command did what was asked.\n.It 1\nIt failed; one line on "
         "standard error says why.\n.It 2\nThe command line or the configuration is wrong.\n.It 130 , 143 , 138\n"
         "Training was interrupted by SIGINT, SIGTERM or SIGUSR1, and saved.\n.El\n.Sh EXAMPLES\n"
         "Train two epochs, look at the result, resume:\n.Bd -literal -offset indent\n"
         "trainer --epochs=2 --train_dir=run1\ntrainer eval run1\ntrainer --epochs=4 --train_dir=run1\n.Ed\n"
         ".Sh SEE ALSO\n.Xr trainer-config 5");
}

/* --- trainer-config(5) --- */

static void put_key(const struct config_key *key)
{
    char allowed[256];
    config_key_allowed(key, allowed, sizeof allowed);
    printf(".It Cm %s\n", key->name);
    put_sentence(key->description);
    char text[640];
    snprintf(text, sizeof text, "Allowed: %s; default: %s. Scope: %s; change: %s%s.", allowed,
             key->initial[0] == '\0' ? "empty" : key->initial, config_scope_name(key->scope),
             config_change_name(key->change), key->no_flag ? "; not a flag" : "");
    put_text(text);
}

static void put_config_page(void)
{
    put_title("trainer-config", 5, "configuration of trainer");
    puts(".Sh DESCRIPTION");
    put_text("The file config.json is one JSON object of sections, each an object of keys. Omitted keys keep their "
             "defaults. Every key is also a flag, unless noted otherwise, and flags override the file.");
    puts(".Pp");
    put_text("A key's scope is job if all members of a cluster must agree on it, and machine if each has its own "
             "value. Its change says how a running job adopts a new value from a rollout: live, at the same step on "
             "every member; local, when this member restarts; job, through a checkpoint and a restart of the job.");
    const char *section = "";
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (strcmp(section, key->section) != 0) {
            printf("%s.Ss %s\n.Bl -tag -width Ds\n", section[0] != '\0' ? ".El\n" : "", key->section);
            section = key->section;
        }
        put_key(key);
    }
    puts(".El\n.Sh SEE ALSO\n.Xr trainer 1");
}

static int run_manual(const struct command_call *call)
{
    const char *page = call->operand_count > 0 ? call->operands[0] : "trainer";
    if (strcmp(page, "trainer") == 0) {
        put_program_page(call->commands);
    } else if (strcmp(page, "trainer-config") == 0) {
        put_config_page();
    } else {
        log_error("no manual page %.64s; there are trainer and trainer-config", page);
        return COMMAND_MISUSED;
    }
    return COMMAND_DONE;
}

const struct command command_manual = {
    .name = "manual",
    .operands = "[trainer|trainer-config]",
    .max_operands = 1,
    .summary = "print a manual page: trainer manual | man -l -",
    .details = "trainer(1) has the commands, trainer-config(5) every key of config.json. Both are generated from the "
               "tables by which the program parses them.",
    .run = run_manual,
};

/* --- Completion --- */

/*
 * Shell completion. One function computes the candidates from the tables of commands and keys; a few lines in each
 * shell's language call it and show the result.
 */

/* The command line up to the cursor, which the scripts below pass to `trainer completion words`. */
#define LINE "TRAINER_COMPLETE"

enum { MAX_WORDS = 256 };

/* bash splits words at "=" and expects only the part after it; no shell should add a blank after "--flag=". */
static const char bash_script[] = //
    "_trainer() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} word\n"
    "    word=${line##*[[:space:]]}\n"
    "    mapfile -t COMPREPLY < <(" LINE "=$line \"${COMP_WORDS[0]}\" completion words 2>/dev/null)\n"
    "    COMPREPLY=(\"${COMPREPLY[@]%%$'\\t'*}\")\n"
    "    [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=(\"${COMPREPLY[@]#\"${word%%=*}=\"}\")\n"
    "    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n"
    "    return 0\n"
    "}\n"
    "complete -o default -F _trainer trainer\n";

static const char zsh_script[] = //
    "#compdef trainer\n"
    "_trainer() {\n"
    "    local line=\"${(j: :)words[1,CURRENT-1]} $PREFIX\" tab=$'\\t'\n"
    "    local -a lines open closed open_texts closed_texts\n"
    "    lines=(\"${(@f)$(" LINE "=$line $words[1] completion words 2>/dev/null)}\")\n"
    "    local one\n"
    "    for one in $lines; do\n"
    "        if [[ ${one%%$tab*} == *= ]]; then\n"
    "            open+=(${one%%$tab*}); open_texts+=(\"${one/$tab/  }\")\n"
    "        else\n"
    "            closed+=(${one%%$tab*}); closed_texts+=(\"${one/$tab/  }\")\n"
    "        fi\n"
    "    done\n"
    "    if (( $#open + $#closed == 0 )); then\n"
    "        compset -P '*='\n"
    "        _files\n"
    "        return\n"
    "    fi\n"
    "    compadd -l -S '' -d open_texts -a open\n"
    "    compadd -l -d closed_texts -a closed\n"
    "}\n"
    "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _trainer \"$@\"; else compdef _trainer trainer; fi\n";

static const char fish_script[] = //
    "complete -c trainer -a '(env " LINE "=(commandline -cp) trainer completion words 2>/dev/null)'\n";

/* --- Candidates --- */

/* The words before the one under the cursor, and that one. */
struct line {
    char *text;
    const char *words[MAX_WORDS];
    int count;
    const char *current;
};

static void offer(const struct line *line, const char *candidate, const char *text)
{
    if (strncmp(candidate, line->current, strlen(line->current)) == 0) {
        printf("%s\t%s\n", candidate, text);
    }
}

/* The command that the words name, and how many words do so; the table's first if none do yet. */
static const struct command *command_of(const struct line *line, const struct command *const *commands, int *words)
{
    *words = 0;
    for (int i = 0; commands[i] && line->count > 0; i++) {
        const char *name = commands[i]->name;
        size_t first = strcspn(name, " ");
        if (strlen(line->words[0]) != first || memcmp(line->words[0], name, first) != 0) {
            continue;
        }
        if (name[first] == '\0' || (line->count > 1 && strcmp(line->words[1], name + first + 1) == 0)) {
            *words = name[first] == '\0' ? 1 : 2;
            return commands[i];
        }
    }
    return commands[0];
}

/* First words of commands; or second ones, after the first word of a family. */
static void offer_commands(const struct line *line, const struct command *const *commands)
{
    size_t family = line->count > 0 ? strlen(line->words[0]) : 0;
    char last[64] = "";
    for (int i = 0; commands[i]; i++) {
        const char *name = commands[i]->name, *blank = strchr(name, ' ');
        if (line->count == 0 && blank) {
            char first[64];
            snprintf(first, sizeof first, "%.*s", (int)(blank - name), name);
            if (strcmp(first, last) != 0) {
                offer(line, first, "");
            }
            snprintf(last, sizeof last, "%s", first);
        } else if (line->count == 0) {
            offer(line, name, commands[i]->summary);
        } else if (blank && (size_t)(blank - name) == family && memcmp(name, line->words[0], family) == 0) {
            offer(line, blank + 1, commands[i]->summary);
        }
    }
}

static void offer_flag(const struct line *line, const char *name, bool is_switch, const char *text)
{
    char candidate[128];
    snprintf(candidate, sizeof candidate, "--%s%s", name, is_switch ? "" : "=");
    offer(line, candidate, text);
    if (is_switch && strncmp(line->current, "--no", 4) == 0) {
        snprintf(candidate, sizeof candidate, "--no%s", name);
        offer(line, candidate, text);
    }
}

static void offer_flags(const struct line *line, const struct command *command)
{
    for (const struct command_flag *flag = command->flags; flag && flag->name; flag++) {
        offer_flag(line, flag->name, !flag->value, flag->description);
    }
    for (const struct config_key *key = config_keys; command->takes_config && key->section; key++) {
        if (!key->no_flag) {
            offer_flag(line, key->name, key->type == KEY_SWITCH, key->description);
        }
    }
    if (command->takes_config) {
        offer_flag(line, "config", false, "read this file instead of config.json in the current folder");
    }
    offer_flag(line, "trust_folder", false, TRUST_FOLDER_TEXT);
    offer_flag(line, "help", true, "help on the command");
}

/* Values of a key, after `before`: "--optimizer=", or nothing where the flag is the word before. */
static void offer_values(const struct line *line, const struct config_key *key, const char *before)
{
    static const char *const switches[] = {"true", "false", NULL};
    static const char *const automatic[] = {"auto", NULL};
    static const char *const none[] = {NULL};
    bool has_auto = key->takes_auto || key->type == KEY_DEVICE;
    const char *const *values = key->type == KEY_WORD ? key->words : key->type == KEY_SWITCH ? switches : none;
    for (values = has_auto ? automatic : values; *values; values++) {
        char candidate[192];
        snprintf(candidate, sizeof candidate, "%s%s", before, *values);
        offer(line, candidate, strcmp(*values, key->initial) == 0 ? "default" : "");
    }
}

/* Does the word under the cursor, or the one before it, name a flag whose value is being completed? */
static bool offer_value(const struct line *line)
{
    const char *equals = strchr(line->current, '=');
    const char *last = line->count > 0 ? line->words[line->count - 1] : "";
    char name[96], before[128] = "";
    if (strncmp(line->current, "--", 2) == 0 && equals) {
        snprintf(name, sizeof name, "%.*s", (int)(equals - line->current - 2), line->current + 2);
        snprintf(before, sizeof before, "--%.90s=", name);
    } else if (line->current[0] != '-' && strncmp(last, "--", 2) == 0 && !strchr(last, '=')) {
        snprintf(name, sizeof name, "%s", last + 2);
    } else {
        return false;
    }
    const struct config_key *key = config_key_by_flag(name);
    if (key && (equals || key->type != KEY_SWITCH)) {
        offer_values(line, key, before);
    }
    return equals || (key && key->type != KEY_SWITCH);
}

static void offer_topics(const struct line *line, const struct command *const *commands)
{
    offer_commands(&(struct line){.current = line->current}, commands);
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (key == config_keys || strcmp(key->section, key[-1].section) != 0) {
            offer(line, key->section, "a section of config.json");
        }
        offer(line, key->name, key->description);
    }
    offer(line, "config", "every key of config.json");
    offer(line, "flags", "every key as a flag");
    offer(line, "files", "files that are read and written");
}

static void offer_all(const struct line *line, const struct command *const *commands)
{
    int words;
    const struct command *command = command_of(line, commands, &words);
    if (offer_value(line)) {
        return;
    }
    if (line->current[0] == '-') {
        offer_flags(line, command);
    } else if (words == 0) {
        offer_commands(line, commands);
    } else if (strcmp(command->name, command_help.name) == 0) {
        offer_topics(line, commands);
    } else if (strcmp(command->name, command_completion.name) == 0) {
        offer(line, "bash", "");
        offer(line, "fish", "");
        offer(line, "zsh", "");
    }
}

/* Words end at blanks: no command takes quoted words. The first word, the program's name, is left out. */
static void split(struct line *line, const char *text)
{
    line->text = must_copy(text);
    bool first = true;
    char *at = line->text + strspn(line->text, " \t");
    for (;;) {
        size_t length = strcspn(at, " \t");
        if (at[length] == '\0' || line->count == MAX_WORDS) {
            line->current = first ? "" : at;
            return;
        }
        at[length] = '\0';
        if (!first) {
            line->words[line->count++] = at;
        }
        first = false;
        at += length + 1;
        at += strspn(at, " \t");
    }
}

static int offer_words(const struct command_call *call)
{
    struct line line = {0};
    const char *text = getenv(LINE);
    if (!text) {
        log_error("completion words is for the shells' scripts, which give the command line as " LINE
                  "; `trainer completion bash` prints bash's");
        return COMMAND_MISUSED;
    }
    split(&line, text);
    offer_all(&line, call->commands);
    free(line.text);
    return COMMAND_DONE;
}

static int run_completion(const struct command_call *call)
{
    static const struct {
        const char *shell, *script;
    } scripts[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};
    const char *shell = call->operand_count > 0 ? call->operands[0] : "";
    if (strcmp(shell, "words") == 0) {
        return offer_words(call);
    }
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        if (strcmp(shell, scripts[i].shell) == 0) {
            fputs(scripts[i].script, stdout);
            return COMMAND_DONE;
        }
    }
    log_error("%.64s%scompletion is for bash, zsh or fish: trainer completion bash", shell, shell[0] ? ": " : "");
    return COMMAND_MISUSED;
}

const struct command command_completion = {
    .name = "completion",
    .operands = "bash|zsh|fish",
    .max_operands = 1,
    .summary = "print the shell's script that completes commands, flags and values",
    .details =
        "For this session: source <(trainer completion bash). For all: trainer completion bash "
        ">/etc/bash_completion.d/trainer, trainer completion zsh >\"${fpath[1]}/_trainer\", or trainer completion "
        "fish >~/.config/fish/completions/trainer.fish.",
    .run = run_completion,
};
