use super::*;
use crate::store::Time;

/// Keys of these names, and the texts of each.
async fn known<const N: usize>(names: [&str; N], per_second: Option<u32>) -> (Keys, [String; N]) {
    let db = Db::open("sqlite::memory:").await.unwrap();
    let issued = names
        .map(|name| ApiKey::issue(name.to_owned(), name, Scope::Read, &[7; 32], Time(1)).unwrap());
    for (key, _) in &issued {
        assert!(db.add_key(key).await.unwrap());
    }
    let limits = KeyLimits {
        per_second,
        at_a_time: None,
    };
    (Keys::new(db, limits, 1), issued.map(|(_, text)| text))
}

/// What is answered to this key at a moment: 200 where it is let in, and how long it is to wait.
async fn answered(keys: &Keys, text: &str, at: Instant) -> (u16, Option<String>) {
    let bearer = HeaderValue::from_str(&format!("Bearer {text}")).unwrap();
    let headers = HeaderMap::from_iter([(AUTHORIZATION, bearer)]);
    let admitted = keys.admit(&Method::GET, "/v1/presets", &headers, || at);
    let Err(refused) = admitted.await else {
        return (200, None);
    };
    let wait = refused.headers().get(RETRY_AFTER);
    let wait = wait.map(|wait| wait.to_str().unwrap().to_owned());
    (refused.status().as_u16(), wait)
}

#[tokio::test]
async fn a_revoked_key_opens_nothing_from_a_second_on() {
    let begun = Instant::now();
    let (keys, [key]) = known(["ci"], None).await;
    assert_eq!(answered(&keys, &key, begun).await.0, 200);

    assert!(keys.db.revoke_key("ci", Time(2)).await.unwrap());

    let last = begun + FRESH - Duration::from_millis(1);
    assert_eq!(answered(&keys, &key, last).await.0, 200);
    assert_eq!(answered(&keys, &key, begun + FRESH).await.0, 401);
}

#[tokio::test]
async fn a_refusal_takes_time() {
    let now = Instant::now();
    let (keys, [key]) = known(["hasty"], Some(1)).await;
    assert_eq!(answered(&keys, &key, now).await.0, 200);
    tokio::time::pause();
    let asked = Instant::now();

    assert_eq!(answered(&keys, &key, now).await.0, 429);

    assert!(asked.elapsed() >= REFUSED_AFTER);
}

#[tokio::test]
async fn each_key_has_a_rate_of_its_own() {
    let begun = Instant::now();
    let (keys, [hasty, calm]) = known(["hasty", "calm"], Some(3)).await;

    for _ in 0..3 {
        assert_eq!(answered(&keys, &hasty, begun).await.0, 200);
    }
    let refused = answered(&keys, &hasty, begun).await;
    assert_eq!(refused, (429, Some("1".to_owned())));
    assert_eq!(answered(&keys, &calm, begun).await.0, 200);
}

#[test]
fn requests_come_back_over_time() {
    let begun = Instant::now();
    let mut bucket = Bucket {
        left: 2.0,
        at: begun,
    };

    assert!(bucket.take(2, begun).is_ok());
    assert!(bucket.take(2, begun).is_ok());
    let wait = bucket.take(2, begun).unwrap_err();
    assert_eq!(wait, Duration::from_millis(500));
    assert!(bucket.take(2, begun + wait).is_ok());
    assert!(bucket.take(2, begun + wait).is_err());
    // However long it rests, no more than a second's worth.
    let later = begun + Duration::from_secs(100);
    assert!(bucket.take(2, later).is_ok());
    assert!(bucket.take(2, later).is_ok());
    assert!(bucket.take(2, later).is_err());
}
