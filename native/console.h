/* Emptying a terminal after its process has ended. */
#ifndef SHIM_CONSOLE_H
#define SHIM_CONSOLE_H

#include <stdint.h>

/* Why a drain ended: 0 nobody has the terminal open any more, 1 time is up, 2 woken, 3 nobody can read the sink. */
struct console_report {
    int64_t bytes; /* handed over to the sink */
    int64_t lost;  /* read, but the sink took no more of it before the end */
    int ending;
};

/*
 * Move what comes out of a terminal's master into a pipe or fifo, until the last slave is closed (EIO), timeout_ms have
 * passed, or wake_fd becomes readable.  All three descriptors are the caller's and stay open.
 */
int console_drain(int master_fd, int sink_fd, int wake_fd, int timeout_ms, struct console_report *report);

#endif
