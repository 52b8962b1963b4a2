/* What the parts of the payload program share; payload.c says what it is. */
#ifndef SHIM_PAYLOAD_H
#define SHIM_PAYLOAD_H

enum { EXIT_FAILED = 125, EXIT_MISUSED = 126 };

/* A verb's arguments; those that were left out are NULL. */
typedef char *const *words;

/* Says on stderr what went wrong, with errno's text, and ends the program. */
_Noreturn void give_up(const char *what);

/* Says on stderr which word makes no sense, and ends the program. */
_Noreturn void misused(const char *what);

/* Each returns when its work is done, or ends the program. */
void verb_print(words w);
void verb_print_lines(words w);
void verb_print_bytes(words w);
void verb_tick(words w);
void verb_cat(words w);
void verb_reopen(words w);
void verb_report(words w);
void verb_exit(words w);
void verb_die(words w);
void verb_sleep(words w);
void verb_pause(words w);
void verb_wait_file(words w);
void verb_wait_signal(words w);
void verb_ignore(words w);
void verb_alloc(words w);
void verb_spawn(words w);
void verb_daemon(words w);
void verb_chdir(words w);
void verb_open(words w);
void verb_close(words w);
void verb_touch(words w);
void verb_write_file(words w);

#endif
