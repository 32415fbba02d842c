//! A rank's place among the others.

use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::ptr;
use std::rc::Rc;
use std::str::FromStr;

use crate::device::{Launch, LaunchError};
use crate::driver::error::GpuError;
use crate::driver::gpu::{Event, Gpu};
use crate::driver::libraries::three_parts;
use crate::layout::{Operand, Operands};
use crate::program::{Collective, Reduction};
use crate::shape::DType;

use super::flights::Flights;
use super::library::{Comm, Functions, UniqueId, functions};

/// `ncclSum` and `ncclAvg`.
const SUM: c_int = 0;
const MEAN: c_int = 4;

/// Where the ranks of a communicator find each other: made by one of them, handed to all.
#[derive(Debug, Clone, Copy)]
pub struct Invitation(UniqueId);

impl Invitation {
    /// A new one. Opens a port on this machine, which the other ranks connect to.
    pub fn new() -> Result<Invitation, GpuError> {
        let nccl = functions()?;
        let mut id = UniqueId([0; 128]);
        // SAFETY: `id` is a place for the identifier.
        let status = unsafe { (nccl.get_unique_id)(&raw mut id) };
        nccl.check("ncclGetUniqueId", ptr::null_mut(), status)?;
        Ok(Invitation(id))
    }

    /// As text, two digits for each byte.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(256);
        for byte in self.0.0 {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

/// A text that is no invitation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an invitation has 256 hexadecimal digits")]
pub struct NoInvitation;

impl FromStr for Invitation {
    type Err = NoInvitation;

    fn from_str(text: &str) -> Result<Invitation, NoInvitation> {
        let digits = text.as_bytes();
        let mut id = UniqueId([0; 128]);
        if digits.len() != 2 * id.0.len() {
            return Err(NoInvitation);
        }
        for (byte, pair) in id.0.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |of: u8| char::from(of).to_digit(16).ok_or(NoInvitation);
            let value = digit(pair[0])? << 4 | digit(pair[1])?;
            *byte = u8::try_from(value).map_err(|_| NoInvitation)?;
        }
        Ok(Invitation(id))
    }
}

/// A collective with its operands.
#[derive(Debug, Clone)]
pub(crate) struct CollectiveCall {
    collective: Collective,
    input: Operand,
    output: Operand,
}

impl CollectiveCall {
    /// Fails where operands have gaps, or lengths that do not go together.
    pub(crate) fn of(
        collective: Collective,
        operands: &Operands<'_>,
    ) -> Result<CollectiveCall, LaunchError> {
        operands.dense_input(0)?;
        operands.dense_output(0)?;
        let (input, output) = (operands.input(0)?.clone(), operands.output(0)?.clone());
        let (sent, received) = (input.count(), output.count());
        let fits = match collective {
            Collective::Broadcast { .. } | Collective::AllReduce(_) => sent == received,
            Collective::AllGather => sent > 0 && received.is_multiple_of(sent),
            Collective::ReduceScatter(_) => received > 0 && sent.is_multiple_of(received),
        };
        if !fits || input.dtype != output.dtype {
            let (from, to) = (input.dtype, output.dtype);
            let detail = format!("{sent} elements of {from} into {received} of {to}");
            return Err(operands.failed(detail));
        }
        Ok(CollectiveCall {
            collective,
            input,
            output,
        })
    }
}

/// A rank among those that send each other values. Belongs to the thread of its card.
pub struct Communicator {
    comm: Comm,
    nccl: &'static Functions,
    rank: u32,
    ranks: u32,
    flights: Flights<Event>,
    gpu: Rc<Gpu>,
}

impl Communicator {
    /// Meets the other ranks, and has each kind of collective run once: NCCL takes its memory with the first. Returns when
    /// all ranks are there, which may be never: the caller needs a deadline. Each rank has a card of its own.
    pub fn join(
        gpu: &Rc<Gpu>,
        invitation: &Invitation,
        rank: u32,
        ranks: u32,
    ) -> Result<Communicator, GpuError> {
        let nccl = functions()?;
        let number = |of: u32| c_int::try_from(of).unwrap_or(c_int::MAX);
        let mut comm: Comm = ptr::null_mut();
        // SAFETY: the card's context is current on its thread, `comm` is a place for the handle, and the identifier is passed
        // by value.
        let status = unsafe {
            (nccl.comm_init_rank)(&raw mut comm, number(ranks), invitation.0, number(rank))
        };
        nccl.check("ncclCommInitRank", ptr::null_mut(), status)?;
        Ok(Communicator {
            comm,
            nccl,
            rank,
            ranks,
            flights: Flights::default(),
            gpu: Rc::clone(gpu),
        })
    }

    /// The version of NCCL, such as `2.28.9`.
    pub fn version() -> Result<String, GpuError> {
        let nccl = functions()?;
        let mut version: c_int = 0;
        // SAFETY: `version` is a place for the number.
        let status = unsafe { (nccl.get_version)(&raw mut version) };
        nccl.check("ncclGetVersion", ptr::null_mut(), status)?;
        Ok(three_parts(usize::try_from(version).unwrap_or(0)))
    }

    /// Which rank this is, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Has each kind of collective run once, in so much memory of the card that is held and unused.
    pub(crate) fn warm_up(&mut self, address: u64, bytes: u64) -> Result<(), GpuError> {
        let ranks = u64::from(self.ranks.max(1));
        let part = |elements: u64| Operand {
            address,
            dtype: DType::UInt8,
            shape: vec![elements],
            strides: vec![1],
        };
        let at_once = bytes / ranks * ranks;
        // Short and long messages take other ways.
        for elements in [ranks, at_once] {
            for collective in [
                Collective::Broadcast { root: 0 },
                Collective::AllReduce(Reduction::Sum),
                Collective::AllGather,
                Collective::ReduceScatter(Reduction::Sum),
            ] {
                let (sent, received) = match collective {
                    Collective::AllGather => (elements / ranks, elements),
                    Collective::ReduceScatter(_) => (elements, elements / ranks),
                    Collective::Broadcast { .. } | Collective::AllReduce(_) => (elements, elements),
                };
                let mut call = CollectiveCall {
                    collective,
                    input: part(sent),
                    output: part(received),
                };
                // In place, a rank's part lies where the whole has it.
                let own = u64::from(self.rank) * (elements / ranks);
                match collective {
                    Collective::AllGather => call.input.address += own,
                    Collective::ReduceScatter(_) => call.output.address += own,
                    Collective::Broadcast { .. } | Collective::AllReduce(_) => {}
                }
                self.send(&call)?;
            }
        }
        self.gpu.synchronize()
    }

    /// Queues a collective behind everything that was queued so far. `launch` is the one that it is of.
    pub(crate) fn queue(
        &mut self,
        call: &CollectiveCall,
        launch: &Launch<'_>,
    ) -> Result<(), GpuError> {
        let begin = self.mark()?;
        let side = self.gpu.side()?;
        begin.record(self.gpu.stream())?;
        begin.hold(side)?;
        self.send(call)?;
        // What it began behind needs its mark no more: both streams took note of it.
        let end = begin;
        end.record(side)?;
        let operands = [&call.input, &call.output];
        let views = launch.call.inputs.iter().chain(&launch.call.outputs);
        let address = |view: &crate::program::View| {
            let id = view.tensor;
            let address = launch.addresses.get(id.0 as usize).copied();
            (id, address.unwrap_or(0))
        };
        self.flights.begin(
            operands
                .map(|operand| operand.address..operand.address + operand.span())
                .to_vec(),
            views.map(address).collect(),
            end,
        );
        Ok(())
    }

    fn mark(&mut self) -> Result<Event, GpuError> {
        match self.flights.spare() {
            Some(mark) => Ok(mark),
            None => Event::without_time(),
        }
    }

    /// Has what is queued from here on wait for the collectives whose memory a launch touches.
    pub(crate) fn let_pass(
        &mut self,
        launch: &Launch<'_>,
        operands: &Operands<'_>,
    ) -> Result<(), GpuError> {
        if self.flights.is_empty() {
            return Ok(());
        }
        let all = operands.inputs().iter().chain(operands.outputs());
        let memory: Vec<_> = all
            .map(|operand| operand.address..operand.address + operand.span())
            .collect();
        let stream = self.gpu.stream();
        let wait = |mark: &Event| mark.hold(stream);
        self.flights.wait_for(&memory, wait)?;
        if launch.call.workspace.is_some() {
            // How long it is, is the library's affair.
            self.flights.wait_for_gone(launch.addresses, wait)?;
        }
        Ok(())
    }

    /// Has what is queued from here on wait for all collectives.
    pub(crate) fn let_all_pass(&mut self) -> Result<(), GpuError> {
        let stream = self.gpu.stream();
        self.flights.wait_for_all(|mark| mark.hold(stream))
    }

    fn send(&self, call: &CollectiveCall) -> Result<(), GpuError> {
        let CollectiveCall {
            collective,
            input,
            output,
        } = call;
        for operand in [input, output] {
            self.gpu
                .expect_held("a collective", operand.address, operand.span())?;
        }
        let (nccl, comm, stream) = (self.nccl, self.comm, self.gpu.side()?);
        let from = input.address as *const c_void;
        let to = output.address as *mut c_void;
        let count = |operand: &Operand| usize::try_from(operand.count()).unwrap_or(usize::MAX);
        let dtype = number_of(input.dtype)?;
        let (name, status) = match *collective {
            Collective::Broadcast { root } => {
                let root = c_int::try_from(root).unwrap_or(c_int::MAX);
                // SAFETY: both operands were looked up to be device memory of ours of these lengths, which goes back only
                // after a wait for both streams; so for each call below. The communicator is alive.
                let status =
                    unsafe { (nccl.broadcast)(from, to, count(input), dtype, root, comm, stream) };
                ("ncclBroadcast", status)
            }
            Collective::AllReduce(reduction) => {
                let operation = operation(reduction);
                // SAFETY: as above.
                let status = unsafe {
                    (nccl.all_reduce)(from, to, count(input), dtype, operation, comm, stream)
                };
                ("ncclAllReduce", status)
            }
            Collective::AllGather => {
                self.expect_ranks(input, output)?;
                // SAFETY: as above, and the receiving operand has room for every rank's.
                let status =
                    unsafe { (nccl.all_gather)(from, to, count(input), dtype, comm, stream) };
                ("ncclAllGather", status)
            }
            Collective::ReduceScatter(reduction) => {
                self.expect_ranks(output, input)?;
                let operation = operation(reduction);
                // SAFETY: as above, and the sent operand holds every rank's.
                let status = unsafe {
                    (nccl.reduce_scatter)(from, to, count(output), dtype, operation, comm, stream)
                };
                ("ncclReduceScatter", status)
            }
        };
        nccl.check(name, comm, status)
    }

    /// Fails unless the whole has a part for each rank.
    fn expect_ranks(&self, part: &Operand, whole: &Operand) -> Result<(), GpuError> {
        let ranks = u64::from(self.ranks);
        if part.count().checked_mul(ranks) == Some(whole.count()) {
            return Ok(());
        }
        Err(GpuError::Call {
            call: "a collective",
            detail: format!(
                "{} elements are not {} for each of {ranks} ranks",
                whole.count(),
                part.count()
            ),
        })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Not `ncclCommDestroy`, which waits for the other ranks: they may be gone.
        // SAFETY: made in `join`, and not used after this.
        unsafe { (self.nccl.comm_abort)(self.comm) };
    }
}

const fn operation(reduction: Reduction) -> c_int {
    match reduction {
        Reduction::Sum => SUM,
        Reduction::Mean => MEAN,
    }
}

/// `ncclDataType_t`.
fn number_of(dtype: DType) -> Result<c_int, GpuError> {
    Ok(match dtype {
        DType::UInt8 | DType::Bool => 1,
        DType::Int32 => 2,
        DType::Int64 => 4,
        DType::Float16 => 6,
        DType::Float32 => 7,
        DType::Float64 => 8,
        DType::BFloat16 => 9,
        DType::Complex64 | DType::Complex128 => {
            return Err(GpuError::Call {
                call: "a collective",
                detail: "complex numbers are not sent".to_owned(),
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_survives_the_way_to_another_process() {
        let mut id = UniqueId([0; 128]);
        (id.0[0], id.0[127]) = (0xa5, 0x0f);
        let text = Invitation(id).text();

        let read: Invitation = text.parse().unwrap();

        assert!(text.starts_with("a500") && text.ends_with("000f"));
        assert_eq!(read.0.0, id.0);
        assert!("a5".parse::<Invitation>().is_err());
        assert!(text.replace('a', "g").parse::<Invitation>().is_err());
    }
}
