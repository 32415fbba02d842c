//! Bodies: receiving and decompressing them, and the memory and disk that all together may take.
//!
//! While a body arrives, it is held as it was sent: its first MiB in memory, the rest in a file without a name, so that a slow client holds no
//! memory that others need.
//! Decompressed and read it is on a thread of its own, under a permit of its size: see [`SIZES`].

use std::any::Any;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_ENCODING;
use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::http::request::unpack::{Unpacked, is_packed, unpack};
use crate::http::response::problem::{Code, Problem};
use crate::http::server::keys::Client;
use crate::jobs::{
    ReadPermit, niceness, patience_for_large, permit_to_read, room_of_key, yielding,
};
use crate::limits::{CancelOnDrop, is_cancelled, with_cancel};
use crate::model::Digest;

/// The largest body, as sent and decompressed. An exported graph of a large model is a few MiB.
pub(in crate::http) const LIMIT_MIB: usize = 64;

/// How long a body may take to arrive.
const ARRIVAL: Duration = Duration::from_mins(1);

/// How long a body waits for others to be read before it.
const PATIENCE: Duration = Duration::from_secs(20);

/// What all bodies that are arriving may take, in KiB: in memory the first MiB of each, so of thousands of ordinary ones; and on disk what
/// is beyond it, eight of the largest. A key may take a quarter, so that those of others do not wait for its slow ones.
const ARRIVING_KIB: [usize; 2] = [32 << 10, (8 * LIMIT_MIB) << 10];

/// How much of a body is in memory, in KiB.
const SMALL_KIB: usize = 1 << 10;

/// Bodies by their size in MiB, decompressed, and how many of each are read at a time. Reading one takes its size
/// and, at most, twelve times that or 64 MiB more; so all of them together take up to 250 MiB. Each size has permits
/// of its own, so that large ones do not keep small ones waiting. The largest share theirs with fits of large models.
const SIZES: [(usize, usize); 3] = [(1, 4), (8, 1), (LIMIT_MIB, 1)];

/// The stack of a thread that reads a body: as large as that of the main thread, on which the command line reads.
const STACK: usize = 8 << 20;

/// What all uploads share.
#[derive(Debug, Clone)]
pub(in crate::http) struct Uploads {
    arriving: [Arc<Semaphore>; 2],
    /// Where the rest of large bodies is until they are read.
    folder: PathBuf,
    reading: [Arc<Semaphore>; SIZES.len()],
}

/// A body that has arrived.
pub(in crate::http) struct ReceivedBody {
    /// The id of the key under which it came; empty where none is needed.
    pub(in crate::http) owner: String,
    /// Its beginning, and what follows that where it is a large one.
    bytes: Vec<u8>,
    rest: Option<File>,
    length: usize,
    is_gzip: bool,
    /// Ends when the bytes do.
    _room: BodyPermits,
}

/// What a body takes of all room and of its key's, of either kind.
type BodyPermits = [OwnedSemaphorePermit; 4];

/// What was read of a body, for as long as it is being worked on.
pub(in crate::http) struct BufferedBody<T> {
    pub(in crate::http) read: T,
    pub(in crate::http) permit: ReadPermit,
}

impl ReceivedBody {
    /// The body as it was meant, where that is how it was sent.
    pub(in crate::http) fn plain(&self) -> Option<&[u8]> {
        (!self.is_gzip && self.rest.is_none()).then_some(self.bytes.as_slice())
    }

    /// All of it, under the permit of its size. Where it waits for another permit, it is on disk still.
    fn whole(&mut self) -> Result<Cow<'_, [u8]>, Problem> {
        let Some(rest) = &mut self.rest else {
            return Ok(Cow::Borrowed(&self.bytes));
        };
        let mut whole = Vec::with_capacity(self.length);
        whole.extend_from_slice(&self.bytes);
        let read = rest.rewind().and_then(|()| rest.read_to_end(&mut whole));
        read.map_err(|error| no_disk(&error))?;
        Ok(Cow::Owned(whole))
    }
}

impl Uploads {
    /// No uploads yet; `large` is the permit for what may be a large model.
    pub(in crate::http) fn new(large: Arc<Semaphore>, folder: PathBuf) -> Uploads {
        let mut reading = SIZES.map(|(_, at_a_time)| Arc::new(Semaphore::new(at_a_time)));
        reading[SIZES.len() - 1] = large;
        Uploads {
            arriving: ARRIVING_KIB.map(|kib| Arc::new(Semaphore::new(kib))),
            folder,
            reading,
        }
    }

    /// Takes a whole body, as it is sent.
    pub(in crate::http) async fn arrive(&self, request: Request) -> Result<ReceivedBody, Problem> {
        let is_gzip = is_gzip(request.headers())?;
        let client = request.extensions().get::<Client>();
        let owner = client.map(|client| client.id.clone());
        let arriving = tokio::time::timeout(ARRIVAL, self.collect(request.into_body()));
        let received = arriving.await.map_err(|_| {
            Problem::new(
                Code::BodyTimeout,
                format!("the body took longer than {} s", ARRIVAL.as_secs()),
            )
        })??;
        Ok(ReceivedBody {
            owner: owner.unwrap_or_default(),
            is_gzip,
            ..received
        })
    }

    async fn collect(&self, mut body: Body) -> Result<ReceivedBody, Problem> {
        let announced = body.size_hint().exact().unwrap_or(0);
        let announced = usize::try_from(announced).unwrap_or(usize::MAX);
        let mut bytes = Vec::with_capacity(announced.min(SMALL_KIB << 10));
        let (mut length, mut later, mut rest) = (0, Vec::new(), None);
        let [small, large] = &self.arriving;
        let [small_of_key, large_of_key] = room_of_key(ARRIVING_KIB.map(|kib| kib / 4));
        let places = [small, &small_of_key, large, &large_of_key];
        let mut room = [
            take(small, 0)?,
            take(&small_of_key, 0)?,
            take(large, 0)?,
            take(&large_of_key, 0)?,
        ];
        while let Some(frame) = body.frame().await {
            // A body that ends early.
            let frame = frame.map_err(|error| {
                let detail = format!("the body could not be read: {error}");
                Problem::new(Code::BodyMalformed, detail)
            })?;
            let data: Bytes = frame.into_data().unwrap_or_default();
            if length + data.len() > LIMIT_MIB << 20 {
                return Err(too_large());
            }
            let kib = |bytes: usize| {
                let all = bytes.div_ceil(1 << 10);
                let (small, large) = (all.min(SMALL_KIB), all.saturating_sub(SMALL_KIB));
                [small, small, large, large]
            };
            let (before, after) = (kib(length), kib(length + data.len()));
            for (part, room) in room.iter_mut().enumerate() {
                room.merge(take(places[part], after[part] - before[part])?);
            }
            length += data.len();
            let in_memory = data.len().min((SMALL_KIB << 10) - bytes.len());
            bytes.extend_from_slice(&data[..in_memory]);
            later.extend_from_slice(&data[in_memory..]);
            if later.len() >= PART {
                rest = Some(self.put_aside(rest, mem::take(&mut later)).await?);
            }
        }
        if !later.is_empty() {
            rest = Some(self.put_aside(rest, later).await?);
        }
        Ok(ReceivedBody {
            owner: String::new(),
            bytes,
            rest,
            length,
            is_gzip: false,
            _room: room,
        })
    }

    /// Adds to the file without a name, or to a new one. Not on the threads that serve connections: a disk may be slow.
    async fn put_aside(&self, rest: Option<File>, bytes: Vec<u8>) -> Result<File, Problem> {
        let folder = self.folder.clone();
        let writing = move || {
            let mut file = rest.map_or_else(|| tempfile::tempfile_in(folder), Ok)?;
            file.write_all(&bytes).map(|()| file)
        };
        let written = tokio::task::spawn_blocking(writing).await;
        let written = written.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        written.map_err(|error| no_disk(&error))
    }

    /// Decompresses a body and has it read, both away from the threads that serve connections.
    pub(in crate::http) async fn read<T: Send + 'static>(
        &self,
        received: ReceivedBody,
        read: impl FnOnce(Vec<u8>) -> Result<T, Problem> + Send + 'static,
    ) -> Result<BufferedBody<T>, Problem> {
        // Boxed, as what `on_thread` does.
        let boxed = |bytes| read(bytes).map(|done| -> Box<dyn Any + Send> { Box::new(done) });
        let BufferedBody { read, permit } = self.boxed_read(received, Box::new(boxed)).await?;
        let read = *read.downcast().expect("`read` gave it");
        Ok(BufferedBody { read, permit })
    }

    async fn boxed_read(
        &self,
        mut received: ReceivedBody,
        read: Box<dyn FnOnce(Vec<u8>) -> Done + Send>,
    ) -> Result<BufferedBody<Box<dyn Any + Send>>, Problem> {
        if received.is_gzip {
            return self.expand(received, decompress, read).await;
        }
        let permit = self.permit(received.length).await?;
        let read = on_thread(move || {
            let whole = received.whole()?.into_owned();
            read(whole)
        });
        let read = read.await?;
        Ok(BufferedBody { read, permit })
    }

    /// The same for a file that may itself be compressed or an archive, of which its contents are read.
    pub(in crate::http) async fn unpack<T: Send + 'static>(
        &self,
        received: ReceivedBody,
        read: impl FnOnce(Unpacked) -> Result<T, Problem> + Send + 'static,
    ) -> Result<BufferedBody<T>, Problem> {
        let is_gzip = received.is_gzip;
        if is_gzip || is_packed(&received.bytes) {
            let unpack = move |body: &[u8], limit| unpack(body, is_gzip, limit);
            return self.expand(received, unpack, read).await;
        }
        let bare = move |bytes: Vec<u8>| {
            let file = Digest::of(&bytes);
            read(Unpacked {
                contents: bytes,
                body: file.clone(),
                file,
            })
        };
        self.read(received, bare).await
    }

    /// Has a body expanded to as many bytes as one size after the other allows, and what it then is read.
    async fn expand<P: Send + 'static, T: Send + 'static>(
        &self,
        mut received: ReceivedBody,
        expand: impl Fn(&[u8], usize) -> Result<Option<P>, Problem> + Clone + Send + 'static,
        read: impl FnOnce(P) -> Result<T, Problem> + Send + 'static,
    ) -> Result<BufferedBody<T>, Problem> {
        let length = received.length;
        for (index, (mib, _)) in SIZES.into_iter().enumerate() {
            if length > mib << 20 {
                continue;
            }
            let permit = self.permit_of(index).await?;
            let expand = expand.clone();
            let expanded = on_thread(move || {
                let plain = expand(&received.whole()?, mib << 20)?;
                Ok((plain, received))
            });
            let plain;
            (plain, received) = expanded.await?;
            let Some(plain) = plain else {
                continue;
            };
            drop(received);
            let read = on_thread(move || read(plain)).await?;
            return Ok(BufferedBody { read, permit });
        }
        Err(too_large())
    }

    /// Waits until so many bytes may be read.
    pub(in crate::http) async fn permit(&self, bytes: usize) -> Result<ReadPermit, Problem> {
        let index = SIZES.iter().position(|(mib, _)| bytes <= mib << 20);
        self.permit_of(index.ok_or_else(too_large)?).await
    }

    async fn permit_of(&self, index: usize) -> Result<ReadPermit, Problem> {
        let late = |_| busy();
        let turn = tokio::time::timeout(PATIENCE, permit_to_read()).await;
        let turn = turn.map_err(late)?;
        let is_large = index == SIZES.len() - 1;
        let patience = if is_large {
            patience_for_large()
        } else {
            PATIENCE
        };
        let waiting = Arc::clone(&self.reading[index]).acquire_owned();
        let permit = tokio::time::timeout(patience, waiting).await;
        Ok(ReadPermit {
            turn,
            permit: permit.map_err(late)?.expect("it is never closed"),
            is_large,
        })
    }
}

fn take(places: &Arc<Semaphore>, kib: usize) -> Result<OwnedSemaphorePermit, Problem> {
    let kib = u32::try_from(kib).unwrap_or(u32::MAX);
    let permit = Arc::clone(places).try_acquire_many_owned(kib);
    permit.map_err(|_| busy())
}

/// Whether a body is compressed with gzip, the one way that is understood.
fn is_gzip(headers: &HeaderMap) -> Result<bool, Problem> {
    let encodings = headers.get_all(CONTENT_ENCODING).iter();
    let encodings: Vec<_> = encodings
        .map(|encoding| encoding.to_str().unwrap_or("?"))
        .collect();
    match encodings.as_slice() {
        [] => Ok(false),
        [one] if one.eq_ignore_ascii_case("identity") || one.is_empty() => Ok(false),
        [one]
            if ["gzip", "x-gzip"]
                .iter()
                .any(|known| one.eq_ignore_ascii_case(known)) =>
        {
            Ok(true)
        }
        _ => Err(Problem::new(
            Code::EncodingUnsupported,
            "send the body as it is, or with `Content-Encoding: gzip`",
        )),
    }
}

/// The contents, unless they are larger than the limit.
pub(in crate::http) fn decompress(packed: &[u8], limit: usize) -> Result<Option<Vec<u8>>, Problem> {
    // Pages that are never written to take no memory; growing would copy tens of megabytes.
    let mut plain = Vec::with_capacity(limit + 1);
    let mut decoder = MultiGzDecoder::new(packed);
    // Up to one byte more, so that what is too large shows.
    while plain.len() <= limit && !is_cancelled() {
        let part = (limit + 1 - plain.len()).min(PART);
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        let read = (&mut decoder).take(part).read_to_end(&mut plain);
        let read = read.map_err(|error| {
            let detail = format!("the body could not be read: {error}");
            Problem::new(Code::BodyMalformed, detail)
        })?;
        if read == 0 {
            break;
        }
    }
    Ok((plain.len() <= limit).then_some(plain))
}

fn too_large() -> Problem {
    let detail = format!("the body is larger than {LIMIT_MIB} MiB, decompressed");
    Problem::new(Code::BodyTooLarge, detail)
}

fn busy() -> Problem {
    Problem::new(
        Code::UploadsBusy,
        "too many large bodies are being read at the moment",
    )
}

fn no_disk(error: &io::Error) -> Problem {
    tracing::error!("a large body could not be kept on disk: {error}");
    let detail = "the service could not keep a large body on its disk; its log says why";
    Problem::new(Code::UploadsBusy, detail)
}

/// How much is decompressed before the next check that the client still waits, in bytes: about 2 ms of work.
const PART: usize = 1 << 20;

/// How long a body is read, and a replay in it worked on: as long as a simulation, unless the service's operator gives that more.
const LONGEST: Duration = Duration::from_mins(1);

/// Runs `work` on a thread of its own, which stops soon after this future is dropped. Not on the runtime's blocking pool, for which a runtime that ends waits.
pub(in crate::http) fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> impl Future<Output = Result<T, Problem>> {
    // Boxed: a thread of each type of closure, and a wait for each type of result, take long to compile.
    let boxed = || work().map(|done| -> Box<dyn Any + Send> { Box::new(done) });
    let done = Box::pin(boxed_on_thread(Box::new(boxed)));
    async { Ok(*done.await?.downcast().expect("`work` gave it")) }
}

type Done = Result<Box<dyn Any + Send>, Problem>;

async fn boxed_on_thread(work: Box<dyn FnOnce() -> Done + Send>) -> Done {
    let (done, receiver) = oneshot::channel();
    let abandoned = CancelOnDrop::default();
    let cancel = abandoned.0.clone();
    let niceness = niceness();
    let run = move || {
        let outcome = yielding(niceness, || with_cancel(&cancel, work));
        // There is no receiver when the client is gone.
        let _ = outcome.map(|outcome| done.send(outcome));
    };
    let thread = std::thread::Builder::new().name("upload".to_owned());
    if let Err(error) = thread.stack_size(STACK).spawn(run) {
        tracing::error!("no thread could be started: {error}");
        return Err(busy());
    }
    let late = |_| {
        let detail = format!("reading the body took more than {} s", LONGEST.as_secs());
        Problem::new(Code::TookTooLong, detail)
    };
    let done = tokio::time::timeout(LONGEST, receiver).await;
    // Without an answer the thread panicked, which the panic hook has printed.
    done.map_err(late)?
        .unwrap_or_else(|_| Err(Problem::fault()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_read_for_too_long_is_given_up() {
        let endless = || {
            while !is_cancelled() {
                std::hint::spin_loop();
            }
            Ok(())
        };
        let problem = on_thread(endless).await.unwrap_err();
        assert_eq!(problem.status, 503);
    }
}
