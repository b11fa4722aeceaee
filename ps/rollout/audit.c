#include "ps/rollout/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cJSON.h>

#include "base/file.h"
#include "base/log.h"

static void append(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    size_t size = strlen(text);
    if (fd < 0 || write(fd, text, size) != (ssize_t)size || fsync(fd) != 0) {
        log_warning("%s: a line of the audit log could not be written: %s", path, strerror(errno));
    }
    if (fd >= 0) {
        close(fd);
    }
}

void audit_write(const struct versions *versions, const char *member, const char *who, const char *what,
                 uint64_t version, const char *outcome)
{
    char path[VERSIONS_PATH], when[32], text[2048];
    struct error error;
    struct tm date;
    time_t now = time(NULL);
    cJSON *line = cJSON_CreateObject();
    gmtime_r(&now, &date);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &date);
    cJSON_AddStringToObject(line, "when", when);
    cJSON_AddStringToObject(line, "member", member);
    cJSON_AddStringToObject(line, "who", who);
    cJSON_AddStringToObject(line, "what", what);
    cJSON_AddNumberToObject(line, "version", (double)version);
    cJSON_AddStringToObject(line, "outcome", outcome);
    bool printed = cJSON_PrintPreallocated(line, text, sizeof text - 1, false) != 0;
    cJSON_Delete(line);
    if (printed && file_join(path, sizeof path, versions->folder, "audit.log", &error)) {
        strcat(text, "\n"); /* NOLINT: a byte was kept for it */
        append(path, text);
    }
}
