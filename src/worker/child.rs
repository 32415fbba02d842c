//! The child's side: a loop over stdin.

use std::any::Any;
use std::io::{self, BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use batchfit_fit::worker::process::{Line, read};
use batchfit_fit::worker::protocol::{Answer, LONGEST_ORDER, Order, ProbeOrder, Refusal, VERSION};

/// Carries out orders. Its errors are answers too.
pub trait Handler {
    /// Takes a device; gives `taken` or `busy`.
    fn take(&mut self, device: &str) -> Result<Answer, (Refusal, String)>;

    /// Reads the request and opens the device that was taken; gives `ready`.
    fn open(&mut self, request: &str, rank: u32) -> Result<Answer, (Refusal, String)>;

    /// Makes ready for other ranks to come; gives `invitation`.
    fn invite(&mut self) -> Result<Answer, (Refusal, String)>;

    /// Finds the other ranks; gives `ready`.
    fn join(&mut self, invitation: &str, ranks: u32) -> Result<Answer, (Refusal, String)>;

    /// Lists GPUs; gives `inventory`.
    fn list(&mut self) -> Answer;

    /// Runs one batch; gives `report`.
    fn probe(&mut self, order: &ProbeOrder) -> Result<Answer, (Refusal, String)>;
}

/// Where answers go.
pub(super) trait ReplyWriter {
    fn send(&mut self, answer: &Answer) -> io::Result<()>;
}

/// One line for each answer.
pub(super) struct Lines<W>(pub(super) W);

impl<W: Write> ReplyWriter for Lines<W> {
    fn send(&mut self, answer: &Answer) -> io::Result<()> {
        let mut line = serde_json::to_vec(answer)?;
        line.push(b'\n');
        self.0.write_all(&line)?;
        self.0.flush()
    }
}

/// Carries out orders from `input` until it ends or says `shutdown`.
///
/// The end of `input` is the parent's end, so no one reads an answer. A panic on the workbench is
/// answered, and ends the loop: what panics in a driver's wrapper leaves the device in an unknown state. So
/// does a device that is lost: after a fault in a kernel, a process can use its GPU no more.
pub fn run(
    handler: &mut dyn Handler,
    input: &mut impl BufRead,
    output: impl Write,
) -> io::Result<()> {
    answer_all(handler, input, &mut Lines(output))
}

pub(super) fn answer_all(
    handler: &mut dyn Handler,
    input: &mut impl BufRead,
    outbox: &mut dyn ReplyWriter,
) -> io::Result<()> {
    outbox.send(&Answer::Hello { version: VERSION })?;
    loop {
        let line = match read(input, LONGEST_ORDER)? {
            Line::Whole(line) => line,
            Line::End | Line::Half(_) => return Ok(()),
            Line::TooLong => return Err(io::Error::other("an order was too long")),
        };
        let order = match serde_json::from_str(&line) {
            Ok(Order::Shutdown) => return Ok(()),
            Ok(order) => order,
            Err(error) => {
                outbox.send(&refused((Refusal::OutOfTurn, error.to_string())))?;
                continue;
            }
        };
        match catch_unwind(AssertUnwindSafe(|| carry_out(handler, order))) {
            Ok(answer) => {
                outbox.send(&answer)?;
                if is_last(&answer) {
                    return Ok(());
                }
            }
            Err(panic) => {
                let detail = format!("panicked: {}", message(panic.as_ref()));
                return outbox.send(&refused((Refusal::Lost, detail)));
            }
        }
    }
}

fn carry_out(handler: &mut dyn Handler, order: Order) -> Answer {
    let answer = match order {
        Order::Take { device } => handler.take(&device),
        Order::Open { request, rank } => handler.open(&request, rank),
        Order::Invite => handler.invite(),
        Order::Join { invitation, ranks } => handler.join(&invitation, ranks),
        Order::List => Ok(handler.list()),
        Order::Probe(order) => handler.probe(&order),
        Order::Shutdown => Err((Refusal::OutOfTurn, "already shutting down".to_owned())),
    };
    answer.unwrap_or_else(refused)
}

fn is_last(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Refused {
            refusal: Refusal::Lost,
            ..
        }
    )
}

fn refused((refusal, detail): (Refusal, String)) -> Answer {
    Answer::Refused { refusal, detail }
}

/// What a panic said; `panic!` gives a `&str` or a `String`.
fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::worker::{FakeGpu, InjectedFailure, run_misbehaving};

    #[test]
    fn every_order_gets_one_answer_until_the_input_ends() {
        let fake = FakeGpu {
            plan: InjectedFailure::None,
            once: None,
            locks: PathBuf::new(),
        };
        // A device is taken without the model.
        let orders = "\"list\"\nnonsense\n{\"take\":{\"device\":\"cuda:0\"}}\n";
        let mut output = Vec::new();
        run_misbehaving(&fake, &mut orders.as_bytes(), &mut output).unwrap();
        let output = String::from_utf8(output).unwrap();
        let answers: Vec<&str> = output.lines().collect();

        assert_eq!(answers[0], r#"{"hello":{"version":7}}"#);
        assert!(answers[1].starts_with(r#"{"inventory":{"gpus":[{"ordinal":0,"#));
        assert!(
            answers[1].ends_with(r#"],"missing":null}}"#),
            "{}",
            answers[1]
        );
        assert!(answers[2].contains(r#""refusal":"out_of_turn""#));
        assert_eq!(answers[3..], [r#""taken""#]);
    }
}
