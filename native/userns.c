/*
 * A namespace needs a process to be made, and somebody outside of it to write its maps.  That process is ours for the
 * length of one call.  It sends no SIGCHLD, so it is none of the children that the reaper waits for (a wait without
 * __WCLONE does not see it); it shares our memory, so that nothing has to be copied, and does nothing with it.
 */
#define _GNU_SOURCE
#include "userns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_SIZE 65536
#define KERNEL_SIGSET_BYTES 8

static int hold(void *unused)
{
    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (pause() < 0) /* every signal but SIGKILL is blocked */
        ;
    return 0;
}

/* The kernel takes a map in one write. */
static int write_map(pid_t pid, const char *name, const char *map)
{
    char path[64];
    size_t length = strlen(map);
    ssize_t written;
    int result;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    written = write(fd, map, length);
    result = written < 0 ? -errno : (size_t)written < length ? -EIO : 0;
    close(fd);
    return result;
}

static int open_namespace(pid_t pid, int *userns_fd)
{
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    *userns_fd = fd;
    return 0;
}

static pid_t start_holder(void *stack)
{
    static const uint64_t full_mask = ~(uint64_t)0;
    uint64_t before;
    pid_t pid;
    int code;

    /* Inherited: no handler of ours may run in the holder, nor one of the C library, which its own call would spare. */
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &full_mask, &before, KERNEL_SIGSET_BYTES);
    pid = clone(hold, (char *)stack + STACK_SIZE, CLONE_VM | CLONE_NEWUSER, NULL);
    code = errno;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, KERNEL_SIGSET_BYTES);
    return pid < 0 ? -code : pid;
}

int userns_open(const char *uid_map, const char *gid_map, int *userns_fd)
{
    void *stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    pid_t pid;
    int result;

    if (stack == MAP_FAILED)
        return -errno;
    pid = start_holder(stack);
    if (pid < 0) {
        munmap(stack, STACK_SIZE);
        return pid;
    }
    result = write_map(pid, "uid_map", uid_map);
    if (result == 0)
        result = write_map(pid, "gid_map", gid_map);
    if (result == 0)
        result = open_namespace(pid, userns_fd);
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR)
        ;
    munmap(stack, STACK_SIZE);
    return result;
}
