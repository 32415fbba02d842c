//! Which convolution a graph is of, and what `batchfit run` knows of it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::channel;
use crate::config::card;
use crate::handle::Lock;

/// Which of an ordinary convolution's tensors is computed. Those of a transposed one are others: its result is the input of an ordinary one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `y` from `x` and `w`.
    Forward,
    /// `x` from `y` and `w`.
    BackwardData,
    /// `w` from `x` and `y`.
    BackwardFilter,
}

/// What tensors hold, of the types of which there are recordings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `CUDNN_DATA_FLOAT`.
    Float32,
    /// `CUDNN_DATA_HALF`.
    Float16,
    /// `CUDNN_DATA_BFLOAT16`.
    BFloat16,
}

impl Type {
    /// `cudnnDataType_t`.
    pub(super) fn of(number: i32) -> Option<Type> {
        match number {
            0 => Some(Type::Float32),
            2 => Some(Type::Float16),
            9 => Some(Type::BFloat16),
            _ => None,
        }
    }
}

/// What a tensor's descriptor said; it ends before heuristics are asked.
#[derive(Debug, Clone, Default)]
pub(super) struct Tensor {
    pub kind: i32,
    pub dimensions: Vec<i64>,
    pub strides: Vec<i64>,
}

impl Tensor {
    /// Whether channels lie side by side; `None` where one cannot see it.
    fn is_channels_last(&self) -> Option<bool> {
        let channels = *self.dimensions.get(1)?;
        let (beside, last) = (*self.strides.get(1)?, *self.strides.last()?);
        // PyTorch computes strides of lengths of one, too.
        (channels > 1).then_some(beside == 1 && last == channels)
    }

    /// With a depth of one for planes.
    fn extents(&self) -> Option<[u64; 5]> {
        let of = |at: usize| u64::try_from(self.dimensions[at]).ok().filter(|extent| (1..1 << 40).contains(extent));
        match self.dimensions.len() {
            4 => Some([of(0)?, of(1)?, 1, of(2)?, of(3)?]),
            5 => Some([of(0)?, of(1)?, of(2)?, of(3)?, of(4)?]),
            _ => None,
        }
    }
}

/// What an operation's descriptor was told.
#[derive(Debug, Clone, Default)]
pub(super) struct ConvolutionDescriptor {
    pub x: Tensor,
    pub w: Tensor,
    pub y: Tensor,
    pub stride: Vec<i64>,
    pub padding: Vec<i64>,
    pub dilation: Vec<i64>,
}

/// A call of the library. Of five numbers: batch, channels, depth, height, width; of three: depth, height, width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// What is computed.
    pub operation: Operation,
    /// Of which type.
    pub dtype: Type,
    /// The input of an ordinary convolution.
    pub x: [u64; 5],
    /// Its weight: output channels, input channels of a group, and the kernel.
    pub w: [u64; 5],
    /// Its result.
    pub y: [u64; 5],
    /// Steps of the kernel.
    pub stride: [u64; 3],
    /// Zeros on each side.
    pub padding: [u64; 3],
    /// Steps within the kernel.
    pub dilation: [u64; 3],
    /// Whether tensors have five dimensions.
    pub volumes: bool,
    /// Whether channels lie side by side.
    pub channels_last: bool,
}

impl Convolution {
    /// What an operation says; `None` of what there is no recording of.
    pub(super) fn of(pass: Operation, said: &ConvolutionDescriptor) -> Option<Convolution> {
        let volumes = said.x.dimensions.len() == 5;
        let sides = |of: &[i64], depth: u64| -> Option<[u64; 3]> {
            let side = |at: usize| of.get(at).and_then(|side| u64::try_from(*side).ok()).filter(|side| *side < 1 << 32);
            if volumes { Some([side(0)?, side(1)?, side(2)?]) } else { Some([depth, side(0)?, side(1)?]) }
        };
        let (x, w, y) = (said.x.extents()?, said.w.extents()?, said.y.extents()?);
        if x[1] % w[1] != 0 || y[1] != w[0] || said.x.kind != said.w.kind || said.x.kind != said.y.kind {
            return None;
        }
        Some(Convolution {
            operation: pass,
            dtype: Type::of(said.x.kind)?,
            x,
            w,
            y,
            stride: sides(&said.stride, 1)?,
            padding: sides(&said.padding, 0)?,
            dilation: sides(&said.dilation, 1)?,
            volumes,
            channels_last: said.x.is_channels_last().or(said.y.is_channels_last()).unwrap_or(false),
        })
    }

    /// Itself: what the simulator's convolutions are made of it.
    pub(super) fn operands(&self) -> &Convolution {
        self
    }

    /// Nanoseconds that it takes.
    pub(super) fn time(&self) -> u64 {
        let products = self.y.iter().chain(&self.w[1..]).fold(1, |all: u64, &extent| all.saturating_mul(extent));
        card().multiplies(products, self.dtype == Type::Float32).max(card().moves(self.bytes()))
    }

    /// Bytes of its three tensors.
    pub(super) fn bytes(&self) -> u64 {
        let width = if self.dtype == Type::Float32 { 4 } else { 2 };
        [self.x, self.w, self.y].iter().map(|tensor| tensor.iter().fold(width, |bytes: u64, &extent| bytes.saturating_mul(extent))).sum()
    }

    /// Groups of channels that do not mix.
    fn groups(&self) -> u64 {
        self.x[1] / self.w[1]
    }

    /// The question about the layer that this may be a call of: an ordinary one, or a transposed one, which cuDNN cannot tell apart.
    fn question(&self, transposed: bool) -> String {
        let (of, to) = if transposed { (&self.y, &self.x) } else { (&self.x, &self.y) };
        let pass = match (self.operation, transposed) {
            (Operation::Forward, false) | (Operation::BackwardData, true) => "forward",
            (Operation::BackwardData, false) | (Operation::Forward, true) => "grad_input",
            (Operation::BackwardFilter, _) => "grad_weight",
        };
        // What a transposed layer's output has beside what its input spreads to.
        let mut added = [0; 3];
        if transposed {
            for (axis, added) in added.iter_mut().enumerate() {
                let reach = self.dilation[axis] * (self.w[2 + axis] - 1) + 1;
                let spread = (self.y[2 + axis] - 1) * self.stride[axis] + reach;
                *added = (self.x[2 + axis] + 2 * self.padding[axis]).saturating_sub(spread);
            }
        }
        let list = |of: &[u64]| of.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let fields = [
            "convolution".to_owned(),
            pass.to_owned(),
            format!("{:?}", self.dtype).to_lowercase(),
            self.x[0].to_string(),
            of[1].to_string(),
            to[1].to_string(),
            self.groups().to_string(),
            list(&of[2..]),
            list(&self.w[2..]),
            list(&self.stride),
            list(&self.padding),
            list(&self.dilation),
            u8::from(transposed).to_string(),
            list(&added),
            u8::from(self.volumes).to_string(),
            u8::from(self.channels_last).to_string(),
        ];
        fields.join("\t")
    }

    /// What `batchfit run` knows: the better of what it says of both layers that this may be of.
    pub(super) fn answer(&self) -> Arc<Answer> {
        let ordinary = ask(self.question(false));
        if ordinary.source <= Source::Interpolated {
            return ordinary;
        }
        let transposed = ask(self.question(true));
        if transposed.source < ordinary.source { transposed } else { ordinary }
    }
}

/// Where an answer is from, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// It was recorded on a card.
    Recorded,
    /// Recorded at batches on either side.
    Interpolated,
    /// cuDNN was asked without a card.
    Asked,
    /// By a rule, of similar layers.
    Estimated,
    /// There is no answer.
    None,
}

impl Source {
    /// As `batchfit run` names it.
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Tells `batchfit run` how it is known what a convolution takes.
    pub(super) fn say(self) {
        channel::say(&format!("workspace\t{}", self.name()));
    }
}

/// What plans take, in the order in which they are tried.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub source: Source,
    pub sizes: Vec<u64>,
}

impl Answer {
    fn parse(line: &str) -> Option<Answer> {
        let (source, sizes) = line.split_once('\t').unwrap_or((line, ""));
        let source = [Source::Recorded, Source::Interpolated, Source::Asked, Source::Estimated].into_iter().find(|known| known.name() == source)?;
        let sizes: Vec<u64> = sizes.split(',').map(|size| size.trim().parse().ok()).collect::<Option<_>>()?;
        Some(Answer { source, sizes })
    }
}

/// Asks, each question once in a process.
fn ask(question: String) -> Arc<Answer> {
    static ASKED: Lock<Option<HashMap<String, Arc<Answer>>>> = Lock::new(None);
    if let Some(answer) = ASKED.lock().as_ref().and_then(|asked| asked.get(&question).cloned()) {
        return answer;
    }
    let answer = channel::ask(&question).and_then(|line| Answer::parse(&line));
    let answer = Arc::new(answer.unwrap_or(Answer { source: Source::None, sizes: Vec::new() }));
    ASKED.lock().get_or_insert_default().insert(question, Arc::clone(&answer));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dimensions: &[i64], channels_last: bool) -> Tensor {
        let (sides, channels) = (&dimensions[2..], dimensions[1]);
        let mut strides = vec![1; dimensions.len()];
        let mut stride = if channels_last { channels } else { 1 };
        for at in (0..sides.len()).rev() {
            strides[2 + at] = stride;
            stride *= sides[at];
        }
        strides[1] = if channels_last { 1 } else { stride };
        strides[0] = channels * sides.iter().product::<i64>();
        Tensor { kind: 2, dimensions: dimensions.to_vec(), strides }
    }

    fn operation(x: &[i64], w: &[i64], y: &[i64], channels_last: bool) -> ConvolutionDescriptor {
        ConvolutionDescriptor {
            x: tensor(x, channels_last),
            w: tensor(w, channels_last),
            y: tensor(y, channels_last),
            stride: vec![2, 2],
            padding: vec![1, 1],
            dilation: vec![1, 1],
        }
    }

    #[test]
    fn a_question_names_the_layer() {
        let said = operation(&[8, 64, 32, 32], &[128, 32, 4, 4], &[8, 128, 16, 16], true);
        let call = Convolution::of(Operation::BackwardData, &said).unwrap();
        let ordinary = "convolution\tgrad_input\tfloat16\t8\t64\t128\t2\t1,32,32\t1,4,4\t1,2,2\t0,1,1\t1,1,1\t0\t0,0,0\t0\t1";
        assert_eq!(call.question(false), ordinary);
        let transposed = "convolution\tforward\tfloat16\t8\t128\t64\t2\t1,16,16\t1,4,4\t1,2,2\t0,1,1\t1,1,1\t1\t0,0,0\t0\t1";
        assert_eq!(call.question(true), transposed);
    }

    #[test]
    fn what_a_transposed_layer_adds_to_its_output_is_told() {
        let said = operation(&[1, 8, 32, 32], &[16, 8, 3, 3], &[1, 16, 16, 16], false);
        let call = Convolution::of(Operation::BackwardData, &said).unwrap();
        assert!(call.question(true).contains("\t1\t0,1,1\t0\t0"), "{}", call.question(true));
        assert!(!call.channels_last);
    }

    #[test]
    fn shapes_that_do_not_fit_are_nothing_that_is_known() {
        for (x, w, y) in [
            ([8, 64, 32, 32], [128, 48, 4, 4], [8, 128, 16, 16]),
            ([8, 64, 32, 32], [128, 64, 4, 4], [8, 64, 16, 16]),
            ([8, 0, 32, 32], [128, 64, 4, 4], [8, 128, 16, 16]),
            ([8, 64, -1, 32], [128, 64, 4, 4], [8, 128, 16, 16]),
        ] {
            assert_eq!(Convolution::of(Operation::Forward, &operation(&x, &w, &y, false)), None);
        }
        let mut said = operation(&[8, 64, 32, 32], &[128, 64, 4, 4], &[8, 128, 16, 16], false);
        said.stride.clear();
        assert_eq!(Convolution::of(Operation::Forward, &said), None);
    }

    #[test]
    fn answers_are_read_or_refused() {
        let read = Answer::parse("recorded\t100,90,0").unwrap();
        assert_eq!((read.source, read.sizes), (Source::Recorded, vec![100, 90, 0]));
        for line in ["", "none", "none\t", "recorded", "recorded\tx", "asked\t-1", "perhaps\t1"] {
            assert_eq!(Answer::parse(line), None, "{line}");
        }
    }
}
