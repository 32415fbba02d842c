//! One pass of one layer in one element type: its plans at every batch that was recorded, and between them.

use crate::program::ConvolutionPass;
use crate::shape::DType;
use crate::units::Bytes;

use super::Source;

/// One pass of one layer in one element type.
#[derive(Debug)]
pub(super) struct Job {
    /// Which grid its batches are from.
    pub(super) grid: usize,
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

/// The plans of a job at one batch, of which most readers want only the first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed<'j> {
    lines: &'j [Line],
    steps: &'j [Step],
    /// Where the lines are followed to.
    batch: u64,
    /// The batch that workspaces are for, in proportion to the one above.
    wanted: u64,
    pub(super) source: Source,
}

impl Job {
    /// How many of its grid's batches were recorded.
    pub(super) fn batches(&self) -> usize {
        self.runs.last().map_or(0, |(end, _)| *end)
    }

    /// The plans at a batch; `grid` is the job's.
    pub(super) fn plans(&self, grid: &[u64], batch: u64) -> Listed<'_> {
        let count = self.batches();
        match grid[..count].binary_search(&batch) {
            Ok(position) => self.at(position, batch, Source::Recorded),
            Err(position) if position > 0 && position < count => {
                let below = self.at(position - 1, batch, Source::Interpolated);
                let above = self.at(position, batch, Source::Interpolated);
                if above.first() > below.first() {
                    above
                } else {
                    below
                }
            }
            // Past the last recorded batch: its plans, grown in proportion, which is never less than along
            // their own lines.
            Err(position) => {
                let before = position.saturating_sub(1);
                let source = Source::Estimated("in proportion to the largest recorded batch");
                Listed {
                    wanted: batch,
                    ..self.at(before, grid[before], source)
                }
            }
        }
    }

    /// The list that holds at a grid position, at a batch.
    fn at(&self, position: usize, batch: u64, source: Source) -> Listed<'_> {
        let run = self.runs.partition_point(|(end, _)| *end <= position);
        Listed {
            lines: &self.lines,
            steps: &self.lists[self.runs[run].1],
            batch,
            wanted: batch,
            source,
        }
    }

    /// Reads `PASS TYPE GRID|LINES|LISTS|RUNS`.
    pub(super) fn parse(text: &str, grids: &[Vec<u64>]) -> Option<(DType, ConvolutionPass, Job)> {
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
            // A job without a batch would have no plans.
            end = count.checked_add(end).filter(|_| count > 0)?;
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
}

impl Listed<'_> {
    /// What the first plan wants; `None` of an empty list.
    pub(super) fn first(&self) -> Option<Bytes> {
        let first = self.steps.iter().find(|step| step.count > 0)?;
        Some(self.size(*first))
    }

    /// What each plan wants, in the order in which they are tried.
    pub(super) fn workspaces(&self) -> Vec<Bytes> {
        let plans = self.steps.iter().map(|step| step.count).sum();
        let mut workspaces = Vec::with_capacity(plans);
        for step in self.steps {
            workspaces.extend(std::iter::repeat_n(self.size(*step), step.count));
        }
        workspaces
    }

    fn size(&self, step: Step) -> Bytes {
        let size = self.lines[step.line].at(self.batch);
        if self.wanted == self.batch {
            return size;
        }
        let scaled = u128::from(size.0) * u128::from(self.wanted) / u128::from(self.batch.max(1));
        Bytes(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

impl Line {
    fn at(self, batch: u64) -> Bytes {
        let bytes = i128::from(self.base) + i128::from(self.slope) * i128::from(batch);
        Bytes(u64::try_from(bytes.max(0)).unwrap_or(u64::MAX))
    }
}

/// More plans than in any list: cuDNN's have at most 128.
const MOST_PLANS: usize = 1024;

fn parse_line(text: &str) -> Option<Line> {
    let (base, slope) = text.split_once('+')?;
    Some(Line {
        base: base.parse().ok()?,
        slope: slope.parse().ok()?,
    })
}

fn parse_list(text: &str, lines: usize) -> Option<Vec<Step>> {
    let mut plans = 0_usize;
    text.split('.')
        .map(|step| {
            let (line, count) = parse_counted(step)?;
            plans = plans.checked_add(count)?;
            (line < lines && plans <= MOST_PLANS).then_some(Step { line, count })
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
