//! The command line as its users see it: exit code, stdout, stderr.

mod agent;
mod answers;
mod ask_tell;
mod bad_input;
mod bad_service;
mod calibrate;
mod cards;
mod database;
mod documents;
mod export;
mod fit;
mod flags;
mod formats;
mod full_disk;
mod lengths;
mod listings;
mod model_source;
mod overview;
mod probe;
mod recorded;
mod recorder;
mod replay;
mod says;
mod search;
mod service;
mod shell;
mod soak;
mod table;
mod times;
mod together;
pub(crate) mod virtual_gpu;

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory of its own for each test, so that each has its own database file.
struct Sandbox {
    directory: TempDir,
}

impl Sandbox {
    fn new() -> Sandbox {
        Sandbox {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// The command in this place, without the caller's settings.
    fn batchfit(&self) -> Command {
        self.command(env!("CARGO_BIN_EXE_batchfit"))
    }

    /// Any command in this place, without the caller's settings and on a machine without a GPU, whatever machine this is.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("CUDA_VISIBLE_DEVICES", "")
            .current_dir(self.directory.path())
            .env("HOME", self.directory.path())
            .env_remove("BATCHFIT_DATABASE")
            .env_remove("XDG_DATA_HOME")
            .env_remove("XDG_CACHE_HOME")
            .env_remove("HF_HOME")
            .env_remove("HF_HUB_CACHE")
            .env_remove("COLUMNS")
            .env_remove("BATCHFIT_LISTEN")
            .env_remove("BATCHFIT_CONFIG")
            .env_remove("BATCHFIT_PYTHON")
            .env_remove("BATCHFIT_CALIBRATIONS")
            .env_remove("BATCHFIT_ASK_CUDNN")
            .env_remove("BATCHFIT_LOG");
        command
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Runs `batchfit COMMAND request.json ...` with this request.
    fn ask(&self, command: &str, request: &Value, arguments: &[&str]) -> Output {
        self.write("request.json", &request.to_string());
        self.batchfit()
            .args([command, "request.json"])
            .args(arguments)
            .output()
            .unwrap()
    }
}

/// Two linear layers without anything that depends on a library's choices.
fn request() -> Value {
    json!({
        "model": {
            "layers": [
                {"type": "linear", "out_features": 1024},
                {"type": "relu"},
                {"type": "linear", "out_features": 10}
            ],
            "input": {"shape": [1024]},
            "loss": "cross_entropy"
        },
        "training": {"optimizer": "sgd"},
        "device": "sim:h200",
        "memory_limit": "1GiB"
    })
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}
