//! What the end of a run says of its batch.

use std::time::Duration;

use memchr::memmem;
use regex_lite::{Regex, RegexBuilder};

use super::run::FinishedRun;
use crate::cli::arguments::Search;
use crate::cli::error::CliError;
use crate::search::ask_tell::{Observation, Outcome};
use crate::units::Bytes;
use crate::virtual_gpu::Ending;

/// What frameworks say when a device's memory runs out: PyTorch (`OutOfMemoryError`, `CUDA error: out of memory`, allocation
/// failures of its libraries), JAX (`RESOURCE_EXHAUSTED: Out of memory`), TensorFlow (`ResourceExhaustedError`, `OOM when
/// allocating tensor`), and CUDA and HIP themselves.
const USUAL: &str = r"OutOfMemoryError|(CUDA|HIP|XPU|NPU|MPS backend) out of memory|(CUDA|HIP) error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: |Resource exhausted: |ResourceExhaustedError|Out of memory (while trying to allocate|allocating )|OOM when allocating tensor";

/// One of these is in all that [`USUAL`] matches: lines without are told much faster.
const MARKS: [&str; 8] = [
    "OOM when",
    "OutOfMemory",
    "ut of memory",
    "OUT_OF_MEMORY",
    "cudaErrorMemory",
    "STATUS_ALLOC",
    "xhausted",
    "EXHAUSTED",
];

/// Most memory that a compiled pattern may take. It takes a time linear in what it is matched with, whatever it is.
const PATTERN: usize = 1 << 20;

/// How runs are judged.
#[derive(Debug)]
pub(in crate::cli) struct Rules {
    /// What a line says when memory ran out.
    pub(super) pattern: Regex,
    /// The exit code that says so.
    exit: Option<u8>,
    /// How long a run may take.
    pub(super) patience: Option<Duration>,
    /// How much of the host's memory it may take.
    pub(super) host_memory: Option<Bytes>,
}

impl Rules {
    /// What frameworks say, within a time and so much of the host's memory.
    pub(in crate::cli) fn frameworks(
        patience: Option<Duration>,
        host_memory: Bytes,
    ) -> Result<Rules, CliError> {
        let rules = Rules::of(USUAL, None, patience)?;
        Ok(Rules {
            host_memory: Some(host_memory),
            ..rules
        })
    }

    pub(super) fn read(arguments: &Search) -> Result<Rules, CliError> {
        let pattern = arguments.oom_pattern.as_deref().unwrap_or(USUAL);
        Rules::of(pattern, arguments.oom_exit, arguments.timeout)
    }

    fn of(pattern: &str, exit: Option<u8>, patience: Option<Duration>) -> Result<Rules, CliError> {
        let compiled = RegexBuilder::new(pattern).size_limit(PATTERN).build();
        let refused = |said: String| CliError::flag("--oom-pattern", said);
        let pattern = compiled.map_err(|error| refused(error.to_string()))?;
        if pattern.is_match("") {
            return Err(refused("it matches every line".to_owned()));
        }
        Ok(Rules {
            pattern,
            exit,
            patience,
            host_memory: None,
        })
    }

    /// Whether a batch fits. A run that ended well did, whatever it said: it may have caught what it said.
    pub(super) fn judge(&self, batch: u64, ran: &FinishedRun) -> Observation {
        let is_oom_exit = self
            .exit
            .is_some_and(|exit| exit_code(ran.ending) == Some(i32::from(exit)));
        let outcome = if exit_code(ran.ending) == Some(0) {
            if ran.output.has_retries {
                Outcome::FitsWithRetries
            } else {
                Outcome::Fits
            }
        } else if is_oom_exit || ran.output.out_of_memory {
            Outcome::OutOfMemory
        } else {
            Outcome::Crashed
        };
        Observation {
            peak_reserved_bytes: match outcome {
                Outcome::Fits | Outcome::FitsWithRetries => ran.output.peak_reserved_bytes,
                Outcome::OutOfMemory | Outcome::Crashed => None,
            },
            ..Observation::new(batch, outcome)
        }
    }
}

/// Whether a line says what the pattern is.
pub(super) fn says(pattern: &Regex, line: &[u8]) -> bool {
    let has = |mark: &&str| memmem::find(line, mark.as_bytes()).is_some();
    (pattern.as_str() != USUAL || MARKS.iter().any(has))
        && pattern.is_match(&String::from_utf8_lossy(line))
}

/// The exit code as a shell has it: 128 and the signal for what a signal ended.
fn exit_code(ending: Ending) -> Option<i32> {
    match ending {
        Ending::Exit(code) => Some(code),
        Ending::Signal(signal) => Some(128 + signal),
        Ending::TookTooLong | Ending::TookTooMuch | Ending::Interrupted => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::run_output::RunOutput;
    use super::*;

    fn rules(exit: Option<u8>) -> Rules {
        Rules {
            pattern: Regex::new(USUAL).unwrap(),
            exit,
            patience: None,
            host_memory: None,
        }
    }

    fn judged(rules: &Rules, ending: Ending, says: &str) -> Outcome {
        let ran = FinishedRun {
            ending,
            output: RunOutput {
                out_of_memory: super::says(&rules.pattern, says.as_bytes()),
                ..RunOutput::default()
            },
        };
        rules.judge(8, &ran).outcome
    }

    #[test]
    fn frameworks_are_understood() {
        for says in [
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.18 GiB",
            "torch.cuda.OutOfMemoryError: CUDA out of memory.",
            "RuntimeError: CUDA error: out of memory",
            "RuntimeError: MPS backend out of memory (MPS allocated: 17.7 GB)",
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
            "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 137438953472 bytes.",
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,1024]",
            "failed to allocate 15.11G (16224681984 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 GiB.",
            "OOM when allocating tensor with shape[64]",
            "Resource exhausted: failed",
            "cudaErrorMemoryAllocation",
            "hipErrorOutOfMemory",
            "CUDNN_STATUS_ALLOC_FAILED",
            "Out of memory allocating 12 bytes",
        ] {
            let outcome = judged(&rules(None), Ending::Exit(1), says);
            assert_eq!(outcome, Outcome::OutOfMemory, "{says}");
        }
        for says in [
            "",
            "try a smaller batch if you run out of memory",
            "ValueError: Expected more than 1 value per channel",
        ] {
            let outcome = judged(&rules(None), Ending::Exit(1), says);
            assert_eq!(outcome, Outcome::Crashed, "{says}");
        }
    }

    #[test]
    fn the_exit_code_comes_before_words_and_words_before_silence() {
        let says = "CUDA out of memory";
        for (oom, ending, says, expected) in [
            (None, Ending::Exit(0), says, Outcome::Fits),
            // One rank ran out of memory, and the others wait for it for ever.
            (None, Ending::TookTooLong, says, Outcome::OutOfMemory),
            (None, Ending::TookTooLong, "", Outcome::Crashed),
            (Some(7), Ending::Exit(7), "", Outcome::OutOfMemory),
            (Some(7), Ending::Exit(1), says, Outcome::OutOfMemory),
            (Some(7), Ending::Exit(8), "", Outcome::Crashed),
            // The kernel's own judgement.
            (Some(137), Ending::Signal(9), "", Outcome::OutOfMemory),
            (None, Ending::Signal(11), "", Outcome::Crashed),
        ] {
            let outcome = judged(&rules(oom), ending, says);
            assert_eq!(outcome, expected, "{oom:?} {ending:?} {says:?}");
        }
    }
}
