//! Forecasts of a running daemon: from what it counted, for who is connected.

use super::{DEVICE, Daemon};
use partita_model::{AdviceReport, ForecastReport, PairsReport};
use serde_json::{Value, json};

const POLICY: [&str; 2] = ["--policy", "slate"];

/// A daemon's answer to a question that it can answer.
fn answer(daemon: &Daemon, request: &str, body: &Value) -> Value {
    let answer = daemon.ask(request, &body.to_string());
    assert_eq!(answer.status, 200, "{request}: {}", answer.body);
    answer.body
}

#[test]
fn a_daemon_predicts_what_it_has_counted() {
    let daemon = Daemon::serving(DEVICE, &[], &POLICY);
    let clients: Vec<_> = (0..3).map(|_| daemon.connect()).collect();
    let spinning: Vec<_> =
        clients.iter().map(|client| [(); 4].map(|()| client.spin(200, 60))).collect();
    for (client, launches) in clients.iter().zip(&spinning) {
        launches.iter().for_each(|spinning| client.check(spinning));
    }
    let status = daemon.status();
    let known = status.applications.iter().find(|application| {
        let mut kernels = application.kernels.iter();
        kernels.any(|kernel| kernel.profile.is_some_and(|profile| profile.alone.is_some()))
    });
    let id = known.expect("a kernel was counted and timed").id;

    let ask = json!({"members": [{"application": id.0.to_string(), "sms": 12}]});
    let found: ForecastReport =
        serde_json::from_value(answer(&daemon, "POST /v1/predict", &ask)).unwrap();
    let [found] = &found.forecasts[..] else { panic!("{found:?}") };
    assert_eq!((found.application, found.sms), (id, 12));
    assert!(found.lower_ns <= found.likely_ns && found.likely_ns <= found.upper_ns, "{found:?}");
    // The kernel computes only: fewer SMs make it slower.
    assert!(found.alone_ns > found.whole_ns && found.speed < 1.0, "{found:?}");

    let ask = json!({"application": id.0.to_string(), "target_ns": found.alone_ns});
    let advice: AdviceReport =
        serde_json::from_value(answer(&daemon, "POST /v1/advice", &ask)).unwrap();
    assert!(advice.met && advice.forecast.sms <= 12, "{advice:?}");

    let present: ForecastReport =
        serde_json::from_value(answer(&daemon, "GET /v1/predict", &Value::Null)).unwrap();
    let told = present.forecasts.len() + present.left_out.len();
    assert_eq!(told, status.applications.len(), "{present:?}");
    let pairs: PairsReport =
        serde_json::from_value(answer(&daemon, "GET /v1/advice", &Value::Null)).unwrap();
    assert!(pairs.pairs.windows(2).all(|two| two[0].throughput >= two[1].throughput), "{pairs:?}");

    let too_many = json!({"members": [{"application": id.0.to_string(), "sms": 500}]});
    let refused = daemon.ask("POST /v1/predict", &too_many.to_string());
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(refused.body.to_string().contains("the GPU has 24"), "{}", refused.body);
    assert_eq!(daemon.status().partitions, status.partitions, "nothing has changed");
}
