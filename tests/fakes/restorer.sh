#!/bin/sh
# Stands in for an OCI runtime with CRIU, in front of the real one.  `restore` runs the container anew, `checkpoint`
# writes an image, and without --leave-running the container and the runtime's record of it are gone afterwards.
verb=
left=
image=
want=
id=
for word in "$@"; do
    case $want in
        skip) want= ; continue ;;
        image) image=$word want= ; continue ;;
    esac
    case $word in
        --root | --log | --log-format | --work-path | --parent-path | --pid-file | --bundle) want=skip ;;
        --image-path) want=image ;;
        --leave-running) left=yes ;;
        -*) ;;
        *) if [ -z "$verb" ]; then verb=$word; else id=$word; fi ;;
    esac
done
root=$2
case $verb in
    checkpoint)
        mkdir -p "$image" && echo image >"$image/pages" || exit 1
        [ -n "$left" ] || runc --root "$root" delete --force "$id"
        exit
        ;;
    restore)
        [ -e "$image/pages" ] || { echo "no image in $image" >&2; exit 1; }
        shift 6 # --root ROOT --log LOG --log-format json
        words=
        skip=
        for word in "$@"; do
            if [ -n "$skip" ]; then skip=; continue; fi
            case $word in
                restore | -no-subreaper) ;;
                --image-path | --work-path | --parent-path) skip=yes ;;
                *) words="$words $word" ;; # no path of a test has a space
            esac
        done
        # shellcheck disable=SC2086
        exec runc --root "$root" run $words
        ;;
esac
exec runc "$@"
