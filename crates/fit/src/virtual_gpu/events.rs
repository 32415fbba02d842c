//! What a script and what stands for its GPU said, line by line.
//!
//! A line is a word and its fields, separated by tabs (`crates/vgpu/src/channel.rs`). Lines that are none are passed over: whatever runs in
//! the script's processes can write to the socket.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::answer::{AtPeak, Versions};
use crate::limits::shorten;

/// Most different names of one kind that are kept: places in a script, entry points, assumptions.
pub const MOST_NAMES: usize = 200;
/// Most processes that are told apart, and most phases of one: thousands of steps are those at the beginning and the last.
const MOST_PROCESSES: usize = 256;
const MOST_PHASES: usize = 1000;
/// Most devices of a process, and most frames of what it was at.
const MOST_DEVICES: usize = 16;
const MOST_FRAMES: usize = 32;
/// Most allocations of the driver that are told apart, of all processes; PyTorch makes hundreds.
const MOST_BLOCKS: usize = 1 << 20;

/// What was heard of a run.
#[derive(Debug, Clone, Default)]
pub struct RunEvents {
    /// One for each process that said something.
    pub(super) processes: Vec<Process>,
    /// How often, and of how many bytes, a place in the script read what was never computed.
    pub(super) doubts: BTreeMap<String, (u64, u64)>,
    /// How often something was assumed, and the setting that gives the other bound.
    pub(super) assumptions: BTreeMap<String, (u64, Option<String>)>,
    /// Entry points that were called and have no real answer.
    pub(super) unanswered: BTreeMap<String, u64>,
    /// What went wrong in what watches.
    pub(super) problems: BTreeMap<String, u64>,
    /// The system's number of why launches could not be written to their file.
    pub unwritten: Option<i32>,
    /// Convolutions, by how it is known what they take.
    pub(super) convolutions: BTreeMap<String, u64>,
}

/// What one process said.
#[derive(Debug, Clone, Default)]
pub(super) struct Process {
    pub(super) id: u32,
    pub(super) rank: Option<u64>,
    /// The machine's numbers of the devices that it sees, where those are not all.
    visible: Vec<u32>,
    /// By device, as all that follows by the machine's numbers.
    pub(super) driver: BTreeMap<u32, Driver>,
    blocks: HashMap<(u32, u64), u64>,
    /// Most pinned and managed bytes at a time, and the last that were refused.
    pub(super) host_peak: u64,
    pub(super) host_refused: Option<(u64, u64, u64)>,
    pub(super) start: Option<Versions>,
    pub(super) phases: Vec<SaidPhase>,
    /// How many requests were refused, and the last.
    pub(super) shortages: u64,
    pub(super) shortage: Option<SaidShortage>,
    /// Whether the driver has handed out nothing since then.
    pub(super) is_stuck: bool,
    /// The last of each device.
    pub(super) peaks: Vec<SaidPeak>,
    pub(super) error: Option<SaidError>,
    pub(super) steps: u64,
    /// Whether it was ended after the steps that were asked for.
    pub(super) is_cut: bool,
    /// The share of the card that it allowed itself.
    pub(super) fraction: Option<f64>,
}

/// What the driver handed out on one device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Driver {
    now: u64,
    pub(super) peak: u64,
    /// The last request that it refused.
    pub(super) refused: Option<Refused>,
}

/// A request that the driver refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused {
    pub(super) requested: u64,
    /// What the process used then, its context too.
    pub(super) used: u64,
    /// What other processes held then, where without them it had fit.
    pub(super) others: u64,
}

/// `report`, as the hooks write it.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Report {
    /// When it began to use CUDA.
    Start(Versions),
    Phase(SaidPhase),
    OutOfMemory(SaidShortage),
    Peak(SaidPeak),
    Error(SaidError),
    End {
        how: String,
        steps: u64,
        #[serde(default)]
        fraction: Option<f64>,
    },
}

/// A phase that is over; of each device its number, the peaks, what is left, and the allocator's retries until then.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct SaidPhase {
    pub(super) name: String,
    /// Steps that were over then.
    pub(super) steps: u64,
    pub(super) devices: Vec<(u32, u64, u64, u64, u64, u64)>,
}

/// A request that PyTorch's allocator refused.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct SaidShortage {
    pub(super) phase: String,
    #[serde(default)]
    pub(super) device: u32,
    pub(super) requested: u64,
    pub(super) allocated: u64,
    pub(super) reserved: u64,
    pub(super) stack: Vec<String>,
    #[serde(default)]
    pub(super) module: Option<String>,
    /// The allocator's retries until then: a refused request is first a retry.
    #[serde(default)]
    pub(super) retries: u64,
}

/// What was at work when most was allocated on a device.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct SaidPeak {
    pub(super) device: u32,
    #[serde(flatten)]
    pub(super) at: AtPeak,
}

/// An uncaught error.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct SaidError {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) message: String,
    pub(super) out_of_memory: bool,
}

impl RunEvents {
    /// Takes note of a process; its number is for [`RunEvents::take`]. Of too many the last is several.
    pub(super) fn process(&mut self) -> usize {
        if self.processes.len() < MOST_PROCESSES {
            self.processes.push(Process::default());
        }
        self.processes.len() - 1
    }

    /// Takes note that a process could not be listened to.
    pub(super) fn unheard(&mut self, most: usize) {
        let problem =
            format!("more than {most} processes spoke at a time, and some were not heard");
        count(&mut self.problems, &problem);
    }

    /// Takes in a line of a process.
    pub(super) fn take(&mut self, process: usize, line: &str) {
        let (word, rest) = line.split_once('\t').unwrap_or((line, ""));
        match word {
            "doubt" => {
                let (bytes, place) = rest.split_once('\t').unwrap_or((rest, "an unknown place"));
                if let Some(seen) = entry(&mut self.doubts, place) {
                    seen.0 += 1;
                    seen.1 = seen.1.saturating_add(bytes.parse().unwrap_or(0));
                }
            }
            // With the times until now, where there were many, and the setting that gives the other bound, where there is one.
            "assumed" => {
                let mut fields = rest.split('\t');
                let what = fields.next().unwrap_or_default();
                if let Some(seen) = entry(&mut self.assumptions, what) {
                    let times = fields.next().and_then(|times| times.parse().ok());
                    seen.0 = times.map_or(seen.0 + 1, |times: u64| times.max(seen.0));
                    seen.1 = fields.next().map(str::to_owned);
                }
            }
            "workspace" => count(&mut self.convolutions, rest),
            "unanswered" => count(&mut self.unanswered, rest),
            "unwritten" => self.unwritten = rest.parse().ok(),
            "problem" => count(&mut self.problems, rest),
            "report" => {
                if let Ok(report) = serde_json::from_str(rest) {
                    self.processes[process].report(report);
                }
            }
            "malloc"
                if self
                    .processes
                    .iter()
                    .map(|it| it.blocks.len())
                    .sum::<usize>()
                    >= MOST_BLOCKS => {}
            _ => {
                self.processes[process].memory(word, rest);
            }
        }
    }
}

fn entry<'m, T: Default>(map: &'m mut BTreeMap<String, T>, name: &str) -> Option<&'m mut T> {
    if map.len() >= MOST_NAMES && !map.contains_key(name) {
        return None;
    }
    Some(map.entry(name.to_owned()).or_default())
}

fn count(map: &mut BTreeMap<String, u64>, name: &str) {
    if let Some(seen) = entry(map, name) {
        *seen += 1;
    }
}

impl Process {
    /// What the driver and the host handed out. `None` where a field is missing or no number.
    fn memory(&mut self, word: &str, rest: &str) -> Option<()> {
        let mut fields = rest.split('\t');
        let mut number = || fields.next()?.parse::<u64>().ok();
        self.is_stuck &= !matches!(word, "malloc" | "create");
        match word {
            "hello" => {
                self.id = u32::try_from(number()?).ok()?;
                self.rank = number();
            }
            "visible" => {
                self.visible = fields
                    .map_while(|field| device(field.parse().ok()?))
                    .take(MOST_DEVICES)
                    .collect();
            }
            "malloc" => {
                let (device, bytes) = (self.device(number()?)?, number()?);
                let address =
                    u64::from_str_radix(fields.next()?.trim_start_matches("0x"), 16).ok()?;
                self.blocks.insert((device, address), bytes);
                self.driver.entry(device).or_default().grow(bytes);
            }
            "free" => {
                let device = self.device(number()?)?;
                let address =
                    u64::from_str_radix(fields.next()?.trim_start_matches("0x"), 16).ok()?;
                let bytes = self.blocks.remove(&(device, address))?;
                self.driver.entry(device).or_default().shrink(bytes);
            }
            "create" => {
                let device = self.device(number()?)?;
                self.driver.entry(device).or_default().grow(number()?);
            }
            "release" => {
                let device = self.device(number()?)?;
                self.driver.entry(device).or_default().shrink(number()?);
            }
            "refused" => {
                let device = self.device(number()?)?;
                self.driver.entry(device).or_default().refused = Some(Refused {
                    requested: number()?,
                    used: number()?,
                    others: number().unwrap_or(0),
                });
            }
            "host" => {
                number()?;
                self.host_peak = self.host_peak.max(number()?);
            }
            "host_refused" => self.host_refused = Some((number()?, number()?, number()?)),
            _ => {}
        }
        Some(())
    }

    /// The machine's number of a device.
    fn of_machine(&self, device: u32) -> u32 {
        let seen = self.visible.get(device as usize);
        seen.copied().unwrap_or(device)
    }

    fn device(&self, number: u64) -> Option<u32> {
        device(number).map(|device| self.of_machine(device))
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Start(start) => self.start = Some(start),
            Report::Phase(mut phase) => {
                phase.name = shorten(&phase.name);
                cut(&mut phase.devices, MOST_DEVICES);
                for (device, ..) in &mut phase.devices {
                    *device = self.of_machine(*device);
                }
                self.steps = phase.steps;
                if self.phases.len() >= MOST_PHASES {
                    // The last phases say what memory has grown to.
                    self.phases.remove(MOST_PHASES / 2);
                }
                self.phases.push(phase);
            }
            Report::OutOfMemory(mut shortage) => {
                cut(&mut shortage.stack, MOST_FRAMES);
                shortage.device = self.of_machine(shortage.device);
                self.shortages += 1;
                self.is_stuck = true;
                self.shortage = Some(shortage);
            }
            Report::Peak(mut peak) => {
                cut(&mut peak.at.stack, MOST_FRAMES);
                peak.device = self.of_machine(peak.device);
                self.peaks.retain(|before| before.device != peak.device);
                self.peaks.truncate(MOST_DEVICES - 1);
                self.peaks.push(peak);
            }
            Report::Error(error) => self.error = Some(error),
            Report::End {
                how,
                steps,
                fraction,
            } => {
                self.steps = steps;
                self.is_cut = how == "steps";
                self.fraction = fraction.filter(|share| (0.0..=1.0).contains(share));
            }
        }
    }
}

/// The first of them, without room for more.
fn cut<T>(all: &mut Vec<T>, most: usize) {
    all.truncate(most);
    all.shrink_to_fit();
}

/// A device's number. No machine has so many.
fn device(number: u64) -> Option<u32> {
    u32::try_from(number).ok().filter(|number| *number < 1024)
}

impl Driver {
    /// What other processes held when a request did not fit beside them.
    pub(super) fn others(&self) -> u64 {
        self.refused.map_or(0, |refused| refused.others)
    }

    fn grow(&mut self, bytes: u64) {
        self.now = self.now.saturating_add(bytes);
        self.peak = self.peak.max(self.now);
    }

    fn shrink(&mut self, bytes: u64) {
        self.now = self.now.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn little_is_kept_of_a_script_that_says_much() {
        let mut heard = RunEvents::default();
        let process = heard.process();
        let devices = vec![[0; 6]; 1_000];
        let said = |kind: &str, number: u32| {
            json!({"kind": kind, "name": "step", "phase": "step", "steps": 1, "devices": devices, "device": number, "requested": 1,
                   "allocated": 1, "reserved": 1, "stack": vec![""; 1_000]})
        };
        for number in 0..300 {
            for kind in ["phase", "out_of_memory", "peak"] {
                heard.take(process, &format!("report\t{}", said(kind, number)));
            }
        }

        let kept = &heard.processes[process];
        assert_eq!((kept.phases.len(), kept.shortages), (300, 300));
        let devices = kept.phases.iter().map(|phase| phase.devices.len());
        assert_eq!(devices.max(), Some(MOST_DEVICES));
        let frames = kept.peaks.iter().map(|peak| peak.at.stack.len());
        let frames: Vec<usize> = frames
            .chain(kept.shortage.as_ref().map(|it| it.stack.len()))
            .collect();
        assert_eq!(frames, [MOST_FRAMES; MOST_DEVICES + 1]);
        assert_eq!(kept.peaks.last().map(|peak| peak.device), Some(299));
    }
}
