/* Being told of changes to files, through inotify(7).  Every function returns 0 or -errno. */
#ifndef SHIM_WATCH_H
#define SHIM_WATCH_H

enum watch_event {
    WATCH_MODIFIED = 0x2, /* the content changed; the kernel's own changes to a cgroup's files count */
    WATCH_REMOVED = 0x400 /* the file or directory itself was removed */
};

/* A descriptor to read from when something was seen: non-blocking, close-on-exec, the caller's. */
int watch_open(int *fd);

/* Watch path for any of events; one watch for each path, and a second call replaces the first. */
int watch_add(int fd, const char *path, int events);

#endif
