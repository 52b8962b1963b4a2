#define _GNU_SOURCE
#include "sync.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A mounted file is left alone: to open it could have an effect of its own (a device, a fifo). */
static int sync_directory(const char *target)
{
    int fd = open(target, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int result;

    if (fd < 0)
        return errno == ENOTDIR ? 0 : -errno;
    result = syncfs(fd) < 0 ? -errno : 0;
    close(fd); /* an open descriptor would keep the mount busy */
    return result;
}

int sync_unmount(const char *target, int flags, int sync_first, struct sync_report *report)
{
    int64_t start;

    memset(report, 0, sizeof(*report));
    if (sync_first) {
        start = now_ns();
        report->sync_result = sync_directory(target);
        report->sync_ns = now_ns() - start;
    }
    start = now_ns();
    report->unmount_result = umount2(target, flags) < 0 ? -errno : 0;
    report->unmount_ns = now_ns() - start;
    return report->unmount_result;
}
