#!/usr/bin/env bash
# prebuild.sh PYTHON...: the values' object for the PyTorch of each PYTHON; a batchfit that is built afterwards carries them (build.rs takes what lies
# there), and compiles none for scripts that use a PyTorch of the same minor version. Give Pythons of all that a release supports.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$here/values/prebuilt"
for python in "$@"; do "$python" "$here/python/values.py" "$here/values/prebuilt"; done
