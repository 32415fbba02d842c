//! Compiles the object that `batchfit run` loads before a script, and lists it with what lies beside it.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "crates/platform/build/files.rs"]
mod files;
use files::{collect, listed, out};

/// What `batchfit run` loads before a script.
const VIRTUAL_GPU: &str = "crates/vgpu";

/// Rules of the simulator that it has too.
const SHARED: [&str; 3] = [
    "crates/torch/src/ops/recurrent/sizes.rs",
    "crates/card/src/device/sim/workspaces/algorithms.rs",
    "crates/cuda/src/cudnn/absent/stream_k.rs",
];

fn main() -> io::Result<()> {
    for folder in [VIRTUAL_GPU].iter().chain(&SHARED) {
        println!("cargo::rerun-if-changed={folder}");
    }
    embed_virtual_gpu()
}

/// What cargo says to a build script.
fn said(name: &str) -> String {
    let said = env::var_os(name).expect("cargo says it");
    said.into_string().expect("it is UTF-8")
}

/// Compiles the object of `batchfit run` and lists it with what lies beside it. It is `LD_PRELOAD` of glibc: elsewhere nothing is carried.
fn embed_virtual_gpu() -> io::Result<()> {
    let mut files = BTreeSet::new();
    for folder in ["python", "values"] {
        let folder = Path::new(VIRTUAL_GPU).join(folder);
        if folder.is_dir() {
            collect(&folder, &mut files)?;
        }
    }
    let source = Path::new(VIRTUAL_GPU).join("src/lib.rs");
    let target = said("TARGET");
    let is_served = ["x86_64", "aarch64"].map(|machine| format!("{machine}-unknown-linux-gnu"));
    let object = if is_served.contains(&target) && source.is_file() {
        compile(&source, &target)?;
        "Some(include_bytes!(concat!(env!(\"OUT_DIR\"), \"/libcuda.so.1\")))"
    } else {
        "None"
    };
    let list = listed(&files, VIRTUAL_GPU, "[u8]")?;
    let text = format!("{list}pub(super) const OBJECT: Option<&[u8]> = {object};\n");
    fs::write(out().join("virtual_gpu.rs"), text)
}

/// Compiles it as `crates/vgpu/build.sh` does, unless it is there from the same sources: everything else in `src` changes more often.
fn compile(source: &Path, target: &str) -> io::Result<()> {
    let mut files = BTreeSet::new();
    collect(&Path::new(VIRTUAL_GPU).join("src"), &mut files)?;
    files.extend(SHARED.map(PathBuf::from));
    let rustc = said("RUSTC");
    let mut stamp = format!("{rustc} {target}\n");
    for file in files {
        let mut hash = DefaultHasher::new();
        hash.write(&fs::read(&file)?);
        writeln!(stamp, "{} {:016x}", file.display(), hash.finish())
            .expect("text takes everything");
    }
    let (object, stamps) = (out().join("libcuda.so.1"), out().join("virtual_gpu.stamp"));
    if object.is_file() && fs::read_to_string(&stamps).is_ok_and(|old| old == stamp) {
        return Ok(());
    }
    let mut command = Command::new(rustc);
    command.args([
        "--edition",
        "2024",
        "--crate-name",
        "batchfit_vgpu",
        "--crate-type",
        "cdylib",
    ]);
    // Optimised it takes four times as long to build; a step of small operations takes half as long again if it is not.
    let level = if said("PROFILE") == "debug" { 0 } else { 2 };
    let level = format!("opt-level={level}");
    for flag in [
        &level,
        "codegen-units=4",
        "lto=off",
        "panic=abort",
        "strip=debuginfo",
    ] {
        command.args(["-C", flag]);
    }
    command.args([
        "--cap-lints",
        "allow",
        "-C",
        "link-arg=-Wl,-soname,libcuda.so.1",
        "--target",
        target,
    ]);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        command
            .arg("-C")
            .arg(format!("linker={}", linker.to_string_lossy()));
    }
    let status = command.arg(source).arg("-o").arg(&object).status()?;
    assert!(
        status.success(),
        "the object of `batchfit run` does not compile"
    );
    fs::write(stamps, stamp)
}
