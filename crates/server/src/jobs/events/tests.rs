use super::*;

fn probe(batch: u64) -> Notification {
    Notification::Probe(Progress {
        probes_done: 0,
        batch,
        note: String::new(),
    })
}

async fn numbers(mut follower: Follower) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Some(event) = follower.next().await {
        numbers.push(event.number);
    }
    numbers
}

#[tokio::test]
async fn a_reader_goes_on_where_it_was() {
    let events = Events::default();
    let log = events.of("1", 0, FitState::Queued);
    events.publish("1", FitState::Running);
    // Said twice, it is one event.
    events.publish("1", FitState::Running);
    log.push(probe(1));
    log.push(probe(2));
    events.publish("1", FitState::Done);
    // Too late.
    events.publish("1", FitState::Cancelled);
    log.push(probe(3));

    assert_eq!(numbers(log.follow(None)).await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(numbers(log.follow(Some(3))).await, [4, 5, 6]);
    assert!(log.follow(Some(6)).is_over());
    assert!(!log.follow(Some(5)).is_over());
    // A number that no event has.
    assert_eq!(numbers(log.follow(Some(u64::MAX))).await.len(), 6);
}

#[tokio::test]
async fn a_reader_that_does_not_read_misses_probes_and_nothing_else() {
    let log = Events::default().of("1", 0, FitState::Queued);
    let mut reader = log.follow(None);
    log.push(Notification::State(FitState::Running));
    for batch in 0..100_000 {
        log.push(probe(batch));
    }
    log.push(Notification::State(FitState::Failed));
    log.end();

    assert_eq!(lock(&log.state_now).events.len(), MOST);
    let first = [reader.next().await, reader.next().await].map(|event| event.unwrap().news);
    assert_eq!(
        first,
        [FitState::Queued, FitState::Running].map(Notification::State)
    );
    let rest = numbers(reader).await;
    assert_eq!(rest.len(), MOST - 2);
    assert!(rest.is_sorted());
    assert_eq!(rest.last(), Some(&100_004));
}

#[tokio::test]
async fn attempts_after_a_restart_have_higher_numbers() {
    let before = Log::new(0, FitState::Running, false, &Arc::default());
    let after = Log::new(1, FitState::Queued, false, &Arc::default());
    let ended = Arc::new(Log::new(2, FitState::Done, false, &Arc::default()));

    assert!(lock(&before.state_now).next < OF_AN_ATTEMPT);
    assert_eq!(lock(&after.state_now).events[0].number, OF_AN_ATTEMPT + 1);
    let last = Some(OF_AN_ATTEMPT + 57);
    let told = numbers(ended.follow(last)).await;
    assert_eq!(told, [2 * OF_AN_ATTEMPT + 1, 2 * OF_AN_ATTEMPT + 2]);
}

#[tokio::test]
async fn a_follower_of_all_fits_gets_each_change_once() {
    let events = Events::default();
    let mut all = events.follow_all();
    events.of("1", 0, FitState::Queued);
    events.of("2", 0, FitState::Queued);
    events.of("1", 0, FitState::Running);
    events.publish("1", FitState::Running);
    events.publish("1", FitState::Running);
    events.publish("1", FitState::Done);
    events.publish("1", FitState::Cancelled);
    drop(events);

    let mut told = Vec::new();
    while let Ok(FitNews { id, state }) = all.recv().await {
        told.push(format!("{id} {}", state.name()));
    }
    assert_eq!(told, ["1 queued", "2 queued", "1 running", "1 done"]);
}

#[tokio::test]
async fn a_reader_goes_on_at_another_server() {
    let [here, there] = [Events::new(true), Events::new(true)];
    let log = here.of("1", 0, FitState::Queued);
    log.push(probe(0));
    here.publish("1", FitState::Running);
    for batch in 0..50 {
        log.push(probe(batch));
    }
    // It comes to know of the fit when that runs, hears of one probe, and what was told before comes late.
    there.hear("1", FitState::Running, 1);
    let other = there.find("1").unwrap();
    there.hear("1", FitState::Queued, 0);
    other.push(probe(49));
    // It is put back, and runs elsewhere.
    for (state, attempts) in [
        (FitState::Queued, 1),
        (FitState::Running, 2),
        (FitState::Running, 1),
        (FitState::Done, 2),
    ] {
        here.hear("1", state, attempts);
        there.hear("1", state, attempts);
    }

    let states = async |mut follower: Follower| {
        let mut states = Vec::new();
        while let Some(event) = follower.next().await {
            match event.news {
                Notification::State(state) => states.push((event.number, state.name())),
                Notification::Result => states.push((event.number, "result")),
                Notification::Probe(_) => {}
            }
        }
        states
    };
    let all = states(log.follow(None)).await;
    let expected = [
        (1, "queued"),
        (100_001, "running"),
        (1_000_001, "queued"),
        (1_100_001, "running"),
        (1_900_001, "done"),
        (1_900_002, "result"),
    ];
    assert_eq!(all, expected);
    assert_eq!(states(other.follow(None)).await, expected[1..]);
    // Whatever it has of one, it goes on at the other.
    for (after, (number, _)) in expected.iter().enumerate() {
        let rest = states(other.follow(Some(*number))).await;
        assert_eq!(rest, expected[(after + 1).max(1)..], "after {number}");
    }
}

#[test]
fn logs_of_ended_fits_make_room() {
    let events = Events::default();
    for fit in 0..MOST_ENDED {
        let id = fit.to_string();
        events.of(&id, 0, FitState::Queued);
        events.publish(&id, FitState::Cancelled);
    }

    let logs = lock(&events.logs);
    assert!(logs.events_of_ended <= MOST_ENDED);
    assert_eq!(logs.all.len(), logs.ended.len());
    assert_eq!(logs.all.len(), MOST_ENDED / 3);
}

#[tokio::test]
async fn logs_of_many_fits_share_room_and_keep_their_states() {
    let events = Events::default();
    let fits: Vec<String> = (0..500).map(|fit| fit.to_string()).collect();
    let kept = || -> usize {
        let logs = lock(&events.logs);
        logs.all
            .values()
            .map(|log| lock(&log.state_now).events.len())
            .sum()
    };
    for fit in &fits {
        let log = events.of(fit, 0, FitState::Running);
        for batch in 0..MOST as u64 {
            log.push(probe(batch));
        }
    }
    assert!(kept() < 5 * MOST_OPEN, "{}", kept());

    for fit in &fits {
        let log = events.find(fit).unwrap();
        log.push(probe(0));
        let first = log.follow(None).next().await.unwrap();
        assert_eq!(first.news, Notification::State(FitState::Running));
    }
    assert_eq!(kept(), MOST_OPEN);

    // Whoever is left has the room of those that have ended.
    for fit in &fits[1..] {
        events.publish(fit, FitState::Done);
    }
    let log = events.find(&fits[0]).unwrap();
    for batch in 0..MOST as u64 {
        log.push(probe(batch));
    }
    assert_eq!(lock(&log.state_now).events.len(), MOST);
}
