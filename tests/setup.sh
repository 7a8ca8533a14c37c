#!/usr/bin/env bash
# Installs what the demo and the tests need beyond Rust. Sourced; does nothing where all is there.
# Debian's packages need root or sudo; everything else goes to .cache/ in the checkout (or $PARTITA_CACHE_DIR).

# ensure COMMAND PACKAGE: installs the Debian package where the command does not succeed.
ensure() {
    if eval "$1" >/dev/null 2>&1; then return; fi
    if ! command -v apt-get >/dev/null; then
        echo "setup: please install $2 (this script knows only Debian's apt-get)" >&2
        exit 1
    fi
    local sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    echo "setup: installing $2 with apt-get" >&2
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $2 >/dev/null
}

ensure "g++ --version" g++
ensure "python3 -c 'import ensurepip, venv'" python3-venv
# Triton compiles a stub in C against Python's headers.
ensure "python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path(\"include\") + \"/Python.h\")'" python3-dev
if ! command -v cargo >/dev/null; then
    echo "setup: cargo was not found; install Rust 1.90 or newer from https://rustup.rs" >&2
    exit 1
fi
