/*
 * The program that containerd starts: finds the build that it belongs to and has a warm template there run the request
 * (launcher_template.c), or becomes Python.
 *
 * It is installed as <build>/bin/NAME and reached through links.  /proc/self/exe names the file itself with every link
 * resolved, so a process loads from its own build only, wherever the tree was moved and whatever was installed since:
 *
 *     <build>/python          link to the interpreter, the only path that leads out of the build
 *     <build>/entry/NAME.py   what Python runs; it sets the module path
 *
 * Arguments, environment, working directory and open files pass through as they came.  Python runs isolated and without
 * its site module: neither the caller's PYTHON* variables nor packages of the machine may change what a shim is.
 */
#include "launcher.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_BROKEN_INSTALL = 70 };

/* The one program whose start time somebody waits for. */
static const char TEMPLATE_PROGRAM[] = "containerd-shim-trio-v2";

static int fail(const char *what, const char *path)
{
    fprintf(stderr, "containerd-shim-trio: %s %s: %s\n", what, path, strerror(errno));
    return EXIT_BROKEN_INSTALL;
}

/* Cuts the last component off `path` and returns it, NULL when there is none. */
static char *cut_last(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL)
        return NULL;
    *slash = '\0';
    return slash + 1;
}

int main(int argc, char **argv)
{
    char build[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", build, sizeof(build) - 1);
    if (length < 0)
        return fail("read", "/proc/self/exe");
    build[length] = '\0';

    const char *name = cut_last(build); /* <build>/bin and NAME */
    if (name == NULL || cut_last(build) == NULL) {
        errno = EINVAL;
        return fail("locate the build from", "/proc/self/exe");
    }

    char python[PATH_MAX], entry[PATH_MAX];
    int python_length = snprintf(python, sizeof(python), "%s/python", build);
    int entry_length = snprintf(entry, sizeof(entry), "%s/entry/%s.py", build, name);
    if (python_length >= (int)sizeof(python) || entry_length >= (int)sizeof(entry)) {
        errno = ENAMETOOLONG;
        return fail("locate the build from", build);
    }

    if (strcmp(name, TEMPLATE_PROGRAM) == 0) {
        int code = ask_template(build, python, entry, argc, argv);
        if (code != NO_TEMPLATE)
            return code;
    }

    static char *const flags[] = {"-I", "-S", "-E"};
    enum { FLAGS = sizeof(flags) / sizeof(flags[0]) };
    int given = argc > 0 ? argc - 1 : 0;
    char **arguments = calloc((size_t)given + FLAGS + 3, sizeof(*arguments));
    if (arguments == NULL)
        return fail("start", python);
    char **next = arguments;
    *next++ = python;
    for (int i = 0; i < FLAGS; i++)
        *next++ = flags[i];
    *next++ = entry;
    for (int i = 0; i < given; i++)
        *next++ = argv[i + 1];

    execv(python, arguments);
    return fail("run", python);
}
