//! Connections: how many there are, and how long each may keep the service waiting.
//!
//! # Note [Slow clients]
//!
//! A connection costs a file and some memory for as long as it is open, and opening one costs its client nothing. So
//! there is a bound on them, and on every wait for a client: for a request, for each part of its body, for the
//! next request, and for the client to read an answer. See [`ConnectionLimits`].
//!
//! Deadlines alone would let a thousand slow clients lock all others out for as long as they last. When there is no
//! place left, the connection that has kept the service waiting for longest makes room for the one that arrives.
//! A client that sends its request at once is never that one: it waits for the service, not the service for it. So
//! what a slow client loses is its place, and what an ordinary one loses is nothing. Requests that are being worked on
//! are never closed, so they are bounded apart ([`ConnectionLimits::requests`]): the places that they leave
//! are for those who ask how the service is, or what has been found.

use crate::lock;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::transfer::{Arrival, Download, Upload};

/// How much of a request's head, and of a body at a time, is held for a connection. Ordinary heads are under 1 KiB.
const BUFFER: usize = 64 << 10;

/// How long accepting rests after the system had no file or memory for another connection.
const REST: Duration = Duration::from_millis(50);

/// How long a client may leave what was sent to it unacknowledged. One that has lost its network would hold its place for a
/// quarter of an hour where an answer goes on for long.
const GONE: Duration = Duration::from_secs(30);

/// How many connections may wait in the system's queue to be accepted. When it is full, the system has clients try
/// again after one second, then three: an ordinary client would lose that when thousands of others arrive at once.
const BACKLOG: u32 = 4096;

/// How much of answers the system keeps for a client that does not read; it doubles this. By itself it keeps 4 MiB, so 512 clients
/// that send many requests and read nothing would hold 700 MiB, for which the service is charged.
const UNREAD: u32 = 128 << 10;

/// Listens on an address, such as `127.0.0.1:8080` or `localhost:0`: the first of those it leads to that is free.
pub async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut last = io::Error::new(
        io::ErrorKind::InvalidInput,
        "the name does not lead to any address",
    );
    for address in tokio::net::lookup_host(address).await? {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        };
        let listening = socket.and_then(|socket| {
            // Or a restart would wait until the system has forgotten the last connections.
            socket.set_reuseaddr(true)?;
            // Accepted connections have the same.
            socket.set_send_buffer_size(UNREAD)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        });
        match listening {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// How many connections there may be, and for how long each may keep the service waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Open at a time. Below what the system allows as open files, which the database and workers need too.
    pub open: usize,
    /// From the start of a connection to the end of its first request's head.
    pub head: Duration,
    /// From an answer to the end of the next request's head.
    pub idle: Duration,
    /// For each 16 KiB of a body, or its rest, to arrive; and for the client to take each part of an answer.
    pub transfer: Duration,
    /// How long a connection keeps its slot even if others wait: enough to look for a request that came with it. Longer, and
    /// those who arrive would wait in the system's queue, behind all that a flood of connections puts there.
    pub welcome: Duration,
    /// How long requests may be worked on when the service was asked to end. Those that wait for a fit answer at once with how it
    /// stands; the others are answered for.
    pub last_words: Duration,
}

impl Default for ConnectionLimits {
    /// Slow lines are served (1.6 KB a second), silent ones are not. Proxies that keep connections drop them after
    /// some minute.
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            open: 512,
            head: Duration::from_secs(10),
            idle: Duration::from_secs(30),
            transfer: Duration::from_secs(10),
            welcome: Duration::from_millis(20),
            last_words: Duration::from_millis(300),
        }
    }
}

impl ConnectionLimits {
    /// How many requests with a body may be worked on at a time: three quarters of the connections.
    fn requests(self) -> usize {
        (self.open - self.open / 4).max(1)
    }

    /// How many requests may wait for a fit to end, as `Prefer: wait` asks: a quarter of the connections.
    pub(in crate::http) fn waiters(self) -> usize {
        (self.open / 4).max(1)
    }
}

/// Answers the connections of `listener` until `ending` is cancelled. Then no more are accepted, those without a
/// request are closed, and the others have until `ended` is cancelled to get their answers.
pub(in crate::http) async fn answer(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    ending: CancellationToken,
    ended: CancellationToken,
) {
    let room = Arc::new(OpenConnections {
        limits,
        open: Mutex::default(),
        left: Notify::new(),
        requests: Arc::new(Semaphore::new(limits.requests())),
        next: AtomicU64::new(0),
    });
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ending.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                if !is_of_one_connection(&error) {
                    tracing::warn!("could not accept a connection: {error}");
                    room.close_one();
                    tokio::time::sleep(REST).await;
                }
                continue;
            }
        };
        tokio::select! {
            () = room.vacancy() => {}
            () = ending.cancelled() => break,
        }
        let place = room.take_place(ended.child_token());
        tasks.spawn(serve_connection(
            stream,
            router.clone(),
            place,
            ending.clone(),
        ));
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// Whether accepting failed because of the client, not because of us.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// Answers the requests of one connection.
async fn serve_connection(
    stream: TcpStream,
    router: Router,
    place: ConnectionSlot,
    ending: CancellationToken,
) {
    // Answers are written whole: waiting for more to send would only delay them.
    let _ = stream.set_nodelay(true);
    let gone = u32::try_from(GONE.as_millis()).unwrap_or(u32::MAX);
    batchfit_platform::give_up_after(&stream, gone);
    let connection = Arc::clone(&place.connection);
    let limits = place.room.limits;
    connection.wait_for_request(limits.head);
    let requests = Arc::clone(&place.room.requests);
    let service = service_fn(|request: hyper::Request<Incoming>| {
        connection.work();
        let arrival = Arc::new(Arrival::of(&request, Arc::clone(&requests)));
        let (mut head, body) = request.into_parts();
        head.extensions.insert(Arc::clone(&arrival));
        let upload = Upload::new(body, arrival, Arc::clone(&connection), limits.transfer);
        let request = Request::from_parts(head, Body::new(upload));
        let answer = router.clone().oneshot(request);
        let connection = Arc::clone(&connection);
        async move {
            let answer = answer.await?;
            Ok::<_, std::convert::Infallible>(
                answer.map(|body| Download::new(body, connection, limits)),
            )
        }
    });
    let conversation = http1::Builder::new()
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let mut conversation = pin!(conversation);
    let mut closed = pin!(connection.close.cancelled());
    let mut asked_to_end = pin!(ending.cancelled());
    let mut overdue = pin!(sleep_until(Instant::now()));
    let mut is_ending = false;
    poll_fn(|context| {
        if let Poll::Ready(end) = conversation.as_mut().poll(context) {
            if let Err(error) = end {
                tracing::debug!("a connection broke: {error}");
            }
            return Poll::Ready(());
        }
        if closed.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !is_ending && asked_to_end.as_mut().poll(context).is_ready() {
            is_ending = true;
            if connection.has_no_request() {
                return Poll::Ready(());
            }
            conversation.as_mut().graceful_shutdown();
            // Polled again at once: it may have nothing left to do.
            context.waker().wake_by_ref();
        }
        let Some(deadline) = connection.deadline() else {
            return Poll::Pending;
        };
        if overdue.deadline() != deadline {
            overdue.as_mut().reset(deadline);
        }
        overdue.as_mut().poll(context)
    })
    .await;
}

/// All connections.
struct OpenConnections {
    limits: ConnectionLimits,
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    /// A connection was closed.
    left: Notify,
    /// One permit for each request with a body that may be worked on.
    requests: Arc<Semaphore>,
    next: AtomicU64,
}

impl OpenConnections {
    /// Waits until there is a place, and makes one if need be: see Note [Slow clients].
    async fn vacancy(&self) {
        while lock(&self.open).len() >= self.limits.open {
            let since = self.longest_wait().map(|longest| longest.0);
            match since.map(|since| since + self.limits.welcome) {
                Some(due) if due <= Instant::now() => {
                    self.close_one();
                    self.left.notified().await;
                }
                Some(due) => {
                    let _ = tokio::time::timeout_at(due, self.left.notified()).await;
                }
                // All are being worked on. One that begins to wait does not tell: look again soon.
                None => {
                    let _ = timeout(self.limits.welcome, self.left.notified()).await;
                }
            }
        }
    }

    /// Closes the connection that has kept us waiting for longest.
    fn close_one(&self) {
        if let Some((since, connection)) = self.longest_wait() {
            tracing::debug!(
                waited_ms = since.elapsed().as_millis(),
                "closed a connection to make room for another"
            );
            connection.close.cancel();
        }
    }

    fn longest_wait(&self) -> Option<(Instant, Arc<Connection>)> {
        let open = lock(&self.open);
        let waits = open
            .values()
            .filter_map(|connection| Some((connection.waiting()?.since, connection)));
        let longest = waits.min_by_key(|(since, _)| *since);
        longest.map(|(since, connection)| (since, Arc::clone(connection)))
    }

    fn take_place(self: &Arc<OpenConnections>, close: CancellationToken) -> ConnectionSlot {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection {
            waits: Mutex::default(),
            close,
        });
        lock(&self.open).insert(number, Arc::clone(&connection));
        ConnectionSlot {
            number,
            connection,
            room: Arc::clone(self),
        }
    }
}

/// The place of an open connection.
struct ConnectionSlot {
    number: u64,
    connection: Arc<Connection>,
    room: Arc<OpenConnections>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        lock(&self.room.open).remove(&self.number);
        self.room.left.notify_one();
    }
}

/// What one connection is doing.
#[derive(Debug, Default)]
pub(in crate::http) struct Connection {
    /// `None` while a request is worked on.
    waits: Mutex<Option<Wait>>,
    close: CancellationToken,
}

/// A wait for the client.
#[derive(Debug, Clone, Copy)]
struct Wait {
    since: Instant,
    what: Awaited,
}

#[derive(Debug, Clone, Copy)]
enum Awaited {
    /// A request, by a deadline.
    Request(Instant),
    /// More of a body; its reader has its own clock, and answers when it is late.
    Body,
    /// That an answer is read, by a deadline.
    Reading(Instant),
    /// News, which the client waits for as we do. It has none by a deadline, and finds the rest where it comes again: so it
    /// is one of those that make room.
    News,
}

impl Connection {
    /// A request has arrived, or part of one: it is our turn.
    pub(in crate::http) fn work(&self) {
        self.set(None);
    }

    /// A request is to come; its head is to be here within `patience`.
    pub(in crate::http) fn wait_for_request(&self, patience: Duration) {
        let now = Instant::now();
        self.set(Some(Wait {
            since: now,
            what: Awaited::Request(now + patience),
        }));
    }

    /// More of a body is to come, as it has been since some time ago.
    pub(in crate::http) fn wait_for_body(&self, since: Instant) {
        self.set(Some(Wait {
            since,
            what: Awaited::Body,
        }));
    }

    /// Part of an answer is to be read within `patience`.
    pub(in crate::http) fn wait_for_reading(&self, patience: Duration) {
        let now = Instant::now();
        self.set(Some(Wait {
            since: now,
            what: Awaited::Reading(now + patience),
        }));
    }

    /// An answer goes on as soon as there is more to tell.
    pub(in crate::http) fn wait_for_news(&self) {
        self.set(Some(Wait {
            since: Instant::now(),
            what: Awaited::News,
        }));
    }

    /// Whether the client has sent no request that is still to be answered.
    pub(super) fn has_no_request(&self) -> bool {
        matches!(
            self.waiting(),
            Some(Wait {
                what: Awaited::Request(_),
                ..
            })
        )
    }

    /// When the client is given up.
    fn deadline(&self) -> Option<Instant> {
        match self.waiting()?.what {
            Awaited::Request(deadline) | Awaited::Reading(deadline) => Some(deadline),
            Awaited::Body | Awaited::News => None,
        }
    }

    fn waiting(&self) -> Option<Wait> {
        *lock(&self.waits)
    }

    fn set(&self, waits: Option<Wait>) {
        *lock(&self.waits) = waits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn little_is_kept_for_a_client_that_does_not_read() {
        let listener = listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _client = TcpStream::connect(address).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        stream.writable().await.unwrap();
        let (bytes, mut kept) = (vec![0; BUFFER], 0);
        while let Ok(more) = stream.try_write(&bytes) {
            kept += more;
        }
        assert!((1..1 << 20).contains(&kept), "{kept}");
    }
}
