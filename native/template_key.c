/*
 * The key of a template: everything that a fork inherits and a caller could care about (design section 9).
 *
 * A shim forked from a template has the template's namespaces, root, cgroups, ids, capabilities, limits and so on, not
 * those of whoever asked.  So all of them are in this text, the text is in the name of the template's socket, and it is
 * compared byte by byte before anything is done: another key means another template or a cold start, never a shim in the
 * wrong place.  What /proc does not offer is no difference; what cannot be read is an error, and so a cold start.
 */
#define _GNU_SOURCE
#include "template_key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { IOPRIO_WHO_PROCESS = 1 };

struct buffer {
    char *text;
    size_t size;
    size_t used;
};

static int append(struct buffer *to, const char *data, size_t length)
{
    if (length >= to->size - to->used)
        return -ENOBUFS;
    memcpy(to->text + to->used, data, length);
    to->used += length;
    to->text[to->used] = '\0';
    return 0;
}

static int append_line(struct buffer *to, const char *name, const char *value)
{
    int error = append(to, name, strlen(name));
    if (error == 0)
        error = append(to, " ", 1);
    if (error == 0)
        error = append(to, value, strlen(value));
    return error != 0 ? error : append(to, "\n", 1);
}

/* A whole file under its name.  One that the kernel was built without counts as empty. */
static int append_file(struct buffer *to, const char *path)
{
    char data[16384];
    size_t length = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    for (;;) {
        ssize_t count = read(fd, data + length, sizeof(data) - 1 - length);
        if (count < 0 && errno == EINVAL) /* a security label where there is no such module */
            count = 0;
        if (count < 0) {
            int error = -errno;
            close(fd);
            return error;
        }
        if (count == 0)
            break;
        length += (size_t)count;
        if (length == sizeof(data) - 1) {
            close(fd);
            return -ENOBUFS;
        }
    }
    close(fd);
    data[length] = '\0';
    return append_line(to, path, data);
}

static int append_link(struct buffer *to, const char *path)
{
    char value[256];
    ssize_t length = readlink(path, value, sizeof(value) - 1);
    if (length < 0)
        return errno == ENOENT ? 0 : -errno;
    value[length] = '\0';
    return append_line(to, path, value);
}

/* Of /proc/self/status only the lines that are inherited and stay the same. */
static int append_status(struct buffer *to)
{
    static const char *const wanted[] = {"Uid:",    "Gid:",    "Groups:", "CapInh:",     "CapPrm:",  "CapEff:",
                                         "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:", "Cpus_allowed_list:",
                                         "Mems_allowed_list:"};
    char line[65536];
    FILE *stream = fopen("/proc/self/status", "re");
    if (stream == NULL)
        return -errno;
    int error = 0;
    while (error == 0 && fgets(line, sizeof(line), stream) != NULL)
        for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
            if (strncmp(line, wanted[i], strlen(wanted[i])) == 0)
                error = append(to, line, strlen(line));
    fclose(stream);
    return error;
}

static int append_numbers(struct buffer *to)
{
    char value[128];
    struct stat root;
    if (stat("/", &root) < 0)
        return -errno;
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, 0);
    if (nice == -1 && errno != 0)
        return -errno;
    long io_priority = syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0);
    snprintf(value, sizeof(value), "%lx:%lx nice %d io %ld", (unsigned long)root.st_dev, (unsigned long)root.st_ino,
             nice, io_priority);
    return append_line(to, "root", value);
}

int template_key(const char *build, char *text, size_t size)
{
    static const char *const links[] = {"/proc/self/ns/cgroup", "/proc/self/ns/ipc",  "/proc/self/ns/mnt",
                                        "/proc/self/ns/net",    "/proc/self/ns/pid",  "/proc/self/ns/pid_for_children",
                                        "/proc/self/ns/time",   "/proc/self/ns/user", "/proc/self/ns/uts",
                                        "/proc/self/root"};
    static const char *const files[] = {"/proc/self/cgroup",        "/proc/self/limits",   "/proc/self/attr/current",
                                        "/proc/self/oom_score_adj", "/proc/self/loginuid", "/proc/self/sessionid"};
    struct buffer to = {text, size, 0};
    int error = append_line(&to, "build", build);
    for (size_t i = 0; error == 0 && i < sizeof(links) / sizeof(links[0]); i++)
        error = append_link(&to, links[i]);
    for (size_t i = 0; error == 0 && i < sizeof(files) / sizeof(files[0]); i++)
        error = append_file(&to, files[i]);
    if (error == 0)
        error = append_status(&to);
    if (error == 0)
        error = append_numbers(&to);
    return error != 0 ? error : (int)to.used;
}

/* FNV-1a over two start values: a name, not a proof; the whole text is compared before it counts. */
void template_name(const char *text, size_t length, char name[TEMPLATE_NAME_SIZE])
{
    uint64_t first = 0xcbf29ce484222325u, second = 0x9ae16a3b2f90404fu;
    for (size_t i = 0; i < length; i++) {
        first = (first ^ (unsigned char)text[i]) * 0x100000001b3u;
        second = (second ^ (unsigned char)text[i]) * 0x100000001b3u;
        second ^= second >> 29;
    }
    snprintf(name, TEMPLATE_NAME_SIZE, "%016llx%016llx", (unsigned long long)first, (unsigned long long)second);
}
