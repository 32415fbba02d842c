//! A worker with a planned failure, to prove that the parent survives each.
//!
//! It opens nothing and runs nothing: any batch up to [`LARGEST`] fits.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::{fs, process, thread};

use crate::device::Capability;
use crate::probe::{Evidence, ProbeReport, Verdict};
use crate::units::Bytes;

use super::child::{Handler, Lines, ReplyWriter, answer_all};
use super::gpu_lock::GpuLock;
use super::handler::PATIENCE;
use batchfit_fit::worker::protocol::{
    Answer, Gpu, LONGEST_ANSWER, ProbeOrder, Ready, Refusal, VERSION,
};

/// The largest batch that fits the fake GPU.
const LARGEST: u64 = 64;
/// What other processes leave in a crowd.
pub const CROWDED: Bytes = Bytes::gib(1);
/// What turns are taken on.
const GPU: &str = "GPU-fake";

/// A planned failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFailure {
    /// None: it succeeds.
    None,
    /// Exit with status 9 after so many answers.
    ExitAfter(u32),
    /// Never answer a probe.
    Hang,
    /// Answer a probe with something that is no message.
    Babble,
    /// Answer a probe with half a line, then exit.
    HalfLine,
    /// Answer a probe with a line that never ends.
    HugeLine,
    /// Introduce itself with another version of the protocol.
    WrongVersion,
    /// Panic in a probe.
    Panic,
    /// Be ended by a signal in a probe.
    Abort,
    /// Say that the device is lost, as after a fault in a kernel.
    Lose,
    /// Say so before the device is open.
    LoseOpening,
    /// Say that other processes leave no room on the device.
    NoRoom,
    /// Leave probes no more than [`CROWDED`].
    Crowd,
    /// None, but for taking turns on a GPU that is not there.
    TakeTurns,
    /// Of several ranks, have the last run out of memory, and all others wait for it for ever.
    OutOfMemoryAlone,
}

/// An unknown failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` is none of none, exit-after=N, hang, babble, half-line, huge-line, wrong-version, panic, abort, lose, \
     lose-opening, no-room, crowd, take-turns, out-of-memory-alone"
)]
pub struct UnknownMisbehaviour {
    given: String,
}

impl FromStr for InjectedFailure {
    type Err = UnknownMisbehaviour;

    fn from_str(given: &str) -> Result<InjectedFailure, UnknownMisbehaviour> {
        let unknown = || UnknownMisbehaviour {
            given: given.to_owned(),
        };
        if let Some(answers) = given.strip_prefix("exit-after=") {
            return answers
                .parse()
                .map(InjectedFailure::ExitAfter)
                .map_err(|_| unknown());
        }
        Ok(match given {
            "none" => InjectedFailure::None,
            "hang" => InjectedFailure::Hang,
            "babble" => InjectedFailure::Babble,
            "half-line" => InjectedFailure::HalfLine,
            "huge-line" => InjectedFailure::HugeLine,
            "wrong-version" => InjectedFailure::WrongVersion,
            "panic" => InjectedFailure::Panic,
            "abort" => InjectedFailure::Abort,
            "lose" => InjectedFailure::Lose,
            "lose-opening" => InjectedFailure::LoseOpening,
            "no-room" => InjectedFailure::NoRoom,
            "crowd" => InjectedFailure::Crowd,
            "take-turns" => InjectedFailure::TakeTurns,
            "out-of-memory-alone" => InjectedFailure::OutOfMemoryAlone,
            _ => return Err(unknown()),
        })
    }
}

/// How a worker is to fail.
#[derive(Debug, Clone)]
pub struct FakeGpu {
    /// With what.
    pub plan: InjectedFailure,
    /// Only where this file can be created: the worker that takes its place behaves.
    pub once: Option<PathBuf>,
    /// Where turns are taken.
    pub locks: PathBuf,
}

/// Carries out orders without doing anything, and fails as planned.
pub fn run_misbehaving(
    fake: &FakeGpu,
    input: &mut impl BufRead,
    output: impl Write,
) -> io::Result<()> {
    let once = fake.once.as_ref();
    let is_first = once.is_none_or(|file| fs::File::create_new(file).is_ok());
    let plan = if is_first {
        fake.plan
    } else {
        InjectedFailure::None
    };
    let mut outbox = Faulty {
        plan,
        sent: 0,
        lines: Lines(output),
    };
    let mut device = FakeDevice {
        plan,
        locks: fake.locks.clone(),
        lock: None,
        place: (0, 1),
    };
    answer_all(&mut device, input, &mut outbox)
}

struct Faulty<W> {
    plan: InjectedFailure,
    sent: u32,
    lines: Lines<W>,
}

impl<W: Write> ReplyWriter for Faulty<W> {
    fn send(&mut self, answer: &Answer) -> io::Result<()> {
        let output = &mut self.lines.0;
        match (self.plan, answer) {
            (InjectedFailure::WrongVersion, Answer::Hello { .. }) => {
                let version = VERSION + 1;
                return self.lines.send(&Answer::Hello { version });
            }
            (InjectedFailure::Hang, Answer::Report(_)) => loop {
                thread::park();
            },
            (InjectedFailure::Babble, Answer::Report(_)) => {
                writeln!(output, "Segmentation fault (core dumped)")?;
                return output.flush();
            }
            (InjectedFailure::HalfLine, Answer::Report(_)) => {
                output.write_all(br#"{"repo"#)?;
                output.flush()?;
                process::exit(9);
            }
            (InjectedFailure::HugeLine, Answer::Report(_)) => {
                output.write_all(&vec![b'x'; LONGEST_ANSWER + 2])?;
                return output.flush();
            }
            _ => self.lines.send(answer)?,
        }
        self.sent += 1;
        if self.plan == InjectedFailure::ExitAfter(self.sent) {
            eprintln!("CUDA_ERROR_ILLEGAL_ADDRESS (planned)");
            process::exit(9);
        }
        Ok(())
    }
}

/// The device of the fake GPU.
struct FakeDevice {
    plan: InjectedFailure,
    locks: PathBuf,
    lock: Option<GpuLock>,
    /// Which rank it is, of how many.
    place: (u32, u32),
}

impl FakeDevice {
    fn ready(&self) -> Ready {
        let no_room = (self.plan == InjectedFailure::NoRoom).then(|| "all is taken".to_owned());
        Ready {
            gpu: gpu(),
            cuda: None,
            cudnn: None,
            available_bytes: if no_room.is_some() { 0 } else { 8 << 30 },
            used_by_others_bytes: None,
            no_room,
        }
    }
}

impl Handler for FakeDevice {
    fn take(&mut self, _: &str) -> Result<Answer, (Refusal, String)> {
        if self.plan == InjectedFailure::TakeTurns {
            match GpuLock::take(&self.locks, GPU, PATIENCE) {
                Ok(lock) => self.lock = Some(lock),
                Err(error) => {
                    let detail = error.to_string();
                    return Ok(Answer::Busy { detail });
                }
            }
        }
        Ok(Answer::Taken)
    }

    fn open(&mut self, _: &str, rank: u32) -> Result<Answer, (Refusal, String)> {
        self.place = (rank, 1);
        if self.plan == InjectedFailure::LoseOpening {
            return Err(crashed());
        }
        Ok(Answer::Ready(self.ready()))
    }

    fn invite(&mut self) -> Result<Answer, (Refusal, String)> {
        let invitation = "anywhere".to_owned();
        Ok(Answer::Invitation { invitation })
    }

    fn join(&mut self, invitation: &str, ranks: u32) -> Result<Answer, (Refusal, String)> {
        assert_eq!(invitation, "anywhere");
        self.place.1 = ranks;
        Ok(Answer::Ready(self.ready()))
    }

    fn list(&mut self) -> Answer {
        Answer::Inventory {
            gpus: vec![gpu()],
            missing: None,
        }
    }

    fn probe(&mut self, order: &ProbeOrder) -> Result<Answer, (Refusal, String)> {
        assert!(self.plan != InjectedFailure::Panic, "planned");
        if self.plan == InjectedFailure::Abort {
            process::abort();
        }
        if self.plan == InjectedFailure::Lose {
            return Err(crashed());
        }
        let (rank, ranks) = self.place;
        let is_alone = self.plan == InjectedFailure::OutOfMemoryAlone;
        if is_alone && rank + 1 < ranks {
            loop {
                thread::park();
            }
        }
        let verdict = if order.batch <= LARGEST && !is_alone {
            Verdict::Fits
        } else {
            Verdict::OutOfMemory
        };
        let limit = match self.plan {
            InjectedFailure::Crowd => Bytes(order.limit_bytes).min(CROWDED),
            _ => Bytes(order.limit_bytes),
        };
        Ok(Answer::Report(Box::new(ProbeReport {
            notes: vec!["a fake GPU: nothing ran".to_owned()],
            ..ProbeReport::new(order.batch, verdict, Evidence::Simulated, limit)
        })))
    }
}

fn crashed() -> (Refusal, String) {
    let why = "CUDA_ERROR_ILLEGAL_ADDRESS (planned)";
    (Refusal::Lost, why.to_owned())
}

fn gpu() -> Gpu {
    Gpu {
        ordinal: 0,
        name: "Fake GPU".to_owned(),
        total_bytes: 8 << 30,
        free_bytes: 8 << 30,
        capability: Capability::of((9, 0), 1),
        driver: None,
        cudnn: None,
    }
}
