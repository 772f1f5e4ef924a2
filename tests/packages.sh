# Functions that install Debian's packages where a program is missing; to be sourced by `sh`.

# need PROGRAM PACKAGE...: as root with apt-get it installs the packages.
need() {
    program=$1
    shift
    # What is for administrators is not on everybody's PATH.
    if PATH=$PATH:/usr/sbin command -v "$program" >/dev/null 2>&1; then
        return
    fi
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "$program is missing: installing $* with apt-get"
        [ -n "${packages_updated-}" ] || apt-get update -qq
        packages_updated=yes
        # Services do not start by themselves.
        DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends \
            -o Dpkg::Options::=--force-confold "$@" >/dev/null
    else
        echo "$program is missing. On Debian or Ubuntu: sudo apt-get install $*" >&2
        return 1
    fi
}

# need_postgresql: its programs. Debian's package would make and start a cluster of its own; tests make
# theirs.
need_postgresql() {
    for found in /usr/lib/postgresql/*/bin/initdb; do
        [ ! -x "$found" ] || return 0
    done
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        mkdir -p /etc/postgresql-common
        echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    fi
    need initdb postgresql
}
