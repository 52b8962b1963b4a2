/* Unmounting with its two costs told apart: writing back what is dirty, and taking the mount off. */
#ifndef SHIM_SYNC_H
#define SHIM_SYNC_H

#include <stdint.h>

struct sync_report {
    int64_t sync_ns;    /* 0 where there was nothing to sync */
    int64_t unmount_ns;
    int sync_result;    /* 0 or -errno; a failed sync does not keep the mount */
    int unmount_result; /* 0 or -errno */
};

/* With sync_first, syncfs(2) on the directory that is mounted there; always returns unmount_result. */
int sync_unmount(const char *target, int flags, int sync_first, struct sync_report *report);

#endif
