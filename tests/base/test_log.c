/* Lines as readers see them: standard output and standard error are captured in files. */
#include "base/log.h"
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text/json.h"

static char output[16384];

/* Runs `act` with descriptor fd captured; the text is in `output` afterwards. */
static void catch (int fd, void (*act)(void))
{
    FILE *file = tmpfile();
    assert_non_null(file);
    int kept = dup(fd);
    assert_true(kept >= 0 && dup2(fileno(file), fd) >= 0);
    act();
    dup2(kept, fd);
    close(kept);
    rewind(file);
    size_t size = fread(output, 1, sizeof output - 1, file);
    output[size] = '\0';
    fclose(file);
}

static void say_all(void)
{
    log_debug("quiet");
    log_info("one\ntwo");
    log_warning("careful");
    log_error("broken \"%s\"", "x");
}

static void say_event(void)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "steps", 12);
    log_event("done", fields, "all done after %d steps", 12);
    log_event("bare", NULL, NULL);
}

static void say_too_much(void)
{
    char text[4000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    log_info("%s", text);
}

TEST(text_goes_where_it_belongs)
{
    log_setup(LOG_TEXT, LOG_INFO);
    catch (STDOUT_FILENO, say_all);
    assert_string_equal(output, "one two\n");
    catch (STDERR_FILENO, say_all);
    assert_string_equal(output, "trainer: warning: careful\ntrainer: error: broken \"x\"\n");
    catch (STDOUT_FILENO, say_event);
    assert_string_equal(output, "all done after 12 steps\n");
}

TEST(json_is_one_object_a_line)
{
    log_setup(LOG_JSON, LOG_INFO);
    catch (STDOUT_FILENO, say_all);
    assert_string_equal(output, "{\"event\":\"log\",\"level\":\"info\",\"message\":\"one two\"}\n"
                                "{\"event\":\"log\",\"level\":\"warning\",\"message\":\"careful\"}\n"
                                "{\"event\":\"log\",\"level\":\"error\",\"message\":\"broken \\\"x\\\"\"}\n");
    catch (STDERR_FILENO, say_all);
    assert_string_equal(output, "trainer: error: broken \"x\"\n");
    catch (STDOUT_FILENO, say_event);
    assert_string_equal(output, "{\"event\":\"done\",\"steps\":12}\n{\"event\":\"bare\"}\n");
    log_setup(LOG_TEXT, LOG_INFO);
}

TEST(a_quiet_log_still_tells_events_and_errors_as_json)
{
    log_setup(LOG_JSON, LOG_ERROR);
    catch (STDOUT_FILENO, say_event);
    assert_string_equal(output, "{\"event\":\"done\",\"steps\":12}\n{\"event\":\"bare\"}\n");
    catch (STDOUT_FILENO, say_all);
    assert_string_equal(output, "{\"event\":\"log\",\"level\":\"error\",\"message\":\"broken \\\"x\\\"\"}\n");
    log_setup(LOG_TEXT, LOG_INFO);
}

TEST(long_lines_are_cut_to_one)
{
    catch (STDOUT_FILENO, say_too_much);
    size_t length = strlen(output);
    assert_true(length > 1000 && length < 2048);
    assert_ptr_equal(strchr(output, '\n'), output + length - 1);
}

static char drawing[64];

static void note_erase(void *context)
{
    strcat(drawing, "e");
}

static void note_draw(void *context)
{
    strcat(drawing, "d");
}

TEST(status_line_makes_room)
{
    log_set_status_line(note_erase, note_draw, NULL);
    catch (STDOUT_FILENO, say_event);
    log_set_status_line(NULL, NULL, NULL);
    assert_string_equal(drawing, "ed");
}

/* --- Memory runs out --- */

static int given, held; /* number of allocations that still succeed; number of blocks not freed yet */

static void *allocate(size_t size)
{
    void *memory = given > 0 ? malloc(size) : NULL;
    given--;
    held += memory ? 1 : 0;
    return memory;
}

static void give_back(void *memory)
{
    held -= memory ? 1 : 0;
    free(memory);
}

static void say_list(void)
{
    cJSON *fields = cJSON_CreateObject(), *list = cJSON_CreateArray();
    for (int i = 0; i < 2; i++) {
        json_append(list, cJSON_CreateNumber(i));
    }
    json_put(fields, "list", list);
    log_event("done", fields, NULL);
}

/* Without memory an object lacks a part, or is missing entirely; nothing is leaked. */
TEST(a_shortage_leaves_nothing_behind)
{
    cJSON_Hooks hooks = {allocate, give_back};
    log_setup(LOG_JSON, LOG_INFO);
    cJSON_InitHooks(&hooks);
    for (int most = 0;; most++) {
        given = most;
        catch (STDOUT_FILENO, say_list);
        assert_int_equal(held, 0);
        assert_null(strstr(output, "\"\":"));
        if (given >= 0) {
            break;
        }
    }
    cJSON_InitHooks(NULL);
    assert_string_equal(output, "{\"event\":\"done\",\"list\":[0,1]}\n");
    log_setup(LOG_TEXT, LOG_INFO);
}

int main(void)
{
    return check_run(NULL, NULL);
}
