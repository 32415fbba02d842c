//! The child that asks cuDNN's heuristics about cards that are not there.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};

use tracing::info;

use crate::device::cuda::cudnn::{self, AbsentCard, CardProperties, Tf32};
use crate::device::sim::Card;
use batchfit_fit::worker::heuristics::{Answer, Handshake, HeuristicsQuery, LONGEST};
use batchfit_fit::worker::process::{Line, read};

/// The child's side: answers until its input ends.
pub fn run_heuristics(input: &mut impl BufRead, mut output: impl Write) -> io::Result<()> {
    let hello = match cudnn::version() {
        Ok(version) => Handshake::Cudnn(format!(
            "{}.{}.{}",
            version / 10_000,
            version / 100 % 100,
            version % 100
        )),
        Err(error) => Handshake::Missing(error.to_string()),
    };
    let mut say = |line: String| {
        writeln!(output, "{line}")?;
        output.flush()
    };
    say(serde_json::to_string(&hello)?)?;
    let mut cards: HashMap<String, Option<AbsentCard>> = HashMap::new();
    loop {
        let line = match read(input, LONGEST)? {
            Line::Whole(line) => line,
            Line::Half(_) | Line::End => return Ok(()),
            Line::TooLong => return Err(io::Error::other("a question is too long")),
        };
        let HeuristicsQuery { card, call, all } = serde_json::from_str(&line)?;
        let asked = cards.entry(card).or_insert_with_key(|name| absent(name));
        let offers = asked.as_ref().and_then(|card| {
            let offers = if all {
                card.offers(&call, Tf32::Allowed)
            } else {
                let first = card.first_offer(&call, Tf32::Allowed);
                first.map(|first| vec![first])
            };
            offers.ok()
        });
        let offers = offers.unwrap_or_default();
        let workspaces = offers.iter().map(|offer| offer.workspace.0).collect();
        say(serde_json::to_string(&Answer { workspaces })?)?;
    }
}

/// A card as cuDNN knows it, where it does.
fn absent(name: &str) -> Option<AbsentCard> {
    let properties = CardProperties::of_card(Card::find(name)?)?;
    let described = AbsentCard::new(&properties);
    if let Err(error) = &described {
        info!(%error, name, "cuDNN cannot be asked about this card");
    }
    described.ok()
}

#[cfg(test)]
mod tests {
    use crate::device::sim;
    use crate::program::ConvolutionPass;
    use crate::shape::DType;

    use super::*;

    #[test]
    fn a_child_says_what_there_is_and_answers_each_question() {
        let layer = sim::workspaces::parse_layer("64,64,1,56,56,3,3,1,1,1,1,1,1,0").unwrap();
        let call = layer.call(ConvolutionPass::Forward, DType::Float32, 32);
        let mut input = String::new();
        for card in ["h200", "no-such-card"] {
            let question = HeuristicsQuery {
                card: card.to_owned(),
                call,
                all: false,
            };
            input += &serde_json::to_string(&question).unwrap();
            input.push('\n');
        }
        let mut output = Vec::new();
        run_heuristics(&mut input.as_bytes(), &mut output).unwrap();
        let output = String::from_utf8(output).unwrap();
        let lines: Vec<&str> = output.lines().collect();
        let [hello, known, unknown] = lines[..] else {
            panic!("{output}");
        };

        let hello: Handshake = serde_json::from_str(hello).unwrap();
        let known: Answer = serde_json::from_str(known).unwrap();
        let unknown: Answer = serde_json::from_str(unknown).unwrap();
        // What an H200 was recorded to say, where there is a cuDNN to ask.
        let recorded = sim::workspaces::WorkspaceTable::h200().plans(&call);
        match hello {
            Handshake::Cudnn(_) => assert_eq!(known.workspaces, [recorded.workspaces[0].0]),
            Handshake::Missing(_) => assert!(known.workspaces.is_empty()),
        }
        assert!(unknown.workspaces.is_empty());
    }

    #[test]
    fn what_is_no_question_ends_the_child() {
        let mut output = Vec::new();
        assert!(run_heuristics(&mut &b"{}\n"[..], &mut output).is_err());
        let long = vec![b'x'; LONGEST + 2];
        assert!(run_heuristics(&mut &long[..], &mut output).is_err());
    }
}
