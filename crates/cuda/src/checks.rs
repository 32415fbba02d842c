//! What can be known of kernels without a GPU: that they compile, and take what the host gives them.

use std::fmt::Write as _;

use super::driver::error::GpuError;
use super::layout::{self, MAX_RANK};
use super::nvrtc::compile::compile_all;
use super::nvrtc::files::{CHECKS, FILES, Text};
use super::nvrtc::kernel_cache::KernelCache;
use super::ops::attention::{PITCH, TILE};
use super::plan::Sources;
use super::shared::Layout;
use super::{ops, poison};

/// Makes the compiler optimize next to nothing, which finds the same errors in a twentieth of the time.
const QUICKLY: &str = "--Ofast-compile=max";

/// Checks that all written kernels compile for a compute capability, such as `(9, 0)`, and that structs and constants
/// are those of the host.
pub fn check_kernels(compute: (u32, u32)) -> Result<(), GpuError> {
    let mut texts: Vec<Text> = FILES.iter().chain(&CHECKS).map(Text::of).collect();
    let layouts = [
        ops::layouts(),
        layout::LAYOUTS.to_vec(),
        poison::LAYOUTS.to_vec(),
    ]
    .concat();
    if let Some(layout) = layouts
        .iter()
        .find(|layout| !texts.iter().any(|text| layout.is_in(&text.text)))
    {
        return Err(GpuError::Call {
            call: "NVRTC",
            detail: format!("no file of kernels has a struct {}", layout.name),
        });
    }
    for text in &mut texts {
        let own = layouts.iter().filter(|layout| layout.is_in(&text.text));
        let assertions: String = own.map(Layout::assertions).collect();
        let assertions = assertions + &constants(&text.text);
        // Writing to a string does not fail.
        let _ = write!(text.text, "\n#line 1 \"assertions\"\n{assertions}");
    }
    compile_all(&texts, compute, &[QUICKLY], KernelCache::new(None)).map(drop)
}

/// Text that compiles only where constants are the host's.
fn constants(text: &str) -> String {
    let all = [
        ("MAX_RANK", MAX_RANK as u64),
        ("TILE", TILE),
        ("PITCH", PITCH),
    ];
    let mut assertions = String::new();
    for (name, value) in all {
        if text.contains(&format!("\n#define {name} ")) {
            let _ = writeln!(assertions, "static_assert({name} == {value}, \"{name}\");");
        }
    }
    assertions
}

/// Checks that these generated kernels compile for a compute capability.
pub fn check_generated(sources: &Sources, compute: (u32, u32)) -> Result<(), GpuError> {
    let texts: Vec<Text> = sources.generated.iter().map(Text::generated).collect();
    compile_all(&texts, compute, &[QUICKLY], KernelCache::new(None)).map(drop)
}
