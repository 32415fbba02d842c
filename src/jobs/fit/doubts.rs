//! How far an answer may be wrong, by what is not known about it.
//!
//! Shares of the limit by which peak reserved memory was predicted too low; see Note [Measured errors].
#![doc = include_str!("NOTES.md")]

use crate::graph::{Graph, Lifetimes, Op};
use crate::units::Bytes;

/// Something that was assumed instead of known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doubt {
    /// Where the driver places segments decides which of two equal blocks is reused.
    Driver,
    /// When Python lets go of values in an attention model whose graph does not say.
    Lifetimes,
    /// The scratch memory of convolutions that were never recorded.
    Workspaces,
    /// Custom autograd functions whose backward passes were not traced.
    Functions,
    /// Rules that were measured on another card.
    Card,
}

impl Doubt {
    /// What it adds to the headroom, as a share of the limit.
    pub(super) fn share(self) -> f64 {
        match self {
            Doubt::Driver => 0.005,
            Doubt::Lifetimes | Doubt::Card => 0.01,
            Doubt::Workspaces => 0.03,
            Doubt::Functions => 0.16,
        }
    }

    /// What the reader is told.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Doubt::Driver => "the driver's placement of segments",
            Doubt::Lifetimes => {
                "the lifetimes of Python's variables, which the graph does not tell"
            }
            Doubt::Workspaces => "convolutions whose scratch memory is estimated",
            Doubt::Functions => {
                "custom autograd functions whose backward passes could not be traced"
            }
            Doubt::Card => "rules measured on another card",
        }
    }
}

/// What of `limit` is left free for all of these.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the share is clamped to 0..=1, and a byte more or less of headroom does not matter"
)]
pub(super) fn headroom(doubts: &[Doubt], limit: Bytes) -> Bytes {
    let share: f64 = doubts.iter().map(|doubt| doubt.share()).sum();
    Bytes((limit.0 as f64 * share.clamp(0.0, 1.0)) as u64)
}

/// What is not known about the model itself. A real probe does not find it out: it runs the program that was
/// compiled, where the driver happens to put its segments.
pub(super) fn of_graph(graph: &Graph) -> Vec<Doubt> {
    let attends = graph
        .nodes
        .iter()
        .any(|node| matches!(node.op, Op::Attention { .. } | Op::Matmul));
    let mut doubts = match graph.lifetimes() {
        Lifetimes::Assumed if attends => vec![Doubt::Driver, Doubt::Lifetimes],
        Lifetimes::Assumed | Lifetimes::Recorded => vec![Doubt::Driver],
    };
    if !graph.untraced_functions.is_empty() {
        doubts.push(Doubt::Functions);
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Builder, Content, DType, UntracedFunction};

    #[test]
    fn a_function_that_was_not_traced_is_a_doubt() {
        let mut builder = Builder::new("Net");
        let x = builder.input("x", DType::Float32, Vec::new(), Content::Normal);
        let mut graph = builder.finish(x, x);
        assert!(!of_graph(&graph).contains(&Doubt::Functions));

        graph.untraced_functions.push(UntracedFunction {
            name: "Swish".into(),
            reason: "it branches on values".into(),
        });

        assert!(of_graph(&graph).contains(&Doubt::Functions));
    }
}
