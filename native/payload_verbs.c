/*
 * The verbs of the payload program but for `report`; payload.c says what each does.
 *
 * Nothing is buffered between verbs, so that what was printed is out when the next one ends the program by a signal.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "payload.h"

_Noreturn void give_up(const char *what)
{
    dprintf(2, "shim-payload: %s: %s\n", what, strerror(errno));
    _exit(EXIT_FAILED);
}

_Noreturn void misused(const char *what)
{
    dprintf(2, "shim-payload: cannot understand: %s\n", what);
    _exit(EXIT_MISUSED);
}

static long long number(const char *text, long long highest)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0 || value > highest)
        misused(text);
    return value;
}

static struct timespec seconds(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || value > 1e9)
        misused(text);
    time_t whole = (time_t)value;
    return (struct timespec){.tv_sec = whole, .tv_nsec = (long)((value - (double)whole) * 1e9)};
}

static int signal_number(const char *text)
{
    if (isdigit((unsigned char)text[0]))
        return (int)number(text, NSIG - 1);
    for (int signum = 1; signum < NSIG; signum++) {
        const char *name = sigabbrev_np(signum);
        if (name != NULL && strcmp(name, text) == 0)
            return signum;
    }
    misused(text);
}

static void wait_for(struct timespec left)
{
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

static void put(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t written = write(fd, bytes, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            give_up("write");
        bytes += written;
        size -= (size_t)written;
    }
}

/* Each piece goes to one stream or to both. */
static void put_to(const char *stream, const char *bytes, size_t size)
{
    bool both = stream != NULL && strcmp(stream, "both") == 0;
    bool to_stderr = stream != NULL && strcmp(stream, "stderr") == 0;
    if (stream != NULL && !both && !to_stderr && strcmp(stream, "stdout") != 0)
        misused(stream);
    if (both || !to_stderr)
        put(1, bytes, size);
    if (both || to_stderr)
        put(2, bytes, size);
}

enum { NUMBERED_LINE = 16, NUMBERED_BLOCK = 4096 * NUMBERED_LINE };

/* The next block of numbered lines; `*line` is the number of its first one and is moved on. */
static void fill_numbered(char *block, long long *line)
{
    for (int at = 0; at < NUMBERED_BLOCK; at += NUMBERED_LINE) {
        long long rest = (*line)++;
        for (int digit = NUMBERED_LINE - 2; digit >= 0; digit--, rest /= 10)
            block[at + digit] = (char)('0' + rest % 10);
        block[at + NUMBERED_LINE - 1] = '\n';
    }
}

void verb_print(words w)
{
    put_to(w[1], w[0], strlen(w[0]));
}

void verb_print_lines(words w)
{
    /* Many lines a write, or a million of them would cost a million calls. */
    char block[8192];
    size_t used = 0;
    long long last = number(w[0], LLONG_MAX - 1);
    put_to(w[1], "", 0);
    for (long long line = 1; line <= last; line++) {
        used += (size_t)snprintf(block + used, sizeof(block) - used, "line %lld\n", line);
        if (used > sizeof(block) - 64 || line == last) {
            put_to(w[1], block, used);
            used = 0;
        }
    }
}

void verb_print_bytes(words w)
{
    static char block[NUMBERED_BLOCK];
    long long line = 0;
    for (long long left = number(w[0], LLONG_MAX); left > 0; left -= NUMBERED_BLOCK) {
        fill_numbered(block, &line);
        put_to(w[1], block, left < NUMBERED_BLOCK ? (size_t)left : NUMBERED_BLOCK);
    }
}

void verb_tick(words w)
{
    long long pause_ms = number(w[0], INT_MAX);
    long long last = w[1] == NULL ? LLONG_MAX : number(w[1], LLONG_MAX);
    for (long long count = 1; count <= last; count++) {
        if (dprintf(1, "tick %lld\n", count) < 0)
            give_up("write");
        wait_for((struct timespec){.tv_sec = pause_ms / 1000, .tv_nsec = pause_ms % 1000 * 1000000});
    }
}

void verb_cat(words w)
{
    (void)w;
    static char block[NUMBERED_BLOCK];
    for (;;) {
        ssize_t size = read(0, block, sizeof(block));
        if (size == 0)
            return;
        if (size > 0)
            put(1, block, (size_t)size);
        else if (errno != EINTR)
            give_up("read stdin");
    }
}

void verb_reopen(words w)
{
    int fd = open("/proc/self/fd/1", O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || dprintf(fd, "%s\n", w[0]) < 0)
        give_up("/proc/self/fd/1");
    close(fd);
}

void verb_exit(words w)
{
    _exit((int)number(w[0], 255));
}

void verb_die(words w)
{
    int signum = signal_number(w[0]);
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_UNBLOCK, &all, NULL);
    signal(signum, SIG_DFL);
    kill(getpid(), signum);
    /* A signal that PID 1 sends to itself has no effect; a fault has. */
    if (signum == SIGSEGV) {
        int *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *(volatile int *)nowhere = 0;
    }
    if (signum == SIGILL)
        __builtin_trap();
    errno = EPERM;
    give_up("die");
}

void verb_sleep(words w)
{
    wait_for(seconds(w[0]));
}

void verb_pause(words w)
{
    (void)w;
    for (;;)
        pause();
}

void verb_wait_file(words w)
{
    while (access(w[0], F_OK) != 0)
        wait_for((struct timespec){.tv_nsec = 2000000});
}

void verb_wait_signal(words w)
{
    (void)w;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    put(1, "waiting\n", 8);
    int signum = sigwaitinfo(&all, NULL);
    if (signum < 0 || dprintf(1, "signal %d\n", signum) < 0)
        give_up("wait for a signal");
    sigprocmask(SIG_UNBLOCK, &all, NULL);
}

void verb_ignore(words w)
{
    if (signal(signal_number(w[0]), SIG_IGN) == SIG_ERR)
        give_up("ignore");
}

void verb_alloc(words w)
{
    size_t size = (size_t)number(w[0], 1 << 20) << 20;
    char *taken = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken == MAP_FAILED)
        give_up("alloc");
    for (size_t at = 0; at < size; at += 4096)
        taken[at] = 1;
}

/* Returns 0 in the child. */
static pid_t new_child(void)
{
    pid_t child = fork();
    if (child < 0)
        give_up("fork");
    return child;
}

void verb_spawn(words w)
{
    struct timespec length = seconds(w[1]);
    for (long long count = number(w[0], 100000); count > 0; count--)
        if (new_child() == 0) {
            wait_for(length);
            _exit(0);
        }
}

void verb_daemon(words w)
{
    struct timespec length = seconds(w[0]);
    pid_t child = new_child();
    if (child == 0) {
        setsid();
        if (new_child() == 0)
            wait_for(length);
        _exit(0);
    }
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        continue;
}

void verb_chdir(words w)
{
    if (chdir(w[0]) != 0)
        give_up(w[0]);
}

void verb_open(words w)
{
    if (open(w[0], O_RDONLY) < 0)
        give_up(w[0]);
}

void verb_close(words w)
{
    if (close((int)number(w[0], INT_MAX)) != 0)
        give_up("close");
}

static int new_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        give_up(path);
    return fd;
}

void verb_touch(words w)
{
    close(new_file(w[0]));
}

void verb_write_file(words w)
{
    static char block[NUMBERED_BLOCK];
    int fd = new_file(w[0]);
    long long line = 0;
    for (long long left = number(w[1], LLONG_MAX); left > 0; left -= NUMBERED_BLOCK) {
        fill_numbered(block, &line);
        put(fd, block, left < NUMBERED_BLOCK ? (size_t)left : NUMBERED_BLOCK);
    }
    close(fd);
}
