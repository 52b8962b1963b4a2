/*
 * What containers of the tests run: one static program of many small verbs, taken one after the other.
 *
 *     shim-payload print-lines 3 -- ignore TERM -- sleep 10 -- exit 7
 *
 * It needs nothing in its root file system but /proc for `report` and `reopen`, and prints without buffering.  STREAM
 * is stdout, stderr or both (stdout where it is left out); SIGNAL is a number or a name without SIG; SECONDS may have a
 * fraction.  After the last verb it exits with 0; a verb that cannot do its work says why on stderr and exits with 125,
 * words that it does not understand with 126.
 *
 *   print TEXT [STREAM]         TEXT and nothing else
 *   print-lines N [STREAM]      "line 1" to "line N", each with its newline
 *   print-bytes N [STREAM]      lines of 16 bytes, each the number of its line in 15 digits, cut at N bytes
 *   tick MS [N]                 "tick 1", "tick 2", ... a line every MS milliseconds, N of them or without end
 *   cat                         stdin to stdout until its end
 *   reopen TEXT                 TEXT and a newline to /proc/self/fd/1, opened anew
 *   report                      identity, descriptors, terminal, environment and more as lines of key=value
 *   exit N                      ends with status N
 *   die SIGNAL                  ends by SIGNAL; PID 1 of a namespace can only die of SEGV and ILL
 *   sleep SECONDS               waits
 *   pause                       waits for ever
 *   wait-file PATH              waits until PATH exists
 *   wait-signal                 blocks all signals, prints "waiting", and "signal N" for the first that comes
 *   ignore SIGNAL               ignores SIGNAL from here on
 *   alloc MB                    takes that much memory, writes to each page and keeps it
 *   spawn N SECONDS             starts N children that exit after SECONDS, and does not wait for them
 *   daemon SECONDS              leaves a grandchild in a session of its own, with all descriptors, for SECONDS
 *   chdir PATH                  goes there
 *   open PATH                   opens PATH for reading and keeps it open
 *   close FD                    closes a descriptor
 *   touch PATH                  makes an empty file
 *   write-file PATH N           makes a file of N bytes, as print-bytes has them
 *   help                        these lines
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "payload.h"

static void help(words w);

enum { MOST_WORDS = 2 };

/* The same as the table above; a test compares them. */
static const struct verb {
    const char *name;
    const char *usage;
    int least, most; /* how many words it takes */
    void (*run)(words w);
    const char *help;
} verbs[] = {
    {"print", "TEXT [STREAM]", 1, 2, verb_print, "TEXT and nothing else"},
    {"print-lines", "N [STREAM]", 1, 2, verb_print_lines, "\"line 1\" to \"line N\", each with its newline"},
    {"print-bytes", "N [STREAM]", 1, 2, verb_print_bytes,
     "lines of 16 bytes, each the number of its line in 15 digits, cut at N bytes"},
    {"tick", "MS [N]", 1, 2, verb_tick,
     "\"tick 1\", \"tick 2\", ... a line every MS milliseconds, N of them or without end"},
    {"cat", "", 0, 0, verb_cat, "stdin to stdout until its end"},
    {"reopen", "TEXT", 1, 1, verb_reopen, "TEXT and a newline to /proc/self/fd/1, opened anew"},
    {"report", "", 0, 0, verb_report, "identity, descriptors, terminal, environment and more as lines of key=value"},
    {"exit", "N", 1, 1, verb_exit, "ends with status N"},
    {"die", "SIGNAL", 1, 1, verb_die, "ends by SIGNAL; PID 1 of a namespace can only die of SEGV and ILL"},
    {"sleep", "SECONDS", 1, 1, verb_sleep, "waits"},
    {"pause", "", 0, 0, verb_pause, "waits for ever"},
    {"wait-file", "PATH", 1, 1, verb_wait_file, "waits until PATH exists"},
    {"wait-signal", "", 0, 0, verb_wait_signal,
     "blocks all signals, prints \"waiting\", and \"signal N\" for the first that comes"},
    {"ignore", "SIGNAL", 1, 1, verb_ignore, "ignores SIGNAL from here on"},
    {"alloc", "MB", 1, 1, verb_alloc, "takes that much memory, writes to each page and keeps it"},
    {"spawn", "N SECONDS", 2, 2, verb_spawn, "starts N children that exit after SECONDS, and does not wait for them"},
    {"daemon", "SECONDS", 1, 1, verb_daemon,
     "leaves a grandchild in a session of its own, with all descriptors, for SECONDS"},
    {"chdir", "PATH", 1, 1, verb_chdir, "goes there"},
    {"open", "PATH", 1, 1, verb_open, "opens PATH for reading and keeps it open"},
    {"close", "FD", 1, 1, verb_close, "closes a descriptor"},
    {"touch", "PATH", 1, 1, verb_touch, "makes an empty file"},
    {"write-file", "PATH N", 2, 2, verb_write_file, "makes a file of N bytes, as print-bytes has them"},
    {"help", "", 0, 0, help, "these lines"},
};

enum { VERBS = sizeof(verbs) / sizeof(verbs[0]) };

static void help(words w)
{
    (void)w;
    for (int i = 0; i < VERBS; i++) {
        char form[64];
        snprintf(form, sizeof(form), "%s %s", verbs[i].name, verbs[i].usage);
        dprintf(1, "%-28s%s\n", form, verbs[i].help);
    }
}

static const struct verb *find_verb(const char *name)
{
    for (int i = 0; i < VERBS; i++)
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    misused(name);
}

/* Reads one verb and its words from argv[at] on, and runs it if asked to; returns where the next one begins. */
static int take_verb(int argc, char **argv, int at, int run)
{
    if (at >= argc)
        misused("no verb; try help");
    const struct verb *verb = find_verb(argv[at++]);
    char *given[MOST_WORDS] = {NULL};
    int count = 0;
    for (; at < argc && strcmp(argv[at], "--") != 0; at++) {
        if (count == verb->most)
            misused(argv[at]);
        given[count++] = argv[at];
    }
    if (count < verb->least)
        misused(verb->name);
    if (run)
        verb->run(given);
    return at + 1;
}

int main(int argc, char **argv)
{
    /* Nothing is done before every verb was found to be one: argc + 1 is where a last one without -- ends. */
    for (int run = 0; run <= 1; run++)
        for (int at = 1; at <= argc;)
            at = take_verb(argc, argv, at, run);
    return 0;
}
