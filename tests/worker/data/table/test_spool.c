/* Rows on disk: what another user of the machine finds of them, and how much of a disk they take. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/system.h"
#include "worker/data/table/spool.h"

static char folder[64];
static struct statvfs disk; /* f_frsize 0: as it is */

int fstatvfs(int fd, struct statvfs *status)
{
    const int result = SYSTEM(fstatvfs)(fd, status);
    if (disk.f_frsize > 0) {
        *status = disk;
    }
    return result;
}

static int enter(void **state)
{
    disk.f_frsize = 0;
    snprintf(folder, sizeof folder, "/tmp/spool.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int leave(void **state)
{
    return rmdir(folder); /* which fails if anything was left */
}

static int files_in(const char *path)
{
    int count = 0;
    DIR *listing = opendir(path);
    assert_non_null(listing);
    for (const struct dirent *entry; (entry = readdir(listing));) {
        count += entry->d_name[0] != '.' || strlen(entry->d_name) > 2;
    }
    closedir(listing);
    return count;
}

/* The descriptor that was opened last. */
static int newest_descriptor(void)
{
    const int fd = dup(STDERR_FILENO);
    close(fd);
    return fd - 1;
}

static struct examples a_row(float *values, int32_t *labels)
{
    return (struct examples){
        .count = 1, .inputs = 1024, .numbers = 1024, .values = values, .labels = labels, .classes = 2};
}

TEST_WITH(nobody_gets_at_the_file, enter, leave)
{
    float values[1024] = {0};
    int32_t labels[1] = {1};
    char path[64], name[128];
    struct stat status;
    struct spool *spool;
    struct error error;
    const struct examples row = a_row(values, labels);
    assert_true(spool_create(&spool, folder, &row, &error) && spool_add(spool, &row, 0, &error));
    const int fd = newest_descriptor();
    assert_int_equal(fstat(fd, &status), 0);
    assert_true(S_ISREG(status.st_mode) && (status.st_mode & 0777) == 0600);
    assert_int_equal(status.st_nlink, 0);
    assert_int_equal(files_in(folder), 0);
    /* Nor does it get a name later, as a descriptor in /proc could give it. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(name, sizeof name, "%s/found", folder);
    assert_int_equal(linkat(AT_FDCWD, path, AT_FDCWD, name, AT_SYMLINK_FOLLOW), -1);
    spool_destroy(spool);
}

/* Rows of a data file end a run before they end the disk, on which checkpoints lie, too. */
TEST_WITH(the_disk_is_not_filled, enter, leave)
{
    float values[1024] = {0};
    int32_t labels[1] = {1};
    struct spool *spool;
    struct error error = {""};
    const struct examples row = a_row(values, labels);
    int added = 0;
    assert_true(spool_create(&spool, folder, &row, &error));
    disk = (struct statvfs){.f_frsize = 4096, .f_blocks = 1 << 22, .f_bavail = (300 << 20) / 4096};
    while (added < 1024 && spool_add(spool, &row, 0, &error)) { /* 4 MiB: 296 of 300 are left */
        added++;
    }
    assert_int_equal(added, 1024);
    disk.f_bavail = (256 << 20) / 4096;
    while (added < 2048 && spool_add(spool, &row, 0, &error)) {
        added++;
    }
    assert_in_range(added, 1024, 1024 + 256);
    assert_non_null(strstr(error.text, "cannot take the rows that do not fit into memory"));
    assert_non_null(strstr(error.text, "--cache_dir"));
    disk = (struct statvfs){.f_frsize = 4096, .f_blocks = 25600, .f_bavail = 2560}; /* 10 of 100 MiB */
    assert_true(spool_add(spool, &row, 0, &error));
    spool_destroy(spool);
}

int main(void)
{
    return check_run(NULL, NULL);
}
