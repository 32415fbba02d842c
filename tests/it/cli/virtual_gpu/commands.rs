//! Commands that run on virtual cards.

use std::collections::BTreeSet;

use super::*;

/// Runs `batchfit run --on t4 FLAGS -- sh -c SCRIPT`.
fn run(place: &Sandbox, flags: &[&str], script: &str) -> Output {
    let mut command = place.batchfit();
    command
        .args(["run", "--on", "t4"])
        .args(flags)
        .args(["--", "sh", "-c", script]);
    command.output().unwrap()
}

#[test]
fn a_command_without_python_runs_as_ever_and_finds_the_virtual_gpu() {
    let place = Sandbox::new();

    let script = "echo $RANK/$WORLD_SIZE $DS_BUILD_OPS ${CUDA_VISIBLE_DEVICES-none} ${TORCHINDUCTOR_CACHE_DIR#$(dirname \"$BATCHFIT_VGPU\")}; ls \"$(dirname \"$BATCHFIT_VGPU\")\"; cp \"$BATCHFIT_VGPU\" session";
    let output = run(&place, &["--gpus", "2", "--memory-limit", "4GiB"], script);

    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.starts_with("0/2 0 none /inductor\n"), "{said}");
    for name in [
        "libcuda.so\n",
        "libcuda.so.1\n",
        "libnvidia-ml.so.1\n",
        "python\n",
        "session.txt\n",
    ] {
        assert!(said.contains(name), "{said}");
    }
    assert!(
        said.contains("error: `sh` ended without using the GPU"),
        "{said}"
    );
    assert_eq!(stdout(&output), "");
    let session = fs::read_to_string(place.directory.path().join("session")).unwrap();
    assert!(
        session.contains("\nname Tesla T4\n") && session.contains("\nfraction 0.2"),
        "{session}"
    );
    // The private folder is gone.
    let socket = session
        .lines()
        .find_map(|line| line.strip_prefix("socket "))
        .unwrap();
    assert!(!Path::new(socket).exists());
}

#[test]
fn the_code_of_a_command_that_fails_is_kept_and_one_that_hangs_is_ended() {
    let place = Sandbox::new();

    let failed = run(&place, &[], "echo why >&2; exit 7");
    let hung = run(&place, &["--timeout", "0.2"], "sleep 100");

    assert_eq!(failed.status.code(), Some(7));
    assert!(stderr(&failed).starts_with("why\nerror: the command failed before it used the GPU"));
    assert_eq!(hung.status.code(), Some(124));
}

#[test]
fn a_command_that_takes_more_host_memory_than_it_may_is_ended_and_told() {
    let place = Sandbox::new();
    // A process of its own session holds it.
    let script = "setsid sh -c 'x=$(head -c 99000000 /dev/zero | tr \"\\0\" x); sleep 100' & wait";

    let ended = run(&place, &["--host-memory", "64MiB"], script);
    let lines = ["hello\t12\t", START, &step(1, 300)].join("\n");
    let told = answer(&session("t4"), &[&lines], Ending::TookTooMuch).unwrap();

    let said = stderr(&ended);
    assert_eq!(ended.status.code(), Some(137), "{said}");
    assert!(
        said.contains("took more than 64.0 MiB of host memory"),
        "{said}"
    );
    assert!(
        told.is_incomplete && told.notes[0].contains("--host-memory"),
        "{:?}",
        told.notes
    );
}

/// Says lines as a script's hooks do.
const SPEAK: &str = r#"
import os, socket, sys
lines = open(os.environ["BATCHFIT_VGPU"]).read().splitlines()
path = next(line.split(" ", 1)[1] for line in lines if line.startswith("socket "))
to = socket.socket(socket.AF_UNIX)
to.connect(path)
to.sendall(sys.argv[1].encode())
"#;

/// Launches a kernel twice, and is ended as by the hooks after the last step.
const LAUNCH: &str = r#"
import ctypes, os, sys
cuda = ctypes.CDLL(None)
Dim3 = type("Dim3", (ctypes.Structure,), {"_fields_": [(axis, ctypes.c_uint) for axis in "xyz"]})
getattr(cuda, "__cudaRegisterFunction")(None, ctypes.c_void_p(64), None, b"kernel")
for _ in range(2):
    cuda.cudaLaunchKernel(ctypes.c_void_p(64), Dim3(2, 1, 1), Dim3(32, 1, 1), None, ctypes.c_size_t(0), None)
for line in sys.argv[1:]:
    cuda.batchfit_vgpu_say(line.encode())
os._exit(0)
"#;

/// Processes that take memory when they are told to, and what comes of it.
const SHARE: &str = r#"
import os, subprocess, sys
HOLD = """
import ctypes, sys
cuda = ctypes.CDLL(None)
def malloc(gib, at=ctypes.c_uint64()): return cuda.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(gib << 30))
def free(at=ctypes.c_size_t(), all=ctypes.c_size_t()): return cuda.cudaMemGetInfo(ctypes.byref(at), ctypes.byref(all)) or round(at.value / 2**30, 1)
def count(at=ctypes.c_int()): return cuda.cudaGetDeviceCount(ctypes.byref(at)) or at.value
def users(at=ctypes.c_uint(9), room=(ctypes.c_uint64 * 18)()):
    return cuda.nvmlDeviceGetComputeRunningProcesses(ctypes.c_uint64(0x2000), ctypes.byref(at), room) or [round(one / 2**30, 1) for one in room[1:2 * at.value:2]]
for line in sys.stdin: print(eval(line), flush=True)
"""
def start(**more):
    return subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **more})
def ask(process, text):
    process.stdin.write(text + "\n")
    process.stdin.flush()
    print(text, process.stdout.readline().strip(), file=sys.stderr)
one, other = start(), start()
ask(one, "malloc(8)")
ask(other, "free()")
ask(other, "malloc(8)")
ask(other, "malloc(3)")
ask(one, "users()")
seen = start(CUDA_VISIBLE_DEVICES="1")
ask(seen, "count()")
ask(seen, "malloc(8)")
ask(other, "cuda.cudaSetDevice(1) or malloc(8)")
one.kill()
os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
ask(other, "cuda.cudaSetDevice(0) or malloc(8)")
os._exit(0)
"#;

#[test]
fn processes_share_each_card_and_one_that_ended_holds_nothing() {
    let place = Sandbox::new();
    let mut command = place.batchfit();
    command.args([
        "run", "--on", "2xt4", "--json", "--", "python3", "-c", SHARE,
    ]);

    let output = command.output().unwrap();

    let said = stderr(&output);
    let expected = [
        "malloc(8) 0",
        "free() 4.7",
        "malloc(8) 2",
        "malloc(3) 0",
        "users() [8.5, 3.5]",
        "count() 1",
        "malloc(8) 0",
        "cuda.cudaSetDevice(1) or malloc(8) 2",
        "cuda.cudaSetDevice(0) or malloc(8) 0",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{said}");
    let answer: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let held = answer["peaks"].as_array().unwrap().iter();
    let held = held.map(|peak| {
        (
            peak["device"].as_u64().unwrap(),
            peak["peak_reserved_bytes"].as_u64().unwrap() >> 30,
        )
    });
    // Which of the first two began first is a matter of chance.
    let held: BTreeSet<_> = held.collect();
    assert_eq!(held, [(0, 8), (0, 11), (1, 8)].into());
}

#[test]
fn launches_are_written_where_the_script_is_stopped_and_a_full_disk_is_told() {
    let place = Sandbox::new();
    let launch = |file: &str| {
        let mut command = place.batchfit();
        command.args(["run", "--on", "t4", "-q", "--launches", file, "--"]);
        command.args(["python3", "-c", LAUNCH, START, &step(1, 300)]);
        command.output().unwrap()
    };

    let output = launch("launches");
    let full = launch("/dev/full");

    let lines = fs::read_to_string(place.directory.path().join("launches")).unwrap();
    let expected = "kernel 2,1,1 32,1,1 0\n".repeat(2);
    assert_eq!(lines, expected, "{}", stderr(&output));
    let said = stderr(&full);
    assert_eq!(full.status.code(), Some(2), "{said}");
    assert!(
        said.contains("/dev/full: No space left on device"),
        "{said}"
    );
}

#[test]
fn a_pipe_in_the_place_of_a_snapshot_is_not_waited_for() {
    let place = Sandbox::new();
    let lines = ["hello\t12\t", START, &step(1, 300)].join("\n") + "\n";
    let pipe = "mkdir -p \"${BATCHFIT_VGPU%/*}/history\" && mkfifo \"${BATCHFIT_VGPU%/*}/history/snapshot-12.pickle\" && exec python3 -c \"$0\" \"$1\"";
    let mut command = place.batchfit();
    command.args(["run", "--on", "t4", "--report", "report", "--", "sh", "-c"]);

    let output = command.args([pipe, SPEAK, &lines]).output().unwrap();

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        !place
            .directory
            .path()
            .join("report/snapshot.pickle")
            .exists()
    );
}

#[test]
fn a_run_is_stored_where_a_service_shows_it() {
    let place = Sandbox::new();
    let lines = ["hello\t12\t", START, &step(1, 300)].join("\n") + "\n";
    let mut command = place.batchfit();
    command.args([
        "run",
        "--on",
        "t4",
        "--database",
        "kept.db",
        "--quiet",
        "--",
    ]);
    let output = command
        .args(["python3", "-c", SPEAK, &lines])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let kept = place.directory.path().join("kept.db");
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let (run, answer) = runtime.block_on(async {
        let db = Db::open_existing(kept.to_str().unwrap()).await.unwrap();
        let runs = db.virtual_runs(None, 9).await.unwrap();
        assert_eq!(runs.len(), 1);
        db.virtual_run(&runs[0].id).await.unwrap().unwrap()
    });
    assert!(run.command.starts_with("python3 -c"), "{run:?}");
    assert_eq!((run.card.as_str(), run.verdict.as_str()), ("t4", "fits"));
    assert_eq!(run.peak_reserved_bytes, 1 << 30);
    assert!(!run.has_step);
    assert!(answer.as_str().contains("\"evidence\":\"virtual\""));
}

#[test]
fn what_cannot_be_run_is_said_with_what_would_be_right() {
    let place = Sandbox::new();
    for (flags, expected) in [
        (&["--on", "h2000"][..], "did you mean \"h200\"?"),
        (&["--on", "h100", "--gpus", "17"], "1..=16"),
        (
            &["--on", "t4", "--memory-limit", "80GiB"],
            "are more than the",
        ),
    ] {
        let mut command = place.batchfit();
        let output = command
            .arg("run")
            .args(flags)
            .args(["--", "true"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}
