//! Reading a recorded table and answering from it.

use std::collections::HashMap;
use std::io::Read;
use std::sync::OnceLock;

use flate2::bufread::GzDecoder;

use crate::program::{Convolution, ConvolutionLayer, ConvolutionPass};
use crate::shape::DType;
use crate::units::Bytes;

use super::neighbours::Neighbours;
use super::{Plans, Source};

/// First line of every table.
pub(super) const MAGIC: &str = "batchfit workspaces 1";

/// Why a table cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// It is not the compressed text that it should be.
    #[error("the workspace table cannot be decompressed")]
    Compression {
        /// What the decoder said.
        source: std::io::Error,
    },
    /// A block is not where the head says, or not what.
    #[error("a block of the workspace table is malformed")]
    Block,
    /// A line is not what the format says.
    #[error("line {line} of the workspace table is malformed")]
    Malformed {
        /// Counted from 1.
        line: usize,
    },
}

/// What one card's library answered, for many layers at many batches.
#[derive(Debug)]
pub struct WorkspaceTable {
    provenance: Vec<(String, String)>,
    grids: Vec<Vec<u64>>,
    blocks: Vec<Block>,
    /// Which block holds a layer.
    layers: HashMap<ConvolutionLayer, usize>,
    /// Made when a layer is first asked about that is not here.
    neighbours: OnceLock<Neighbours>,
}

/// Some layers, unpacked when one of them is first asked about.
#[derive(Debug, Default)]
struct Block {
    compressed: &'static [u8],
    jobs: OnceLock<HashMap<Key, Job>>,
}

/// What a job is found by.
type Key = (ConvolutionLayer, DType, ConvolutionPass);

/// One pass of one layer in one element type.
#[derive(Debug)]
struct Job {
    /// Which grid its batches are from.
    grid: usize,
    /// Workspaces as functions of the batch.
    lines: Vec<Line>,
    /// The different lists of plans that occur.
    lists: Vec<Vec<Step>>,
    /// Which list holds where: up to (not including) a position in the grid, ascending.
    runs: Vec<(usize, usize)>,
}

/// A workspace of `base + slope * batch` bytes.
#[derive(Debug, Clone, Copy)]
struct Line {
    base: i64,
    slope: i64,
}

/// Plans in a row of which none needs less than the first.
#[derive(Debug, Clone, Copy)]
struct Step {
    line: usize,
    count: usize,
}

impl WorkspaceTable {
    /// What cuDNN 9.19 answered on an NVIDIA H200.
    pub fn h200() -> &'static WorkspaceTable {
        static TABLE: OnceLock<WorkspaceTable> = OnceLock::new();
        TABLE.get_or_init(|| {
            WorkspaceTable::read(include_bytes!("h200.txt.gz"))
                .expect("the table that is compiled in was read by a test")
        })
    }

    /// Reads a table's file.
    pub fn read(file: &'static [u8]) -> Result<Self, TableError> {
        let mut decoder = GzDecoder::new(file);
        let mut text = String::new();
        decoder
            .read_to_string(&mut text)
            .map_err(|source| TableError::Compression { source })?;
        let mut rest = decoder.into_inner();
        let mut table = WorkspaceTable::parse(&text)?;
        for block in text.lines().filter_map(|line| line.strip_prefix("block ")) {
            let (compressed, layers) = block
                .split_once(' ')
                .and_then(|(length, layers)| {
                    let (block, after) = rest.split_at_checked(length.parse().ok()?)?;
                    rest = after;
                    let layers: Vec<_> =
                        layers.split(' ').map(parse_layer).collect::<Option<_>>()?;
                    Some((block, layers))
                })
                .ok_or(TableError::Block)?;
            table.add_block(compressed, layers);
        }
        Ok(table)
    }

    /// Reads a table as text.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let mut table = WorkspaceTable {
            provenance: Vec::new(),
            grids: Vec::new(),
            blocks: Vec::new(),
            layers: HashMap::new(),
            neighbours: OnceLock::new(),
        };
        let mut jobs = HashMap::new();
        let mut layer = None;
        for (index, line) in text.lines().enumerate() {
            let malformed = || TableError::Malformed { line: index + 1 };
            let (word, rest) = line.split_once(' ').ok_or_else(malformed)?;
            match word {
                _ if index == 0 => {
                    if line != MAGIC {
                        return Err(malformed());
                    }
                }
                "grid" => table.grids.push(parse_grid(rest).ok_or_else(malformed)?),
                "block" => {}
                "layer" => layer = Some(parse_layer(rest).ok_or_else(malformed)?),
                "job" => {
                    let layer = layer.ok_or_else(malformed)?;
                    let (dtype, pass, job) = parse_job(rest, &table.grids).ok_or_else(malformed)?;
                    jobs.insert((layer, dtype, pass), job);
                }
                _ => table.provenance.push((word.to_owned(), rest.to_owned())),
            }
        }
        if !jobs.is_empty() {
            let layers: Vec<ConvolutionLayer> = jobs.keys().map(|(layer, ..)| *layer).collect();
            table.add_block(&[], layers);
            table.blocks[0].jobs = OnceLock::from(jobs);
        }
        Ok(table)
    }

    fn add_block(&mut self, compressed: &'static [u8], layers: Vec<ConvolutionLayer>) {
        let block = self.blocks.len();
        self.layers
            .extend(layers.into_iter().map(|layer| (layer, block)));
        self.blocks.push(Block {
            compressed,
            jobs: OnceLock::new(),
        });
    }

    /// What a block holds.
    fn jobs<'a>(&'a self, block: &'a Block) -> &'a HashMap<Key, Job> {
        block.jobs.get_or_init(|| {
            let mut text = String::new();
            GzDecoder::new(block.compressed)
                .read_to_string(&mut text)
                .expect("a test reads every block");
            let (mut jobs, mut layer) = (HashMap::new(), None);
            for line in text.lines() {
                if let Some(rest) = line.strip_prefix("layer ") {
                    layer = parse_layer(rest);
                } else {
                    let rest = line.strip_prefix("job ");
                    let job = rest.and_then(|rest| parse_job(rest, &self.grids));
                    let (dtype, pass, job) = job.expect("a test reads every block");
                    let layer = layer.expect("a test reads every block");
                    jobs.insert((layer, dtype, pass), job);
                }
            }
            jobs
        })
    }

    /// Where the table is from: card, driver, library version, date, command.
    pub fn provenance(&self) -> impl Iterator<Item = (&str, &str)> {
        self.provenance
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The version of the library that answered, such as `9.19.0`.
    pub fn cudnn(&self) -> Option<&str> {
        let (_, version) = self.provenance().find(|(name, _)| *name == "cudnn")?;
        version.split(' ').next()
    }

    /// Whether a layer is recorded.
    pub fn holds(&self, layer: &ConvolutionLayer) -> bool {
        self.layers.contains_key(layer)
    }

    /// How many layers are recorded.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The layers that are recorded, in no particular order; one with several passes comes
    /// several times.
    pub fn recorded(
        &self,
    ) -> impl Iterator<Item = (&ConvolutionLayer, DType, ConvolutionPass, &[u64])> {
        let jobs = self.blocks.iter().flat_map(|block| self.jobs(block));
        jobs.map(|((shape, dtype, pass), job)| {
            let end = job.runs.last().map_or(0, |(end, _)| *end);
            (shape, *dtype, *pass, &self.grids[job.grid][..end])
        })
    }

    /// The plans for one call.
    pub fn plans(&self, call: &Convolution) -> Plans {
        if !call.uses_cudnn() {
            return Plans {
                workspaces: vec![Bytes::ZERO],
                source: Source::NotTheLibrary,
            };
        }
        self.recorded_plans(call).unwrap_or_else(|| {
            let neighbours = self
                .neighbours
                .get_or_init(|| Neighbours::of(self.layers.keys().copied()));
            neighbours.estimate(call, |similar| {
                Some(self.recorded_plans(similar)?.workspaces)
            })
        })
    }

    /// The plans for a call of a recorded layer.
    fn recorded_plans(&self, call: &Convolution) -> Option<Plans> {
        let layer = call.layer();
        let block = &self.blocks[*self.layers.get(&layer)?];
        let job = self.jobs(block).get(&(layer, call.dtype, call.pass))?;
        Some(job.plans(&self.grids[job.grid], call.batch.max(1)))
    }
}

impl Job {
    fn plans(&self, grid: &[u64], batch: u64) -> Plans {
        let count = self.runs.last().map_or(0, |(end, _)| *end);
        match grid[..count].binary_search(&batch) {
            Ok(position) => Plans {
                workspaces: self.at(position, batch),
                source: Source::Recorded,
            },
            Err(position) if position > 0 && position < count => {
                let below = self.at(position - 1, batch);
                let above = self.at(position, batch);
                let workspaces = if above.first() > below.first() {
                    above
                } else {
                    below
                };
                Plans {
                    workspaces,
                    source: Source::Interpolated,
                }
            }
            Err(position) => self.beyond(grid[position.saturating_sub(1)], position, batch),
        }
    }

    /// The list that holds at a grid position, evaluated at a batch.
    fn at(&self, position: usize, batch: u64) -> Vec<Bytes> {
        let run = self.runs.partition_point(|(end, _)| *end <= position);
        let mut workspaces = Vec::new();
        for step in &self.lists[self.runs[run].1] {
            let size = self.lines[step.line].at(batch);
            workspaces.extend(std::iter::repeat_n(size, step.count));
        }
        workspaces
    }

    /// Past the last recorded batch: its plans, grown in proportion, which is never less than
    /// along their own lines.
    fn beyond(&self, last: u64, position: usize, batch: u64) -> Plans {
        let grown = self
            .at(position.saturating_sub(1), last)
            .into_iter()
            .map(|size| {
                let scaled = u128::from(size.0) * u128::from(batch) / u128::from(last.max(1));
                Bytes(u64::try_from(scaled).unwrap_or(u64::MAX))
            });
        Plans {
            workspaces: grown.collect(),
            source: Source::Estimated("in proportion to the largest recorded batch"),
        }
    }
}

impl Line {
    fn at(self, batch: u64) -> Bytes {
        let bytes = i128::from(self.base) + i128::from(self.slope) * i128::from(batch);
        Bytes(u64::try_from(bytes.max(0)).unwrap_or(u64::MAX))
    }
}

/// Batches and ranges of batches: `1-256 261 266`.
fn parse_grid(text: &str) -> Option<Vec<u64>> {
    let mut batches = Vec::new();
    for part in text.split(' ') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        batches.extend(first.parse::<u64>().ok()?..=last.parse().ok()?);
    }
    batches.is_sorted().then_some(batches)
}

/// Channels in and out, groups, then the sides of input, kernel, stride, padding and dilation, then 1 for a
/// transposed convolution, 1 for channels-last tensors, and what is added to the sides of the output. Planes
/// have two sides and may lack the last one or two of these: 14, 15 or 17 numbers. Volumes have three: 23.
fn parse_layer(text: &str) -> Option<ConvolutionLayer> {
    let numbers = text.split(',').map(|n| n.parse().ok());
    let mut numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
    let volumes = match numbers.len() {
        14 | 15 | 17 => false,
        23 => true,
        _ => return None,
    };
    if !volumes {
        numbers.resize(17, 0);
    }
    let mut numbers = numbers.into_iter();
    let mut next = || numbers.next();
    let [in_channels, out_channels, groups] = [next()?, next()?, next()?];
    let mut sides = |flat: u64| {
        let depth = if volumes { next()? } else { flat };
        Some([depth, next()?, next()?])
    };
    Some(ConvolutionLayer {
        in_channels,
        out_channels,
        groups,
        input: sides(1)?,
        kernel: sides(1)?,
        stride: sides(1)?,
        padding: sides(0)?,
        dilation: sides(1)?,
        transposed: next()? == 1,
        channels_last: next()? == 1,
        output_padding: {
            let depth = if volumes { next()? } else { 0 };
            [depth, next()?, next()?]
        },
        volumes,
    })
}

fn parse_job(text: &str, grids: &[Vec<u64>]) -> Option<(DType, ConvolutionPass, Job)> {
    let mut parts = text.split('|');
    let mut head = parts.next()?.split(' ');
    let pass = match head.next()? {
        "forward" => ConvolutionPass::Forward,
        "grad_input" => ConvolutionPass::GradInput,
        "grad_weight" => ConvolutionPass::GradWeight,
        _ => return None,
    };
    let dtype = match head.next()? {
        "f32" => DType::Float32,
        "f16" => DType::Float16,
        "bf16" => DType::BFloat16,
        _ => return None,
    };
    let grid: usize = head.next()?.parse().ok()?;
    let lines: Vec<Line> = parts
        .next()?
        .split(' ')
        .map(parse_line)
        .collect::<Option<_>>()?;
    let lists: Vec<Vec<Step>> = parts
        .next()?
        .split(' ')
        .map(|list| parse_list(list, lines.len()))
        .collect::<Option<_>>()?;
    let mut end = 0;
    let mut runs = Vec::new();
    for run in parts.next()?.split(' ') {
        let (list, count) = parse_counted(run)?;
        end += count;
        runs.push((end, list));
        lists.get(list)?;
    }
    (end <= grids.get(grid)?.len() && parts.next().is_none()).then_some((
        dtype,
        pass,
        Job {
            grid,
            lines,
            lists,
            runs,
        },
    ))
}

fn parse_line(text: &str) -> Option<Line> {
    let (base, slope) = text.split_once('+')?;
    Some(Line {
        base: base.parse().ok()?,
        slope: slope.parse().ok()?,
    })
}

fn parse_list(text: &str, lines: usize) -> Option<Vec<Step>> {
    text.split('.')
        .map(|step| {
            let (line, count) = parse_counted(step)?;
            (line < lines).then_some(Step { line, count })
        })
        .collect()
}

/// `7` is 7 once, `7*3` is 7 three times.
fn parse_counted(text: &str) -> Option<(usize, usize)> {
    match text.split_once('*') {
        Some((value, count)) => Some((value.parse().ok()?, count.parse().ok()?)),
        None => Some((text.parse().ok()?, 1)),
    }
}

#[cfg(test)]
mod tests;
