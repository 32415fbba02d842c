//! Reading a recorded table and answering from it.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::io::{BufRead, BufReader, Read};
use std::sync::OnceLock;

use flate2::bufread::GzDecoder;
use foldhash::fast::FixedState;

use crate::program::{Convolution, ConvolutionLayer, ConvolutionPass};
use crate::shape::DType;

use super::Plans;
use super::job::{Job, Listed};
use super::layer_text::parse_layer;
use super::lookup::Lookup;
use super::neighbours::Neighbours;

/// First line of every table.
pub(super) const MAGIC: &str = "batchfit workspaces 1";

/// What is said of the driver where there was none.
pub const NO_DRIVER: &str = "none";

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
    /// The file, of a table that is read when it is first asked about a layer. See Note [Blocks].
    file: &'static [u8],
    contents: OnceLock<Contents>,
}

/// The layers of a table.
#[derive(Debug, Default)]
struct Contents {
    grids: Vec<Vec<u64>>,
    blocks: Vec<Block>,
    /// For each layer a number made of it and the block that holds it, in the order of these numbers: with the layers themselves, the
    /// tables of compute capability 9.0 would take 15 MiB.
    layers: Vec<(u64, u32)>,
    /// Made when a layer is first asked about that is not here.
    neighbours: OnceLock<Neighbours>,
}

/// Some layers, unpacked when one of them is first asked about.
#[derive(Debug, Default)]
struct Block {
    compressed: &'static [u8],
    sections: OnceLock<HashMap<ConvolutionLayer, Section, FixedState>>,
}

/// The jobs of one layer, read when it is first asked about.
#[derive(Debug)]
struct Section {
    /// Lines that say `job ...`.
    text: String,
    jobs: OnceLock<Vec<(DType, ConvolutionPass, Job)>>,
}

impl WorkspaceTable {
    /// What cuDNN 9.19 answered on an NVIDIA H200.
    pub fn h200() -> &'static WorkspaceTable {
        static TABLE: OnceLock<WorkspaceTable> = OnceLock::new();
        TABLE.get_or_init(|| WorkspaceTable::brought(include_bytes!("h200.txt.gz")))
    }

    /// What cuDNN 9.19 answered on an NVIDIA H100 for layers of public models that the H200's table lacks.
    pub fn h100() -> &'static WorkspaceTable {
        static TABLE: OnceLock<WorkspaceTable> = OnceLock::new();
        TABLE.get_or_init(|| WorkspaceTable::brought(include_bytes!("h100.txt.gz")))
    }

    /// What is known of cards of a compute capability, the best first: recorded on an H200 and an H100, or asked about one of them without
    /// it. Nothing is known of others.
    pub fn of_architecture(compute: (u32, u32)) -> Vec<&'static WorkspaceTable> {
        static TABLES: [OnceLock<WorkspaceTable>; 6] = [const { OnceLock::new() }; 6];
        let (number, file): (usize, &[u8]) = match compute {
            (9, 0) => return vec![WorkspaceTable::h200(), WorkspaceTable::h100()],
            (8, 0) => (0, include_bytes!("sm_80.txt.gz")),
            (8, 6 | 7) => (1, include_bytes!("sm_86.txt.gz")),
            (8, 9) => (2, include_bytes!("sm_89.txt.gz")),
            (12, 0) => (3, include_bytes!("sm_120.txt.gz")),
            (7, 5) => (4, include_bytes!("sm_75.txt.gz")),
            (10, 0) => (5, include_bytes!("sm_100.txt.gz")),
            _ => return Vec::new(),
        };
        vec![TABLES[number].get_or_init(|| WorkspaceTable::brought(file))]
    }

    /// A table that is compiled in.
    fn brought(file: &'static [u8]) -> WorkspaceTable {
        let provenance = read_provenance(BufReader::new(GzDecoder::new(file)));
        WorkspaceTable {
            provenance: provenance.expect("a test reads the tables that are compiled in"),
            file,
            contents: OnceLock::new(),
        }
    }

    /// Reads a table as [`pack`](super::pack) wrote it. What it says of layers is read when needed; a layer of which that cannot be
    /// read counts as not recorded.
    pub fn packed(file: &'static [u8]) -> Result<Self, TableError> {
        let compression = |source| TableError::Compression { source };
        let contents = Contents::read(file)?;
        let provenance = read_provenance(BufReader::new(GzDecoder::new(file)));
        Ok(WorkspaceTable {
            provenance: provenance.map_err(compression)?,
            file,
            contents: OnceLock::from(contents),
        })
    }

    /// Reads a table as text.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let compression = |source| TableError::Compression { source };
        Ok(WorkspaceTable {
            provenance: read_provenance(text.as_bytes()).map_err(compression)?,
            file: &[],
            contents: OnceLock::from(Contents::parse(text)?),
        })
    }

    fn contents(&self) -> &Contents {
        self.contents.get_or_init(|| {
            Contents::read(self.file).expect("a test reads the table that is compiled in")
        })
    }

    /// Where the table is from: card, driver, library version, date, command.
    pub fn provenance(&self) -> impl Iterator<Item = (&str, &str)> {
        self.provenance
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// What its head says of that under a name.
    pub(super) fn said(&self, name: &str) -> Option<&str> {
        let mut all = self.provenance();
        all.find_map(|(said, value)| (said == name).then_some(value))
    }

    /// The version of the library that answered, such as `9.19.0`.
    pub fn cudnn(&self) -> Option<&str> {
        self.said("cudnn")?.split(' ').next()
    }

    /// Whether a layer is recorded.
    pub fn holds(&self, layer: &ConvolutionLayer) -> bool {
        self.contents().section(layer).is_some()
    }

    /// The layers that are recorded, in no particular order; read anew each time.
    pub fn layers(&self) -> Vec<ConvolutionLayer> {
        if let Ok((head, _)) = read_head(self.file) {
            let of_blocks = blocks(&head).filter_map(Result::ok);
            return of_blocks.flat_map(|(_, layers)| layers).flatten().collect();
        }
        let sections = self.contents().blocks.iter().map(Block::sections);
        sections.flat_map(HashMap::keys).copied().collect()
    }

    /// How many layers are recorded.
    pub fn len(&self) -> usize {
        self.contents().layers.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.contents().layers.is_empty()
    }

    /// The layers that are recorded, in no particular order; one with several passes comes
    /// several times.
    pub fn recorded(
        &self,
    ) -> impl Iterator<Item = (&ConvolutionLayer, DType, ConvolutionPass, &[u64])> {
        let contents = self.contents();
        let sections = contents.blocks.iter().flat_map(Block::sections);
        sections.flat_map(move |(layer, section)| {
            let jobs = section.jobs(&contents.grids).iter();
            jobs.map(move |(dtype, pass, job)| {
                (
                    layer,
                    *dtype,
                    *pass,
                    &contents.grids[job.grid][..job.batches()],
                )
            })
        })
    }

    /// The plans for one call. For several there is [`Lookup`].
    pub fn plans(&self, call: &Convolution) -> Plans {
        Lookup::new(self).plans(call)
    }

    /// The plans for a call of a recorded layer.
    pub(super) fn recorded_plans(&self, call: &Convolution) -> Option<Listed<'_>> {
        let contents = self.contents();
        let section = contents.section(&call.layer)?;
        let mut jobs = section.jobs(&contents.grids).iter();
        let (.., job) = jobs.find(|(dtype, pass, _)| (*dtype, *pass) == (call.dtype, call.pass))?;
        Some(job.plans(&contents.grids[job.grid], call.batch.max(1)))
    }

    /// Whether it was asked of cuDNN's heuristics without the card.
    pub fn is_asked(&self) -> bool {
        let driver = self.said("driver");
        driver.is_some_and(|driver| driver.starts_with(NO_DRIVER))
    }

    /// Whether no table is asked after it: `alone` is in its head where it was made to see how well others' layers stand in for those that
    /// it lacks (Note [Left out]).
    pub fn is_alone(&self) -> bool {
        self.said("alone").is_some()
    }

    /// The card that it is of, as the driver calls it.
    pub fn card(&self) -> Option<&str> {
        self.said("card")
    }

    /// Which recorded layers are most like others.
    pub(super) fn neighbours(&self) -> &Neighbours {
        let contents = self.contents();
        contents
            .neighbours
            .get_or_init(|| Neighbours::of(self.layers()))
    }
}

impl Contents {
    /// Reads a table's file.
    fn read(file: &'static [u8]) -> Result<Contents, TableError> {
        let (head, mut rest) = read_head(file)?;
        let mut contents = Contents::parse(&head)?;
        for (number, block) in (0..).zip(blocks(&head)) {
            let (length, layers) = block?;
            let (compressed, after) = rest.split_at_checked(length).ok_or(TableError::Block)?;
            rest = after;
            for layer in layers {
                let layer = layer.ok_or(TableError::Block)?;
                contents.layers.push((number_of(&layer), number));
            }
            contents.blocks.push(Block {
                compressed,
                sections: OnceLock::new(),
            });
        }
        contents.layers.sort_unstable();
        Ok(contents)
    }

    /// What is said of a layer.
    fn section(&self, layer: &ConvolutionLayer) -> Option<&Section> {
        let number = number_of(layer);
        let first = self.layers.partition_point(|(other, _)| *other < number);
        let of_number = self.layers[first..]
            .iter()
            .take_while(|(other, _)| *other == number);
        { of_number }.find_map(|(_, block)| self.blocks[*block as usize].sections().get(layer))
    }

    /// Reads the text of a table.
    fn parse(text: &str) -> Result<Contents, TableError> {
        let mut contents = Contents::default();
        let mut sections = HashMap::<ConvolutionLayer, Section, FixedState>::default();
        let mut section: Option<&mut Section> = None;
        if text.lines().next().is_some_and(|first| first != MAGIC) {
            return Err(TableError::Malformed { line: 1 });
        }
        for (index, line) in text.lines().enumerate().skip(1) {
            let malformed = || TableError::Malformed { line: index + 1 };
            let (word, rest) = line.split_once(' ').ok_or_else(malformed)?;
            match word {
                "grid" => contents.grids.push(parse_grid(rest).ok_or_else(malformed)?),
                "layer" => {
                    let layer = parse_layer(rest).ok_or_else(malformed)?;
                    section = Some(sections.entry(layer).or_insert_with(Section::new));
                }
                "job" => {
                    let section = section.as_deref_mut().ok_or_else(malformed)?;
                    Job::parse(rest, &contents.grids).ok_or_else(malformed)?;
                    section.add(line);
                }
                // Blocks are read from the file; the rest is where the table is from.
                _ => {}
            }
        }
        if !sections.is_empty() {
            contents.layers = sections.keys().map(|layer| (number_of(layer), 0)).collect();
            contents.layers.sort_unstable();
            contents.blocks.push(Block {
                compressed: &[],
                sections: OnceLock::from(sections),
            });
        }
        Ok(contents)
    }
}

impl Block {
    /// What a block holds. A test reads all that are compiled in; nothing is in one that cannot be read.
    fn sections(&self) -> &HashMap<ConvolutionLayer, Section, FixedState> {
        self.sections.get_or_init(|| {
            let mut text = String::new();
            let unpacked = GzDecoder::new(self.compressed).take(LARGEST_BLOCK);
            let mut sections = HashMap::<_, _, FixedState>::default();
            if { unpacked }.read_to_string(&mut text).is_err() {
                return sections;
            }
            for section in text.split("layer ").skip(1) {
                let Some((layer, jobs)) = section.split_once('\n') else {
                    continue;
                };
                if let Some(layer) = parse_layer(layer) {
                    let mut section = Section::new();
                    section.text.push_str(jobs);
                    sections.insert(layer, section);
                }
            }
            sections
        })
    }
}

/// Bytes of text before the blocks of a file: that of all known layers has half a MiB.
const LONGEST_HEAD: u64 = 16 << 20;

/// Bytes of text of a block: those that are compiled in have at most a tenth of it.
const LARGEST_BLOCK: u64 = 16 << 20;

impl Section {
    fn new() -> Section {
        Section {
            text: String::new(),
            jobs: OnceLock::new(),
        }
    }

    fn add(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Lines that cannot be read are passed over.
    fn jobs(&self, grids: &[Vec<u64>]) -> &[(DType, ConvolutionPass, Job)] {
        self.jobs.get_or_init(|| {
            let job = |line: &str| Job::parse(line.strip_prefix("job ")?, grids);
            self.text.lines().filter_map(job).collect()
        })
    }
}

/// The text of a file before its blocks, and these.
fn read_head(file: &'static [u8]) -> Result<(String, &'static [u8]), TableError> {
    let mut decoder = GzDecoder::new(file);
    let mut text = String::new();
    let compression = |source| TableError::Compression { source };
    let mut bounded = (&mut decoder).take(LONGEST_HEAD + 1);
    bounded.read_to_string(&mut text).map_err(compression)?;
    if text.len() as u64 > LONGEST_HEAD {
        let source = std::io::Error::other("its head unpacks to more than 16 MiB");
        return Err(TableError::Compression { source });
    }
    Ok((text, decoder.into_inner()))
}

/// What a head says of each block: its bytes, and the layers in it.
fn blocks(
    head: &str,
) -> impl Iterator<Item = Result<(usize, impl Iterator<Item = Option<ConvolutionLayer>>), TableError>>
{
    let lines = head.lines().filter_map(|line| line.strip_prefix("block "));
    lines.map(|block| {
        let (length, layers) = block.split_once(' ').ok_or(TableError::Block)?;
        let length = length.parse().map_err(|_| TableError::Block)?;
        Ok((length, layers.split(' ').map(parse_layer)))
    })
}

/// A number that hardly two layers have in common.
fn number_of(layer: &ConvolutionLayer) -> u64 {
    FixedState::default().hash_one(layer)
}

/// The lines between the first and the grids.
fn read_provenance(text: impl BufRead) -> std::io::Result<Vec<(String, String)>> {
    let mut provenance = Vec::new();
    for line in text.lines().skip(1) {
        let line = line?;
        match line.split_once(' ') {
            Some(("grid" | "block" | "layer" | "job", _)) | None => break,
            Some((name, value)) => provenance.push((name.to_owned(), value.to_owned())),
        }
    }
    Ok(provenance)
}

/// Batches in a row of a grid; those that are compiled in have a thousand.
const MOST_BATCHES: u64 = 100_000;

/// Batches and ranges of batches: `1-256 261 266`.
fn parse_grid(text: &str) -> Option<Vec<u64>> {
    let mut batches = Vec::new();
    for part in text.split(' ') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if last.checked_sub(first)? > MOST_BATCHES {
            return None;
        }
        batches.extend(first..=last);
    }
    batches.is_sorted().then_some(batches)
}

#[cfg(test)]
mod tests;
