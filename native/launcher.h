/* The two ways in which the launcher gets a program of a build to run. */
#ifndef SHIM_LAUNCHER_H
#define SHIM_LAUNCHER_H

enum { NO_TEMPLATE = -1 };

/*
 * Has a template of this build run the program with our arguments, environment, directory and standard descriptors.
 * Its exit code, or NO_TEMPLATE when there is none to ask; one is then left behind for the next caller, and nothing of
 * the request has been done.
 */
int ask_template(const char *build, const char *python, const char *entry, int argc, char **argv);

#endif
