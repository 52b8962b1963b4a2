/* The C library's own wrappers are younger than the calls, and its header and the kernel's cannot both be included. */
#define _GNU_SOURCE
#include "mountfd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int descriptor(long result, int *fd)
{
    if (result < 0)
        return -errno;
    *fd = (int)result;
    return 0;
}

static int plain(long result)
{
    return result < 0 ? -errno : 0;
}

int mountfd_copy(const char *path, int recursive, int *tree_fd)
{
    unsigned int flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (recursive ? AT_RECURSIVE : 0);

    return descriptor(syscall(SYS_open_tree, AT_FDCWD, path, flags), tree_fd);
}

int mountfd_change(int tree_fd, const struct mountfd_change *change)
{
    struct mount_attr attributes;

    memset(&attributes, 0, sizeof(attributes));
    attributes.attr_set = change->set;
    attributes.attr_clr = change->clear;
    if (change->userns_fd >= 0)
        attributes.userns_fd = (uint64_t)change->userns_fd;
    return plain(syscall(SYS_mount_setattr, tree_fd, "", AT_EMPTY_PATH | (change->recursive ? AT_RECURSIVE : 0),
                         &attributes, sizeof(attributes)));
}

int mountfd_attach(int tree_fd, int place_fd)
{
    return plain(
        syscall(SYS_move_mount, tree_fd, "", place_fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH));
}

int mountfd_open_context(const char *type, int *context_fd)
{
    return descriptor(syscall(SYS_fsopen, type, FSOPEN_CLOEXEC), context_fd);
}

int mountfd_set_flag(int context_fd, const char *key)
{
    return plain(syscall(SYS_fsconfig, context_fd, FSCONFIG_SET_FLAG, key, NULL, 0));
}

int mountfd_set_text(int context_fd, const char *key, const char *value)
{
    return plain(syscall(SYS_fsconfig, context_fd, FSCONFIG_SET_STRING, key, value, 0));
}

int mountfd_set_file(int context_fd, const char *key, int fd)
{
    return plain(syscall(SYS_fsconfig, context_fd, FSCONFIG_SET_FD, key, NULL, fd));
}

int mountfd_create(int context_fd, unsigned int attributes, int *tree_fd)
{
    if (syscall(SYS_fsconfig, context_fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -errno;
    return descriptor(syscall(SYS_fsmount, context_fd, FSMOUNT_CLOEXEC, attributes), tree_fd);
}
