//! Compiles every kernel with NVRTC, for several architectures. Needs the library and no GPU.
//!
//! Without the library the tests show as ignored, which the standard harness cannot decide at run time;
//! hence this one, which speaks as much of its protocol as cargo and nextest need. With
//! `BATCHFIT_REQUIRE_NVRTC=1` a missing library is a failure.
#![allow(clippy::print_stdout)] // A test harness answers on standard output.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use batchfit::compile::compile;
use batchfit::device::cuda::plan::{Sources, Target, survey};
use batchfit::device::cuda::{GpuError, Library, check_generated, check_kernels};
use batchfit::device::sim::Card;
use batchfit::model::{Precision, Variant, exported};

/// The test of generated kernels.
const FORMULAS: &str = "generated_kernels_compile_for_hopper";

/// The oldest architecture that CUDA 13 compiles for, and the generations since.
const ARCHITECTURES: [(&str, (u32, u32)); 6] = [
    (FORMULAS, (9, 0)),
    ("kernels_compile_for_turing", (7, 5)),
    ("kernels_compile_for_ampere", (8, 0)),
    ("kernels_compile_for_ada", (8, 9)),
    ("kernels_compile_for_hopper", (9, 0)),
    ("kernels_compile_for_blackwell", (12, 0)),
];

/// Compiles the kernels that the models of `tests/golden/formulas` need.
fn check_formulas() -> Result<(), GpuError> {
    let capability = Card::find("h200")
        .expect("the card of the recordings")
        .capability;
    let mut all = Sources::default();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/formulas");
    for entry in fs::read_dir(folder).expect("the folder is part of the repository") {
        let path = entry.expect("a folder can be listed").path();
        if path.extension().is_none_or(|end| end != "gz") {
            continue;
        }
        let model = exported::parse(&fs::read(&path).expect("a file can be read"));
        let graph = model.expect("goldens are graphs").graph;
        for precision in [Precision::Fp32, Precision::AmpBf16] {
            let variant = Variant {
                precision,
                ..Variant::default()
            };
            // Graphs of half types have no autocast.
            if let Ok(program) = compile(&graph, &variant, capability) {
                all.extend(survey(&program, 3, Target::of(&capability)).sources);
            }
        }
    }
    println!("{} generated kernels", all.generated());
    check_generated(&all, capability.compute)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let is_required = env::var_os("BATCHFIT_REQUIRE_NVRTC").is_some_and(|value| value != "0");
    let is_ignored = !Library::Nvrtc.is_present() && !is_required;
    if has("--list") {
        // nextest asks twice: for all tests, and for the ignored ones among them.
        if is_ignored || !has("--ignored") {
            for (name, _) in ARCHITECTURES {
                println!("{name}: test");
            }
        }
        return ExitCode::SUCCESS;
    }
    let names: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let chosen = |name: &str| {
        names.is_empty()
            || names.iter().any(|wanted| {
                if has("--exact") {
                    **wanted == name
                } else {
                    name.contains(wanted.as_str())
                }
            })
    };
    let tests: Vec<_> = ARCHITECTURES
        .into_iter()
        .filter(|(name, _)| chosen(name))
        .collect();
    println!("\nrunning {} tests", tests.len());
    let (mut failed, mut ignored) = (0, 0);
    for (name, compute) in &tests {
        if is_ignored && !has("--ignored") && !has("--include-ignored") {
            println!("test {name} ... ignored, NVRTC is not installed");
            ignored += 1;
            continue;
        }
        let checked = match *name {
            FORMULAS => check_formulas(),
            _ => check_kernels(*compute),
        };
        match checked {
            Ok(()) => println!("test {name} ... ok"),
            Err(error) => {
                println!("test {name} ... FAILED\n{error}");
                failed += 1;
            }
        }
    }
    let passed = tests.len() - failed - ignored;
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {result}. {passed} passed; {failed} failed; {ignored} ignored\n");
    ExitCode::from(u8::from(failed > 0))
}
