/*
 * Asking a warm template instead of starting Python: see shim/boot/template.py for the other side.
 *
 * Whatever goes wrong before the template says that it has begun is answered with NO_TEMPLATE, and the caller starts
 * Python itself: slower, never different.  After that the request is the template's child's; if we go away it undoes
 * what it did, and if it goes away we fail as a killed program fails.
 */
#define _GNU_SOURCE
#include "launcher.h"
#include "template_key.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { KEY_SIZE = 1 << 17, BEGIN_MS = 2000, FDS = 4, EXIT_LOST = 1 };

struct header {
    uint32_t key_size, argv_size, env_size, umask;
    int32_t parent;
};

/* Whether the caller's environment changes how the loader or malloc works: a fork would have the template's. */
static int needs_own_process(void)
{
    static const char *const prefixes[] = {"LD_", "GLIBC_TUNABLES=", "MALLOC_", "TRIO_SHIM_TEMPLATE=off"};
    for (char **variable = environ; *variable != NULL; variable++)
        for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
            if (strncmp(*variable, prefixes[i], strlen(prefixes[i])) == 0)
                return 1;
    return 0;
}

/* Whether the request is one of those that end soon.  A server keeps what it was given, descriptor 3 included. */
static int is_short(int argc, char **argv)
{
    static const char *const last[] = {"start", "delete", "-v", "--v", "-version", "--version", "-info", "--info"};
    for (size_t i = 0; argc > 1 && i < sizeof(last) / sizeof(last[0]); i++)
        if (strcmp(argv[argc - 1], last[i]) == 0)
            return 1;
    return 0;
}

/* The directory of the templates, ours alone. */
static const char *run_directory(void)
{
    const char *directory = getenv("TRIO_SHIM_RUN_DIR");
    if (directory == NULL || directory[0] != '/')
        directory = "/run/containerd-shim-trio";
    struct stat found;
    if (mkdir(directory, 0700) < 0 && errno != EEXIST)
        return NULL;
    if (lstat(directory, &found) < 0 || !S_ISDIR(found.st_mode))
        return NULL;
    return found.st_uid == geteuid() && (found.st_mode & 077) == 0 ? directory : NULL;
}

/* Starts a template unless somebody else does or one lives: it holds the lock, with its key inside, for its life. */
static void leave_template(const char *python, const char *entry, const char *lock_path, const char *socket_path,
                           const char *key, size_t key_size)
{
    static char padding[512];
    struct stat held, named;
    int lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0)
        return;
    /* One that leaves takes its lock file along: a lock on a file without a name keeps nobody out. */
    if (flock(lock, LOCK_EX | LOCK_NB) < 0 || fstat(lock, &held) < 0 || stat(lock_path, &named) < 0 ||
        held.st_ino != named.st_ino || ftruncate(lock, 0) < 0 || pwrite(lock, key, key_size, 0) != (ssize_t)key_size) {
        close(lock);
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        if (setsid() < 0 || fork() != 0)
            _exit(0);
        int null = open("/dev/null", O_RDWR);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        for (int number = 1; number < NSIG; number++)
            signal(number, SIG_DFL);
        for (int number = 0; number < 3; number++)
            dup2(null, number);
        /* A dup2 onto itself would keep the flag that closes it. */
        if (chdir("/") < 0 || (lock != 3 && dup2(lock, 3) < 0) || fcntl(3, F_SETFD, 0) < 0)
            _exit(1);
        close_range(4, ~0u, 0);
        umask(077);
        memset(padding, '-', sizeof(padding) - 1); /* room for the title of the shims that are forked from it */
        char *const arguments[] = {(char *)python, "-I",         "-S",    "-E", (char *)entry, "--template",
                                   (char *)socket_path, padding, NULL};
        char *const nothing[] = {NULL};
        execve(python, arguments, nothing);
        _exit(1);
    }
    if (child > 0)
        waitpid(child, NULL, 0);
    close(lock);
}

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof(peer);
    if (strlen(path) >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0) {
        int error = -errno;
        close(fd);
        return error;
    }
    if (peer.uid != geteuid()) {
        close(fd);
        return -EPERM;
    }
    return fd;
}

/* Puts strings behind each other, each with its zero; NULL `block` only counts. */
static size_t pack(char *block, char *const *strings)
{
    size_t size = 0;
    for (; *strings != NULL; strings++) {
        size_t length = strlen(*strings) + 1;
        if (block != NULL)
            memcpy(block + size, *strings, length);
        size += length;
    }
    return size;
}

static int send_all(int fd, const struct header *header, char *data, size_t size)
{
    int fds[FDS] = {0, 1, 2, open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    char control[CMSG_SPACE(sizeof(fds))] = {0};
    struct iovec parts[2] = {{(void *)header, sizeof(*header)}, {data, size}};
    struct msghdr message = {
        .msg_iov = parts, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(fds));
    memcpy(CMSG_DATA(rights), fds, sizeof(fds));
    size_t sent = 0, whole = sizeof(*header) + size;
    while (sent < whole) {
        ssize_t count = sent == 0 ? sendmsg(fd, &message, MSG_NOSIGNAL)
                                  : send(fd, data + (sent - sizeof(*header)), whole - sent, MSG_NOSIGNAL);
        struct pollfd ready = {fd, POLLOUT, 0};
        if (count < 0 && (errno != EAGAIN || poll(&ready, 1, BEGIN_MS) != 1))
            return -errno;
        if (count > 0)
            sent += (size_t)count;
        if (sent > 0 && sent < sizeof(*header))
            return -EIO;
    }
    close(fds[3]);
    return 0;
}

/* Bytes of an answer within a time (milliseconds, -1: no end); how many came before the other side closed. */
static size_t receive(int fd, void *data, size_t size, int milliseconds)
{
    size_t got = 0;
    struct pollfd ready = {fd, POLLIN, 0};
    while (got < size && poll(&ready, 1, milliseconds) == 1) {
        ssize_t count = recv(fd, (char *)data + got, size - got, 0);
        if (count <= 0)
            break;
        got += (size_t)count;
    }
    return got;
}

int ask_template(const char *build, const char *python, const char *entry, int argc, char **argv)
{
    static char key[KEY_SIZE];
    char name[TEMPLATE_NAME_SIZE], socket_path[128], lock_path[128], begun;
    const char *directory = needs_own_process() || !is_short(argc, argv) ? NULL : run_directory();
    int key_size = directory == NULL ? -1 : template_key(build, key, sizeof(key));
    if (key_size < 0)
        return NO_TEMPLATE;
    template_name(key, (size_t)key_size, name);
    if (snprintf(socket_path, sizeof(socket_path), "%s/%s.sock", directory, name) >= (int)sizeof(socket_path) ||
        snprintf(lock_path, sizeof(lock_path), "%s/%s.lock", directory, name) >= (int)sizeof(lock_path))
        return NO_TEMPLATE;
    int fd = connect_to(socket_path);
    if (fd == -ECONNREFUSED || fd == -ENOENT)
        leave_template(python, entry, lock_path, socket_path, key, (size_t)key_size);
    if (fd < 0)
        return NO_TEMPLATE;

    mode_t mask = umask(0);
    umask(mask);
    struct header header = {(uint32_t)key_size, (uint32_t)pack(NULL, argv + 1), (uint32_t)pack(NULL, environ), mask,
                            getppid()};
    size_t size = (size_t)header.key_size + header.argv_size + header.env_size;
    char *data = malloc(size);
    int32_t code;
    if (data == NULL)
        return NO_TEMPLATE;
    memcpy(data, key, header.key_size);
    pack(data + header.key_size, argv + 1);
    pack(data + header.key_size + header.argv_size, environ);
    /* Nothing before somebody reads: descriptors in the queue of a stopped process keep the caller's pipes open. */
    if (receive(fd, &begun, 1, BEGIN_MS) != 1 || send_all(fd, &header, data, size) < 0 ||
        receive(fd, &begun, 1, BEGIN_MS) != 1) {
        close(fd);
        return NO_TEMPLATE;
    }
    if (receive(fd, &code, sizeof(code), -1) == sizeof(code))
        return code;
    fprintf(stderr, "containerd-shim-trio: the process that ran the request ended before its answer\n");
    return EXIT_LOST;
}
