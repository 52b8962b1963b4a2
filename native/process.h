/* Child processes and attributes of our own process.  Every function returns 0 or -errno. */
#ifndef SHIM_PROCESS_H
#define SHIM_PROCESS_H

#include <stddef.h>

struct spawn_request {
    char **paths;      /* files to try in order, ended by NULL; tried after the chdir */
    char **argv;       /* ended by NULL */
    char **envp;       /* ended by NULL */
    const char *cwd;   /* NULL: ours */
    const int *source; /* source[i] of ours becomes target[i] of the child; -1 is /dev/null */
    const int *target; /* ascending, no duplicates */
    int fd_count;
    int mask;          /* umask, -1: ours */
    int new_group;     /* setpgid(0, 0) */
    int new_session;   /* setsid() */
    int death_signal;  /* 0: none; sent when the thread that spawned ends */
};

/* Where a spawn failed: 1 before the child, 2 setting it up, 3 its directory, 4 its program. */
struct spawn_result {
    int pid;
    int pidfd; /* close-on-exec; the caller's to close */
    int stage;
};

int process_spawn(const struct spawn_request *request, struct spawn_result *result);
int process_set_subreaper(int enabled);
int process_set_name(const char *name);

#endif
