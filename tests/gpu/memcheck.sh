#!/bin/sh
# Runs two steps of each model of numerics.py under compute-sanitizer's memcheck, on a machine with a GPU.
# Usage: memcheck.sh CHECK [--only MODEL,..] [--precision PRECISION] [--jobs N] [--keep DIR]
set -eu
check=${1:?usage: memcheck.sh CHECK [--only MODEL,..] [--precision PRECISION] [--jobs N] [--keep DIR]}
shift
exec "$(dirname "$0")/numerics.sh" "$check" --memcheck "$@"
