//! Clocks that are set while an agent works.

use super::*;

#[tokio::test]
async fn a_clock_that_is_set_is_no_work() {
    const HOUR: i64 = 3_600_000;
    let db = TestDatabase::new().await;
    let fit = NewFit {
        terms: FitTerms {
            timeout_seconds: Some(60),
            ..FitTerms::default()
        },
        ..new("1", "agent h200 x1")
    };
    db.enqueue(&fit, Reuse::Finished, 1, SPACE).await.unwrap();
    let holder = crate::agent::holder("a");
    let mut left = Vec::new();
    // Each attempt has a lease of ten seconds, and is given back, or lost, an hour early or late.
    for (number, set_by) in [-HOUR, HOUR, HOUR, -HOUR].into_iter().enumerate() {
        let begun = Time(2 * HOUR);
        let until = Time(begun.0 + 10_000);
        let lease = Lease {
            holder: &holder,
            until,
        };
        let claimed = db.claim_one("1", lease, 0, begun).await.unwrap().unwrap();
        left.push(claimed.timeout_seconds.unwrap());
        let now = Time(begun.0 + set_by);
        if number == 2 {
            assert_eq!(db.expired(now, &me(), 10_000).await.unwrap(), 1);
        } else if number == 3 {
            // A server that starts then.
            db.spare_agents(Time(now.0 + 10_000)).await.unwrap();
            db.give_back(&holder, None, Time(now.0 + 5_000))
                .await
                .unwrap();
        } else {
            db.give_back(&holder, None, now).await.unwrap();
        }
    }
    let lease = Lease {
        holder: &holder,
        until: Time(10_000),
    };
    let claimed = db.claim_one("1", lease, 0, Time(0)).await.unwrap().unwrap();
    left.push(claimed.timeout_seconds.unwrap());
    assert_eq!(left, [60, 60, 50, 40, 35]);

    db.clock_was_set(HOUR).await.unwrap();
    let moved = &db.running_fits(Some(&holder)).await.unwrap()[0];
    assert_eq!(moved.lease_until, Some(Time(HOUR + 10_000)));
    assert_eq!(moved.time_limit, Some(Time(HOUR + 35_000)));
}
