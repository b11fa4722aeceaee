/*
 * The manual pages, made from the tables that parse the command line and config.json, so that they can't disagree:
 * trainer(1) and trainer-config(5), in mdoc, the macros of BSD's manual.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/cli/internal.h"
#include "base/config/keys.h"
#include "base/log.h"
#include "base/version.h"

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

static int run(const struct command_call *call)
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
    .run = run,
};
