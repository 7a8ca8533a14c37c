#!/usr/bin/env bash
# Cargo compiles the workspace's crates through this (.cargo/config.toml): it leaves tests unoptimised.
#
#   tests/rustc.sh RUSTC ARGUMENT…
#
# Cargo optimises a package's tests like its library. To compile the tests of the optimised packages took
# longer than to compile their libraries, and their tests run for seconds either way. Libraries
# that tests are linked to stay as the profile says, and so does everything of release profiles.
compiler=$1
shift
tests= checks=
for argument; do
    case $argument in
    --test) tests=1 ;;
    debug-assertions=on) checks=1 ;;
    esac
done
# Only packages that the development profile optimises ask for assertions.
[ -z "$tests" ] || [ -z "$checks" ] || set -- "$@" -C opt-level=0
exec "$compiler" "$@"
