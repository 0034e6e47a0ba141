# shellcheck shell=bash
# Functions shared by all launchers: settings, one-line errors and --dry-run.
set -euo pipefail
dry_run=false
exec 3>&1 # where a dry run prints, even inside $(...)

fail() {
    echo "error: $*" >&2
    exit 2
}

# quoted WORD...: prints the words, quoted for a shell.
quoted() {
    local word line='' apostrophe="'" escaped="'\\''"
    for word; do
        case $word in
            *[!A-Za-z0-9_./:=,@%+-]* | '') word="'${word//$apostrophe/$escaped}'" ;;
        esac
        line+="${line:+ }$word"
    done
    printf '%s\n' "$line"
}

# run COMMAND...: runs a command, or prints it in a dry run.
run() {
    if $dry_run; then quoted "$@" >&3; else "$@"; fi
}

# settings "NAME..." "FLAG..." WORD...: `--some-name VALUE` sets $some_name, `--some-flag` makes $some_flag true; the
# words after -- go to $rest.
settings() {
    local known=" $1 " flags=" $2 dry-run " given
    shift 2
    rest=()
    # A manifest, a unit or a remote shell would read what follows a line break as lines of their own.
    [[ $* != *[[:cntrl:]]* ]] || fail "an argument has a line break or another control character: remove it"
    while [ $# -gt 0 ]; do
        given=${1#--}
        case $1 in
            --help) usage && exit ;;
            --) shift && rest=("$@") && break ;;
            --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
            --*) ;;
            *) fail "unknown argument $1: give settings of the launched command after --" ;;
        esac
        if [[ $flags == *" $given "* ]]; then
            printf -v "${given//-/_}" true
        elif [[ $known == *" $given "* ]]; then
            [ $# -gt 1 ] || fail "$1 needs a value"
            [[ $2 != -* ]] || fail "$1 $2: a value that begins with - would be an option of another program"
            printf -v "${given//-/_}" %s "$2" && shift
        else
            fail "unknown setting $1: --help lists all settings"
        fi
        shift
    done
    # shellcheck disable=SC2154 # a setting of every launcher that calls this
    [[ $name =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] ||
        fail "--name $name: give up to 40 characters of a-z, 0-9 and -, starting with a letter"
}

# required NAME...: fails if a setting was not given.
required() {
    local given
    for given; do
        [ -n "${!given}" ] || fail "--${given//_/-} is missing: --help explains it"
    done
}

whole_number() {
    local given
    for given; do
        [[ ${!given} =~ ^[1-9][0-9]{0,8}$ ]] || fail "--${given//_/-} ${!given}: give a whole number of at least 1"
    done
}

# by_digest NAME...: fails unless an image is named by its content. A tag may mean another image when a pod restarts.
by_digest() {
    local given
    for given; do
        [[ ${!given} =~ ^[^@]+@sha256:[0-9a-f]{64}$ ]] ||
            fail "--$given ${!given}: give NAME@sha256:DIGEST; docs/launch.md shows the command that prints it"
    done
}

# needs TOOL...: fails if a tool is missing, except in a dry run.
needs() {
    local tool
    $dry_run && return
    for tool; do
        command -v "$tool" >/dev/null || fail "$tool is not on PATH: install it, or print its commands with --dry-run"
    done
}

# cloud_workdir: fails unless the workdir is in a bucket, because a preempted machine loses its disk.
cloud_workdir() {
    [[ " ${rest[*]-} " =~ \ --workdir[=\ ]gs:// ]] ||
        fail "the workdir must survive the machines: give --workdir gs://BUCKET/RUN after --"
}

# named_slices N: fails unless the mesh has N slices; the run itself would fail only once all slices are ready.
named_slices() {
    [ "$1" = 1 ] || [[ " ${rest[*]-} " =~ \ --mesh\.dcn[-_]data[=\ ]$1\  ]] ||
        fail "--slices $1: the batch must be divided over the slices: give --mesh.dcn-data $1 after --"
}

# The wheel of the last commit.
# shellcheck disable=SC2034 # some launchers do not use it
wheel=dist/xlnet_jax-$(sed -n 's/^__version__ = "\(.*\)"/\1/p' xlnet_jax/__init__.py 2>/dev/null || true)-py3-none-any.whl
make_wheel() {
    run mkdir -p dist &&
        run git archive --format=tar.gz --prefix=xlnet_jax/ --output=dist/xlnet_jax.tar.gz HEAD &&
        run "$python" -m pip wheel --quiet --no-deps --wheel-dir=dist dist/xlnet_jax.tar.gz
}
python=${PYTHON:-python3}

[ "${BASH_SOURCE[0]%/*}/.." -ef . ] || fail "run this from the root of the repository"
