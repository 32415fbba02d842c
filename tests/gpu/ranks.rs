//! One rank of a job of several, on a card of its own: batchfit's side of `parallel.py`.
//!
//! `BATCHFIT_RANKS_*` say what runs: REQUEST and MODEL are paths (MODEL may be missing where the request names one), BATCH and STEPS
//! numbers, RANK and WORLD who this is, and MEET a path that the first rank writes and the others read. With FEED (tensors by
//! name) nothing is random; DUMP is where gradients go, RATE the learning rate, and EXACT turns TF32 off.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use batchfit::alloc::{CachingAllocator, Settings};
use batchfit::compile::{Launches, Process, compile_process};
use batchfit::device::cuda::{
    Communicator, CudaLauncher, CudaMemory, Gpu, Gradients, Invitation, LauncherOptions, Script,
    Tf32, read_tensors, write_tensors,
};
use batchfit::limits::Cancel;
use batchfit::model::{ModelFiles, Request, RequestDocument};
use batchfit::probe::{Detail, Evidence, Probe, Resources};
use serde_json::json;

fn setting(name: &str) -> Option<String> {
    env::var(format!("BATCHFIT_RANKS_{name}")).ok()
}

fn needed(name: &str) -> String {
    setting(name)
        .unwrap_or_else(|| panic!("BATCHFIT_RANKS_{name} is not set; run tests/gpu/parallel.py"))
}

fn number<T: FromStr>(name: &str) -> T {
    let given = needed(name);
    given
        .parse()
        .unwrap_or_else(|_| panic!("BATCHFIT_RANKS_{name} is {given:?}"))
}

/// What the first rank wrote for the others to read.
fn invitation(rank: u32) -> Invitation {
    let path = needed("MEET");
    if rank == 0 {
        let invitation = Invitation::new().unwrap();
        let part = format!("{path}.part");
        fs::write(&part, invitation.text()).unwrap();
        fs::rename(&part, &path).unwrap();
        return invitation;
    }
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        if let Ok(text) = fs::read_to_string(&path) {
            return text.parse().unwrap();
        }
        assert!(Instant::now() < deadline, "the first rank did not come");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs several NVIDIA GPUs and what parallel.py makes"]
fn one_of_several() {
    let (rank, world): (u32, u32) = (number("RANK"), number("WORLD"));
    let document = RequestDocument::from_json(&fs::read(needed("REQUEST")).unwrap()).unwrap();
    let request = match setting("MODEL") {
        Some(model) => {
            let model = fs::read(model).unwrap();
            Request::parse(document.with_files(ModelFiles::Graph(model))).unwrap()
        }
        None => Request::parse(document).unwrap(),
    };
    let gpu = Gpu::open(rank).expect("this test needs a GPU for each rank");
    let free_before = gpu.free_and_total().unwrap().0;
    let options = LauncherOptions {
        tf32: if setting("EXACT").is_some() {
            Tf32::Off
        } else {
            Tf32::default()
        },
        kernel_cache: setting("CACHE").map(Into::into),
    };
    let mut launcher = CudaLauncher::open(&gpu, options).unwrap();
    let opened = gpu.free_and_total().unwrap().0;
    let communicator = Communicator::join(&gpu, &invitation(rank), rank, world).unwrap();
    launcher.join(communicator).unwrap();
    let joined = gpu.free_and_total().unwrap().0;
    let graph = request.graph().unwrap();
    let capability = gpu.facts().capability;
    let variant = &request.variants[0];
    let process = Process {
        rank: rank.into(),
        ..Process::default()
    };
    let cancel = Cancel::default();
    let program = compile_process(
        &graph,
        variant,
        (capability, process),
        Launches::Kept,
        &cancel,
    )
    .unwrap();
    if let Some(feed) = setting("FEED") {
        launcher.follow(Script {
            feed: read_tensors(&fs::read(feed).unwrap()).unwrap(),
            gradients: Gradients::Record,
            rate: Some(number("RATE")),
            parts: program.parts(),
            labels: program
                .tensors
                .iter()
                .map(|tensor| tensor.label.clone())
                .collect(),
            ..Script::default()
        });
    }
    let settings: Settings = request.allocator.parse().unwrap();
    let mut allocator = CachingAllocator::new(CudaMemory::of(&gpu), settings, None);
    let probe = Probe {
        program: &program,
        batch: number("BATCH"),
        steps: number("STEPS"),
        detail: Detail::Verdict,
    };

    let report = probe.run(&mut Resources {
        allocator: &mut allocator,
        launcher: &mut launcher,
        evidence: Evidence::Probed,
    });

    drop(allocator);
    let ended = gpu.free_and_total().unwrap().0;
    let steps = report.steps.iter();
    println!(
        "{}",
        json!({
            "rank": rank,
            "verdict": report.verdict,
            "cause": report.cause,
            "nccl": Communicator::version().unwrap(),
            "libraries_mib": (free_before - opened).0 >> 20,
            "communicator_mib": (opened - joined).0 >> 20,
            "grown_mib": (joined.saturating_sub(ended)).0 >> 20,
            "allocated": steps.clone().map(|step| step.peak_allocated_bytes).collect::<Vec<_>>(),
            "reserved": steps.clone().map(|step| step.peak_reserved_bytes).collect::<Vec<_>>(),
            "launches": steps.clone().map(|step| step.launches).collect::<Vec<_>>(),
            "losses": steps.clone().flat_map(|step| step.losses.clone()).collect::<Vec<_>>(),
            "step_ms": steps.clone().map(|step| step.elapsed_ms).collect::<Vec<_>>(),
        })
    );
    if let Some(path) = setting("DUMP") {
        let gradients: BTreeMap<_, _> = launcher.take_gradients();
        fs::write(path, write_tensors(&gradients)).unwrap();
    }
}
