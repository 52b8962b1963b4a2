/* One call of the kernel for each function. */
#define _GNU_SOURCE
#include "mount.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HELPER_STACK (256 * 1024)

int mount_attach(const char *source, const char *target, const char *type, unsigned long flags, const char *data)
{
    return mount(source, target, type, flags, data) < 0 ? -errno : 0;
}

int mount_detach(const char *target, int flags)
{
    return umount2(target, flags) < 0 ? -errno : 0;
}

struct attach_request {
    int directory_fd;
    const char *source;
    const char *target;
    const char *type;
    unsigned long flags;
    const char *data;
    int result;
};

static void *attach_elsewhere(void *opaque)
{
    struct attach_request *request = opaque;

    if (unshare(CLONE_FS) < 0 || fchdir(request->directory_fd) < 0)
        request->result = -errno;
    else
        request->result = mount_attach(request->source, request->target, request->type, request->flags, request->data);
    return NULL;
}

/* A thread of its own, because the directory that it leaves behind must be nobody else's. */
int mount_attach_from(int directory_fd, const char *source, const char *target, const char *type, unsigned long flags,
                      const char *data)
{
    struct attach_request request = {directory_fd, source, target, type, flags, data, 0};
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    int code;

    code = pthread_attr_init(&attributes);
    if (code != 0)
        return -code;
    pthread_attr_setstacksize(&attributes, HELPER_STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited: handlers run in the threads that expect them */
    code = pthread_create(&thread, &attributes, attach_elsewhere, &request);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (code != 0)
        return -code;
    pthread_join(thread, NULL);
    return request.result;
}

static int open_with(int root_fd, const char *path, int flags, unsigned long resolve, int *opened_fd)
{
    struct open_how how;
    long fd;

    memset(&how, 0, sizeof(how));
    how.flags = (unsigned int)flags | O_CLOEXEC;
    how.resolve = resolve | RESOLVE_NO_MAGICLINKS;
    /* EAGAIN: a rename elsewhere raced a ".." of the path, and the kernel could not be sure. */
    do {
        fd = syscall(SYS_openat2, root_fd, path, &how, sizeof(how));
    } while (fd < 0 && (errno == EAGAIN || errno == EINTR));
    if (fd < 0)
        return -errno;
    *opened_fd = (int)fd;
    return 0;
}

int mount_open_in_root(int root_fd, const char *path, int *opened_fd)
{
    return open_with(root_fd, path, O_PATH, RESOLVE_IN_ROOT, opened_fd);
}

int mount_open_beneath(int root_fd, const char *path, int flags, int *opened_fd)
{
    return open_with(root_fd, path, flags, RESOLVE_BENEATH, opened_fd);
}
