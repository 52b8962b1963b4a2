#!/bin/sh
# Stands in for the OCI runtime: records how it was run in the files beside itself, then runs the real one.
# With a file `fail-create` beside it, `create` appends that file to its log and fails, with `fail-output` on stderr.
here=${0%/*}
printf '%s\n' "$*" >>"$here/argv"
env >>"$here/env"
ls -l "/proc/$$/fd" >>"$here/fds"
log=
verb=
want=
for word in "$@"; do
    case $want in
        log) log=$word want= ; continue ;;
        skip) want= ; continue ;;
    esac
    case $word in
        --log) want=log ;;
        --root | --log-format) want=skip ;;
        -*) ;;
        *) verb=${verb:-$word} ;;
    esac
done
if [ "$verb" = create ] && [ -e "$here/fail-create" ]; then
    cat "$here/fail-create" >>"$log"
    [ ! -e "$here/fail-output" ] || cat "$here/fail-output" >&2
    exit 1
fi
exec runc "$@"
