#!/bin/sh
# The compiler, with libFuzzer's coverage for this crate and for batchfit alone: what they depend on is compiled as for a release.
case " $* " in
  *" --crate-name batchfit "* | *" fuzz_targets/"*)
    RUSTC_BOOTSTRAP=1 exec "$@" --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
      -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
      -Cllvm-args=-sanitizer-coverage-trace-compares ;;
  *) exec "$@" ;;
esac
