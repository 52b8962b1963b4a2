/* One call of the kernel for each function. */
#define _GNU_SOURCE
#include "mount.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

int mount_attach(const char *source, const char *target, const char *type, unsigned long flags, const char *data)
{
    return mount(source, target, type, flags, data) < 0 ? -errno : 0;
}

int mount_detach(const char *target, int flags)
{
    return umount2(target, flags) < 0 ? -errno : 0;
}

int mount_open_in_root(int root_fd, const char *path, int *opened_fd)
{
    struct open_how how = {
        .flags = O_PATH | O_CLOEXEC,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
    };
    long fd;

    /* EAGAIN: a rename elsewhere raced a ".." of the path, and the kernel could not be sure. */
    do {
        fd = syscall(SYS_openat2, root_fd, path, &how, sizeof(how));
    } while (fd < 0 && (errno == EAGAIN || errno == EINTR));
    if (fd < 0)
        return -errno;
    *opened_fd = (int)fd;
    return 0;
}
