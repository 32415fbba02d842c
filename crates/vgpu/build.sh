#!/usr/bin/env bash
# build.sh OUT: the object as `batchfit run` loads it, into the folder OUT (build.rs of the root package does the same).
set -eu
out=$1 here=$(cd "$(dirname "$0")" && pwd); mkdir -p "$out"
rustc --edition 2024 --crate-name batchfit_vgpu --crate-type cdylib -C opt-level=2 -C lto=off -C panic=abort -C codegen-units=4 -C strip=debuginfo --cap-lints allow \
  -C link-arg=-Wl,-soname,libcuda.so.1 "$here/src/lib.rs" -o "$out/libcuda.so.1"
ln -sf libcuda.so.1 "$out/libcuda.so"; ln -sf libcuda.so.1 "$out/libnvidia-ml.so.1"      # the same file is the same object to the loader
