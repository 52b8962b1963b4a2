/* Spawning: a vfork-like clone, so that the cost does not grow with our memory and a failure to exec is known at once. */
#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILD_STACK_BYTES ((size_t)128 * 1024)
#define KERNEL_SIGNALS 64
#define KERNEL_SIGSET_BYTES 8

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

/* Shared with the child while we are suspended: its answer needs no pipe. */
struct child_start {
    const struct spawn_request *request;
    pid_t parent;
    volatile int error;
    volatile int stage;
};

static int close_gap(unsigned int first, unsigned int last)
{
    if (first > last)
        return 0;
    return syscall(SYS_close_range, first, last, 0) == 0 ? 0 : errno;
}

/*
 * The raw call, since the C library hides two signals of its own.  Its structure is all zero for SIG_DFL, whatever the
 * order of its members.  Handlers go before the mask is opened: none of ours may run in memory that we share.
 */
static void reset_signals(void)
{
    static const uint64_t default_action[8];
    static const uint64_t empty_mask;
    int number;

    for (number = 1; number <= KERNEL_SIGNALS; number++)
        syscall(SYS_rt_sigaction, number, default_action, NULL, KERNEL_SIGSET_BYTES);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &empty_mask, NULL, KERNEL_SIGSET_BYTES);
}

/* All sources go out of the way first, above every target, so that no order of overlaps can destroy one. */
static int map_descriptors(const struct spawn_request *request)
{
    int count = request->fd_count;
    int base = count > 0 ? request->target[count - 1] + 1 : 0;
    int lifted[count + 1];
    unsigned int next = 0;
    int i, result;

    for (i = 0; i < count; i++) {
        if (request->source[i] < 0) {
            int null = open("/dev/null", O_RDWR | O_CLOEXEC);
            if (null < 0)
                return errno;
            lifted[i] = fcntl(null, F_DUPFD_CLOEXEC, base);
        } else {
            lifted[i] = fcntl(request->source[i], F_DUPFD_CLOEXEC, base);
        }
        if (lifted[i] < 0)
            return errno;
    }
    for (i = 0; i < count; i++)
        if (dup2(lifted[i], request->target[i]) < 0)
            return errno;
    for (i = 0; i < count; i++) {
        if (request->target[i] > 0) {
            result = close_gap(next, (unsigned int)request->target[i] - 1);
            if (result != 0)
                return result;
        }
        next = (unsigned int)request->target[i] + 1;
    }
    return close_gap(next, ~0U);
}

static int exec_first(const struct spawn_request *request)
{
    int refused = 0;
    char **path;

    for (path = request->paths; *path != NULL; path++) {
        execve(*path, request->argv, request->envp);
        if (errno == EACCES)
            refused = 1;
        else if (errno != ENOENT && errno != ENOTDIR)
            return errno;
    }
    return refused ? EACCES : ENOENT;
}

static int prepare(const struct child_start *start)
{
    const struct spawn_request *request = start->request;
    int result;

    if (request->new_session && setsid() < 0)
        return errno;
    if (request->new_group && !request->new_session && setpgid(0, 0) < 0)
        return errno;
    if (request->death_signal != 0) {
        if (prctl(PR_SET_PDEATHSIG, request->death_signal, 0, 0, 0) < 0)
            return errno;
        /* A parent that died before the call above sends nothing any more. */
        if (getppid() != start->parent)
            return ESRCH;
    }
    if (request->mask >= 0)
        umask((mode_t)request->mask);
    result = map_descriptors(request);
    return result;
}

static int child_main(void *argument)
{
    struct child_start *start = argument;
    int result;

    reset_signals();
    start->stage = 2;
    result = prepare(start);
    if (result == 0 && start->request->cwd != NULL) {
        start->stage = 3;
        if (chdir(start->request->cwd) < 0)
            result = errno;
    }
    if (result == 0) {
        start->stage = 4;
        result = exec_first(start->request);
    }
    start->error = result;
    _exit(127);
}

int process_spawn(const struct spawn_request *request, struct spawn_result *result)
{
    static const uint64_t full_mask = ~(uint64_t)0;
    struct child_start start = {.request = request, .parent = getpid(), .error = 0, .stage = 1};
    uint64_t saved_mask;
    int descriptor = -1, child, failure;
    char *stack;

    stack = mmap(NULL, CHILD_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        return -errno;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &full_mask, &saved_mask, KERNEL_SIGSET_BYTES);
    child = clone(child_main, stack + CHILD_STACK_BYTES, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &start,
                  &descriptor);
    failure = child < 0 ? errno : start.error;
    if (child > 0 && failure != 0) {
        /* It never became the program; nobody else may see it end. */
        siginfo_t info;
        while (waitid((idtype_t)P_PIDFD, (id_t)descriptor, &info, WEXITED) < 0 && errno == EINTR)
            continue;
        close(descriptor);
    }
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &saved_mask, NULL, KERNEL_SIGSET_BYTES);
    munmap(stack, CHILD_STACK_BYTES);
    result->stage = start.stage;
    if (failure != 0)
        return -failure;
    result->pid = child;
    result->pidfd = descriptor;
    return 0;
}

int process_set_subreaper(int enabled)
{
    return prctl(PR_SET_CHILD_SUBREAPER, enabled, 0, 0, 0) < 0 ? -errno : 0;
}

int process_set_name(const char *name)
{
    return prctl(PR_SET_NAME, name, 0, 0, 0) < 0 ? -errno : 0;
}
