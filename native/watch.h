/* Being told of changes to files, through inotify(7).  Every function returns 0 or -errno. */
#ifndef SHIM_WATCH_H
#define SHIM_WATCH_H

/* A descriptor to read from when something was seen: non-blocking, close-on-exec, the caller's. */
int watch_open(int *fd);

/* Have changes of the content of path seen; those that the kernel makes to a cgroup's files count. */
int watch_add(int fd, const char *path);

#endif
