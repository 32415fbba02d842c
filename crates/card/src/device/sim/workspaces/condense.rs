//! From what was recorded on a card to the table that is shipped.
//!
//! A table is compressed text. After [`MAGIC`] come lines of provenance, then `grid` lines (sets
//! of batches), then for each `layer` its `job` lines:
//!
//! ```text
//! job forward f16 0 |147+802816 2304+0 0+0|0*40.1.2 ...|0*31 1*17 ...
//! ```
//!
//! that is: pass, element type, number of the grid; the workspaces that occur, as
//! `base+slope` in bytes and bytes per sample; the lists of plans that occur, as workspace
//! numbers, each with how many plans in a row it stands for; and for the grid's batches, first to
//! last, which list holds.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::BufRead;

use super::table::{MAGIC, WorkspaceTable};

/// Where a recording is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    /// The card's name.
    pub card: String,
    /// The driver's version.
    pub driver: String,
    /// The library's version.
    pub cudnn: String,
    /// The day, as `2026-11-20`.
    pub recorded: String,
    /// What was run.
    pub command: String,
    /// The card's own numbers, where they are known.
    pub traits: Option<CardTraits>,
}

/// Bytes of a card's name: NVML gives 96 at most (`NVML_DEVICE_NAME_V2_BUFFER_SIZE`).
const LONGEST_NAME: usize = 96;

/// What is to be known of a card to simulate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardTraits {
    /// Compute capability, major and minor.
    pub compute: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u64,
    /// Threads that one holds.
    pub threads_per_multiprocessor: u64,
    /// Bytes of memory, as PyTorch shows them.
    pub memory: u64,
}

impl CardTraits {
    /// What a table says of its card.
    pub fn of(table: &WorkspaceTable) -> Option<CardTraits> {
        let said = |name| table.said(name);
        let (major, minor) = said("compute")?.split_once('.')?;
        let traits = CardTraits {
            compute: (major.parse().ok()?, minor.parse().ok()?),
            multiprocessors: said("multiprocessors")?.parse().ok()?,
            threads_per_multiprocessor: said("threads_per_multiprocessor")?.parse().ok()?,
            memory: said("memory")?.parse().ok()?,
        };
        traits.are_of_a_card().then_some(traits)
    }

    /// Whether there may be such a card: no GPU of today comes near these bounds.
    fn are_of_a_card(&self) -> bool {
        let (major, minor) = self.compute;
        (1..100).contains(&major)
            && minor < 10
            && (1..=4096).contains(&self.multiprocessors)
            && (32..=4096).contains(&self.threads_per_multiprocessor)
            && (1 << 30..=1 << 44).contains(&self.memory)
    }

    fn text(&self) -> String {
        let (major, minor) = self.compute;
        format!(
            "compute {major}.{minor}\nmultiprocessors {}\nthreads_per_multiprocessor {}\nmemory {}\n",
            self.multiprocessors, self.threads_per_multiprocessor, self.memory
        )
    }
}

impl Provenance {
    /// Where a table is from; `None` where it does not say of which card it is, or in words that are no name.
    pub fn of(table: &WorkspaceTable) -> Option<Provenance> {
        let said = |name| table.said(name).map(str::to_owned);
        let is_name =
            |card: &String| card.len() <= LONGEST_NAME && !card.contains(char::is_control);
        Some(Provenance {
            card: said("card").filter(is_name)?,
            driver: said("driver")?,
            cudnn: said("cudnn")?,
            recorded: said("recorded")?,
            command: said("command")?,
            traits: CardTraits::of(table),
        })
    }

    /// What a file with such a table is called: by card, driver and library.
    pub fn file_name(&self) -> String {
        let plain = |text: &str| -> String {
            let known = |c: char| c.is_ascii_alphanumeric() || c == '.';
            let words = text.split(|c| !known(c)).filter(|word| !word.is_empty());
            words.collect::<Vec<_>>().join("-").to_lowercase()
        };
        let driver = self.driver.split(':').next().unwrap_or_default();
        let cudnn = self.cudnn.split(' ').next().unwrap_or_default();
        let parts = [plain(&self.card), plain(driver), plain(cudnn)];
        let name: String = parts.join("_").chars().take(120).collect();
        format!("{name}.txt.gz")
    }
}

/// Why a recording cannot be condensed.
#[derive(Debug, thiserror::Error)]
pub enum CondenseError {
    /// The recording cannot be read.
    #[error("the recording cannot be read")]
    Read {
        /// What reading it failed with.
        source: std::io::Error,
    },
    /// A line is not what the recorder writes.
    #[error("line {line} of recording {recording} is malformed")]
    Malformed {
        /// Which recording, from 0.
        recording: usize,
        /// Counted from 1.
        line: usize,
    },
}

/// Plans in a row of which none needs less than the first.
#[derive(Debug, Clone, Copy)]
struct PlanRun {
    workspace: i64,
    count: usize,
}

/// One pass of one layer: its plans' record lows at every batch.
type Job = BTreeMap<u64, Vec<PlanRun>>;

/// `base + slope * batch`.
type Line = (i64, i64);

/// Condenses recordings (the recorder's text) into a table's text.
///
/// Batches that are in several recordings are taken from the last.
pub fn condense<R: BufRead>(
    recordings: impl IntoIterator<Item = R>,
    provenance: &Provenance,
) -> Result<String, CondenseError> {
    let mut jobs: BTreeMap<String, Job> = BTreeMap::new();
    for (recording, text) in recordings.into_iter().enumerate() {
        read(recording, text, &mut jobs)?;
    }
    let Provenance {
        card,
        driver,
        cudnn,
        recorded,
        command,
        traits,
    } = provenance;
    let mut table = format!(
        "{MAGIC}\ncard {card}\ndriver {driver}\ncudnn {cudnn}\nrecorded {recorded}\n\
         command {command}\n"
    );
    if let Some(traits) = traits {
        table.push_str(&traits.text());
    }
    let grids = Grids::of(&jobs);
    for grid in &grids.0 {
        writeln!(table, "grid {}", ranges(grid)).expect("writing to a string cannot fail");
    }
    let mut layer = String::new();
    for (key, job) in &jobs {
        let (shape, call) = key.split_once(' ').expect("keys are made with a space");
        if shape != layer {
            writeln!(table, "layer {shape}").expect("writing to a string cannot fail");
            shape.clone_into(&mut layer);
        }
        writeln!(table, "job {call} {} |{}", grids.number(job), job_text(job))
            .expect("writing to a string cannot fail");
    }
    Ok(table)
}

/// Takes in one recording.
fn read(
    recording: usize,
    text: impl BufRead,
    jobs: &mut BTreeMap<String, Job>,
) -> Result<(), CondenseError> {
    let mut job: Option<&mut Job> = None;
    let mut seen: HashMap<u32, [(u64, i64); 2]> = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.map_err(|source| CondenseError::Read { source })?;
        let malformed = || CondenseError::Malformed {
            recording,
            line: index + 1,
        };
        let mut words = line.split(' ');
        match words.next() {
            Some("#" | "T") => {}
            Some("J") => {
                // The passes of one layer in two half types are much alike; next to each other
                // they compress well.
                let mut next = || words.next().ok_or_else(malformed);
                let (shape, dtype, pass) = (next()?, next()?, next()?);
                job = Some(jobs.entry(format!("{shape} {pass} {dtype}")).or_default());
                seen.clear();
            }
            Some(batch) => {
                let batch: u64 = batch.parse().map_err(|_| malformed())?;
                let lows = read_plans(batch, words, &mut seen).ok_or_else(malformed)?;
                job.as_deref_mut()
                    .ok_or_else(malformed)?
                    .insert(batch, lows);
            }
            None => return Err(malformed()),
        }
    }
    Ok(())
}

/// The record lows of one batch's plans.
fn read_plans<'a>(
    batch: u64,
    words: impl Iterator<Item = &'a str>,
    seen: &mut HashMap<u32, [(u64, i64); 2]>,
) -> Option<Vec<PlanRun>> {
    let mut lows: Vec<PlanRun> = Vec::new();
    for word in words {
        let (tag, given) = match word.split_once(':') {
            Some((tag, size)) => (tag.parse().ok()?, Some(size.parse::<i64>().ok()?)),
            None => (word.parse::<u32>().ok()?, None),
        };
        let workspace = match (given, seen.get(&tag)) {
            (Some(given), _) => given,
            (None, Some([_, last])) if last.0 == batch => last.1,
            (None, Some([first, last])) => predicted(*first, *last, batch)?,
            (None, None) => return None,
        };
        let history = seen.entry(tag).or_insert([(batch, workspace); 2]);
        if history[1].0 != batch {
            *history = [history[1], (batch, workspace)];
        }
        match lows.last_mut() {
            Some(low) if low.workspace <= workspace => low.count += 1,
            _ => lows.push(PlanRun {
                workspace,
                count: 1,
            }),
        }
    }
    (!lows.is_empty()).then_some(lows)
}

/// Where the straight line through two batches is at a third.
fn predicted(first: (u64, i64), last: (u64, i64), batch: u64) -> Option<i64> {
    let run = i128::from(last.0) - i128::from(first.0);
    let rise = i128::from(last.1) - i128::from(first.1);
    let ahead = i128::from(batch) - i128::from(last.0);
    i64::try_from(i128::from(last.1) + (rise * ahead).checked_div(run)?).ok()
}

/// The workspaces, the lists and the runs of one job.
fn job_text(job: &Job) -> String {
    let mut fitted = Fitted::of(job);
    let mut lines = StringTable::default();
    let mut lists = StringTable::default();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (position, lows) in job.values().enumerate() {
        let steps: Vec<String> = lows
            .iter()
            .map(|low| {
                let (base, slope) = fitted.line(position, low.workspace);
                counted(lines.number(format!("{base}+{slope}")), low.count)
            })
            .collect();
        let list = lists.number(steps.join("."));
        match runs.last_mut() {
            Some((current, count)) if *current == list => *count += 1,
            _ => runs.push((list, 1)),
        }
    }
    let runs: Vec<String> = runs
        .into_iter()
        .map(|(list, count)| counted(list, count))
        .collect();
    format!(
        "{}|{}|{}",
        lines.0.join(" "),
        lists.0.join(" "),
        runs.join(" ")
    )
}

/// Finds the straight lines that a job's workspaces lie on.
///
/// Plans come and go from batch to batch, and one engine can be in the list several times with
/// different knobs, so the lines are found from the sizes alone: of the lines from a size to one
/// at the next few batches, the one that goes on through the most sizes. Only lines that start at
/// nothing or more and do not fall are taken, so that they can be followed between the batches.
struct Fitted {
    /// Each batch and the sizes that occur there.
    points: Vec<(i64, Vec<i64>)>,
    lines: Vec<Line>,
}

impl Fitted {
    /// How many of the next batches a line may start through.
    const REACH: usize = 3;
    /// Over how many batches a line's sizes are counted.
    const SIGHT: usize = 24;

    fn of(job: &Job) -> Self {
        let points = job
            .iter()
            .map(|(batch, lows)| {
                let batch = i64::try_from(*batch).expect("batches are small");
                (batch, lows.iter().map(|low| low.workspace).collect())
            })
            .collect();
        Fitted {
            points,
            lines: Vec::new(),
        }
    }

    /// The line for a size at a position; the constant when it is alone.
    fn line(&mut self, position: usize, size: i64) -> Line {
        let batch = self.points[position].0;
        let through = |(base, slope): &&Line| base + slope * batch == size;
        if let Some(known) = self.lines.iter().rev().find(through) {
            return *known;
        }
        let line = self
            .candidates(position, size)
            .map(|line| (self.support(position, line), line))
            .filter(|(support, _)| *support >= 2)
            .max_by_key(|(support, line)| (*support, -line.1))
            .map_or((size, 0), |(_, line)| line);
        if line.1 != 0 || self.support(position, line) >= 2 {
            self.lines.push(line);
        }
        line
    }

    /// Plausible lines from a size through one at the next few batches.
    fn candidates(&self, position: usize, size: i64) -> impl Iterator<Item = Line> {
        let (batch, _) = self.points[position];
        let next = &self.points[position + 1..self.points.len().min(position + 1 + Self::REACH)];
        next.iter().flat_map(move |(later, sizes)| {
            sizes.iter().filter_map(move |later_size| {
                let slope = (later_size - size) / (later - batch);
                let base = size - slope * batch;
                let is_plausible = slope >= 0 && base >= 0 && base + slope * later == *later_size;
                is_plausible.then_some((base, slope))
            })
        })
    }

    /// Through how many of the coming batches' sizes a line goes.
    fn support(&self, position: usize, (base, slope): Line) -> usize {
        let end = self.points.len().min(position + 1 + Self::SIGHT);
        self.points[position + 1..end]
            .iter()
            .filter(|(batch, sizes)| sizes.contains(&(base + slope * batch)))
            .count()
    }
}

/// Texts by order of first appearance.
#[derive(Default)]
struct StringTable(Vec<String>);

impl StringTable {
    fn number(&mut self, text: String) -> usize {
        self.0
            .iter()
            .position(|known| *known == text)
            .unwrap_or_else(|| {
                self.0.push(text);
                self.0.len() - 1
            })
    }
}

/// The different sets of batches, longest first.
struct Grids(Vec<Vec<u64>>);

impl Grids {
    fn of(jobs: &BTreeMap<String, Job>) -> Self {
        let mut sets: Vec<Vec<u64>> = jobs
            .values()
            .map(|job| job.keys().copied().collect())
            .collect();
        crate::order::by(&mut sets, |a, b| {
            b.len().cmp(&a.len()).then_with(|| a.cmp(b))
        });
        let mut grids: Vec<Vec<u64>> = Vec::new();
        for set in sets {
            if !grids.iter().any(|grid| grid.starts_with(&set)) {
                grids.push(set);
            }
        }
        Grids(grids)
    }

    /// The grid that starts with this job's batches.
    fn number(&self, job: &Job) -> usize {
        let begins = |grid: &Vec<u64>| job.keys().zip(grid).all(|(batch, point)| batch == point);
        self.0
            .iter()
            .position(|grid| grid.len() >= job.len() && begins(grid))
            .expect("the grids were made from these jobs")
    }
}

fn counted(value: usize, count: usize) -> String {
    if count == 1 {
        value.to_string()
    } else {
        format!("{value}*{count}")
    }
}

/// `1-256 261 266`.
fn ranges(batches: &[u64]) -> String {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for batch in batches {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *batch => *last = *batch,
            _ => parts.push((*batch, *batch)),
        }
    }
    let texts: Vec<String> = parts
        .into_iter()
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect();
    texts.join(" ")
}
