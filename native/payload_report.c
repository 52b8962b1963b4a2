/*
 * `report`: what a process sees of itself, as lines of key=value in no promised order.
 *
 *   pid ppid pgid sid uid gid euid egid groups umask oom_score_adj cwd comm
 *   signals.ignored signals.blocked no_new_privs capabilities     as /proc/self/status has them
 *   arg.N  env.NAME                                               newline and backslash as \n and \\
 *   fd.N                                                          what the descriptor is
 *   tty.N = ROWS COLUMNS                                          for those of 0, 1, 2 that are terminals
 *   stdin = eof | data | open | closed                            open: no data now, a writer may still come
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "payload.h"

extern char **environ;

static void put_escaped(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\n')
            fputs("\\n", out);
        else if (*text == '\\')
            fputs("\\\\", out);
        else
            fputc(*text, out);
    }
    fputc('\n', out);
}

static void report_identity(FILE *out)
{
    fprintf(out, "pid=%d\nppid=%d\npgid=%d\nsid=%d\n", getpid(), getppid(), getpgid(0), getsid(0));
    fprintf(out, "uid=%u\ngid=%u\neuid=%u\negid=%u\n", getuid(), getgid(), geteuid(), getegid());
    gid_t groups[256];
    int count = getgroups(256, groups);
    fputs("groups=", out);
    for (int i = 0; i < count; i++)
        fprintf(out, i == 0 ? "%u" : " %u", groups[i]);
    mode_t mask = umask(0);
    umask(mask);
    fprintf(out, "\numask=%04o\n", mask);
    char path[PATH_MAX];
    fputs("cwd=", out);
    put_escaped(out, getcwd(path, sizeof(path)) == NULL ? "" : path);
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    fputs("comm=", out);
    put_escaped(out, name);
}

/* A line of a small file that begins with `field`, without it and without blanks; "" where there is none. */
static void report_line(FILE *out, const char *key, const char *file, const char *field)
{
    char line[1024];
    fprintf(out, "%s=", key);
    FILE *in = fopen(file, "re");
    while (in != NULL && fgets(line, sizeof(line), in) != NULL) {
        size_t length = strlen(field);
        if (strncmp(line, field, length) != 0)
            continue;
        char *value = line + length + strspn(line + length, " \t");
        fwrite(value, 1, strcspn(value, "\n"), out);
        break;
    }
    if (in != NULL)
        fclose(in);
    fputc('\n', out);
}

static void report_arguments(FILE *out)
{
    char *line = NULL;
    size_t size = 0;
    FILE *in = fopen("/proc/self/cmdline", "re");
    for (int i = 0; in != NULL && getdelim(&line, &size, '\0', in) > 0; i++) {
        fprintf(out, "arg.%d=", i);
        put_escaped(out, line);
    }
    free(line);
    if (in != NULL)
        fclose(in);
    for (char **each = environ; *each != NULL; each++) {
        fputs("env.", out);
        put_escaped(out, *each);
    }
}

static void report_descriptors(FILE *out)
{
    DIR *listing = opendir("/proc/self/fd");
    if (listing == NULL)
        give_up("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        char target[PATH_MAX];
        ssize_t length = readlinkat(dirfd(listing), entry->d_name, target, sizeof(target) - 1);
        if (length < 0 || atoi(entry->d_name) == dirfd(listing))
            continue;
        target[length] = '\0';
        fprintf(out, "fd.%s=", entry->d_name);
        put_escaped(out, target);
    }
    closedir(listing);
}

static void report_terminals(FILE *out)
{
    for (int fd = 0; fd <= 2; fd++) {
        struct winsize size;
        if (isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0)
            fprintf(out, "tty.%d=%u %u\n", fd, size.ws_row, size.ws_col);
    }
}

/* Takes nothing from stdin: what cannot be polled is a file, where pread does not move, or a device like null. */
static const char *stdin_state(void)
{
    struct stat about;
    if (fstat(0, &about) != 0)
        return "closed";
    if (S_ISREG(about.st_mode))
        return lseek(0, 0, SEEK_CUR) < about.st_size ? "data" : "eof";
    if (S_ISCHR(about.st_mode) && !isatty(0)) {
        char byte;
        return read(0, &byte, 1) > 0 ? "data" : "eof";
    }
    struct pollfd polled = {.fd = 0, .events = POLLIN};
    if (poll(&polled, 1, 0) <= 0)
        return "open";
    int waiting = 0;
    if (ioctl(0, FIONREAD, &waiting) == 0 && waiting > 0)
        return "data";
    return (polled.revents & (POLLHUP | POLLIN)) != 0 ? "eof" : "open";
}

void verb_report(words w)
{
    (void)w;
    char *text = NULL;
    size_t size = 0;
    /* Collected first: stdout is written once, and what stdio opens for itself is not reported. */
    FILE *out = open_memstream(&text, &size);
    if (out == NULL)
        give_up("report");
    report_identity(out);
    report_line(out, "oom_score_adj", "/proc/self/oom_score_adj", "");
    report_line(out, "signals.ignored", "/proc/self/status", "SigIgn:");
    report_line(out, "signals.blocked", "/proc/self/status", "SigBlk:");
    report_line(out, "no_new_privs", "/proc/self/status", "NoNewPrivs:");
    report_line(out, "capabilities", "/proc/self/status", "CapEff:");
    report_arguments(out);
    report_descriptors(out);
    report_terminals(out);
    fprintf(out, "stdin=%s\n", stdin_state());
    fclose(out);
    for (size_t done = 0; done < size;) {
        ssize_t written = write(1, text + done, size - done);
        if (written < 0 && errno != EINTR)
            give_up("write");
        done += written < 0 ? 0 : (size_t)written;
    }
    free(text);
}
