//! What a script finds in its environment.

use std::env;
use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use super::program_name;
use crate::virtual_gpu::{OBJECT, SESSION};

/// Programs that start a process for each GPU.
const STARTERS: [&str; 7] = [
    "torchrun",
    "deepspeed",
    "mpirun",
    "mpiexec",
    "horovodrun",
    "srun",
    "colossalai",
];

/// Modules that do, as `python -m` takes them.
const MODULES: [&str; 3] = [
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
];

/// How they are told how many.
const COUNTS: [&str; 5] = [
    "--nproc-per-node",
    "--nproc_per_node",
    "--num_processes",
    "--num-processes",
    "--num_gpus",
];

/// Whether a command starts a process for each GPU itself.
pub(super) fn starts_ranks(command: &[OsString]) -> bool {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let name = program_name(command);
    let launches = name == "accelerate" && words.get(1).is_some_and(|word| word == "launch");
    let is_module =
        |pair: &[std::borrow::Cow<'_, str>]| pair[0] == "-m" && MODULES.contains(&&*pair[1]);
    launches || STARTERS.contains(&name.as_str()) || words.windows(2).any(is_module)
}

/// How many ranks a command says that it starts.
pub(super) fn ranks(command: &[OsString]) -> Option<u64> {
    if !starts_ranks(command) {
        return None;
    }
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let of_flag = |(index, word): (usize, &std::borrow::Cow<'_, str>)| {
        let (flag, value) = word.split_once('=').unwrap_or((word, ""));
        let value = if value.is_empty() {
            words.get(index + 1)?
        } else {
            value
        };
        COUNTS.contains(&flag).then(|| value.parse().ok()).flatten()
    };
    words.iter().enumerate().find_map(of_flag)
}

/// Lets a command find the virtual GPU, and nothing of a real one.
pub(super) fn set(
    command: &mut Command,
    folder: &Path,
    gpus: u64,
    starts_ranks: bool,
) -> io::Result<()> {
    command
        .env(
            "LD_PRELOAD",
            before(folder.join(OBJECT).into(), "LD_PRELOAD"),
        )
        .env("LD_LIBRARY_PATH", before(folder.into(), "LD_LIBRARY_PATH"))
        .env("BATCHFIT_VGPU", folder.join(SESSION))
        // Kernels are loaded when they are first launched, which is never.
        .env("CUDA_MODULE_LOADING", "LAZY")
        // Inductor keeps which kernels were fastest. Here none takes time: what it keeps would slow a training down later.
        .env("TORCHINDUCTOR_CACHE_DIR", folder.join("inductor"))
        .env_remove("CUDA_VISIBLE_DEVICES");
    // DeepSpeed compiles its kernels for a GPU that it looks for with `nvcc`.
    default(command, "DS_BUILD_OPS", "0");
    if gpus > 1 && !starts_ranks {
        let (world, port) = (gpus.to_string(), free_port()?.to_string());
        for (name, value) in [
            ("RANK", "0"),
            ("LOCAL_RANK", "0"),
            ("WORLD_SIZE", &world),
            ("LOCAL_WORLD_SIZE", &world),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
        ] {
            default(command, name, value);
        }
        command.env("BATCHFIT_VGPU_ALONE", "1");
    }
    Ok(())
}

/// What the user set stays.
fn default(command: &mut Command, name: &str, value: &str) {
    if env::var_os(name).is_none() {
        command.env(name, value);
    }
}

fn before(first: OsString, name: &str) -> OsString {
    let mut list = first;
    if let Some(others) = env::var_os(name).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// A port that is free now.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments_of(command: &str) -> Vec<OsString> {
        command.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn those_that_start_ranks_are_known_and_how_many() {
        for (command, expected) in [
            ("/opt/bin/torchrun --nproc-per-node=4 train.py", Some(4)),
            (
                "python -m torch.distributed.run --nproc_per_node 2 t.py",
                Some(2),
            ),
            ("accelerate launch --num_processes 8 t.py", Some(8)),
            ("deepspeed --num_gpus=2 t.py", Some(2)),
        ] {
            assert!(starts_ranks(&arguments_of(command)), "{command}");
            assert_eq!(ranks(&arguments_of(command)), expected, "{command}");
        }
        for command in [
            "python train.py --num_processes 8",
            "accelerate config",
            "./train.sh",
        ] {
            assert!(!starts_ranks(&arguments_of(command)), "{command}");
            assert_eq!(ranks(&arguments_of(command)), None, "{command}");
        }
    }
}
