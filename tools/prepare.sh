#!/bin/sh
# Installs what this machine lacks for building, running or testing: looks first, and asks Debian's apt-get only for what
# was not found.  Usage: tools/prepare.sh build|run|test ...
set -eu

missing=""
need() { missing="$missing $*"; }

check_build() {
    command -v python3 > /dev/null || { need python3 python3-dev python3-venv; need gcc libc6-dev; return; }
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "python3 is $(python3 -V 2>&1), and Python 3.11 or later is needed" >&2
        exit 1
    }
    python3 -c 'import ensurepip, venv' 2> /dev/null || need python3-venv
    scratch=$(mktemp -d)
    printf 'int main(void) { return 0; }\n' > "$scratch/plain.c"
    printf '#include <Python.h>\nint main(void) { return 0; }\n' > "$scratch/python.c"
    # The static build is the launcher's; the other one is the native module's.
    gcc -static -o "$scratch/plain" "$scratch/plain.c" 2> /dev/null || need gcc libc6-dev
    include=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
    if command -v gcc > /dev/null; then
        gcc -fsyntax-only -I"$include" "$scratch/python.c" 2> /dev/null || need python3-dev
    else
        test -f "$include/Python.h" || need python3-dev
    fi
    rm -rf "$scratch"
}

check_run() {
    command -v runc > /dev/null || need runc
    # A root file system holds busybox alone, so it must be the static one.
    if ! command -v busybox > /dev/null || ldd "$(command -v busybox)" > /dev/null 2>&1; then need busybox-static; fi
}

check_test() {
    command -v containerd > /dev/null || need containerd
    # dockerd and the client that goes with it, whatever other `docker` is on PATH.
    test -x /usr/sbin/dockerd && test -x /usr/bin/docker || need docker.io
}

for what in "$@"; do
    case $what in
        build) check_build ;;
        run) check_run ;;
        test) check_test ;;
        *) echo "usage: tools/prepare.sh build|run|test ..." >&2; exit 2 ;;
    esac
done

[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "missing here, by Debian's names:$missing" >&2
    exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # the list is split on purpose
apt-get install -y -qq --no-install-recommends $missing > /dev/null
