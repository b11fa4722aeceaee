/*
 * Shell completion. One function computes the candidates from the tables of commands and keys; a few lines in each
 * shell's language call it and show the result.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/cli/internal.h"
#include "base/config/keys.h"
#include "base/log.h"
#include "base/memory.h"

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

static int run(const struct command_call *call)
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
    .run = run,
};
