/* Loop devices that free themselves.  Every function returns 0 or -errno. */
#ifndef SHIM_LOOP_H
#define SHIM_LOOP_H

#include <stdint.h>

struct loop_request {
    int image_fd;
    const char *name; /* shown by losetup; cut to 63 bytes */
    int read_only;
    int direct_io;
    int autoclear; /* free when its last user ends */
};

struct loop_device {
    int number; /* of /dev/loopN */
    int fd;     /* close-on-exec, the caller's; with autoclear, hold it until the mount is there */
};

int loop_attach(const struct loop_request *request, struct loop_device *device);

struct loop_identity {
    int number;
    uint64_t device; /* st_dev and st_ino of the image */
    uint64_t inode;
};

/* What the device behind fd is used for; ENXIO when it is not in use. */
int loop_identify(int fd, struct loop_identity *identity);

/* Free the device behind fd: at once, or when its last user ends. */
int loop_detach(int fd);

#endif
