#include "watch.h"

#include <errno.h>
#include <stdint.h>
#include <sys/inotify.h>

_Static_assert(WATCH_MODIFIED == IN_MODIFY, "the number of IN_MODIFY");
_Static_assert(WATCH_REMOVED == IN_DELETE_SELF, "the number of IN_DELETE_SELF");

int watch_open(int *fd)
{
    int opened = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

    if (opened < 0)
        return -errno;
    *fd = opened;
    return 0;
}

int watch_add(int fd, const char *path, int events)
{
    return inotify_add_watch(fd, path, (uint32_t)events) < 0 ? -errno : 0;
}
