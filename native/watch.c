#include "watch.h"

#include <errno.h>
#include <sys/inotify.h>

int watch_open(int *fd)
{
    int opened = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

    if (opened < 0)
        return -errno;
    *fd = opened;
    return 0;
}

int watch_add(int fd, const char *path)
{
    return inotify_add_watch(fd, path, IN_MODIFY) < 0 ? -errno : 0;
}
